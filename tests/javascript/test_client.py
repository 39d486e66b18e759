"""The JavaScript client against a real hub: in Node, with a WebSocket of ours and Node's, in Chromium and Firefox."""

import contextlib
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import polywire
import polywire.sync
from tests.hub_process import HubProcess, running_hub
from tests.javascript.runtimes import NAMES, Page, Runtime, needs_node, runtime, site
from tests.security.hashing import add_user
from tests.security.signing import SECRET, signed
from tests.web import open_web

pytestmark = needs_node

MIB = 1 << 20


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with site() as found:
        yield found


@pytest.fixture(scope="module")
def allowed(port: int) -> str:
    """The setting that lets the site's pages in."""
    return f"listen.allowed_origins=http://127.0.0.1:{port}"


@pytest.fixture(scope="module")
def hub(allowed: str) -> Iterator[HubProcess]:
    with running_hub(allowed, "limits.message_size=1 MiB") as process:
        yield process


@pytest.fixture(scope="module", params=NAMES)
def where(request: pytest.FixtureRequest, port: int) -> Iterator[Runtime]:
    with runtime(request.param, f"http://127.0.0.1:{port}/") as found:
        yield found


def url(hub: HubProcess) -> str:
    return hub.addresses["umq"]


def error(code: int, tag: str, text: str, **more: object) -> dict[str, object]:
    """A ``PolywireError`` as scenarios return it. JSON leaves out what is undefined."""
    return {"name": "PolywireError", "code": code, "tag": tag, "text": text, **more}


def test_bodies_arrive_as_they_were_published(hub: HubProcess, where: Runtime) -> None:
    found = {each.pop("channel").partition("/")[2]: each for each in where.run("bodies", url(hub))}
    assert all(each.pop("isRecent") for each in found.values())
    assert all(bytes(each.pop("body")).decode(errors="replace") == each["text"] for each in found.values())
    json = "application/json"
    assert found == {
        "text": {"text": "21 °C", "headers": {"unit": "C", "step": 0.5}},
        "binary": {"text": "\0\ufffdA", "headers": {}},
        "buffer": {"text": "\1\2\3", "headers": {}},
        "json": {
            "text": '{"degrees":[21.5,null,"\\"body\\":"]}',
            "headers": {"tricky": '"},"body":1,"ts":2}'},
            "contentType": json,
        },
        "typed": {"text": "12345678901234567890.50", "headers": {}, "contentType": json},
        "empty": {"text": "", "headers": {}},
    }


def test_a_late_subscriber_gets_the_retained_message(hub: HubProcess, where: Runtime) -> None:
    assert where.run("retained", url(hub)) == ["open"]


def test_leaving_the_loop_ends_that_subscription_alone(hub: HubProcess, where: Runtime) -> None:
    assert where.run("leaving", url(hub)) == [True, ["1", "2"], [True, True]]


def test_thousands_of_messages_arrive_in_order(hub: HubProcess, where: Runtime) -> None:
    assert where.run("order", url(hub), 5000) == [5000, 0]


def test_attachments_go_along_in_messages_calls_and_replies(hub: HubProcess, where: Runtime) -> None:
    files: list[list[int]] = [[1], [2, 255], []]
    assert where.run("attachments", url(hub)) == [
        [list(b"with files"), files],
        [[2, 255], [[1]]],
        [list(b"reversed"), files[::-1]],
        [[7], [[1]]],
    ]


def test_an_attachment_that_failed_fails_alone(hub: HubProcess, where: Runtime) -> None:
    where.run("listen", url(hub), "failed")
    web = open_web(url(hub))
    for message in (
        "H1:",
        'A1:C1:["publish","failed",null]',
        "-:disk",
        'A2:C2:["publish","failed","text"]',
        "-:net",
        b"\1",
    ):
        web.send(message)
    failed = error(502, "attachment-failed", "disk")
    assert where.run("failedAttachments") == [failed, "text", {**failed, "text": "net"}, [1]]
    web.close()


