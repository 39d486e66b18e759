"""``polywire call``, ``serve-echo`` and ``ping``, and with which code commands exit when there is no connection."""

import json
from pathlib import Path

import pytest

from tests.cli.commands import EVERY, fed, going_on, good, run, url
from tests.hub_process import HubProcess, running_hub
from tests.server.certificates import Authority


@pytest.mark.parametrize("protocol", ["umq", "mqtt", "sabc"])
def test_an_echo_answers_what_it_is_sent_and_prints_it(hub: HubProcess, protocol: str) -> None:
    service = f"echo-{protocol}"
    with going_on("serve-echo", service, "-n", "3", "-u", url(hub, protocol), terminal=True) as echo:
        echo.wait_for(f"serving {service}")
        assert good("call", service, "say", "hello", "-u", url(hub, "umq")) == "hello\n"
        assert good("call", service, "say", "hello", "-u", url(hub, "mqtt")) == "hello\n"
        answer = json.loads(good("call", service, "say", "again", "-o", "json", "-u", url(hub, "sabc")))
        assert answer["body"] == "again"
        assert echo.end() == 0
        assert f"{service}/say\thello" in echo.text.replace("        ", "\t") or "say" in echo.text


def test_each_line_is_a_call(hub: HubProcess) -> None:
    with going_on("serve-echo", "echo-lines", "--quiet", "-u", url(hub, "umq"), terminal=True) as echo:
        echo.wait_for("serving echo-lines")
        done = fed(b"a\nb\n", "call", "echo-lines", "say", "--lines", "-u", url(hub, "umq"))
        assert (done.returncode, done.stdout, done.stderr) == (0, b"a\nb\n", b"")
        assert echo.interrupt() == 0


def test_an_error_of_the_service_is_code_6(hub: HubProcess) -> None:
    with going_on("serve-echo", "echo-fails", "--fail", "503", "-u", url(hub, "umq"), terminal=True) as echo:
        echo.wait_for("serving echo-fails")
        result = run("call", "echo-fails", "say", "x", "-u", url(hub, "umq"))
    assert result.exit_code == 6
    assert result.stderr.startswith("polywire call: 503 ")


def test_nobody_who_serves_is_code_6(hub: HubProcess) -> None:
    result = run("call", "nobody", "say", "x", "-u", url(hub, "umq"))
    assert (result.exit_code, result.stdout) == (6, "")
    assert "404" in result.stderr


def test_an_answer_that_does_not_come_is_code_4(hub: HubProcess) -> None:
    with going_on("serve-echo", "echo-slow", "--delay", "60", "-u", url(hub, "umq"), terminal=True) as echo:
        echo.wait_for("serving echo-slow")
        result = run("call", "echo-slow", "say", "x", "--timeout", "0.1", "-u", url(hub, "umq"))
    assert (result.exit_code, result.stdout) == (4, "")


def test_a_protocol_without_calls_is_a_usage_error(hub: HubProcess) -> None:
    result = run("call", "a", "b", "c", "-u", url(hub, "fmqp"))
    assert result.exit_code == 2
    assert "call: not with fmqp, but with umq" in result.stderr


@pytest.mark.parametrize("protocol", EVERY)
def test_round_trips_are_told_one_by_one(hub: HubProcess, protocol: str) -> None:
    lines = good("ping", "--every", "0", "-n", "2", "-u", url(hub, protocol)).splitlines()
    assert lines[0].startswith(f"connected to {url(hub, protocol)}")
    assert [line.split(" in ")[0] for line in lines[1:3]] == ["answer 1", "answer 2"]
    assert lines[3].startswith("2 round trips: least ")


def test_json_is_an_object_a_line(hub: HubProcess) -> None:
    first, second = map(json.loads, good("ping", "-n", "1", "--json", "-u", url(hub, "mqtt")).splitlines())
    assert first["address"] == url(hub, "mqtt")
    assert second["number"] == 1


def test_the_address_may_stand_in_the_environment(hub: HubProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYWIRE_URL", url(hub, "sabc"))
    assert good("ping", "-n", "1").startswith("connected to sabc://")


def test_nobody_there_is_code_3() -> None:
    result = run("ping", "-u", "mqtt://127.0.0.1:1")
    assert result.exit_code == 3
    assert result.stderr.startswith("polywire ping: can't connect to mqtt://127.0.0.1:1: ")


@pytest.mark.parametrize(
    ("address", "told"),
    [
        ("http://127.0.0.1", "the URL's scheme is none of ours"),
        ("mqtt://127.0.0.1:x", "the port is not a number"),
        ("fmqp://127.0.0.1/a", "a path is for WebSockets"),
    ],
)
def test_a_wrong_address_is_a_usage_error(address: str, told: str) -> None:
    result = run("ping", "-u", address)
    assert result.exit_code == 2
    assert told in result.stderr


def test_a_wrong_password_is_code_5_and_never_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYWIRE_PASSWORD", "wrong-secret")
    users = tmp_path / "users"
    users.touch(mode=0o600)
    with running_hub(f"auth.users={users}") as guarded:
        result = run("ping", "-u", url(guarded, "mqtt"), "--user", "anna")
    assert result.exit_code == 5
    assert result.stderr.startswith("polywire ping: ")
    assert "wrong-secret" not in result.output


def test_a_certificate_that_is_not_there_is_told(tmp_path: Path) -> None:
    result = run("ping", "-u", "mqtts://127.0.0.1:1", "--ca", str(tmp_path / "none.pem"))
    assert result.exit_code == 1
    assert f"{tmp_path}/none.pem can't be used" in result.stderr


def test_tls_trusts_whom_it_is_told_to(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    with running_hub("listen.mqtt=tls://127.0.0.1:0", f"tls.certificate={authority.issue('hub')}") as secure:
        address = f"mqtts://localhost:{secure.port('mqtt')}"
        assert good("ping", "-n", "1", "-u", address, "--ca", str(authority.root)).startswith(f"connected to {address}")
        assert run("ping", "-n", "1", "-u", address).exit_code == 3
