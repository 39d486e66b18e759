"""What a running hub logs: its level, its form, and what clients were refused."""

import json
import logging
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from polywire.hub.access import ANONYMOUS
from polywire.hub.client import Client
from polywire.hub.peer import Refused
from polywire.protocols.mqtt import Connack, Connect, Publish, encode
from polywire.server.logs import APART, MOST_KEYS, SECONDS, JsonFormatter, Refusals, Seldom, SeldomEach
from tests.hub_process import LISTEN, HubProcess, running_hub
from tests.security.hashing import add_user
from tests.wires import Plain, connected

RULE = '[[access]]\nactions = ["publish", "subscribe"]\nchannels = ["allowed/**"]\n'


def config_file(folder: Path, log: str) -> Path:
    path = folder / "polywire.toml"
    listen = "".join(f'{key} = "{address}"\n' for key, address in LISTEN.items())
    path.write_text(f"[listen]\n{listen}{RULE}[log]\n{log}\n", encoding="utf-8")
    return path


def publish(hub: HubProcess, *channels: str) -> None:
    """Publish with QoS 1, and wait for every acknowledgement."""
    with connected(hub.addresses["mqtt"]) as wire:
        plain = Plain(wire)
        plain.send(encode(Connect("meter")))
        assert plain.expect(4) == encode(Connack(session_present=False, return_code=0))
        for number, channel in enumerate(channels, 1):
            plain.send(encode(Publish(channel, b"x", qos=1, packet_id=number)))
            plain.expect(4)


def test_denied_publications_are_logged_once_in_a_while_for_each_client(tmp_path: Path) -> None:
    with running_hub(config=config_file(tmp_path, 'format = "json"')) as hub:
        publish(hub, *["forbidden/a"] * 20, "allowed/b")
        publish(hub, "forbidden/c")
        assert hub.stop() == 0
    lines = [json.loads(line) for line in hub.errors]
    assert all(list(line)[:4] == ["time", "level", "logger", "message"] for line in lines)
    denied = [line for line in lines if line.get("reason") == "forbidden"]
    assert [line["channel"] for line in denied] == ["forbidden/a", "forbidden/c"]
    first = denied[0]
    assert {name: first[name] for name in ("level", "logger", "client", "protocol", "action")} == {
        "level": "warning",
        "logger": "polywire.server",
        "client": "meter",
        "protocol": "mqtt",
        "action": "publish",
    }
    assert first["address"].startswith("127.0.0.1:")
    assert first["message"] == f"'meter' from {first['address']} over mqtt may not publish 'forbidden/a'"


def test_a_client_that_connects_again_and_again_does_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    refusals = Refusals(logging.getLogger("polywire.test"), lambda: 0.0)
    for host in ("192.0.2.1", "192.0.2.2"):
        for number in range(10 * APART):
            client = SimpleNamespace(
                identity=ANONYMOUS,
                counters=SimpleNamespace(protocol="mqtt"),
                name="meter",
                address=f"{host}:{number}",
                number=number,
            )
            refusals.refused(cast("Client", client), "publish", "a", Refused.FORBIDDEN)
    assert [message.split(" over ")[0] for message in caplog.messages] == [
        f"'meter' from {host}:{number}" for host in ("192.0.2.1", "192.0.2.2") for number in range(APART + 1)
    ]


def test_failed_logins_are_logged_with_who_and_from_where(tmp_path: Path) -> None:
    add_user(tmp_path / "users", "anna", "right")
    config = config_file(tmp_path, 'format = "json"\n[auth]\nusers = "users"')
    with running_hub(config=config) as hub:
        with connected(hub.addresses["mqtt"]) as wire:
            plain = Plain(wire)
            plain.send(encode(Connect("meter", user_name="anna", password=b"wrong")))
            plain.rest()
        line = json.loads(hub.wait_for_log("login of 'anna'"))
    assert (line["action"], line["user"]) == ("login", "anna")
    assert line["address"].startswith("127.0.0.1:")


def test_the_level_and_the_format_change_with_a_reload(tmp_path: Path) -> None:
    config = config_file(tmp_path, 'level = "error"')
    with running_hub(config=config) as hub:
        publish(hub, "forbidden/a")
        config_file(tmp_path, 'level = "info"')
        hub.process.send_signal(signal.SIGHUP)
        line = hub.wait_for_log("configuration reloaded")
        assert line == hub.errors[0]
        assert " INFO polywire.server: configuration reloaded\n" in line
        config_file(tmp_path, 'format = "json"')
        hub.process.send_signal(signal.SIGHUP)
        while not hub.errors[-1].startswith("{"):
            hub.lines.get(timeout=20)
        assert json.loads(hub.errors[-1])["message"] == "configuration reloaded"


def test_a_text_line_has_time_level_and_logger() -> None:
    with running_hub() as hub:
        hub.process.send_signal(signal.SIGTERM)
        line = hub.wait_for_log("draining")
    assert line[24:] == "INFO polywire.server: draining\n"


def test_json_is_one_line_whatever_is_in_it() -> None:
    error = ValueError("a\nb")
    info = (ValueError, error, None)
    record = logging.LogRecord("x", logging.ERROR, "", 0, "one\n%s", ("two",), info)
    record.user = ""
    line = JsonFormatter().format(record)
    assert "\n" not in line
    found = json.loads(line)
    assert (found["level"], found["message"]) == ("error", "one\ntwo")
    assert "ValueError: a\nb" in found["exception"]
    assert "user" not in found


@pytest.mark.parametrize("level", ["debug", "info", "warning", "error"])
def test_every_level_starts(level: str) -> None:
    with running_hub(f"log.level={level}") as hub:
        assert hub.stop() == 0
        assert any("draining" in line for line in hub.errors) == (level in {"debug", "info"})


def test_a_flood_of_events_is_few_lines_that_tell_how_many(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    seldom = Seldom(logging.getLogger("polywire.test"), lambda: now)
    for number in range(100):
        seldom.warn("event %d", number)
    now = SECONDS
    seldom.warn("event %d", 100)
    now = 3 * SECONDS
    seldom.warn("event %d", 101)
    assert caplog.messages == ["event 0", "event 100 (and 99 more like it)", "event 101"]


def test_a_noisy_source_does_not_hide_the_others(caplog: pytest.LogCaptureFixture) -> None:
    each = SeldomEach(logging.getLogger("polywire.test"), lambda: 0.0)
    for source in ("a", "a", "b", "a"):
        each.warn(source, "event of %s", source)
    assert caplog.messages == ["event of a", "event of b"]


def test_sources_are_forgotten_and_a_flood_of_them_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    each = SeldomEach(logging.getLogger("polywire.test"), lambda: now)
    for source in range(3 * MOST_KEYS):
        each.warn(source, "event of %d", source)
    assert len(caplog.messages) == MOST_KEYS + 1
    now = SECONDS
    caplog.clear()
    each.warn("new", "event of %s", "new")
    assert caplog.messages == ["event of new"]
    assert len(each._by_key) == 1
