"""``polywire decode`` on captures, good and bad."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from polywire.cli.decode import explain
from polywire.cli.main import app
from polywire.protocols.fmqp import Publication, Subscription
from polywire.protocols.fmqp import encode as encode_fmqp
from polywire.protocols.mqtt import Connect, Publish, encode

GOOD = encode_fmqp(Subscription("a/*")) + encode_fmqp(Publication("a/b", b"hello" * 100))


def run(*words: str, stdin: bytes = b"") -> tuple[int, str]:
    result = CliRunner().invoke(app, ["decode", *words], input=stdin)
    return result.exit_code, result.output


def test_each_frame_is_shown_with_its_place_and_fields(tmp_path: Path) -> None:
    file = tmp_path / "capture"
    file.write_bytes(GOOD)
    code, shown = run("--protocol", "fmqp", str(file))
    assert code == 0
    assert "       0  Subscription  9 bytes" in shown
    assert "       9  Publication  509 bytes" in shown
    assert "topic 'a/b'" in shown
    assert "518 bytes, 2 frames, 0 faults" in shown
    assert "… 509 bytes in total" in shown


def test_a_violation_is_pointed_at(tmp_path: Path) -> None:
    file = tmp_path / "capture"
    good = encode(Connect("me", clean_session=True))
    file.write_bytes(good + encode(Publish("a", b"x")) + b"\xf5\x02ab")
    code, shown = run("--protocol", "mqtt", str(file))
    assert code == 1
    at = len(good) + 6
    assert f"at byte {at}" in shown
    assert "^^ here" in shown
    assert "(MQTT-" in shown
    assert "2 frames, 1 faults" in shown


def test_what_fmqp_discards_does_not_end_the_capture() -> None:
    bad = b"\x00\x00\x00\x00\x00\x01x"
    found = list(explain("fmqp", bad + GOOD))
    assert [each.name for each in found] == ["discarded", "Subscription", "Publication"]
    assert (found[0].start, found[0].end) == (0, 7)


def test_a_capture_that_ends_within_a_frame_says_so() -> None:
    found = list(explain("fmqp", GOOD[:-1]))
    assert [each.name for each in found] == ["Subscription", "unfinished"]


def test_hexadecimal_digits_are_read_from_standard_input() -> None:
    code, shown = run("--protocol", "fmqp", "--hex", "-", stdin=b"80 01 00 00 00 00 61\n")
    assert code == 0
    assert "Subscription" in shown
    assert run("--protocol", "fmqp", "--hex", "-", stdin=b"8x")[0] == 1


def test_umq_is_read_line_by_line() -> None:
    found = list(explain("umq", b'H1:\nC1:["whoami"]\n'))
    assert [each.name for each in found] == ["Hello", "Call"]
    broken = list(explain("umq", b"H1:\nnonsense\nC1:x\n"))
    assert [each.name for each in broken] == ["Hello", "violation"]


def test_a_file_that_is_not_there_is_said(tmp_path: Path) -> None:
    code, shown = run("--protocol", "fmqp", str(tmp_path / "none"))
    assert code == 1
    assert "can't read" in shown


@pytest.mark.parametrize("protocol", ["umq", "micromsg", "fmqp", "mqtt", "mqttrpc", "sabc"])
@pytest.mark.parametrize("sender", ["client", "server"])
def test_any_octets_are_explained_or_faulted_on_every_protocol(protocol: str, sender: str) -> None:
    for data in (b"", b"\0" * 40, b"hello\r\n\r\n\0", bytes(range(256)), b"CONNECT\r\nclient-id::x\r\n\r\n\0"):
        for found in explain(protocol, data, sender=sender):
            assert 0 <= found.start <= found.end <= len(data)
