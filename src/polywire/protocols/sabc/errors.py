"""sABC's branch of the error tree, and the codes its ERROR frames carry."""

from typing import Final

from polywire import errors

MALFORMED: Final = "400"
UNAUTHORIZED: Final = "401"
FORBIDDEN: Final = "403"
NOT_FOUND: Final = "404"
TOO_SLOW: Final = "408"
CONFLICT: Final = "409"
LIMIT: Final = "429"
DRAINING: Final = "503"

MEANINGS: Final[dict[str, str]] = {  # SABC-93
    MALFORMED: "malformed frame",
    UNAUTHORIZED: "wrong or missing session-id, or failed login",
    FORBIDDEN: "access forbidden",
    NOT_FOUND: "no such service or subscription",
    TOO_SLOW: "too slow",
    CONFLICT: "CONNECT twice",
    LIMIT: "a limit was passed",
    DRAINING: "draining",
}


class LocalProtocolError(errors.LocalProtocolError):
    """This side tried to send a frame that sABC does not allow, or not now."""


class RemoteProtocolError(errors.RemoteProtocolError):
    """The peer sent what ends the connection: a CONNECT that can't be accepted, or far too many broken messages.

    ``reply`` is the ERROR frame to send before closing.
    """


class Refused(Exception):
    """Why a frame is refused: the ``code`` to answer with, the rule, words, and the number of its line in the head."""

    def __init__(self, code: str, rule: str, reason: str, line: int = 0) -> None:
        super().__init__(reason)
        self.code = code
        self.rule = rule
        self.reason = reason
        self.line = line
