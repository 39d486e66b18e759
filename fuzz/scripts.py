"""Valid sessions of every protocol and of HTTP, and how a seed makes an input of them that is not quite valid.

An input is a list of pieces that one connection sends. ``SESSION`` in a piece stands for what the hub gave the client
at its login (sABC's session id).
"""

import json
import random
from collections.abc import Callable
from dataclasses import dataclass

from faults.load import arrow_stream
from polywire.protocols import fmqp, micromsg, mqtt, mqttrpc
from polywire.protocols.fmqp.frames import CACHE, FEEDBACK, LAST_WILL
from polywire.protocols.micromsg.text import read_extensions
from tests.faults.friends import END, masked, upgrade

SESSION = b"%SESSION%"
TEXT, BINARY = 0x81, 0x82

STRANGE = (
    *(b"", b"\0", b"\xff\xfe", b"\xc0\x80", b"\xed\xa0\x80", "𝄞é\u202e".encode(), b"a" * 300, b"/" * 50, b"//", b"/"),
    *(b"*", b"**", b"+", b"#", b"a/#/b", b"+/+", b"$SYS/x", b"$/signals/x", b"$/info/clients", b"queue/", b"queue/q"),
    *(
        b"queue/+",
        b"topic/",
        b"topic/**",
        b"-1",
        b"0",
        b"18446744073709551616",
        b"1e999",
        b"NaN",
        b"null",
        b"{}",
        b"[]",
    ),
    *(b"[" * 200, b'{"a":' * 100, b'"\\ud800"', b"\\ud800", b"\\u0000", b"%00", b"%zz", b"::", b"\r\n", b"\r\n\r\n\0"),
    *(
        b"\r\n\r\n",
        b";;",
        b"=,",
        b"max-count=0",
        b"session-id::x",
        b"N1e308",
        b"D9999999999999",
        b"Tx",
        b"\x7f\xff\xff",
    ),
)
"""What is put in the place of something ordinary."""


@dataclass(frozen=True)
class Script:
    """A valid session: the listener it is for, its login, and what follows, in pieces."""

    listener: str
    login: tuple[bytes, ...]
    pieces: tuple[bytes, ...]


def _call(number: int, *words: object) -> bytes:
    return f"C{number}:{json.dumps(words)}".encode()


def _umq() -> tuple[bytes, ...]:
    options = {"headers": {"a": 1, "b": "x"}, "content_type": "text/plain", "retain": True}
    return (
        _call(1, "subscribe", "a/*", 1),
        _call(2, "subscribe", "queue/q", 2, {"envelope": True}),
        _call(3, "publish", "a/b", "body", options),
        _call(4, "publish", "queue/q", {"json": [1, 2.5, None]}),
        b'A2:C5:["publish","a/b",null]',
        b"-",
        b"-second failed",
        _call(6, "serve", "echo", "7"),
        _call(7, "call", "echo", "Method", "body", {"timeout": 50, "headers": {"x": "y"}, "stream": 9}),
        b'RZ:"reply"',
        b"E1:500 no",
        _call(8, "whoami"),
        _call(9, "unsubscribe", 1),
        _call(10, "unserve", "echo"),
        b"Sname=value",
        b"T1:update",
        b"U1:",
        b"D1:",
        b"B5:7:[]",
        b"!1:8 later",
    )


def _micromsg() -> tuple[bytes, ...]:
    encode = micromsg.encode
    return (
        encode(micromsg.Command("subscribe", (("destination", "topic/a/*"),))),
        encode(micromsg.Command("subscribe", (("destination", "q"), ("filter", "n%3E%3DN1")))),
        encode(micromsg.Message(1, "topic/a/b", b"body", "n:N1;t:Tx;d:D0;")),
        encode(micromsg.Message(2, "q", b'{"a":1}', "n:N2;")),
        encode(micromsg.Message(3, "topic/a/b", b"x" * 400, "")),
        encode(micromsg.Extension(2, b"\0\1")),
        encode(micromsg.Command("ping", ())),
        encode(micromsg.Command("unsubscribe", (("destination", "q"),))),
        encode(micromsg.Error("bad-frame", (("reason", "x"),))),
    )


def _fmqp() -> tuple[bytes, ...]:
    encode = fmqp.encode
    return (
        encode(fmqp.Subscription("a/*")),
        encode(fmqp.Subscription("queue/q")),
        encode(fmqp.Subscription("watched", FEEDBACK)),
        encode(fmqp.Publication("a/b", b"body")),
        encode(fmqp.Publication("a/b", b"kept", CACHE)),
        encode(fmqp.Publication("a/b", b"", CACHE)),
        encode(fmqp.Publication("queue/q", b"work")),
        encode(fmqp.Publication("a/*", b"to all")),
        encode(fmqp.Publication("gone", b"will", LAST_WILL | CACHE)),
        encode(fmqp.Subscription("$/info/clients")),
        encode(fmqp.Subscription("watched")),
    )


