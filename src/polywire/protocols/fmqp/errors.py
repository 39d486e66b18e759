"""FMQP's branch of the error tree."""

from polywire import errors


class LocalProtocolError(errors.LocalProtocolError):
    """This side tried to send a packet that FMQP does not allow."""


class RemoteProtocolError(errors.RemoteProtocolError):
    """Never raised by the decoder: FMQP discards what is wrong and continues (FMQP-35)."""
