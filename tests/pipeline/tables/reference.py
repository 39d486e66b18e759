"""The seven tables computed once more, in plain Python and without Spark, from the words of the documentation."""

import json
from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime, timedelta
from math import ceil
from typing import Any

from polywire.protocols.mqttrpc.errors import HUB_ERROR, RemoteProtocolError
from polywire.protocols.mqttrpc.frames import Decoder, Request, Response
from polywire.protocols.mqttrpc.service import parse_type_url, service_of
from tests.pipeline.tables.rows import Row

MESSAGES = ("publish", "enqueue", "request", "reply", "error")
TIMEOUT = timedelta(seconds=60)
LATENESS = timedelta(seconds=10)

Table = list[dict[str, Any]]


def tables(rows: Sequence[Row], now: datetime | None = None) -> dict[str, Table]:
    """All of them. ``now``: when the journal was read to its end; by default at its latest row."""
    rows = [{name: one.get(name) for name in _COLUMNS} | dict(one) for one in rows]
    called = calls(rows, now)
    return {
        "messages": messages(rows),
        "calls": called,
        "sessions": sessions(rows),
        "faults": faults(rows),
        "traffic": traffic(rows),
        "latency": latency(called),
        "demand": demand(rows),
    }


_COLUMNS = ("client", "channel", "correlation", "content_type", "headers", "attachments", "protocol")


def _minute(ts: datetime) -> datetime:
    return ts.replace(second=0, microsecond=0)


def _headers(one: Row) -> dict[str, str] | None:
    if one["headers"] is None:
        return None
    try:
        found = json.loads(one["headers"], parse_constant=_no_number)
    except ValueError:
        return None
    if not isinstance(found, dict):
        return None
    return {
        key: value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
        for key, value in found.items()
    }


def _no_number(text: str) -> None:
    raise ValueError(text)


def _text(body: bytes) -> str | None:
    try:
        return body.decode()
    except UnicodeDecodeError:
        return None


def messages(rows: Sequence[Row]) -> Table:
    """Every message."""
    found = []
    for one in rows:
        if one["kind"] not in MESSAGES:
            continue
        text, flags = _text(one["body"]), one["flags"]
        same = (
            "ts",
            "node",
            "offset",
            "kind",
            "connection",
            "client",
            "channel",
            "correlation",
            "content_type",
            "attachments",
            "size",
        )
        found.append(
            {name: one[name] for name in same}
            | {
                "day": one["ts"].date(),
                "protocol": one["protocol"] or "none",
                "headers": _headers(one),
                "text": text,
                "body": one["body"] if text is None else None,
                "qos": flags >> 1 & 3,
                "retain": bool(flags & 1),
                "will": bool(flags & 64),
                "unheard": bool(flags & 32),
                "last": bool(flags & 16),
            }
        )
    return found


def faults(rows: Sequence[Row]) -> Table:
    """What went wrong."""
    found = []
    for one in rows:
        headers = _headers(one) or {}
        fault, reason = None, headers.get("reason")
        if one["kind"] == "discard":
            fault = "discarded"
        elif one["headers"] is not None and _headers(one) is None:
            fault, reason = "bad-headers", "the headers are not a JSON object"
        elif one["kind"] in {"request", "reply", "error"} and (
            one["correlation"] is None or "/" not in (one["channel"] or "")
        ):
            fault, reason = "bad-call", "a part of a call needs a correlation and a channel <service>/<method>"
        if fault is not None:
            same = ("ts", "node", "offset", "connection", "client", "channel", "correlation", "headers", "size")
            found.append(
                {name: one[name] for name in same}
                | {"day": one["ts"].date(), "protocol": one["protocol"] or "none"}
                | {"fault": fault, "rule": headers.get("rule"), "reason": reason, "raw": one["body"]}
            )
    return found


def part_of_call(one: Row) -> Row | None:
    """A row as the part of a call that it is, if it is one; publications on service topics as the hub decodes them."""
    if one["kind"] == "publish" and (one.get("channel") or "")[:1] == "/" and service_of(one["channel"]):
        return _published_part(one)
    whole = one.get("correlation") is not None and "/" in (one.get("channel") or "")
    return one if whole and one["kind"] in {"request", "reply", "error"} else None


