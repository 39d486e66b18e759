import pickle
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polywire.protocols.umq import (
    Attachment,
    AttachmentError,
    Call,
    Callback,
    CallException,
    Decoder,
    Fatal,
    FatalCode,
    Hello,
    LocalProtocolError,
    RemoteProtocolError,
    Result,
    SetAttribute,
    TopicClose,
    TopicUpdate,
    UnsetAttribute,
    Unsubscribe,
    Welcome,
    encode,
)
from polywire.protocols.umq.frames import AttachmentQueue
from polywire.wire.frame import Frame

WITH_ATTACHMENTS = "HWCRBTS"
WITHOUT = "-FEDUX"


def one(message: str | bytes, decoder: Decoder | None = None) -> Frame:
    (frame,) = (decoder or Decoder()).feed(message)
    return frame


def wrong(message: str | bytes, decoder: Decoder | None = None) -> RemoteProtocolError:
    with pytest.raises(RemoteProtocolError) as caught:
        (decoder or Decoder()).feed(message)
    assert caught.value.frames == []
    return caught.value


def expect(error: RemoteProtocolError, rule: str, position: int, code: int = 3) -> None:
    assert (error.rule, error.position) == (rule, position)
    assert isinstance(error.reply, Fatal)
    assert error.reply.code == code
    assert error.reason in error.reply.message


EACH_COMMAND: list[tuple[str, Frame]] = [
    ("H1:token", Hello(1, "token")),
    ("W1:server", Welcome(1, "server")),
    ("F0:1 Rejected", Fatal(1, "Rejected")),
    ("CZ:x", Call(35, "x")),
    ("BZ:10:x", Callback(35, 36, "x")),
    ("RZ:x", Result(35, "x")),
    ("EZ:x", CallException(35, "x")),
    ("TZ:x", TopicUpdate(35, "x")),
    ("DZ:", TopicClose(35)),
    ("UZ:", Unsubscribe(35)),
    ("S:a=b", SetAttribute("a", "b")),
    ("X:a", UnsetAttribute("a")),
]


@pytest.mark.rule("UMQ-04", "UMQ-05", "UMQ-75")
@pytest.mark.parametrize(("message", "frame"), EACH_COMMAND)
def test_each_command_is_read_and_written(message: str, frame: Frame) -> None:
    assert one(message) == frame
    assert encode(frame) == message


@pytest.mark.rule("UMQ-05", "UMQ-80")
def test_any_other_first_character_is_an_unknown_command() -> None:
    known = set("A-HWFCBRETDUSX!")
    for code in [*range(0x250), 0x661, 0xFF28, 0x1F600]:
        if chr(code) not in known:
            expect(wrong(f"{chr(code)}1:x"), "UMQ-80", 0, code=4)


@pytest.mark.rule("UMQ-156")
def test_an_exclamation_mark_is_read_as_an_exception_and_never_written() -> None:
    assert one("!5AX12:7 No route to method") == CallException(int("5AX12", 36), "7 No route to method")
    assert one("!:") == CallException(0, "")
    assert encode(CallException(5, "7 No route to method")) == "E5:7 No route to method"
    expect(wrong("A1:!5:7 No route"), "UMQ-85", 3)


@pytest.mark.rule("UMQ-80")
@pytest.mark.parametrize(
    ("message", "position"), [("Z", 0), ("z1:", 0), (":", 0), ("A1:Z5:", 3), ("A0::", 3), ("1", 0)]
)
def test_an_unknown_command_is_told_before_what_follows_it(message: str, position: int) -> None:
    expect(wrong(message), "UMQ-80", position, code=4)


@pytest.mark.rule("UMQ-80")
def test_an_unprintable_command_is_not_repeated_in_the_answer() -> None:
    reply = wrong("\x07:").reply
    assert isinstance(reply, Fatal)
    assert reply.message.isprintable()


