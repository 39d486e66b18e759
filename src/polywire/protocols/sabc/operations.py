"""What a message asks of the hub, read from its headers: ``op``, ``destination``, ``service``, ``method``."""

from math import isfinite
from typing import ClassVar, Final, final

from mypy_extensions import mypyc_attr

from polywire.protocols.sabc.assembly import Whole
from polywire.protocols.sabc.errors import MALFORMED
from polywire.protocols.sabc.headers import Header, header, line_problem
from polywire.protocols.sabc.intake import error_reply
from polywire.wire.frame import RAW_KEPT, Discarded, Frame

OP: Final = "op"
DESTINATION: Final = "destination"
SERVICE: Final = "service"
METHOD: Final = "method"
SUBSCRIPTION: Final = "subscription"
SENT_MSG_ID: Final = "sent-msg-id"
"""On an ERROR of the hub: the id of the hub's own message it is about."""

ERROR_TAG: Final = "error-tag"
RETRY_AFTER: Final = "retry-after"
ERROR_SOURCE: Final = "error-source"
BY_SERVICE: Final = "service"
"""SABC-138, SABC-139: headers on the ERROR of a failed call; the last is the source of one that a service sent."""

PUBLISH: Final = "publish"
SUBSCRIBE: Final = "subscribe"
UNSUBSCRIBE: Final = "unsubscribe"
CALL: Final = "call"
SERVE: Final = "serve"
UNSERVE: Final = "unserve"

NACK: Final = "nack"
"""SABC-141: the ``op`` of an answer that rejects a queue's message."""
DELAY: Final = "delay"
"""On such an answer: how many seconds the message waits at least before it is delivered again."""

NEEDS: Final[dict[str, tuple[str, ...]]] = {  # SABC-112, SABC-113
    PUBLISH: (DESTINATION,),
    SUBSCRIBE: (DESTINATION,),
    UNSUBSCRIBE: (DESTINATION,),  # SABC-117
    CALL: (SERVICE, METHOD),
    SERVE: (SERVICE,),
    UNSERVE: (SERVICE,),
}


@final
@mypyc_attr(acyclic=True)
class Operation(Frame):
    """What is to be done with a message. ``headers`` are those that travel with it (SABC-118)."""

    __match_args__: ClassVar[tuple[str, ...]] = ("op", "destination", "service", "method", "headers")

    def __init__(
        self,
        op: str = PUBLISH,
        destination: str | None = None,
        service: str | None = None,
        method: str | None = None,
        headers: tuple[Header, ...] = (),
    ) -> None:
        self.op: Final = op
        self.destination: Final = destination
        self.service: Final = service
        self.method: Final = method
        self.headers: Final = headers


def operation(message: Whole) -> Operation | Discarded:
    """What an originating message asks for, or why that can't be told, with the ERROR to answer."""
    found: dict[str, str] = {}
    others: list[Header] = []
    for pair in message.headers:
        key, value = pair
        if key not in {OP, DESTINATION, SERVICE, METHOD}:
            others.append(pair)
        elif key in found:
            return _refused(message, "SABC-121", f"header {key!r} stands twice")
        else:
            found[key] = value
    op = found.get(OP, PUBLISH)
    needs = NEEDS.get(op)
    if needs is None:
        return _refused(message, "SABC-112", f"op {op[:40]!r} is not one of {', '.join(NEEDS)}")
    for key in needs:
        if not found.get(key):
            return _refused(message, "SABC-113", f"{op} needs the header {key!r}")
    return Operation(op, found.get(DESTINATION), found.get(SERVICE), found.get(METHOD), tuple(others))


def error_headers(tag: str, retry_after: int, *, by_service: bool = False) -> tuple[Header, ...]:
    """SABC-138: what an ERROR carries besides its code and its text. A tag that can't be in a header is left behind."""
    headers: list[Header] = []
    if tag and line_problem(ERROR_TAG, tag) is None:
        headers.append((ERROR_TAG, tag))
    if retry_after > 0:
        headers.append((RETRY_AFTER, str(retry_after)))
    if by_service:
        headers.append((ERROR_SOURCE, BY_SERVICE))
    return tuple(headers)


def read_retry_after(headers: tuple[Header, ...]) -> int:
    """The ``retry-after`` of an ERROR in milliseconds, 0 where there is none that can be read."""
    text = header(headers, RETRY_AFTER) or ""
    return int(text) if len(text) <= 10 and text.isascii() and text.isdigit() else 0


def is_publication(message: Whole) -> bool:
    """Whether an originating message is a publication, valid or not."""
    for key, value in message.headers:
        if key == OP:
            return value == PUBLISH
    return True


def read_delay(headers: tuple[Header, ...]) -> float | None:
    """The delay of a rejection in seconds, 0 without one; None where it is not a number of seconds."""
    text = header(headers, DELAY)
    if text is None:
        return 0.0
    try:
        delay = float(text)
    except ValueError:
        return None
    return delay if isfinite(delay) and delay >= 0 else None


def _refused(message: Whole, rule: str, reason: str) -> Discarded:
    reply = error_reply(MALFORMED, reason, message.session_id, message.msg_id)
    return Discarded(rule, reason, 0, message.body[:RAW_KEPT], len(message.body), reply)