def _published_part(one: Row) -> Row | None:
    try:
        (frame,) = Decoder().feed(one["body"])
    except RemoteProtocolError:
        return None
    assert isinstance(frame, Request | Response)
    service = one["channel"][1:]
    value = frame.value or b""
    told = {"correlation": f"{one['channel']}:{frame.correlation_id}", "size": len(value), "flags": 16 * frame.eos}
    if isinstance(frame, Request):
        name = parse_type_url(frame.type_url)
        if name is None or one["protocol"] == "mqttrpc" or frame.correlation_id == 0:
            return None
        return {**one, **told, "kind": "request", "channel": f"{service}/{name.method}"}
    if frame.correlation_id == 0:
        return None
    if one["protocol"] == "mqttrpc" and frame.type_url != HUB_ERROR:
        return {**one, **told, "kind": "passed"}
    error = frame.error_data
    kind = "error" if error is not None else "reply" if frame.eos else "single"
    words = {} if error is None else {"code": error.code, "tag": error.tag, "text": error.user_message}
    return {**one, **told, "kind": kind, "headers": json.dumps(words)}


def _cut(rows: Sequence[Row]) -> list[list[Row]]:
    """The parts of one correlation, by call: a request long after the last one begins another."""
    found: list[list[Row]] = []
    latest: datetime | None = None
    for one in rows:
        if one["kind"] == "request":
            if latest is None or one["ts"] > latest + TIMEOUT + LATENESS:
                found.append([])
            latest = one["ts"]
        if found:
            found[-1].append(one)
    return found


def _ends(one: Row) -> bool:
    return one["kind"] in {"error", "passed"} or (one["kind"] == "reply" and bool(one["flags"] & 16))


def _end_of(call: Sequence[Row]) -> Row | None:
    """What ended it, if that came in time."""
    until = call[0]["ts"] + TIMEOUT
    ends = [one for one in call if _ends(one)]
    if ends and ends[0]["ts"] <= until:
        return ends[0]
    singles = [one for one in call if one["kind"] == "single" and one["ts"] <= until]
    return singles[-1] if singles else None


def calls(rows: Sequence[Row], now: datetime | None = None) -> Table:
    """Each call that is over, by the latest row or ``now``."""
    clocks: dict[str, datetime] = {}
    parts: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for one in sorted(rows, key=lambda one: int(one["offset"])):
        clocks[one["node"]] = max(clocks.get(one["node"], now or one["ts"]), one["ts"])
        part = part_of_call(one)
        if part is not None:
            parts[part["node"], part["correlation"]].append(part)
    found = []
    for call in (call for own in parts.values() for call in _cut(own)):
        request, end = call[0], _end_of(call)
        if not any(_ends(one) for one in call) and clocks[request["node"]] < request["ts"] + TIMEOUT + LATENESS:
            continue
        if end is not None and end["kind"] == "passed":
            continue
        ended = request["ts"] + TIMEOUT if end is None else end["ts"]
        words = _headers(end) or {} if end is not None and end["kind"] == "error" else {}
        timeout = end is None or words.get("tag") == "timeout"
        service, _, method = request["channel"].rpartition("/")
        found.append(
            {
                "day": request["ts"].date(),
                "protocol": request["protocol"] or "none",
                "node": request["node"],
                "correlation": request["correlation"],
                "offset": request["offset"],
                "service": service,
                "method": method,
                "connection": request["connection"],
                "client": request["client"],
                "requested": request["ts"],
                "ended": ended,
                "latency_ms": None if ended < request["ts"] else (ended - request["ts"]) / timedelta(milliseconds=1),
                "outcome": "timeout" if timeout else "error" if end is not None and end["kind"] == "error" else "ok",
                "code": int(words["code"]) if "code" in words else None,
                "tag": words.get("tag"),
                "text": words.get("text"),
                "request_size": request["size"],
                "reply_size": 0 if end is None else end["size"],
            }
        )
    return found


def sessions(rows: Sequence[Row]) -> Table:
    """Each connection whose beginning is known."""
    starts = [(one["node"], one["offset"]) for one in rows if _is_start(one)]
    of: dict[tuple[str, int], list[Row]] = defaultdict(list)
    for one in rows:
        if one["connection"] > 0:
            of[one["node"], one["connection"]].append(one)
    found = []
    for (node, connection), own in of.items():
        connects = [one for one in own if one["kind"] == "connect"]
        ends = [one for one in own if one["kind"] == "disconnect"]
        if not connects:
            continue
        begin, words = connects[0], _headers(connects[0]) or {}
        lost = not ends and any(where == node and offset > begin["offset"] for where, offset in starts)
        ended = ends[0]["ts"] if ends else max(one["ts"] for one in own) if lost else None
        sent = [one for one in own if one["kind"] in MESSAGES]
        found.append(
            {
                "day": begin["ts"].date(),
                "protocol": begin["protocol"] or "none",
                "node": node,
                "connection": connection,
                "client": begin["client"],
                "user": words.get("user"),
                "address": words.get("address"),
                "connected": begin["ts"],
                "ended": ended,
                "seconds": None if ended is None else (ended - begin["ts"]).total_seconds(),
                "state": "closed" if ends else "lost" if lost else "open",
                "reason": (_headers(ends[0]) or {}).get("reason") if ends else "the hub was lost" if lost else None,
                "messages": len(sent),
                "bytes": sum(one["size"] for one in sent),
            }
        )
    return found