@pytest.mark.rule("UMQ-06", "UMQ-77")
@pytest.mark.parametrize(("message", "number"), [("C:x", 0), ("C0:x", 0), ("C000:x", 0), ("C007:x", 7), ("C10:x", 36)])
def test_an_id_is_any_number_of_digits(message: str, number: int) -> None:
    assert one(message) == Call(number, "x")


@pytest.mark.rule("UMQ-07", "UMQ-86")
@pytest.mark.parametrize("count", ["", "0", "000"])
def test_an_announcement_of_none_is_legal(count: str) -> None:
    decoder = Decoder()
    assert one(f"A{count}:C1:x", decoder) == Call(1, "x", 0, 0)
    assert decoder.unfinished() == 0
    expect(wrong(b"", decoder), "UMQ-89", 0)


@pytest.mark.rule("UMQ-07", "UMQ-14")
def test_a_count_is_in_base_36() -> None:
    decoder = Decoder()
    assert one("A10:C1:x", decoder) == Call(1, "x", 36, 1)
    assert decoder.unfinished() == 36


@pytest.mark.rule("UMQ-09")
def test_only_the_first_separator_ends_the_id() -> None:
    assert one("C1::a:b:") == Call(1, ":a:b:")
    assert one("B1:2::a") == Callback(1, 2, ":a")


@pytest.mark.rule("UMQ-10")
@pytest.mark.parametrize("payload", ["", " ", "\0", "\r\n", "C1:x", "ünïcödé 😀", "{not json", "x" * 100_000])
def test_a_payload_is_arbitrary_text(payload: str) -> None:
    assert one(f"C1:{payload}") == Call(1, payload)
    assert encode(Call(1, payload)) == f"C1:{payload}"


@pytest.mark.rule("UMQ-13")
def test_the_id_means_what_its_command_says() -> None:
    assert [one(f"{command}1Z:x:y") for command in "HCT"] == [Hello(71, "x:y"), Call(71, "x:y"), TopicUpdate(71, "x:y")]


@pytest.mark.rule("UMQ-01")
def test_text_that_is_no_text_is_refused_both_ways() -> None:
    expect(wrong("C1:ab\ud800"), "UMQ-01", 5)
    with pytest.raises(LocalProtocolError) as caught:
        encode(Call(1, "\udfff"))
    assert caught.value.rule == "UMQ-01"


@pytest.mark.rule("UMQ-02", "UMQ-75")
@pytest.mark.parametrize("body", [b"", b"C1:x", bytes(range(256)), b"\xff" * 100_000])
def test_a_binary_message_is_not_interpreted(body: bytes) -> None:
    decoder = Decoder()
    decoder.feed("A1:C1:")
    assert one(body, decoder) == Attachment(body, 1, 0)
    assert encode(Attachment(body, 1, 0)) == body


@pytest.mark.rule("UMQ-03")
def test_each_message_gives_one_frame_and_nothing_is_held() -> None:
    decoder = Decoder()
    for message, frame in EACH_COMMAND:
        assert decoder.feed(message) == [frame]
        assert decoder.pending() == 0


@pytest.mark.rule("UMQ-03")
def test_a_message_is_not_continued_by_the_next() -> None:
    expect(wrong("C1"), "UMQ-78", 2)


@pytest.mark.rule("UMQ-79")
def test_an_empty_text_message_is_an_error() -> None:
    expect(wrong(""), "UMQ-79", 0)


@pytest.mark.rule("UMQ-76")
@pytest.mark.parametrize(
    ("message", "position"),
    [("Ca:x", 1), ("C1b:x", 2), ("Aa:C1:x", 1), ("A1:C1z:x", 5), ("B1:a:x", 3), ("S1a:k=v", 2), ("Fx:3 x", 1)],
)
def test_a_lower_case_digit_is_an_error(message: str, position: int) -> None:
    expect(wrong(message), "UMQ-76", position)