def _mqtt() -> tuple[bytes, ...]:
    encode = mqtt.encode
    return (
        encode(mqtt.Subscribe(1, (("a/+", 2), ("queue/q", 1), ("/echo", 1)))),
        encode(mqtt.Publish("a/b", b"body", qos=1, packet_id=2)),
        encode(mqtt.Publish("a/b", b"kept", qos=2, packet_id=3, retain=True)),
        encode(mqtt.Pubrel(3)),
        encode(mqtt.Publish("queue/q", b"work", qos=1, packet_id=4)),
        encode(mqtt.Publish("/echo", mqttrpc.encode(mqttrpc.Request(77, "Method", b"value")), qos=1, packet_id=5)),
        encode(mqtt.Publish("/echo", mqttrpc.encode(mqttrpc.Response(77, "", b"value", None, eos=True)))),
        encode(mqtt.Puback(1)),
        encode(mqtt.Pubrec(1)),
        encode(mqtt.Pubcomp(1)),
        encode(mqtt.Pingreq()),
        encode(mqtt.Unsubscribe(6, ("a/+",))),
        encode(mqtt.Disconnect()),
    )


def _sabc() -> tuple[bytes, ...]:
    def message(*lines: str, body: bytes = b"") -> bytes:
        head = "\r\n".join(["MESSAGE", f"session-id::{SESSION.decode()}", *lines]).encode()
        return head + (b"\r\n\r\n" + body if body else b"") + END

    return (
        message("msg-id::1", "op::subscribe", "destination::a/*"),
        message("msg-id::2", "op::subscribe", "destination::queue/q"),
        message("msg-id::3", "destination::a/b", "note::x", body=b"body"),
        message("msg-id::4", "destination::queue/q", "content-encoding::base64", body=b"d29yaw=="),
        message("msg-id::5", "op::serve", "service::echo"),
        message("msg-id::6", "op::call", "service::echo", "method::Method", "timeout::50", body=b"x"),
        message("ref-msg-id::1", body=b"OK"),
        message("msg-id::7", "destination::a/b", "msg-more::yes", body=b"part").removesuffix(END),
        message("msg-id::7", "destination::a/b", body=b"rest"),
        message("msg-id::8", "op::unsubscribe", "destination::a/*"),
        b"ERROR\r\nsession-id::" + SESSION + b"\r\nerror-code::500\r\nref-msg-id::6" + END,
        b"DISCONNECT\r\nsession-id::" + SESSION + b"\r\n\r\n",
    )


def _http() -> tuple[bytes, ...]:
    def post(body: bytes, *lines: str) -> bytes:
        names = ["polywire-query: q", "polywire-batch: 1", "polywire-part: 0", *lines]
        return "\r\n".join(["POST /publish HTTP/1.1", "Host: localhost", *names, "", ""]).encode() + body

    row = {"channel": "a/b", "body": b"body", "headers": '{"a": 1}', "retain": True, "queue": False}
    plain = arrow_stream([row, row | {"channel": "q", "queue": True}])
    packed = arrow_stream([row] * 50, compression="zstd")
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (plain[:100], plain[100:])) + b"0\r\n\r\n"
    get = "GET {} HTTP/1.1\r\nHost: localhost\r\n{}\r\n"
    return (
        get.format("/healthz", "").encode(),
        get.format("/metrics", "Accept-Encoding: gzip\r\n").encode(),
        get.format("/journal/", "").encode(),
        get.format("/journal/00000000000000000000.arrow", "Range: bytes=0-99\r\n").encode(),
        get.format("/journal/..%2f..%2fetc", "If-None-Match: x\r\n").encode(),
        post(plain, f"Content-Length: {len(plain)}"),
        post(packed, f"Content-Length: {len(packed)}", "Expect: 100-continue"),
        post(chunks, "Transfer-Encoding: chunked"),
        b"HEAD /readyz HTTP/1.0\r\n\r\n",
        upgrade("/umq"),
        b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\nOrigin: http://evil.example\r\n\r\n",
    )


