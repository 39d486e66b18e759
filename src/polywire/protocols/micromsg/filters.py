"""What a subscription is made of: a destination, a filter on properties, and the commands that carry them.

A filter is ``clause;clause``, all of which must hold. It is URL encoded in the command ``subscribe``; the grammar of
commands has undone that before it is read here. The texts in it are URL encoded themselves, as they are in properties,
so that they may hold a semicolon.
"""

from datetime import datetime
from typing import Any, ClassVar, Final, final

from mypy_extensions import mypyc_attr

from polywire.protocols.micromsg.errors import (
    BAD_FILTER,
    BAD_FRAME,
    FORBIDDEN,
    NO_SUCH_DESTINATION,
    UNKNOWN_COMMAND,
    LocalProtocolError,
    MalformedError,
)
from polywire.protocols.micromsg.frames import Command, Error
from polywire.protocols.micromsg.text import Value, is_key, read_value, shown, write_value
from polywire.wire.frame import Frame

TOPIC_PREFIX: Final = "topic/"
SERVICE_LEVEL: Final = "$"

SUBSCRIBE: Final = "subscribe"
UNSUBSCRIBE: Final = "unsubscribe"
PING: Final = Command("ping")
PONG: Final = Command("pong")
"""MICROMSG-132: the answer to ``PING``."""

MAX_CLAUSES = 64
"""How many clauses a filter may have by default."""

OPERATORS: Final = ("!=", "<=", ">=", "=", "<", ">", "~", "&")
"""MICROMSG-145, the longer ones first."""
TEXT_OPERATORS: Final = ("=", "!=", "<", ">", "~", "&")
"""MICROMSG-84."""
ORDER_OPERATORS: Final = ("=", "!=", "<", "<=", ">", ">=")
"""MICROMSG-146."""

RULE: Final = "MICROMSG-173"


@final
@mypyc_attr(acyclic=True)
class Clause(Frame):
    """One condition: the property ``key`` compared with ``value``."""

    __match_args__: ClassVar[tuple[str, ...]] = ("key", "operator", "value")

    def __init__(self, key: str, operator: str, value: Value) -> None:
        self.key: Final = key
        self.operator: Final = operator
        self.value: Final = value

    def holds(self, properties: dict[str, Value]) -> bool:
        """Whether the properties meet the condition; a property that is missing or of another type does not."""
        found = properties.get(self.key)
        value = self.value
        if isinstance(value, str):
            return isinstance(found, str) and _text_holds(found, self.operator, value)
        if isinstance(value, datetime):
            return isinstance(found, datetime) and _order_holds(found, self.operator, value)
        return isinstance(found, (int, float)) and _order_holds(found, self.operator, value)


@final
@mypyc_attr(acyclic=True)
class Filter(Frame):
    """Conditions that must all hold. A filter without clauses lets everything through."""

    __match_args__: ClassVar[tuple[str, ...]] = ("clauses",)

    def __init__(self, clauses: tuple[Clause, ...] = ()) -> None:
        self.clauses: Final = clauses


def matches(condition: Filter, properties: dict[str, Value]) -> bool:
    """Whether all clauses of a filter hold for a message's properties."""
    for clause in condition.clauses:
        if not clause.holds(properties):
            return False
    return True


def read_filter(text: str, *, max_clauses: int = MAX_CLAUSES) -> Filter | Error:
    """The filter, or the ERROR ``bad-filter`` to answer with, after which the connection stays open."""
    clauses: list[Clause] = []
    pieces = text.removesuffix(";").split(";", max_clauses)
    if len(pieces) > max_clauses:
        return _refused(f"more than {max_clauses} clauses")
    if text:
        for piece in pieces:
            try:
                clauses.append(_read_clause(piece))
            except MalformedError as error:
                return _refused(error.reason)
    return Filter(tuple(clauses))


def write_filter(condition: Filter) -> str:
    """The text of a filter, for the argument ``filter`` of ``subscribe``. Raises ``LocalProtocolError``."""
    written: list[str] = []
    for clause in condition.clauses:
        if not is_key(clause.key):
            raise LocalProtocolError(f"{shown(clause.key)} can't be a property's key", rule=RULE)
        wrong = _operator_problem(clause.operator, clause.value)
        if wrong is not None:
            raise LocalProtocolError(wrong, rule=RULE)
        written.append(clause.key + clause.operator + write_value(clause.value))
    return ";".join(written)


