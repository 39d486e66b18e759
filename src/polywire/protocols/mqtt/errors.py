"""MQTT's branch of the error tree."""

from polywire import errors


class LocalProtocolError(errors.LocalProtocolError):
    """This side tried to send what MQTT does not allow: nothing was sent, nothing has changed."""


class RemoteProtocolError(errors.RemoteProtocolError):
    """The peer broke a rule. ``reply`` is the ``Connack`` to send before closing, or None: just close (MQTT-165)."""
