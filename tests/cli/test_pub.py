"""``polywire pub``: what is published, from where, and with which exit code."""

import asyncio
import itertools
import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polywire.cli.messages import split
from tests.cli.commands import EVERY, SECONDS, fed, good, run, url
from tests.hub_process import HubProcess


def taken(hub: HubProcess, queue: str, count: int) -> list[str]:
    """Bodies that are in a queue, with nothing more behind them."""
    words = ("sub", "--queue", queue, "-u", url(hub, "umq"), "-o", "json", "--timeout", "20")
    found = [json.loads(line) for line in good(*words, "-n", str(count)).splitlines()]
    return [each["body"] for each in found]


@pytest.mark.parametrize("protocol", EVERY)
def test_every_body_is_a_message_whatever_the_protocol(hub: HubProcess, protocol: str) -> None:
    good("pub", "--queue", f"pub-{protocol}", "one", "two", "-u", url(hub, protocol))
    assert taken(hub, f"pub-{protocol}", 2) == ["one", "two"]


def test_a_file_is_a_body(hub: HubProcess, tmp_path: Path) -> None:
    file = tmp_path / "body"
    file.write_text("a\nb\n")
    good("pub", "--queue", "pub-file", "-f", str(file), "-u", url(hub, "mqtt"))
    assert taken(hub, "pub-file", 1) == ["a\nb\n"]


def test_the_lines_of_a_file_are_bodies(hub: HubProcess, tmp_path: Path) -> None:
    file = tmp_path / "bodies"
    file.write_bytes(b"a\r\nb\n\nlast")
    good("pub", "--queue", "pub-lines", "-f", str(file), "--lines", "-u", url(hub, "umq"))
    assert taken(hub, "pub-lines", 4) == ["a", "b", "", "last"]


def test_standard_input_is_a_body(hub: HubProcess) -> None:
    done = fed(b"from a pipe\n", "pub", "--queue", "pub-stdin", "-u", url(hub, "mqtt"))
    assert (done.returncode, done.stderr) == (0, b"")
    assert taken(hub, "pub-stdin", 1) == ["from a pipe\n"]


def test_many_lines_of_standard_input_arrive_in_order(hub: HubProcess) -> None:
    lines = [f"line {number}" for number in range(3000)]
    words = ("pub", "--queue", "pub-many", "-", "--lines", "-u", url(hub, "mqtt"))
    done = fed("\n".join(lines).encode(), *words)
    assert (done.returncode, done.stderr) == (0, b"")
    assert taken(hub, "pub-many", 3000) == lines


def test_a_body_is_sent_as_often_as_told(hub: HubProcess) -> None:
    good("pub", "--queue", "pub-often", "x", "y", "--repeat", "2", "--every", "0.001", "-u", url(hub, "sabc"))
    assert taken(hub, "pub-often", 4) == ["x", "x", "y", "y"]


def test_headers_and_the_content_type_go_along(hub: HubProcess) -> None:
    words = ("pub", "--queue", "pub-headers", "{}", "-t", "application/json", "-H", "a=b=c", "-H", "d=e")
    good(*words, "-u", url(hub, "sabc"))
    lines = good("sub", "--queue", "pub-headers", "-n", "1", "-o", "json", "-u", url(hub, "sabc"))
    found = json.loads(lines)
    assert found["content_type"] == "application/json"
    assert found["headers"] == {"a": "b=c", "d": "e"}


def test_a_retained_message_waits_for_its_subscriber(hub: HubProcess) -> None:
    good("pub", "pub/retained", "still here", "--retain", "-u", url(hub, "mqtt"))
    assert good("sub", "pub/*", "-n", "1", "-u", url(hub, "mqtt")) == "pub/retained\tstill here\n"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("x", "-H", "nothing"), "polywire pub: --header nothing: a header is written NAME=VALUE\n"),
        (("x", "-H", "a=b"), "headers: not with mqtt, but with umq, micromsg, sabc"),
        (("x", "--qos", "3"), "--qos"),
    ],
)
def test_what_can_not_be_is_a_usage_error(hub: HubProcess, words: tuple[str, ...], told: str) -> None:
    result = run("pub", "a", *words, "-u", url(hub, "mqtt"))
    assert result.exit_code == 2
    assert told in result.stderr


def test_a_file_that_is_not_there_is_told(hub: HubProcess, tmp_path: Path) -> None:
    result = run("pub", "a", "-f", str(tmp_path / "none"), "-u", url(hub, "mqtt"))
    assert (result.exit_code, result.stderr) == (1, f"polywire pub: {tmp_path}/none: No such file or directory\n")


def test_lines_are_sent_as_they_come_and_ctrl_c_ends_it_while_it_waits(hub: HubProcess) -> None:
    words = [sys.executable, "-m", "polywire", "pub", "--queue", "pub-live", "--lines", "-u", url(hub, "umq")]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:  # noqa: S603 - ours
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write(b"first\n")
        process.stdin.flush()
        assert taken(hub, "pub-live", 1) == ["first"]
        process.send_signal(signal.SIGINT)
        assert process.wait(SECONDS) == 130
        assert process.stderr.read() == b""


def test_a_terminal_is_told_what_to_type_and_each_line_is_sent_at_once(hub: HubProcess) -> None:
    words = [sys.executable, "-m", "polywire", "pub", "--queue", "pub-typed", "--lines", "-u", url(hub, "umq")]
    ours, theirs = pty.openpty()
    with subprocess.Popen(words, stdin=theirs, stdout=theirs, stderr=theirs) as process:  # noqa: S603 - ours
        os.close(theirs)
        shown = b""
        while b"Ctrl-D ends" not in shown:
            shown += os.read(ours, 1024)
        assert b"type a message and press Enter to send it" in shown
        for body in (b"first", b"second"):
            os.write(ours, body + b"\n")
            assert taken(hub, "pub-typed", 1) == [body.decode()]
        os.write(ours, b"\x04")
        assert process.wait(SECONDS) == 0
        shown = os.read(ours, 1024)
    os.close(ours)
    assert b"2 messages acknowledged" in shown


def test_at_a_terminal_a_refusal_ends_it_with_the_line_that_was_refused(hub: HubProcess) -> None:
    words = [sys.executable, "-m", "polywire", "pub", "$/hub", "--lines", "-u", url(hub, "umq")]
    ours, theirs = pty.openpty()
    with subprocess.Popen(words, stdin=theirs, stderr=subprocess.PIPE) as process:  # noqa: S603 - ours
        os.close(theirs)
        os.write(ours, b"first\n")
        assert process.wait(SECONDS) == 5
        assert process.stderr is not None
        assert b"channels under $ are the hub's own" in process.stderr.read()
    os.close(ours)


async def given_in(chunks: list[bytes]) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk


def lines(chunks: list[bytes]) -> list[bytes]:
    async def main() -> list[bytes]:
        return [line async for line in split(given_in(chunks))]

    return asyncio.run(main())


@given(st.binary(max_size=60).map(lambda data: data.replace(b"\r", b"")), st.lists(st.integers(0, 60), max_size=5))
def test_lines_are_the_same_wherever_chunks_are_cut(data: bytes, cuts: list[int]) -> None:
    places = [0, *sorted(cuts), len(data)]
    expected = data.split(b"\n")
    if not expected[-1]:
        expected.pop()
    assert lines([data[start:end] for start, end in itertools.pairwise(places)]) == expected


def test_a_carriage_return_belongs_to_the_end_of_the_line() -> None:
    assert lines([b"a\r", b"\nb\rc\r\n"]) == [b"a", b"b\rc"]