def _is_start(one: Row) -> bool:
    return one["kind"] == "session" and one["client"] is None and "start" in (_headers(one) or {})


def traffic(rows: Sequence[Row]) -> Table:
    """Messages per minute, protocol and channel."""
    groups: dict[Any, list[Row]] = defaultdict(list)
    for one in rows:
        if one["kind"] in MESSAGES:
            groups[_minute(one["ts"]), one["protocol"] or "none", one["channel"]].append(one)
    return [
        {
            "day": minute.date(),
            "protocol": protocol,
            "minute": minute,
            "channel": channel,
            "messages": len(own),
            "bytes": sum(one["size"] for one in own),
            "publishers": len({one["client"] or f"{one['node']}#{one['connection']}" for one in own}),
        }
        for (minute, protocol, channel), own in groups.items()
    ]


def latency(called: Table) -> Table:
    """Percentiles per minute, service and method."""
    groups: dict[Any, Table] = defaultdict(list)
    for call in called:
        groups[_minute(call["requested"]), call["service"], call["method"]].append(call)
    found = []
    for (minute, service, method), own in groups.items():
        answered = [call for call in own if call["outcome"] != "timeout"]
        timed = [call["latency_ms"] for call in answered if call["latency_ms"] is not None]
        times = sorted(_about(round(milliseconds * 1000)) for milliseconds in timed)
        longest = max(timed, default=0.0)
        errors = sum(call["outcome"] == "error" for call in own)
        timeouts = len(own) - len(answered)
        found.append(
            {
                "day": minute.date(),
                "minute": minute,
                "service": service,
                "method": method,
                "calls": len(own),
                "errors": errors,
                "timeouts": timeouts,
                "error_rate": (errors + timeouts) / len(own),
                "p50_ms": _percentile(times, 0.50, longest),
                "p95_ms": _percentile(times, 0.95, longest),
                "p99_ms": _percentile(times, 0.99, longest),
                "max_ms": longest if timed else None,
            }
        )
    return found


def _about(us: int) -> int:
    step = 1 << max(us.bit_length() - 8, 0)
    return us - us % step + step // 2


def _percentile(times: list[int], share: float, longest: float) -> float | None:
    return min(times[ceil(len(times) * share) - 1] / 1000, longest) if times else None


def demand(rows: Sequence[Row]) -> Table:
    """Who joined and left, step by step, as the hub itself would count."""
    found: dict[Any, dict[str, int]] = defaultdict(lambda: dict.fromkeys(("joined", "left", "published", "unheard"), 0))
    subscribed: set[tuple[str, int, str]] = set()

    def leave(one: Row, gone: set[tuple[str, int, str]]) -> None:
        for who in gone:
            subscribed.discard(who)
            found[_minute(one["ts"]), who[2]]["left"] += 1

    for one in sorted(rows, key=lambda one: int(one["offset"])):
        node, connection, channel = one["node"], one["connection"], one["channel"]
        who = (node, connection, channel)
        if one["kind"] == "publish":
            cell = found[_minute(one["ts"]), channel]
            cell["published"] += 1
            cell["unheard"] += bool(one["flags"] & 32)
        elif one["kind"] == "subscribe" and not one["flags"] & 8 and who not in subscribed:
            subscribed.add(who)
            found[_minute(one["ts"]), channel]["joined"] += 1
        elif one["kind"] == "unsubscribe" and not one["flags"] & 8 and who in subscribed:
            leave(one, {who})
        elif one["kind"] == "disconnect":
            leave(one, {other for other in subscribed if other[:2] == (node, connection)})
        elif _is_start(one):
            leave(one, {other for other in subscribed if other[0] == node})
    totals: dict[str, int] = defaultdict(int)
    table = []
    for (minute, channel), cell in sorted(found.items()):
        totals[channel] += cell["joined"] - cell["left"]
        table.append(
            {"day": minute.date(), "minute": minute, "channel": channel, **cell, "subscribers": totals[channel]}
        )
    return table
