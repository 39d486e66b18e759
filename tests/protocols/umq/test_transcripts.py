"""The worked examples of the specification, message by message and byte for byte."""

import pytest

from polywire.protocols.umq import (
    Attachment,
    AttachmentError,
    Call,
    Callback,
    CallException,
    Decoder,
    Fatal,
    Result,
    SetAttribute,
    TopicClose,
    TopicUpdate,
    UnsetAttribute,
    Unsubscribe,
    encode,
)
from polywire.wire.frame import Frame
from tests.protocols.umq.connections import End, client, passed, server

TOPIC = int("9A8Z", 36)


def exchange(transcript: list[tuple[str, str | bytes, Frame]]) -> None:
    """Each side's decoder reads its messages as the frames, and the frames are written as the messages."""
    decoders = {"client": Decoder(), "server": Decoder()}
    for sender, message, frame in transcript:
        assert decoders[sender].feed(message) == [frame]
        assert encode(frame) == message


@pytest.mark.rule("UMQ-11")
def test_the_call_of_the_format_section() -> None:
    exchange([("client", 'C1AZ3:["method","arg1","arg2"]', Call(int("1AZ3", 36), '["method","arg1","arg2"]'))])


@pytest.mark.rule("UMQ-12")
def test_the_call_with_attachments_has_as_many_as_its_count_says() -> None:
    payload = '["method","arg1","arg2"]'
    exchange(
        [
            ("client", f"A3:C1AZ4:{payload}", Call(int("1AZ4", 36), payload, 3, 1)),
            ("client", b"one", Attachment(b"one", 1, 0)),
            ("client", b"two", Attachment(b"two", 1, 1)),
            ("client", b"three", Attachment(b"three", 1, 2)),
        ]
    )


@pytest.mark.rule("UMQ-16")
def test_the_duck() -> None:
    number = int("121", 36)
    exchange(
        [
            ("client", "C121:Send me duck.png", Call(number, "Send me duck.png")),
            ("server", "A1:R121:Sending image/png", Result(number, "Sending image/png", 1, 1)),
            ("server", b"\x89PNG\r\n", Attachment(b"\x89PNG\r\n", 1, 0)),
        ]
    )


@pytest.mark.rule("UMQ-31")
def test_the_fatal_errors() -> None:
    exchange(
        [
            ("server", "F0:123 Authorization failed", Fatal(123, "Authorization failed")),
            ("server", "F0:3 Protocol error", Fatal(3, "Protocol error")),
        ]
    )


@pytest.mark.rule("UMQ-35")
def test_the_attachment_error() -> None:
    exchange(
        [
            ("server", "A1:R1:", Result(1, "", 1, 1)),
            ("server", "-:Upstream download error", AttachmentError("Upstream download error", 1, 0)),
        ]
    )


@pytest.mark.rule("UMQ-40", "UMQ-43")
def test_the_polite_call() -> None:
    number = int("5AX12", 36)
    exchange(
        [
            ("client", "C5AX12:How are you?", Call(number, "How are you?")),
            ("server", "R5AX12:Fine", Result(number, "Fine")),
        ]
    )


@pytest.mark.rule("UMQ-46")
def test_the_teapot() -> None:
    number = int("112", 36)
    exchange(
        [
            ("client", "C112:Brew coffee", Call(number, "Brew coffee")),
            ("server", "E112:I'm teapot", CallException(number, "I'm teapot")),
        ]
    )