@pytest.mark.rule("UMQ-78")
@pytest.mark.parametrize(
    ("message", "position"),
    [("C", 1), ("C1", 2), ("C 1:x", 1), ("C1;x", 2), ("C-1:x", 1), ("A", 1), ("A1", 2), ("A 1:C1:x", 1), ("A1:C", 4)],
)
def test_a_missing_separator_is_an_error(message: str, position: int) -> None:
    expect(wrong(message), "UMQ-78", position)


@pytest.mark.rule("UMQ-78", "UMQ-80")
def test_a_separator_missing_behind_a_count_joins_it_with_the_command() -> None:
    # The count is 1C1, and `x` is the command.
    expect(wrong("A1C1:x"), "UMQ-80", 5, code=4)


@pytest.mark.rule("UMQ-82")
@pytest.mark.parametrize("message", ["S:", "S:key", "S1:key:value", "A1:S:key"])
def test_a_set_without_equals_is_an_error(message: str) -> None:
    expect(wrong(message), "UMQ-82", len(message))


@pytest.mark.rule("UMQ-83")
@pytest.mark.parametrize(("message", "position"), [("B1:", 3), ("B1:4454", 7), ("B1:44 54:x", 5), ("A1:B1:2", 7)])
def test_a_callback_without_its_second_separator_is_an_error(message: str, position: int) -> None:
    expect(wrong(message), "UMQ-83", position)


@pytest.mark.rule("UMQ-84")
@pytest.mark.parametrize(
    ("message", "position"),
    [
        ("C3W5E11264SGSG:x", 1),
        ("CZZZZZZZZZZZZZZZZZZZZ:x", 1),
        ("A3W5E11264SGSG:C1:x", 1),
        ("A1:C3W5E11264SGSG:x", 4),
        ("B1:3W5E11264SGSG:x", 3),
        ("F3W5E11264SGSG:3 x", 1),
    ],
)
def test_a_number_over_64_bits_is_an_error(message: str, position: int) -> None:
    expect(wrong(message), "UMQ-84", position)


@pytest.mark.rule("UMQ-84")
def test_the_largest_ids_are_read_and_written() -> None:
    largest = 2**64 - 1
    assert one("B3W5E11264SGSF:3W5E11264SGSF:x") == Callback(largest, largest, "x")
    assert encode(Callback(largest, largest, "x")) == "B3W5E11264SGSF:3W5E11264SGSF:x"
    assert one("C" + "0" * 50_000 + "3W5E11264SGSF:x") == Call(largest, "x")


@pytest.mark.rule("UMQ-84")
@pytest.mark.parametrize(
    "frame",
    [
        Call(-1, ""),
        Call(2**64, ""),
        Callback(1, 2**64, ""),
        TopicClose(2**64),
        Hello(-1),
        Call(1, "", 2**64),
        SetAttribute("a", "b", -1),
    ],
)
def test_a_number_over_64_bits_is_not_sent(frame: Frame) -> None:
    with pytest.raises(LocalProtocolError) as caught:
        encode(frame)
    assert caught.value.rule == "UMQ-84"


@pytest.mark.rule("UMQ-85", "UMQ-20", "UMQ-24", "UMQ-39", "UMQ-42", "UMQ-50", "UMQ-54", "UMQ-67", "UMQ-14")
@pytest.mark.parametrize("command", WITH_ATTACHMENTS)
def test_these_commands_can_have_attachments(command: str) -> None:
    message = f"A2:{command}:1:x=y"
    decoder = Decoder()
    frame = one(message, decoder)
    assert getattr(frame, "attachments", None) == 2
    assert getattr(frame, "ordinal", None) == 1
    assert decoder.feed(b"a") + decoder.feed(b"b") == [Attachment(b"a", 1, 0), Attachment(b"b", 1, 1)]
    written = encode(frame)
    assert isinstance(written, str)
    assert written.startswith("A2:")
    assert one(written) == frame


