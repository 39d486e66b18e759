"""Traffic made at random, the same for the same seed: everything a hub writes, on several nodes, with restarts."""

import json
import random
from collections.abc import Sequence
from typing import Any

from polywire.protocols.mqttrpc.errors import HUB_ERROR
from polywire.protocols.mqttrpc.frames import ErrorData, Request, Response, encode
from polywire.registry import built_in
from tests.pipeline.tables.rows import Row, numbered, row

PROTOCOLS = tuple(each.name for each in built_in())


def made(
    seed: int, *, nodes: Sequence[str] = ("n1", "n2"), steps: int = 400, seconds: float = 300.0
) -> list[dict[str, Any]]:
    """Numbered rows of several nodes."""
    rows: list[Row] = []
    for node in nodes:
        rows += _Node(random.Random(f"{seed} {node}"), node).run(steps, seconds)  # noqa: S311 - repeatable
    return numbered(rows)


def shuffled(rows: Sequence[Row], batches: int, seed: int, *, jitter: float = 4.0) -> list[list[Row]]:
    """The rows cut into batches out of order: up to ``jitter`` seconds late, and the second node all behind the first.

    Requests of one call stay in order, as the source leaves them, and so do a call's end and what the hub says of it.
    """
    chance = random.Random(seed)  # noqa: S311 - as above
    late: dict[Any, float] = {}
    keyed = []
    for one in rows:
        asks = one.get("call") or (one.get("correlation") if one["kind"] == "request" else None)
        call = (one["node"], asks or (one["offset"],))
        delay = late.setdefault(call, chance.uniform(0, jitter))
        keyed.append((one["node"] != "n1", one["ts"].timestamp() + delay, one["offset"], one))
    order = [entry[-1] for entry in sorted(keyed, key=lambda entry: entry[:3])]
    size = -(-len(order) // batches)
    cut = [order[start : start + size] for start in range(0, len(order), size)]
    for batch in cut:
        chance.shuffle(batch)
    return cut


AGAIN = 150.0
"""Seconds after which a correlation id may be used again."""

HEADERS = (
    *('{"a":"b"}', '{"n":1,"when":{"date":5}}', ' {"a" : "b"} '),
    *("not json", "[1]", "{'a':'b'}", '{"a":NaN}', '{"a":1} and more', '{"a":1},{"b":2}', '{"a":1}]', '{"a":1}}', ""),
)


class _Node:
    """One hub and its clients."""

    def __init__(self, chance: random.Random, node: str) -> None:
        self.chance = chance
        self.node = node
        self.now = 0.0
        self.rows: list[Row] = []
        self.connections: dict[int, tuple[str, str | None]] = {}
        self.last_connection = 0
        self.calls = 0
        self.open: list[tuple[float, str, str]] = []
        self.latest: dict[str, float] = {}
        self.answers: list[tuple[float, int, str, dict[str, Any]]] = []

    def run(self, steps: int, seconds: float) -> list[Row]:
        self.start()
        acts = [self.connect, self.publish, self.publish, self.enqueue, self.call, self.call, self.subscribe]
        acts += [self.unsubscribe, self.disconnect, self.discard, self.odd, self.keep, self.rpc, self.rpc]
        for step in range(steps):
            self.now += self.chance.expovariate(steps / seconds)
            self.answer()
            if step == steps // 2:
                self.start()
            elif not self.connections:
                self.connect()
            else:
                self.chance.choice(acts)()
        return self.rows

    def add(self, kind: str, connection: int, **more: Any) -> None:
        protocol, client = self.connections.get(connection, (None, None))
        told = {"protocol": protocol, "client": client, "connection": connection, "node": self.node}
        self.rows.append(row(kind, self.now, **(told | more)))

    def somebody(self) -> int:
        return self.chance.choice(list(self.connections))

    def channel(self) -> str:
        return self.chance.choice(["a/b", "a/c", "plant/1/temp", "grüße", "deep/" * 5 + "end"])

    def start(self) -> None:
        """All connections and calls of before are gone, and nobody says so."""
        self.connections.clear()
        self.open.clear()
        self.answers.clear()
        self.add("session", 0, flags=128, headers='{"start":true}')

    def connect(self) -> None:
        self.last_connection += self.chance.randint(1, 3)
        client = self.chance.choice([None, f"client-{self.last_connection % 7}"])
        self.connections[self.last_connection] = (self.chance.choice(PROTOCOLS), client)
        headers = json.dumps({"address": "127.0.0.1:5", "user": "ann"}, separators=(",", ":"))
        self.add("connect", self.last_connection, headers=headers)

    def disconnect(self) -> None:
        gone = self.somebody()
        self.add("disconnect", gone, headers='{"reason":"closed"}')
        del self.connections[gone]

    def publish(self) -> None:
        body = self.chance.choice([b"plain", "grün".encode(), b"\xff\x00", b""])
        headers = self.chance.choice([None, None, *HEADERS])
        self.add(
            "publish",
            self.somebody(),
            channel=self.channel(),
            body=body,
            headers=headers,
            flags=self.chance.choice([0, 1, 2, 4, 32, 33, 64]),
            content_type="text/plain",
        )

    def enqueue(self) -> None:
        self.add(
            "enqueue",
            self.somebody(),
            channel="queue/jobs",
            body=b"x" * self.chance.randint(0, 50),
            attachments=[b"1", b"\xfe"],
        )

    def subscribe(self) -> None:
        self.add("subscribe", self.somebody(), channel=self.chance.choice(["a/b", "a/*", "plant/**"]))

    def unsubscribe(self) -> None:
        self.add("unsubscribe", self.somebody(), channel=self.chance.choice(["a/b", "a/*", "plant/**"]))

    def keep(self) -> None:
        self.add(
            self.chance.choice(["subscribe", "deliver", "sent", "ack"]),
            0,
            protocol="mqtt",
            client="kept",
            channel="a/b",
            flags=8,
        )

    def discard(self) -> None:
        self.add(
            "discard",
            self.somebody(),
            channel=None,
            body=b"\x00\x01raw",
            size=4000,
            headers='{"rule":"FMQP-12","reason":"bad topic"}',
        )

    def odd(self) -> None:
        """Rows that should not be."""
        fate = self.chance.randrange(4)
        if fate == 0:
            self.add("request", self.somebody(), channel="nomethod", correlation=None, flags=16)
        elif fate == 1:
            self.add("request", self.somebody(), channel=None, correlation=f"nowhere-{len(self.rows)}", flags=16)
        elif fate == 2:
            words = "{'code':500,'tag':'failed'}"
            told = {"channel": "lost/one", "correlation": f"odd-{len(self.rows)}", "flags": 16}
            self.add("request", self.somebody(), **told)
            self.add("request", self.somebody(), **told)
            self.now += 5
            self.add("error", 0, headers=words, **told)
            self.add("request", self.somebody(), **told)
        else:
            self.add("reply", self.somebody(), channel="lost/one", correlation=f"unknown-{len(self.rows)}", flags=16)

    def rpc(self) -> None:
        """A call on a service topic, of any kind there is."""
        topic, method = self.chance.choice(["/meter", "/grüße"]), self.chance.choice(["Read", "shop.Meter/Read"])
        # Some clients count their calls, and begin again.
        number = self.chance.choice([self.chance.getrandbits(64) | 1, self.chance.randint(1, 3)])
        caller, key = self.somebody(), f"{topic}:{number}"
        if self.now - self.latest.get(key, -AGAIN) < AGAIN:
            return
        self.latest[key] = self.now
        fate = self.chance.choice(
            ["unary", "unary", "stream", "single", "error", "silence", "in", "out", "refused", "noise"]
        )
        if fate == "noise":
            body = self.chance.choice([b"21.5", b"{}", b"", b"\x08\x01", b"\xff"])
            self.add("publish", caller, channel=topic, body=body, protocol="mqtt")
            return
        mqtt, hub = {"protocol": "mqtt"}, {"protocol": "mqttrpc", "client": None}
        asked = encode(Request(number, method, b"?", eos=True))
        due = self.now + self.chance.expovariate(1 / self.chance.choice([0.01, 1.0, 20.0]))

        def say(at: float, body: bytes, **more: Any) -> None:
            self.answers.append((at, len(self.answers), "publish", {"channel": topic, "body": body} | more))

        if fate == "out":
            self.calls += 1
            told = {"channel": f"{topic[1:]}/Read", "correlation": str(self.calls), "flags": 16}
            self.add("request", caller, body=b"?", **told)
            self.add("publish", 0, channel=topic, body=asked, **hub)
            say(due, encode(Response(number, "", b"!", eos=True)), **mqtt)
            self.answers.append((due, len(self.answers), "reply", told | {"body": b"!"}))
            return
        self.add("publish", caller, channel=topic, body=asked, call=key, **mqtt)
        if fate == "in":
            told = {"channel": f"{topic[1:]}/Read", "correlation": key, "flags": 16}
            if self.chance.random() < 0.8:  # not as releases before did it
                self.add("request", caller, body=b"?", call=key, **told)
                self.answers.append((due, len(self.answers), "reply", told | {"body": b"!", "call": f"{key} ends"}))
            say(due, encode(Response(number, "", b"!", eos=True)), call=f"{key} ends", **hub)
        elif fate == "stream":
            self.add(
                "publish",
                caller,
                channel=topic,
                body=encode(Request(number, method, b"more", eos=True)),
                call=key,
                **mqtt,
            )
            say(due, encode(Response(number, "", b"one", eos=False)), **mqtt)
            say(due + 1, encode(Response(number, "", b"three", eos=True)), **mqtt)
        elif fate in {"error", "refused"}:
            error = ErrorData(503, "überlastet", "später", 10)
            url = HUB_ERROR if fate == "refused" else ""
            say(due, encode(Response(number, url, b"", error, eos=True)), **(hub if url else mqtt))
        elif fate != "silence":
            # A clock that was set back.
            say(
                due, encode(Response(number, "", b"!", eos=fate == "unary")), back=self.chance.choice([0, 0, 3]), **mqtt
            )

    def call(self) -> None:
        self.calls += 1
        correlation, channel = str(self.calls), self.chance.choice(["billing/charge", "a/b/c/get", "billing/refund"])
        caller = self.somebody()
        streamed = self.chance.random() < 0.2
        self.add("request", caller, channel=channel, correlation=correlation, body=b"?", flags=0 if streamed else 16)
        if streamed:
            self.now += 0.01
            self.add("request", caller, channel=channel, correlation=correlation, body=b"more", flags=16)
        if self.chance.random() < 0.85:
            self.open.append(
                (self.now + self.chance.expovariate(1 / self.chance.choice([0.01, 1.0, 20.0])), correlation, channel)
            )

    def answer(self) -> None:
        """Calls that are due end, one way or another."""
        now = self.now
        for entry in sorted(self.answers, key=lambda entry: entry[:2]):
            if entry[0] <= now:
                self.answers.remove(entry)
                told = dict(entry[3])
                back = told.pop("back", 0)
                self.now -= back
                self.add(entry[2], self.somebody() if self.connections else 0, **told)
                self.now += back
        for due, correlation, channel in sorted(self.open):
            if due > now:
                continue
            self.open.remove((due, correlation, channel))
            fate = self.chance.random()
            told = {"channel": channel, "correlation": correlation}
            if fate < 0.2:
                code = self.chance.choice([(500, "failed"), (504, "timeout")])
                self.add(
                    "error", 0, flags=16, headers=json.dumps({"code": code[0], "tag": code[1], "text": "no"}), **told
                )
            else:
                if fate < 0.4:
                    self.add("reply", self.somebody() if self.connections else 0, body=b"part", **told)
                self.add("reply", self.somebody() if self.connections else 0, body=b"answer", flags=16, **told)
