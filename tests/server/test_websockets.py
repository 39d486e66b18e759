"""The opening and the end of WebSockets on a running hub: who may open one, and what is answered to whom."""

import base64
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hub_process import HubProcess, running_hub
from tests.server.test_endings import encrypting
from tests.wires import Plain, connected

PATHS = {"umq": "/umq", "mqtt_ws": "/mqtt", "sabc_ws": "/sabc"}
KEY = base64.b64encode(bytes(16)).decode()
UPGRADE = (
    "Upgrade: websocket",
    "Connection: Upgrade",
    f"Sec-WebSocket-Key: {KEY}",
    "Sec-WebSocket-Version: 13",
)
ALLOWED = "https://console.example"


@pytest.fixture(scope="module")
def hub() -> Iterator[HubProcess]:
    with running_hub(f"listen.allowed_origins={ALLOWED}") as process:
        yield process


@pytest.fixture(scope="module")
def encrypted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[HubProcess, ssl.SSLContext]]:
    config, trust = encrypting(tmp_path_factory.mktemp("tls"))
    with running_hub(f"listen.allowed_origins={ALLOWED}", config=config) as process:
        process.trust = trust
        yield process, trust


def request(path: str, *headers: str, host: str = "127.0.0.1") -> bytes:
    return "\r\n".join((f"GET {path} HTTP/1.1", f"Host: {host}", *headers, "", "")).encode()


def ask(hub: HubProcess, listener: str, data: bytes, trust: ssl.SSLContext | None = None) -> tuple[int, bytes]:
    """The status of the response, and all of it that came with it."""
    with connected(hub.addresses[listener], trust=trust) as wire:
        plain = Plain(wire)
        plain.send(data)
        head = b""
        while b"\r\n\r\n" not in head:
            head += plain.expect(1)
        status = int(head.split(b" ")[1])
        return status, head if status == 101 else head + plain.rest()


@pytest.mark.rule("UMQ-164")
@pytest.mark.parametrize("listener", PATHS)
@pytest.mark.parametrize(
    ("host", "origin", "allowed"),
    [
        ("127.0.0.1:{port}", None, True),
        ("hub.example", None, True),  # no page's: it names no origin
        ("127.0.0.1:{port}", "http://127.0.0.1:{port}", True),
        ("localhost:{port}", "http://localhost:{port}", True),
        ("127.0.0.1:{port}", ALLOWED, True),
        ("console.example", ALLOWED, True),
        ("127.0.0.1:{port}", "http://127.0.0.1:{http}", False),
        ("127.0.0.1:{port}", "http://localhost:{port}", False),
        ("127.0.0.1:{port}", "https://evil.example", False),
        ("127.0.0.1:{port}", "null", False),
        ("evil.example:{port}", "http://evil.example:{port}", False),  # a name that was made to resolve to the hub
        ("evil.example:{port}", ALLOWED, False),
    ],
)
def test_pages_of_other_origins_open_no_websocket(
    hub: HubProcess, listener: str, host: str, origin: str | None, allowed: bool
) -> None:
    def filled(text: str) -> str:
        return text.format(port=hub.port(listener), http=hub.port("http"))

    named = () if origin is None else (f"Origin: {filled(origin)}",)
    status, answer = ask(hub, listener, request(PATHS[listener], *UPGRADE, *named, host=filled(host)))
    assert status == (101 if allowed else 403)
    assert allowed or b"listen.allowed_origins" in answer


@pytest.mark.rule("UMQ-164")
@pytest.mark.parametrize("listener", PATHS)
def test_pages_of_other_origins_open_no_encrypted_websocket(
    encrypted: tuple[HubProcess, ssl.SSLContext], listener: str
) -> None:
    hub, trust = encrypted
    for origin, expected in (
        (ALLOWED, 101),
        (f"https://127.0.0.1:{hub.port(listener)}", 101),
        ("https://e.example", 403),
    ):
        host = f"127.0.0.1:{hub.port(listener)}"
        data = request(PATHS[listener], *UPGRADE, f"Origin: {origin}", host=host)
        assert ask(hub, listener, data, trust)[0] == expected


