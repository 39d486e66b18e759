"""What an sABC peer raises in its program."""

from polywire.client.errors import ClientError
from polywire.protocols.sabc.errors import MEANINGS
from polywire.protocols.sabc.frames import Whole
from polywire.protocols.sabc.headers import BY_SERVICE, ERROR_SOURCE, ERROR_TAG, Header, header, read_retry_after


class Failure(ClientError):
    """The other side answered a message with ERROR; raised by a handler, or by a server's ``login``, it is that answer.

    ``code`` is the ``error-code``, empty where there was none, ``text`` the body, ``headers`` the application's. Those
    of a failed call are ``tag``, ``retry_after`` in milliseconds and ``by_service``: a service answered, not the hub.
    """

    def __init__(self, code: str | int, text: str = "", headers: tuple[Header, ...] = ()) -> None:
        self.code = str(code)
        self.headers = headers
        self.tag = header(headers, ERROR_TAG) or ""
        self.retry_after = read_retry_after(headers)
        self.by_service = header(headers, ERROR_SOURCE) == BY_SERVICE
        self.text = text or ("" if self.by_service else MEANINGS.get(self.code, ""))
        super().__init__(f"{self.code} {self.text}".strip())


class Truncated(Failure):
    """The message, or its answer, was cut at a size limit (SABC-136). ``answer`` is what came, ``code`` is 413."""

    def __init__(self, answer: Whole) -> None:
        super().__init__("413", "the message, or its answer, was cut at the size limit")
        self.answer = answer