@pytest.mark.rule("UMQ-85", "UMQ-28", "UMQ-34", "UMQ-45", "UMQ-58", "UMQ-63", "UMQ-72")
@pytest.mark.parametrize("command", WITHOUT)
@pytest.mark.parametrize("count", ["", "0", "1"])
def test_these_commands_cannot(command: str, count: str) -> None:
    expect(wrong(f"A{count}:{command}:1 x"), "UMQ-85", 2 + len(count))


@pytest.mark.rule("UMQ-15", "UMQ-85")
def test_a_count_before_a_count_is_an_error() -> None:
    expect(wrong("A1:A1:C1:x"), "UMQ-85", 3)


@pytest.mark.rule("UMQ-15")
@pytest.mark.parametrize("message", ["A1:", "A:"])
def test_a_count_before_nothing_is_an_error(message: str) -> None:
    expect(wrong(message), "UMQ-15", len(message))


@pytest.mark.rule("UMQ-87", "UMQ-14")
def test_attachments_are_matched_in_order_across_messages() -> None:
    decoder = Decoder()
    assert one("A2:C1:x", decoder) == Call(1, "x", 2, 1)
    assert one("A1:T2:y", decoder) == TopicUpdate(2, "y", 1, 2)
    assert one(b"a", decoder) == Attachment(b"a", 1, 0)
    assert one("C3:between", decoder) == Call(3, "between")
    assert one(b"b", decoder) == Attachment(b"b", 1, 1)
    assert one("A1:R9:z", decoder) == Result(9, "z", 1, 3)
    assert one(b"c", decoder) == Attachment(b"c", 2, 0)
    assert one(b"d", decoder) == Attachment(b"d", 3, 0)
    assert decoder.unfinished() == 0


@pytest.mark.rule("UMQ-32", "UMQ-88")
def test_an_attachment_error_fails_just_one() -> None:
    decoder = Decoder()
    decoder.feed("A3:C1:x")
    assert one(b"a", decoder) == Attachment(b"a", 1, 0)
    assert one("-:gone", decoder) == AttachmentError("gone", 1, 1)
    assert one(b"c", decoder) == Attachment(b"c", 1, 2)


@pytest.mark.rule("UMQ-90")
def test_a_message_does_not_wait_for_its_attachments() -> None:
    decoder = Decoder()
    assert one("A1:C1:slow", decoder) == Call(1, "slow", 1, 1)
    assert one("A1:C2:next", decoder) == Call(2, "next", 1, 2)
    assert decoder.unfinished() == 2


@pytest.mark.rule("UMQ-89", "UMQ-75")
@pytest.mark.parametrize("message", [b"", b"x", "-:gone"])
def test_an_attachment_nobody_announced_is_an_error(message: str | bytes) -> None:
    expect(wrong(message), "UMQ-89", 0)
    decoder = Decoder()
    decoder.feed("A1:C1:x")
    decoder.feed(b"")
    expect(wrong(message, decoder), "UMQ-89", 0)


@pytest.mark.rule("UMQ-18", "UMQ-19", "UMQ-22", "UMQ-23")
def test_hello_and_welcome_carry_a_version_and_any_payload() -> None:
    assert one("H1:") == Hello(1)
    assert one("HZZ:user=a:b") == Hello(1295, "user=a:b")
    assert one("W1:") == Welcome(1)
    assert one("W1:server=c") == Welcome(1, "server=c")
    assert encode(Hello(1)) == "H1:"
    assert encode(Welcome(1, "x")) == "W1:x"


@pytest.mark.rule("UMQ-26")
@pytest.mark.parametrize("number", ["", "0", "5AX12"])
def test_the_id_of_a_fatal_means_nothing(number: str) -> None:
    frame = one(f"F{number}:3 Protocol error")
    assert frame == Fatal(3, "Protocol error")
    assert encode(frame) == "F0:3 Protocol error"