@pytest.mark.rule("UMQ-164")
def test_a_refused_origin_is_counted_and_logged_now_and_then() -> None:
    with running_hub() as hub:
        for _ in range(5):
            for path in PATHS:
                assert ask(hub, path, request(PATHS[path], *UPGRADE, "Origin: https://evil.example"))[0] == 403
        line = hub.wait_for_log("evil.example")
        for protocol in ("umq", "mqtt", "sabc"):
            assert hub.metric(f'polywire_faults_total{{protocol="{protocol}",reason="origin"}}') == 5
        assert "listen.allowed_origins" in line
        assert len([each for each in hub.errors if "evil.example" in each]) <= len(PATHS)


@pytest.mark.rule("UMQ-164")
def test_with_logins_a_hub_for_everybody_is_known_by_any_name(tmp_path: Path) -> None:
    users = tmp_path / "users"
    users.touch()
    sets = ("listen.umq=ws://0.0.0.0:0/umq", f"auth.users={users}", "auth.anonymous=true")
    with running_hub(*sets, arguments=("--insecure",)) as hub, connected(f"tcp://127.0.0.1:{hub.port('umq')}") as wire:
        Plain(wire).send(request("/umq", *UPGRADE, "Origin: http://hub.example", host="hub.example"))
        assert Plain(wire).expect(12) == b"HTTP/1.1 101"


@pytest.mark.rule("UMQ-165")
@pytest.mark.parametrize(
    ("headers", "expected", "words"),
    [
        (("Connection: keep-alive, Upgrade", *UPGRADE[:1], *UPGRADE[2:]), 101, b""),
        (("Connection: keep-alive", *UPGRADE), 101, b""),
        (("Connection: UPGRADE", "Upgrade: WebSocket", *UPGRADE[2:]), 101, b""),
        ((), 426, b"/umq is a WebSocket"),
        (UPGRADE[:1], 426, b"Connection"),
        ((*UPGRADE[:3], "Sec-WebSocket-Version: 8"), 426, b"Sec-WebSocket-Version: 13"),
        ((*UPGRADE[:3], "Sec-WebSocket-Version: 13, 8"), 426, b"Sec-WebSocket-Version: 13"),
        ((*UPGRADE[:2], *UPGRADE[3:]), 400, b"Sec-WebSocket-Key"),
        ((*UPGRADE[:2], "Sec-WebSocket-Key: c2hvcnQ=", *UPGRADE[3:]), 400, b"Sec-WebSocket-Key"),
        ((*UPGRADE[:2], "Sec-WebSocket-Key: ?", *UPGRADE[3:]), 400, b"Sec-WebSocket-Key"),
        (UPGRADE[:3], 400, b"Sec-WebSocket-Version"),
        ((*UPGRADE, "Content-Length: 5"), 400, b"does not open a WebSocket"),
        ((*UPGRADE, "Origin: https://a.example", "Origin: https://b.example"), 400, b"appears twice"),
        ((*UPGRADE, "X: " + "y" * 10_000), 431, b""),
        ((*UPGRADE, *("X: " + "y" * 5_000 for _ in range(4))), 431, b"16384"),
    ],
)
def test_what_opens_a_websocket(hub: HubProcess, headers: tuple[str, ...], expected: int, words: bytes) -> None:
    status, answer = ask(hub, "umq", request("/umq", *headers))
    assert status == expected, answer
    assert words in answer
    assert status != 426 or b"\r\nUpgrade: websocket\r\n" in answer


@pytest.mark.rule("UMQ-165")
def test_frames_may_follow_the_request_at_once_and_the_request_may_come_in_pieces(hub: HubProcess) -> None:
    data = request("/umq", *UPGRADE) + frame(0x81, b"H1:")
    for size in (1, 7, len(data)):
        with connected(hub.addresses["umq"]) as wire:
            plain = Plain(wire)
            for at in range(0, len(data), size):
                plain.send(data[at : at + size])
            head = b""
            while not head.endswith(b"\r\n\r\n"):
                head += plain.expect(1)
            assert plain.expect(5) == b"\x81\x03W1:"


