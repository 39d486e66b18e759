"""docs/bridging.md says what survives from each protocol to each; here every cell of its table is tried."""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.hub_process import HubProcess
from tests.interop.speaker import TYPE_NAME, CannotSayError, HeaderValue, Heard, Speaker
from tests.interop.speakers import speak

PAGE = Path(__file__).parents[2] / "docs" / "bridging.md"
BEGIN, END = "<!-- what survives", "<!-- end -->"
SPEAKERS = {"UMQ": "umq-envelope", "MicroMsg2": "micromsg", "FMQP": "fmqp", "MQTT": "mqtt", "sABC": "sabc"}
BODY = b"\xff body \0"
MARKER = b"behind it"
WORDS = {"yes", "no", "text", "kept", "marked"}

Cells = dict[tuple[str, str, str], str]


def read_table() -> Cells:
    """The page's words, by what, from and to."""
    text = PAGE.read_text(encoding="utf-8")
    lines = [line for line in text[text.index(BEGIN) : text.index(END)].splitlines() if line.startswith("|")]
    head, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {(row[0], row[1], to): word for row in rows for to, word in zip(head[2:], row[2:], strict=True)}


TABLE = read_table()


def as_word(got: object, sent: object) -> str:
    if got in {None, (), ""}:
        return "no"
    return "yes" if got == sent else "text" if isinstance(got, str) else f"{got!r}"


def passed(source: Speaker, listener: Speaker, name: str, body: bytes = BODY, **said: object) -> Heard:
    """What the listener hears of a publication; ``MARKER`` where that was nothing."""
    listener.subscribe(name)
    source.publish(name, body, **said)  # type: ignore[arg-type] # what each aspect says is right
    source.publish(name, MARKER)
    return listener.receive()


def whole_body(source: Speaker, listener: Speaker, name: str) -> str:
    return as_word(passed(source, listener, name).body, BODY)


def empty_body(source: Speaker, listener: Speaker, name: str) -> str:
    return "yes" if passed(source, listener, name, b"").body == b"" else "no"


def header(value: HeaderValue, key: str = "trace") -> Callable[[Speaker, Speaker, str], str]:
    def survives(source: Speaker, listener: Speaker, name: str) -> str:
        said: Mapping[str, HeaderValue] = {key: value}
        heard = passed(source, listener, name, headers=said)
        assert heard.body == BODY
        return as_word(heard.headers.get(key), value)

    return survives


def content_type(source: Speaker, listener: Speaker, name: str) -> str:
    heard = passed(source, listener, name, content_type="image/png")
    assert heard.body == BODY
    return as_word(heard.content_type, "image/png")


def attachments(source: Speaker, listener: Speaker, name: str) -> str:
    heard = passed(source, listener, name, attachments=(b"\x89PNG", b"second"))
    assert heard.body == BODY
    return as_word(heard.attachments, (b"\x89PNG", b"second"))


def retain(source: Speaker, listener: Speaker, name: str) -> str:
    source.publish(name, BODY, retain=True)
    listener.subscribe(name)
    source.publish(name, MARKER)
    heard = listener.receive()
    if heard.body == MARKER:
        return "no"
    assert heard.body == BODY
    assert not listener.receive().retained
    return "marked" if heard.retained else "kept"


ASPECTS: dict[str, Callable[[Speaker, Speaker, str], str]] = {
    "body": whole_body,
    "empty body": empty_body,
    "text header": header("größer; than"),
    "number header": header(7),
    "date header": header(datetime(2024, 2, 29, 12, tzinfo=UTC)),
    "content type": content_type,
    "attachments": attachments,
    "retain": retain,
    "type name": header("Acme.Orders.Order", TYPE_NAME),
}


@pytest.mark.parametrize(("what", "sender", "to"), TABLE, ids=lambda word: word)
@pytest.mark.rule("MICROMSG-179")
def test_every_cell_is_true(hub: HubProcess, name: str, what: str, sender: str, to: str) -> None:
    with speak(SPEAKERS[to], hub.addresses) as listener, speak(SPEAKERS[sender], hub.addresses) as source:
        assert ASPECTS[what](source, listener, name) == TABLE[what, sender, to]


@pytest.mark.parametrize("sender", SPEAKERS)
@pytest.mark.parametrize("what", ASPECTS)
def test_a_row_is_missing_only_where_the_protocol_can_not_say_it(
    hub: HubProcess, name: str, what: str, sender: str
) -> None:
    with speak("umq-envelope", hub.addresses) as listener, speak(SPEAKERS[sender], hub.addresses) as source:
        try:
            ASPECTS[what](source, listener, name)
        except CannotSayError:
            assert (what, sender, "UMQ") not in TABLE
        else:
            assert {(what, sender, to) for to in SPEAKERS} <= set(TABLE)


def test_the_table_has_no_words_it_does_not_explain() -> None:
    assert set(TABLE.values()) <= WORDS
    text = PAGE.read_text(encoding="utf-8")
    assert all(f"**{word}**" in text for word in WORDS)


@pytest.mark.parametrize("sender", ["UMQ", "FMQP", "MQTT"])
@pytest.mark.parametrize(("to", "marked"), [("FMQP", True), ("MQTT", False)])
def test_only_fmqp_marks_what_is_kept_for_those_who_hear_it_live(
    hub: HubProcess, name: str, sender: str, to: str, marked: bool
) -> None:
    with speak(SPEAKERS[to], hub.addresses) as listener, speak(SPEAKERS[sender], hub.addresses) as source:
        assert passed(source, listener, name, retain=True).retained is marked