def _read_clause(text: str) -> Clause:
    at = 0
    while at < len(text) and is_key(text[at]):
        at += 1
    if at == 0:
        raise MalformedError(f"the clause {shown(text)} does not begin with a key", rule=RULE, at=0)
    for operator in OPERATORS:
        if text.startswith(operator, at):
            value = read_value(text[at + len(operator) :], at + len(operator))
            if value is None:
                raise MalformedError(f"the clause {shown(text)} has no valid N, D or T value", rule=RULE, at=at)
            wrong = _operator_problem(operator, value)
            if wrong is not None:
                raise MalformedError(wrong, rule=RULE, at=at)
            return Clause(text[:at], operator, value)
    raise MalformedError(f"the clause {shown(text)} has no operator after its key", rule=RULE, at=at)


def _operator_problem(operator: str, value: Value) -> str | None:
    allowed = TEXT_OPERATORS if isinstance(value, str) else ORDER_OPERATORS
    if operator in allowed:
        return None
    kind = "texts" if isinstance(value, str) else "numbers and dates"
    return f"the operator {shown(operator)} is not for {kind}, which have {' '.join(allowed)}"


def _text_holds(found: str, operator: str, value: str) -> bool:
    if operator == "=":
        return found == value
    if operator == "!=":
        return found != value
    if operator == "<":
        return found.startswith(value)
    if operator == ">":
        return found.endswith(value)
    if operator == "&":
        return value in found
    return operator == "~" and value not in found


def _order_holds(found: Any, operator: str, value: Any) -> bool:
    """Compare two numbers or two dates. Any, because a compiled ``float`` would round large integers."""
    if operator == "=":
        return bool(found == value)
    if operator == "!=":
        return bool(found != value)
    if operator == "<":
        return bool(found < value)
    if operator == "<=":
        return bool(found <= value)
    if operator == ">":
        return bool(found > value)
    return operator == ">=" and bool(found >= value)


def _refused(reason: str) -> Error:
    return Error(BAD_FILTER, (("reason", reason),))


# Destinations: "topic/<path>" is a topic, anything else a queue.


def topic_path(destination: str) -> str | None:
    """MICROMSG-138: the path of the topic at a destination, None for a queue. In a subscription it may be a pattern."""
    return destination.removeprefix(TOPIC_PREFIX) if destination.startswith(TOPIC_PREFIX) else None


def is_usable(destination: str) -> bool:
    """Whether something can be at a destination: its name is neither empty nor under ``$``."""
    name = destination.removeprefix(TOPIC_PREFIX)
    return name not in {"", SERVICE_LEVEL} and not name.startswith("$/")


def covers(subscribed: str, destination: str) -> bool:
    """Whether a subscription to one destination, perhaps a pattern, gets the messages to another (MICROMSG-136)."""
    if subscribed == destination:
        return True
    if not (subscribed.startswith(TOPIC_PREFIX) and destination.startswith(TOPIC_PREFIX)):
        return False
    pattern, levels = subscribed.split("/"), destination.split("/")
    if pattern[-1] == "**":
        pattern.pop()
        if len(levels) < len(pattern):
            return False
        levels = levels[: len(pattern)]
    return len(pattern) == len(levels) and all(one in {"*", other} for one, other in zip(pattern, levels, strict=True))


# Commands, and the ERROR frames after which the connection stays open.


def subscribe(destination: str, condition: Filter) -> Command:
    """The command that subscribes. Raises ``LocalProtocolError`` for a filter that can't be written."""
    if not condition.clauses:
        return Command(SUBSCRIBE, (("destination", destination),))
    return Command(SUBSCRIBE, (("destination", destination), ("filter", write_filter(condition))))


def unsubscribe(destination: str) -> Command:
    """The command that ends a subscription."""
    return Command(UNSUBSCRIBE, (("destination", destination),))


def read_subscription(command: Command, *, pub_sub: bool, max_clauses: int = MAX_CLAUSES) -> tuple[str, Filter] | Error:
    """The destination and filter of ``subscribe`` or ``unsubscribe``, or the ERROR to answer with.

    ``pub_sub``: whether that extension was agreed on. The filter of ``unsubscribe`` is empty.
    """
    if not pub_sub or command.name not in {SUBSCRIBE, UNSUBSCRIBE}:
        return Error(UNKNOWN_COMMAND, (("name", command.name),))  # MICROMSG-131
    destination = command.value("destination")
    if destination is None:
        return Error(BAD_FRAME, (("reason", f"{command.name} has no destination"),))
    if not is_usable(destination):
        return no_such_destination(destination)
    if command.name == UNSUBSCRIBE:
        return destination, Filter()
    condition = read_filter(command.value("filter") or "", max_clauses=max_clauses)
    return condition if isinstance(condition, Error) else (destination, condition)


def forbidden(destination: str) -> Error:
    """The peer may not do this with the destination."""
    return Error(FORBIDDEN, (("destination", destination),))


def no_such_destination(destination: str) -> Error:
    """There is nothing at the destination, or the peer is not subscribed to it."""
    return Error(NO_SUCH_DESTINATION, (("destination", destination),))
