"""The page and the package say the same."""

import re
from pathlib import Path

import pytest

from polywire.protocols import umq
from polywire.protocols.umq import connection, frames
from polywire.protocols.umq.methods import read_method
from tests.conformance.rules import read_page

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "protocols" / "umq.md"


def test_the_python_of_the_page_runs() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    exec(compile(code, str(PAGE), "exec"), {})  # noqa: S102 - our own page


def test_the_conversation_of_the_page_is_legal() -> None:
    (text,) = re.findall(r"```\n(client: H1.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    ends = {"client": umq.Connection[str, str](umq.Role.CLIENT), "server": umq.Connection[str, str](umq.Role.SERVER)}
    frames = {"client": umq.Decoder(), "server": umq.Decoder()}
    ends["client"].callbacks.register("toggle", 5)
    seen = []
    for line in text.splitlines():
        sender, message = re.split(r"  +", line)[0].split(": ", 1)
        said = b"picture" if message == "<binary message>" else message
        (frame,) = frames[sender].feed(said)
        here, there = ends[sender], ends["server" if sender == "client" else "client"]
        match frame:
            case umq.Call() | umq.Callback():
                here.calls.start("waiter", frame.call_id)
            case umq.TopicUpdate():
                there.subscriptions.open(frame.topic_id)
                here.publications.open(frame.topic_id)
        assert here.send(frame if here.reply is None else here.reply) == said
        there.receive(said)
        assert there.next_event() == frame
        if isinstance(frame, umq.Call):
            seen.append(type(read_method(frame.payload, frame.attachments)).__name__)
    assert seen == ["SubscribeTopic", "Publish", "Publish", "CallService", "Serve"]
    assert {end.state for end in ends.values()} == {umq.State.OPEN}


def test_the_errors_of_the_page_are_those_that_are_sent() -> None:
    page = PAGE.read_text(encoding="utf-8")
    with pytest.raises(umq.RemoteProtocolError) as remote:
        umq.Decoder().feed("Cb:")
    reply = remote.value.reply
    assert isinstance(reply, umq.Fatal)
    assert f"`{umq.encode(reply)!s}`" in page
    with pytest.raises(umq.MethodError) as method:
        read_method('["publish","","x"]')
    assert f"`{umq.encode(umq.CallException(4, method.value.payload))!s}`" in page


def test_the_rules_are_numbered_without_gaps() -> None:
    assert [rule.number for rule in read_page(PAGE)] == [f"UMQ-{n:02}" for n in range(1, len(read_page(PAGE)) + 1)]


def test_every_rule_the_sources_name_is_on_the_page() -> None:
    known = {rule.number for rule in read_page(PAGE)}
    for source in (ROOT / "src" / "polywire" / "protocols" / "umq").glob("*.py"):
        assert set(re.findall(r"UMQ-\d+", source.read_text(encoding="utf-8"))) <= known


def test_the_limits_of_the_page_are_the_defaults() -> None:
    mi = 1024 * 1024
    assert (16 * mi, 16 * mi, 1024) == (frames.MAX_TEXT, frames.MAX_BINARY, frames.MAX_UNFINISHED)
    open_at_once = (connection.MAX_IN_FLIGHT, connection.MAX_TOPICS, connection.MAX_REFUSED, connection.MAX_CALLBACKS)
    assert open_at_once == (1024,) * 4
    assert (256, mi) == (connection.MAX_ATTRIBUTES, connection.MAX_SIZE)


def test_every_exported_name_exists() -> None:
    assert sorted(umq.__all__) == umq.__all__
    assert all(hasattr(umq, name) for name in umq.__all__)