def scripts() -> dict[str, Script]:
    """One for each listener."""
    offer = micromsg.Handshake("fuzz", read_extensions(b"pub-sub;batch-ack:max-count=100;json"), ())
    handshake = micromsg.encode(offer)
    will = mqtt.Will("a/will", b"gone", 1, retain=True)
    connect = mqtt.encode(mqtt.Connect("fuzz", clean_session=False, keep_alive=0, will=will))
    sabc = (b"CONNECT\r\nclient-id::fuzz\r\nlanguage::en" + END,)
    found = (
        Script("umq", (b'H1:{"a":1}',), _umq()),
        Script("micromsg", (handshake, handshake), _micromsg()),
        Script("fmqp", (), _fmqp()),
        Script("mqtt", (connect,), _mqtt()),
        Script("mqtt_ws", (connect,), _mqtt()),
        Script("sabc", sabc, _sabc()),
        Script("sabc_ws", sabc, _sabc()),
        Script("http", (), _http()),
    )
    return {script.listener: script for script in found}


def flip(chance: random.Random, piece: bytes) -> bytes:
    """Change some bytes."""
    data = bytearray(piece)
    for _ in range(chance.randint(1, 4)):
        if data:
            data[chance.randrange(len(data))] = chance.choice((0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)))
    return bytes(data)


def cut(chance: random.Random, piece: bytes) -> bytes:
    """Leave out the end, the beginning or the middle."""
    first, second = sorted((chance.randint(0, len(piece)), chance.randint(0, len(piece))))
    return chance.choice((piece[:first], piece[first:], piece[:first] + piece[second:]))


def insert(chance: random.Random, piece: bytes) -> bytes:
    """Put something strange in between, or in the place of a word."""
    at = chance.randint(0, len(piece))
    end = min(len(piece), at + chance.choice((0, 0, 1, 3, 8)))
    return piece[:at] + chance.choice(STRANGE) + piece[end:]


def replace_word(chance: random.Random, piece: bytes) -> bytes:
    """Put something strange in the place of one that is known to mean something."""
    words = [b"a/b", b"a/*", b"queue/q", b"echo", b"body", b"Method", b"fuzz", b"a/will", b"yes", b"50", b"x", b"1"]
    found = [word for word in words if word in piece]
    return piece.replace(chance.choice(found), chance.choice(STRANGE), 1) if found else insert(chance, piece)


def repeat(chance: random.Random, piece: bytes) -> bytes:
    """Say a part of it many times."""
    first, second = sorted((chance.randint(0, len(piece)), chance.randint(0, len(piece))))
    return piece[:second] + piece[first:second] * chance.choice((1, 10, 300)) + piece[second:]


MUTATIONS: tuple[Callable[[random.Random, bytes], bytes], ...] = (flip, cut, insert, replace_word, replace_word, repeat)


@dataclass(frozen=True)
class Input:
    """What one connection does: whether it logs in by the book first, its pieces, and how rudely it leaves."""

    listener: str
    logs_in: bool
    pieces: tuple[bytes, ...]
    resets: bool


def make_input(seed: int, number: int, script: Script, others: list[Script]) -> Input:
    """The input of this number."""
    chance = random.Random(f"{seed}/{script.listener}/{number}")  # noqa: S311 - no secret
    logs_in = chance.random() < 0.75
    pieces = list(script.pieces)
    chance.shuffle(pieces)
    pieces = pieces[: chance.randint(1, len(pieces))]
    if chance.random() < 0.3:
        pieces = sorted(pieces, key=script.pieces.index)
    if chance.random() < 0.05:
        pieces.insert(chance.randint(0, len(pieces)), chance.choice(chance.choice(others).pieces))
    if not logs_in:
        pieces = [*script.login, *pieces]
    for _ in range(chance.choice((0, 1, 1, 2, 5))):
        at = chance.randrange(len(pieces))
        pieces[at] = chance.choice(MUTATIONS)(chance, pieces[at])
    if chance.random() < 0.2:
        pieces += pieces * chance.choice((1, 20))
    pieces = [_framed(chance, script.listener, piece) for piece in pieces]
    if chance.random() < 0.15:
        at = chance.randrange(len(pieces))
        pieces[at] = chance.choice((flip, cut))(chance, pieces[at])
    return Input(script.listener, logs_in, tuple(pieces), chance.random() < 0.3)


def _framed(chance: random.Random, listener: str, piece: bytes) -> bytes:
    """A WebSocket message of it, where the listener has those; now and then in parts, of the wrong kind, or a ping."""
    if listener not in {"umq", "mqtt_ws", "sabc_ws"}:
        return piece
    opcode = BINARY if listener == "mqtt_ws" else TEXT
    luck = chance.random()
    if luck < 0.05:
        opcode = TEXT + BINARY - opcode
    if luck > 0.95:
        at = chance.randint(0, len(piece))
        return masked(opcode & 0x0F, piece[:at]) + masked(0x89, b"ping") + masked(0x80, piece[at:])
    return masked(opcode, piece)