@pytest.mark.rule("UMQ-51", "UMQ-49", "UMQ-48")
def test_the_work_and_its_result() -> None:
    ready = Call(int("13", 36), "I am ready, please send me a work as ID=4454")
    work = Callback(int("63", 36), int("4454", 36), "here is a work: <work>. Send me result as ID=81A5")
    done = Callback(int("88", 36), int("81A5", 36), "Work done: <result>")
    exchange(
        [
            ("client", "C13:I am ready, please send me a work as ID=4454", ready),
            ("server", "R13:accepted", Result(ready.call_id, "accepted")),
            ("server", "B63:4454:here is a work: <work>. Send me result as ID=81A5", work),
            ("client", "R63:accepted", Result(work.call_id, "accepted")),
            ("client", "B88:81A5:Work done: <result>", done),
            ("server", "R88:Thank you!", Result(done.call_id, "Thank you!")),
        ]
    )
    here, there = client(opened=True), server(opened=True)
    here.callbacks.register("do the work", work.callback_id)
    there.callbacks.register("take the result", done.callback_id)
    for asking, answering, frame in ((here, there, ready), (there, here, work), (here, there, done)):
        asking.calls.start("caller", frame.call_id)
        assert passed(asking, answering, frame) == [frame]
        answer = Result(frame.call_id, "accepted")
        assert passed(answering, asking, answer) == [answer]
        assert asking.calls.answered(answer) == "caller"
    assert here.callbacks.find(work) == "do the work"
    assert there.callbacks.find(done) == "take the result"


SUBSCRIBE: list[tuple[str, str | bytes, Frame]] = [
    ("client", "C41:Subscribe on 'ABC'. TopicID=9A8Z", Call(int("41", 36), "Subscribe on 'ABC'. TopicID=9A8Z")),
    ("server", "R41:accepted", Result(int("41", 36), "accepted")),
]


def update(number: int) -> tuple[str, str | bytes, Frame]:
    return ("server", f"T9A8Z: update{number}", TopicUpdate(TOPIC, f" update{number}"))


def subscribed() -> tuple[End, End]:
    """The subscriber's end and the publisher's."""
    subscriber, publisher = client(opened=True), server(opened=True)
    subscriber.subscriptions.open(TOPIC)
    publisher.publications.open(TOPIC)
    return subscriber, publisher


@pytest.mark.rule("UMQ-55")
def test_the_four_updates() -> None:
    transcript = [*SUBSCRIBE, *map(update, range(1, 5))]
    exchange(transcript)
    subscriber, publisher = subscribed()
    for _, _, frame in transcript[2:]:
        assert passed(publisher, subscriber, frame) == [frame]


@pytest.mark.rule("UMQ-59")
def test_the_topic_that_ends() -> None:
    exchange([*SUBSCRIBE, *map(update, range(1, 5)), ("server", "D9A8Z:", TopicClose(TOPIC))])
    subscriber, publisher = subscribed()
    assert passed(publisher, subscriber, TopicClose(TOPIC)) == [TopicClose(TOPIC)]
    assert len(subscriber.subscriptions) == len(publisher.publications) == 0


@pytest.mark.rule("UMQ-64")
def test_the_topic_that_is_left() -> None:
    leave: tuple[str, str | bytes, Frame] = ("client", "U9A8Z:", Unsubscribe(TOPIC))
    exchange([*SUBSCRIBE, update(1), update(2), leave, update(3), leave, ("server", "D9A8Z:", TopicClose(TOPIC))])
    subscriber, publisher = subscribed()
    third = publisher.send(TopicUpdate(TOPIC, " update3"))
    for message in [subscriber.send(Unsubscribe(TOPIC)), subscriber.send(Unsubscribe(TOPIC))]:
        publisher.receive(message)
    subscriber.receive(third)
    assert subscriber.next_event() is None
    assert publisher.next_event() == Unsubscribe(TOPIC)
    assert publisher.reply == TopicClose(TOPIC)
    assert passed(publisher, subscriber, publisher.reply) == [TopicClose(TOPIC)]
    assert publisher.next_event() is None
    assert publisher.publications.ignored == 1


@pytest.mark.rule("UMQ-68", "UMQ-71")
def test_the_attribute() -> None:
    exchange([("client", "S:key=value", SetAttribute("key", "value")), ("client", "X:key", UnsetAttribute("key"))])
