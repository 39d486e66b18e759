"""What an sABC peer raises in its program."""

from polywire.client.errors import ClientError
from polywire.protocols.sabc.assembly import Whole
from polywire.protocols.sabc.errors import MEANINGS
from polywire.protocols.sabc.headers import Header


class Failure(ClientError):
    """The other side answered a message with ERROR; raised by a handler, or by a server's ``login``, it is that answer.

    ``code`` is the ``error-code``, empty where there was none, ``text`` the body, ``headers`` the application's.
    """

    def __init__(self, code: str | int, text: str = "", headers: tuple[Header, ...] = ()) -> None:
        self.code = str(code)
        self.text = text or MEANINGS.get(self.code, "")
        self.headers = headers
        super().__init__(f"{self.code} {self.text}".strip())


class Truncated(Failure):
    """The message, or its answer, was cut at a size limit (SABC-136). ``answer`` is what came, ``code`` is 413."""

    def __init__(self, answer: Whole) -> None:
        super().__init__("413", "the message, or its answer, was cut at the size limit")
        self.answer = answer
