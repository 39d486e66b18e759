"""UMQ's branch of the error tree."""

from polywire import errors
from polywire.protocols.umq.codes import FatalCode, error_text


class LocalProtocolError(errors.LocalProtocolError):
    """This side tried to send a message, or to use an id, that UMQ does not allow."""


class RemoteProtocolError(errors.RemoteProtocolError):
    """The peer broke a rule that ends the connection; ``reply`` is the ``Fatal`` to answer with (UMQ-96)."""


class MethodError(errors.ProtocolError):
    """A call that can't be served as it stands; the connection lives on.

    ``code`` is one of the codes of UMQ-96, ``payload`` what the ``E`` that answers the call carries (UMQ-98).
    """

    def __init__(self, reason: str, *, rule: str, code: FatalCode = FatalCode.BAD_REQUEST) -> None:
        super().__init__(reason, rule=rule)
        self.code = code

    @property
    def payload(self) -> str:
        """The text of the ``E``: the code, a space, its meaning, and what was wrong."""
        return error_text(self.code, self.reason)
