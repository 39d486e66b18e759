"""What a UMQ peer raises in its program: a request that failed, a client that is refused."""

from polywire.client.errors import ClientError
from polywire.protocols.umq.errors import FatalCode, error_text, read_error_text


class RpcException(ClientError):
    """The other side answered a request with ``E``; raised by a handler, it is that answer.

    ``text`` is the whole payload. Where it begins with a code, as one that the other side's runtime made does,
    ``code`` is that code and ``message`` the rest (UMQ-98); else ``code`` is 0.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text
        self.code, self.message = read_error_text(text)

    @classmethod
    def of(cls, code: FatalCode, detail: str = "") -> "RpcException":
        """One with a code of UMQ's own."""
        return cls(error_text(code, detail))


class Rejected(ClientError):
    """Raised by a server's ``greet`` to refuse a client: ``F`` and code 1."""

    def __init__(self, reason: str, code: FatalCode = FatalCode.REJECTED) -> None:
        super().__init__(reason)
        self.reason = reason
        self.code = code