def test_a_service_in_javascript_is_called_over_any_protocol(hub: HubProcess, where: Runtime) -> None:
    where.run("serve", url(hub), "desk")
    with polywire.sync.connect(f"sabc://127.0.0.1:{hub.port('sabc')}") as bus:
        assert bus.call("desk", "greet", "Anna").text == "greet Anna"
        assert bus.call("desk", "json", polywire.json({"a": [1]})).json() == {"a": [1], "service": "desk"}
        with pytest.raises(polywire.CallFailed) as refused:
            bus.call("desk", "refuse")
        found = refused.value
        assert (found.code, found.tag, found.text) == (404, "no-item", "No item 7 here: sold")
        assert (found.retry_after, found.from_hub) == (2.5, False)
        with pytest.raises(polywire.CallFailed, match=r"^500 handler-failed: the handler failed$"):
            bus.call("desk", "break")
        where.run("stopServing")
        with pytest.raises(polywire.CallFailed, match="no-service"):
            bus.call("desk", "greet")


def test_a_service_in_python_is_called_and_its_errors_have_types(hub: HubProcess, where: Runtime) -> None:
    def answer(request: polywire.Request) -> str:
        if request.method == "refuse":
            raise polywire.CallFailed(429, "busy/now", "Too many orders: 7", retry_after=3)
        if request.method == "wait":
            time.sleep(0.2)
        if request.method == "break":
            raise ValueError
        return f"hello, {request.text}"

    with polywire.sync.connect(f"sabc://127.0.0.1:{hub.port('sabc')}") as bus, bus.serve("greeter", answer):
        greeting, refused, broken, nobody, late, publish, subscribe = where.run("call", url(hub), "greeter")
    assert greeting == "hello, Anna"
    assert refused == error(429, "busy/now", "Too many orders: 7", retryAfter=3000, fromHub=False)
    assert (broken["code"], broken["tag"], broken["fromHub"]) == (500, "handler-failed", False)
    assert nobody == error(404, "no-service", "No RPC server here", fromHub=True)
    assert (late["code"], late["tag"]) == (504, "timeout")  # the hub's or the client's own, whichever comes first
    for each in (publish, subscribe):
        assert (each["code"], each["tag"], each["fromHub"]) == (400, "bad-request", True)
        assert "pattern" in each["text"]


def test_signals_end_what_they_were_given_to(hub: HubProcess, where: Runtime) -> None:
    assert where.run("aborted", url(hub)) == [True] * 8


def test_a_subscription_that_is_not_read_ends_with_an_error(hub: HubProcess, where: Runtime) -> None:
    overrun = error(429, "overrun", "10 messages wait to be read")
    assert where.run("overrun", url(hub)) == [10, overrun, overrun]


def test_what_waits_to_be_acknowledged_is_bounded(hub: HubProcess, where: Runtime) -> None:
    first, second, third = where.run("bufferFull", url(hub))
    assert (first, third) == (None, None)
    assert second["tag"] == "buffer-full"
    assert second["sent"] is False


def test_a_message_that_is_too_large_fails_alone(hub: HubProcess, where: Runtime) -> None:
    outcomes, disconnected, sizes = where.run("tooLarge", url(hub), MIB + 1000)
    small, large, after, fits = outcomes
    assert (small, after) == (None, None)
    assert (large["code"], large["tag"]) == (413, "too-large")
    assert (fits, disconnected) == (None, "limit")
    assert sizes == [1, 1]


def test_closing_waits_for_what_was_published_and_ends_everything(hub: HubProcess, where: Runtime) -> None:
    closed = error(499, "closed", "the client was closed")
    assert where.run("closing", url(hub)) == [True, False, None, True, closed, closed, True]


