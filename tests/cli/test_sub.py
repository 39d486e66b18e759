"""``polywire sub`` and ``demand``: what is written, in which form, and how they end."""

import base64
import json
import signal
import subprocess
import sys

import pytest

from polywire.protocols.fmqp import Subscription, Unsubscription
from tests.cli.commands import EVERY, SECONDS, going_on, good, run, url
from tests.hub_process import HubProcess
from tests.wires import Fmqp, connected


def put(hub: HubProcess, queue: str, *bodies: str) -> None:
    good("pub", "--queue", queue, *bodies, "-u", url(hub, "umq"))


@pytest.mark.parametrize("protocol", EVERY)
def test_a_queue_is_taken_from_whatever_the_protocol(hub: HubProcess, protocol: str) -> None:
    put(hub, f"sub-{protocol}", "one", "two")
    lines = good("sub", "--queue", f"sub-{protocol}", "-n", "2", "-u", url(hub, protocol)).splitlines()
    assert [line.rpartition("\t")[2] for line in lines] == ["one", "two"]


def test_what_is_not_printed_stays_in_the_queue(hub: HubProcess) -> None:
    put(hub, "sub-rest", "one", "two", "three")
    for expected in ("one", "two", "three"):
        assert good("sub", "--queue", "sub-rest", "-n", "1", "-o", "body", "-u", url(hub, "mqtt")) == f"{expected}\n"


def test_text_is_a_line_each_without_control_characters(hub: HubProcess) -> None:
    put(hub, "sub-text", "two\nlines \x1b[31mred\\")
    assert good("sub", "--queue", "sub-text", "-n", "1", "-u", url(hub, "umq")).endswith(
        "\ttwo\\nlines \\x1b[31mred\\\\\n"
    )


def test_json_has_the_octets_of_what_is_no_text(hub: HubProcess, tmp_path_factory: pytest.TempPathFactory) -> None:
    file = tmp_path_factory.mktemp("sub") / "body"
    file.write_bytes(b"\xff\x00")
    good("pub", "--queue", "sub-octets", "-f", str(file), "-f", str(file), "-u", url(hub, "mqtt"))
    words = ("sub", "--queue", "sub-octets", "-n", "1", "-u", url(hub, "mqtt"))
    found = json.loads(good(*words, "-o", "json"))
    assert base64.b64decode(found["body_base64"]) == b"\xff\x00"
    assert found["received"].endswith("+00:00")
    assert run(*words, "-o", "raw").stdout_bytes == b"\xff\x00"


def test_it_ends_after_the_time_given(hub: HubProcess) -> None:
    assert good("sub", "sub/nothing", "--for", "0.05", "-u", url(hub, "umq")) == ""


def test_no_message_in_time_is_code_4(hub: HubProcess) -> None:
    result = run("sub", "sub/nothing", "--timeout", "0.05", "-u", url(hub, "umq"))
    assert (result.exit_code, result.stderr) == (4, "polywire sub: waiting for a message took longer than 0.05 s\n")


def test_several_patterns_are_one_stream(hub: HubProcess) -> None:
    for name in ("a", "b"):
        good("pub", f"sub-several/{name}", name, "--retain", "-u", url(hub, "mqtt"))
    lines = good("sub", "sub-several/a", "sub-several/b", "-n", "2", "-u", url(hub, "mqtt")).splitlines()
    assert sorted(lines) == ["sub-several/a\ta", "sub-several/b\tb"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_and_sigterm_end_it_with_0_and_no_words(hub: HubProcess, number: signal.Signals) -> None:
    channel = f"sub-ctrl-c/{number.value}"
    good("pub", channel, "hello", "--retain", "-u", url(hub, "mqtt"))
    with going_on("sub", channel, "-u", url(hub, "mqtt")) as command:
        command.wait_for(f"{channel}\thello\n")
        command.process.send_signal(number)
        assert command.end() == 0
        assert command.text == f"{channel}\thello\n"


def test_a_closed_pipe_ends_it_at_once(hub: HubProcess) -> None:
    good("pub", "sub-closed", "hello", "--retain", "-u", url(hub, "mqtt"))
    words = [sys.executable, "-m", "polywire", "sub", "sub-closed", "-u", url(hub, "mqtt")]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:  # noqa: S603 - ours
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"sub-closed\thello\n"
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(SECONDS) == 0


def test_a_terminal_sees_a_live_view(hub: HubProcess) -> None:
    good("pub", "sub-live/door", "open \x1b[31m", "--retain", "-u", url(hub, "mqtt"))
    with going_on("sub", "sub-live/*", "-u", url(hub, "mqtt"), terminal=True) as command:
        command.wait_for("1 messages")
        command.wait_for("open \\x1b[31m")
        assert command.interrupt() == 0
        command.wait_for("1 messages, 10 B from 1 channel in ")
        assert "Traceback" not in command.text


def test_each_change_of_demand_is_a_line(hub: HubProcess) -> None:
    with going_on("demand", "camera/*", "-u", url(hub, "fmqp")) as watcher:
        with going_on("sub", "camera/door", "-u", url(hub, "mqtt")):
            watcher.wait_for("camera/door\t1\n")
        watcher.wait_for("camera/door\t0\n")
        assert watcher.interrupt() == 0


def test_a_deserted_topic_shows_at_once(hub: HubProcess) -> None:
    with connected(hub.addresses["fmqp"]) as wire:
        client = Fmqp(wire)
        client.say(Subscription("deserted/a"), Unsubscription("deserted/a"))
        client.settled()
    with going_on("demand", "deserted/*", "-n", "1", "-u", url(hub, "fmqp")) as watcher:
        assert watcher.end() == 0
        assert watcher.text == "deserted/a\t0\n"


def test_demand_as_json_ends_after_a_number_of_changes(hub: HubProcess) -> None:
    with going_on("demand", "lamp/*", "--json", "-n", "1", "-u", url(hub, "fmqp")) as watcher:
        with going_on("sub", "lamp/hall", "-u", url(hub, "umq")):
            assert watcher.end() == 0
        assert json.loads(watcher.text) == {"channel": "lamp/hall", "subscribers": 1}


def test_only_fmqp_tells_demand(hub: HubProcess) -> None:
    result = run("demand", "a", "-u", url(hub, "umq"))
    assert (result.exit_code, result.stderr) == (2, "polywire demand: watch_demand: not with umq, but with fmqp\n")