@pytest.mark.rule("UMQ-27")
def test_a_fatal_has_a_code_and_a_message() -> None:
    assert one("F0:boom") == Fatal(0, "boom")
    assert encode(Fatal(0, "boom")) == "F0:0 boom"
    assert one("F0:12") == Fatal(12, "")
    for code in (-1, 1_000_000_000):
        with pytest.raises(LocalProtocolError) as caught:
            encode(Fatal(code, "x"))
        assert caught.value.rule == "UMQ-27"


@pytest.mark.rule("UMQ-96")
@pytest.mark.parametrize("code", list(FatalCode))
def test_a_fatal_takes_each_code_as_it_is_named(code: FatalCode) -> None:
    frame = Fatal(code, code.text)
    assert encode(frame) == f"F0:{code.value} {code.text}"
    assert one(f"F0:{code.value} {code.text}") == frame


@pytest.mark.rule("UMQ-33")
@pytest.mark.parametrize("number", ["", "0", "5AX12"])
def test_the_id_of_an_attachment_error_means_nothing(number: str) -> None:
    decoder = Decoder()
    decoder.feed("A1:C1:")
    frame = one(f"-{number}:gone", decoder)
    assert frame == AttachmentError("gone", 1, 0)
    assert encode(frame) == "-:gone"


@pytest.mark.rule("UMQ-47")
def test_a_callback_begins_its_payload_with_the_callback_id() -> None:
    assert one("B63:81A5:done: <result>") == Callback(219, 374909, "done: <result>")
    assert one("B::") == Callback(0, 0, "")


@pytest.mark.rule("UMQ-52")
def test_an_update_keeps_its_spaces() -> None:
    assert one("T9A8Z: update1 ") == TopicUpdate(int("9A8Z", 36), " update1 ")


@pytest.mark.rule("UMQ-57", "UMQ-62")
def test_close_and_unsubscribe_are_written_without_payload() -> None:
    assert encode(TopicClose(36)) == "D10:"
    assert encode(Unsubscribe(36)) == "U10:"
    assert one("D10:surplus") == TopicClose(36)
    assert one("U10:surplus") == Unsubscribe(36)


@pytest.mark.rule("UMQ-65", "UMQ-107")
@pytest.mark.parametrize(
    ("payload", "name", "value"),
    [("a=b", "a", "b"), (" a = b ", " a ", " b "), ("a=", "a", ""), ("a=b=c", "a", "b=c"), ("a:b=c:d", "a:b", "c:d")],
)
def test_the_first_equals_splits_name_and_value(payload: str, name: str, value: str) -> None:
    assert one(f"S:{payload}") == SetAttribute(name, value)
    assert encode(SetAttribute(name, value)) == f"S:{payload}"


@pytest.mark.rule("UMQ-107")
@pytest.mark.parametrize(("message", "position"), [("S:=value", 2), ("S:=", 2), ("X:", 2), ("X0:", 3), ("A1:S:=v", 5)])
def test_an_empty_attribute_name_is_an_error(message: str, position: int) -> None:
    expect(wrong(message), "UMQ-107", position)


@pytest.mark.rule("UMQ-107")
@pytest.mark.parametrize("frame", [SetAttribute("", "b"), SetAttribute("a=b", "c"), UnsetAttribute("")])
def test_a_name_that_would_not_arrive_is_not_sent(frame: Frame) -> None:
    with pytest.raises(LocalProtocolError) as caught:
        encode(frame)
    assert caught.value.rule == "UMQ-107"


@pytest.mark.rule("UMQ-66", "UMQ-70")
@pytest.mark.parametrize("number", ["", "0", "5AX12"])
def test_the_ids_of_set_and_unset_mean_nothing(number: str) -> None:
    assert one(f"S{number}:a=b") == SetAttribute("a", "b")
    assert one(f"X{number}:a") == UnsetAttribute("a")
    assert (encode(SetAttribute("a", "b")), encode(UnsetAttribute("a"))) == ("S:a=b", "X:a")