def frame(opcode: int, payload: bytes) -> bytes:
    """A client's frame, masked with zeros."""
    return bytes([opcode, 0x80 | len(payload)]) + bytes(4) + payload


CODES = {
    **dict.fromkeys((0, 1, 999, 1004, 1005, 1006, 1015, 1016, 2000, 2999, 5000, 65535), 1002),
    **{
        code: code
        for code in (1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 1012, 1013, 1014, 3000, 4000, 4999)
    },
}


@pytest.mark.rule("UMQ-166")
@pytest.mark.parametrize("listener", PATHS)
def test_a_closing_code_is_echoed_only_if_it_may_be_sent(hub: HubProcess, listener: str) -> None:
    payloads = {code.to_bytes(2, "big"): answer for code, answer in CODES.items()}
    payloads |= {b"": 1000, b"\x03": 1002, b"\x03\xe8bye": 1000, b"\x03\xe8\xff": 1007}
    for payload, answer in payloads.items():
        with connected(hub.addresses[listener]) as wire:
            plain = Plain(wire)
            plain.send(request(PATHS[listener], *UPGRADE) + frame(0x88, payload))
            closing = plain.rest().partition(b"\r\n\r\n")[2]
        assert closing[:1] == b"\x88", (payload, closing)
        assert int.from_bytes(closing[2:4], "big") == answer, payload
        assert len(closing) == 2 + closing[1]


@pytest.mark.rule("UMQ-166")
@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"\x81\x03H1:", 1002),  # not masked
        (frame(0x83, b""), 1002),
        (frame(0x8B, b""), 1002),
        (frame(0xC1, b"H1:"), 1002),
        (frame(0x09, b""), 1002),
        (frame(0x80, b"H1:"), 1002),
        (frame(0x01, b"H1") + frame(0x81, b":"), 1002),
        (b"\x89\xfe\x00\x7e" + bytes(4 + 126), 1002),
        (b"\x82\xff" + b"\xff" * 8 + bytes(4), 1009),
        (b"\x82\xff\x7f" + b"\xff" * 7 + bytes(4), 1009),
        (frame(0x81, b"\xff"), 1007),
    ],
)
def test_a_frame_that_may_not_come_ends_the_connection_with_its_code(hub: HubProcess, data: bytes, code: int) -> None:
    with connected(hub.addresses["umq"]) as wire:
        plain = Plain(wire)
        plain.send(request("/umq", *UPGRADE) + data)
        said = plain.rest().partition(b"\r\n\r\n")[2]
    if code == 1009:
        assert said.partition(b"F0:9 ")[1]
    assert b"\x88" in said
    assert int.from_bytes(said[said.rindex(b"\x88") + 2 :][:2], "big") == code


@pytest.mark.rule("UMQ-160")
def test_messages_before_one_that_is_too_big_are_still_answered(hub: HubProcess) -> None:
    with connected(hub.addresses["umq"]) as wire:
        plain = Plain(wire)
        too_big = b"\x82\xff" + (1 << 40).to_bytes(8, "big") + bytes(4)
        plain.send(request("/umq", *UPGRADE) + frame(0x81, b"H1:") + frame(0x81, b'C1:["nothing"]') + too_big)
        said = plain.rest().partition(b"\r\n\r\n")[2]
    assert [words in said for words in (b"W1:", b"E1:7 ", b"F0:9 ")] == [True] * 3
    assert said.index(b"E1:7 ") < said.index(b"F0:9 ")


@pytest.mark.rule("UMQ-166")
def test_a_ping_between_the_parts_of_a_message_is_answered(hub: HubProcess) -> None:
    with connected(hub.addresses["umq"]) as wire:
        plain = Plain(wire)
        plain.send(request("/umq", *UPGRADE) + frame(0x01, b"H") + frame(0x89, b"hi") + frame(0x80, b"1:"))
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += plain.expect(1)
        assert plain.expect(9) == b"\x8a\x02hi\x81\x03W1:"
