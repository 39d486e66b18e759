"""``polywire call`` and ``polywire serve-echo``: calls there and back."""

import json

import pytest

from tests.cli.commands import fed, going_on, good, run, url
from tests.hub_process import HubProcess


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