def test_a_hub_that_is_not_there_is_an_error(where: Runtime) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"ws://127.0.0.1:{free.getsockname()[1]}/umq"
    found = where.run("refused", address)
    assert (found["code"], found["tag"]) == (503, "connection-lost")
    assert found["text"].startswith(f"no connection to {address}: ")


def test_a_hub_that_does_not_answer_is_an_error(where: Runtime) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"ws://127.0.0.1:{silent.getsockname()[1]}/umq"
        found = where.run("refused", address, {"connectTimeout": 50})
    assert found == error(504, "timeout", "no answer within 50 ms", sent=False)


def test_users_and_tokens_log_in(tmp_path: Path, allowed: str, where: Runtime) -> None:
    users, key = tmp_path / "users", tmp_path / "key"
    add_user(users, "anna", "right")
    key.write_bytes(SECRET)
    token = signed(SECRET, "HS256", sub="anna")
    with running_hub(allowed, f"auth.users={users}", f"auth.jwt={{algorithms=['HS256'], key='{key}'}}") as hub:
        for options in ({"user": "anna", "password": "right"}, {"token": token}, {"renewed": token}):
            assert where.run("open", url(hub), options) == "open"
        for wrong in ({"user": "anna", "password": "wrong"}, {"token": token[:-2]}, {}):
            found = where.run("refused", url(hub), wrong)
            assert (found["code"], found["tag"], found["fromHub"]) == (403, "rejected", True)


class Lives:
    """A hub on one port, one life after the other."""

    def __init__(self, *sets: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.address = f"ws://127.0.0.1:{free.getsockname()[1]}/umq"
        self._sets = (f"listen.umq={self.address}", "listen.mqtt_ws=off", "listen.sabc_ws=off", *sets)

    def life(self, *sets: str, journal: Path | None = None) -> "contextlib.AbstractContextManager[HubProcess]":
        return running_hub(*self._sets, *sets, journal=journal)


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_a_restart_loses_nothing(tmp_path: Path, allowed: str, where: Runtime, how: signal.Signals) -> None:
    lives = Lives(allowed)
    with lives.life(journal=tmp_path) as hub:
        where.run("live", lives.address)
        where.run("more")
        hub.stop(how)
    where.run("away")
    with lives.life(journal=tmp_path):
        published, heard, answer, events = where.run("survived")
    # What the subscriber heard before the end was perhaps not acknowledged, and is published again; none is missing but
    # those that only the killed hub had.
    assert published == 400
    assert heard >= 300
    assert answer == "waited!"
    assert events[1:] == ["back"]
    assert events[0] in {"draining", "connection-lost"}


def test_what_is_closed_without_a_connection_stays_closed(allowed: str, where: Runtime) -> None:
    lives = Lives(allowed)
    with lives.life():
        where.run("live", lives.address)
        where.run("leaveAway")
    where.run("left")
    with lives.life() as hub:
        assert where.run("knock")["tag"] == "no-service"
        assert hub.metric("polywire_subscriptions") == 1  # the one that was not closed
        where.run("end")


def test_a_client_that_is_refused_after_a_restart_gives_up(tmp_path: Path, allowed: str, where: Runtime) -> None:
    lives = Lives(allowed)
    users = tmp_path / "users"
    add_user(users, "anna", "right")
    with lives.life():
        where.run("live", lives.address)
    with lives.life(f"auth.users={users}"):
        outcomes: list[dict[str, Any]] = where.run("gone")
    assert {each["tag"] for each in outcomes} == {"rejected"}


def test_a_page_of_another_origin_is_refused(hub: HubProcess, port: int, where: Runtime) -> None:
    if not isinstance(where, Page):
        return  # programs have no origin, and get in: all other tests here
    found = Page(where.browser, f"http://localhost:{port}/").run("refused", url(hub))
    text = f"no connection to {url(hub)}: no hub answers, or it refuses pages of this origin"
    assert found == error(503, "connection-lost", text)
    assert "listen.allowed_origins" in hub.wait_for_log(f"http://localhost:{port}")