@pytest.mark.rule("UMQ-133")
def test_a_text_message_over_the_limit_ends_the_connection() -> None:
    assert one("C1:" + "x" * 7, Decoder(max_text=10)) == Call(1, "x" * 7)
    error = wrong("C1:" + "x" * 8, Decoder(max_text=10))
    expect(error, "UMQ-133", 10, code=9)
    assert "11 characters" in error.reason
    assert "10 allowed" in error.reason


@pytest.mark.rule("UMQ-133")
def test_a_binary_message_over_the_limit_ends_the_connection() -> None:
    decoder = Decoder(max_binary=10)
    decoder.feed("A2:C1:")
    assert one(bytes(10), decoder) == Attachment(bytes(10), 1, 0)
    expect(wrong(bytes(11), decoder), "UMQ-133", 10, code=9)


@pytest.mark.rule("UMQ-134")
def test_too_many_attachments_due_end_the_connection() -> None:
    decoder = Decoder(max_unfinished=3)
    decoder.feed("A2:C1:")
    decoder.feed("A1:C2:")
    decoder.feed(b"")
    decoder.feed("A1:C3:")
    assert decoder.unfinished() == 3
    error = wrong("A1:C4:", decoder)
    expect(error, "UMQ-134", 1, code=9)
    assert decoder.unfinished() == 3


@pytest.mark.rule("UMQ-134")
def test_an_announcement_of_the_largest_count_holds_nothing() -> None:
    decoder = Decoder()
    tracemalloc.start()
    expect(wrong("A3W5E11264SGSF:C1:", decoder), "UMQ-134", 1, code=9)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100_000
    assert decoder.unfinished() == 0


@pytest.mark.rule("UMQ-134")
def test_a_large_allowed_count_costs_no_memory() -> None:
    decoder = Decoder(max_unfinished=2**62)
    tracemalloc.start()
    frame = one("AZZZZZZZZZZZ:C1:", decoder)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert frame == Call(1, "", 36**11 - 1, 1)
    assert peak < 100_000


@pytest.mark.parametrize("message", ["", "Z1:", "A1:", "c", "C1", b"x", "A3W5E11264SGSF:C1:"])
def test_an_error_repeats_itself_whatever_follows(message: str | bytes) -> None:
    decoder = Decoder()
    first = wrong(message, decoder)
    for following in ("H1:", b"", "C1:x", "-:x"):
        again = wrong(following, decoder)
        assert again is not first
        fields = (first.rule, first.reason, first.position, first.reply)
        assert (again.rule, again.reason, again.position, again.reply) == fields


def test_what_is_no_message_is_not_sent() -> None:
    with pytest.raises(LocalProtocolError) as caught:
        encode(Frame())
    assert caught.value.rule == "UMQ-05"


@pytest.mark.parametrize("frame", [frame for _, frame in EACH_COMMAND] + [Attachment(b"x", 1, 2), AttachmentError("x")])
def test_frames_are_values(frame: Frame) -> None:
    assert pickle.loads(pickle.dumps(frame)) == frame  # noqa: S301 - made one line above
    assert len({frame, frame}) == 1
    assert repr(frame).startswith(type(frame).__name__ + "(")


@pytest.mark.rule("UMQ-89")
def test_nothing_is_taken_that_was_not_announced() -> None:
    queue = AttachmentQueue()
    assert not queue.take()
    queue.announce(1)
    assert queue.take()
    assert not queue.take()
    assert queue.due == 0


@pytest.mark.rule("UMQ-87")
@given(st.lists(st.one_of(st.integers(1, 4), st.none()), max_size=40))
def test_attachments_are_matched_first_in_first_out(steps: list[int | None]) -> None:
    """A number announces that many, None is one that arrives."""
    queue = AttachmentQueue()
    due: list[tuple[int, int]] = []
    announced = 0
    for step in steps:
        if step is not None:
            announced += 1
            assert queue.announce(step) == announced
            due += [(announced, index) for index in range(step)]
        elif due:
            assert queue.take()
            assert (queue.owner, queue.index) == due.pop(0)
        else:
            assert not queue.take()
        assert queue.due == len(due)
