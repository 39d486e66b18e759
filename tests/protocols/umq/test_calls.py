import pytest

from polywire.protocols.umq import (
    Call,
    Callback,
    CallException,
    Fatal,
    IncomingCalls,
    LocalProtocolError,
    OutgoingCalls,
    RemoteProtocolError,
    Result,
    encode,
)


@pytest.mark.rule("UMQ-36", "UMQ-41", "UMQ-44", "UMQ-48")
@pytest.mark.parametrize("request_", [Call(7, "x"), Callback(7, 1, "x")])
@pytest.mark.parametrize("answer", [Result(7, "y"), CallException(7, "y")])
def test_a_request_gets_one_answer(request_: Call | Callback, answer: Result | CallException) -> None:
    calls = IncomingCalls()
    assert calls.begin(request_) is None
    assert 7 in calls
    calls.finish(answer)
    assert 7 not in calls
    with pytest.raises(LocalProtocolError) as caught:
        calls.finish(answer)
    assert caught.value.rule == "UMQ-41"


@pytest.mark.rule("UMQ-37", "UMQ-48", "UMQ-99")
@pytest.mark.parametrize("first", [Call(7, "x"), Callback(7, 1, "x")])
@pytest.mark.parametrize("second", [Call(7, "y"), Callback(7, 2, "y")])
def test_an_id_in_flight_is_not_used_again(first: Call | Callback, second: Call | Callback) -> None:
    calls = IncomingCalls()
    calls.begin(first)
    with pytest.raises(RemoteProtocolError) as caught:
        calls.begin(second)
    assert caught.value.rule == "UMQ-99"
    assert isinstance(caught.value.reply, Fatal)
    assert caught.value.reply.code == 3
    assert len(calls) == 1


@pytest.mark.rule("UMQ-99", "UMQ-37")
def test_an_answered_id_may_be_used_again() -> None:
    calls = IncomingCalls()
    calls.begin(Call(7, "x"))
    calls.finish(Result(7, "y"))
    assert calls.begin(Call(7, "z")) is None


@pytest.mark.rule("UMQ-38")
def test_many_requests_are_in_flight_and_answered_in_any_order() -> None:
    incoming = IncomingCalls()
    outgoing: OutgoingCalls[str] = OutgoingCalls()
    ids = [outgoing.start(f"waiter {number}") for number in range(10)]
    for call_id in ids:
        assert incoming.begin(Call(call_id, "x")) is None
    assert len(incoming) == len(outgoing) == 10
    for call_id in [*ids[5:], *reversed(ids[:5])]:
        answer = Result(call_id, "y")
        incoming.finish(answer)
        assert outgoing.answered(answer) == f"waiter {ids.index(call_id)}"
    assert len(incoming) == len(outgoing) == 0


@pytest.mark.rule("UMQ-136", "UMQ-98")
def test_a_request_over_the_limit_is_answered_and_not_remembered() -> None:
    calls = IncomingCalls(limit=2)
    calls.begin(Call(1, "x"))
    calls.begin(Call(2, "x"))
    answer = calls.begin(Call(3, "x"))
    assert answer is not None
    assert encode(answer) == "E3:9 Limit exceeded: 2 requests are in flight"
    assert len(calls) == 2
    calls.finish(Result(1, "y"))
    assert calls.begin(Call(3, "x")) is None


@pytest.mark.rule("UMQ-100")
@pytest.mark.parametrize("answer", [Result(5, "x"), CallException(5, "x")])
def test_an_answer_nobody_waits_for_is_ignored_and_counted(answer: Result | CallException) -> None:
    calls: OutgoingCalls[str] = OutgoingCalls()
    assert calls.answered(answer) is None
    assert calls.ignored == 1
    calls.start("waiter", 5)
    assert calls.answered(answer) == "waiter"
    assert calls.answered(answer) is None
    assert calls.ignored == 2


@pytest.mark.rule("UMQ-100")
def test_a_request_that_was_given_up_is_answered_to_nobody() -> None:
    calls: OutgoingCalls[str] = OutgoingCalls()
    given_up = calls.start("impatient")
    calls.abandon(given_up)
    assert given_up not in calls
    assert calls.start("next") != given_up
    assert calls.answered(Result(given_up, "late")) is None
    assert calls.ignored == 1


@pytest.mark.rule("UMQ-37", "UMQ-99")
def test_this_side_does_not_use_an_id_in_flight_again() -> None:
    calls: OutgoingCalls[str] = OutgoingCalls()
    assert calls.start("one", 2) == 2
    with pytest.raises(LocalProtocolError) as caught:
        calls.start("two", 2)
    assert caught.value.rule == "UMQ-99"
    assert [calls.start(name) for name in "abc"] == [1, 3, 4]


@pytest.mark.rule("UMQ-84")
def test_this_side_uses_no_id_over_64_bits() -> None:
    calls: OutgoingCalls[str] = OutgoingCalls()
    with pytest.raises(LocalProtocolError) as caught:
        calls.start("one", 2**64)
    assert caught.value.rule == "UMQ-84"
    assert len(calls) == 0


@pytest.mark.rule("UMQ-136")
def test_this_side_has_a_limit_too() -> None:
    calls: OutgoingCalls[str] = OutgoingCalls(limit=1)
    calls.start("one")
    with pytest.raises(LocalProtocolError) as caught:
        calls.start("two")
    assert caught.value.rule == "UMQ-136"


def test_all_who_wait_are_told_of_the_end() -> None:
    calls: OutgoingCalls[str] = OutgoingCalls()
    calls.start("one")
    calls.start("two")
    assert calls.drain() == ["one", "two"]
    assert calls.drain() == []
