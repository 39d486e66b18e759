import pytest

from polywire.protocols.umq import Callback, Callbacks, CallException, LocalProtocolError, encode


@pytest.mark.rule("UMQ-49", "UMQ-105")
def test_a_callback_is_found_until_it_is_unregistered() -> None:
    callbacks: Callbacks[str] = Callbacks()
    callback_id = callbacks.register("function")
    for call_id in range(3):
        assert callbacks.find(Callback(call_id, callback_id, "x")) == "function"
    callbacks.unregister(callback_id)
    assert isinstance(callbacks.find(Callback(1, callback_id, "x")), CallException)


@pytest.mark.rule("UMQ-49")
def test_a_callback_may_choose_its_number() -> None:
    callbacks: Callbacks[str] = Callbacks()
    assert callbacks.register("zero", 0) == 0
    assert callbacks.register("one", 1) == 1
    assert callbacks.register("any") == 2
    assert callbacks.find(Callback(9, 0, "x")) == "zero"
    with pytest.raises(LocalProtocolError) as caught:
        callbacks.register("again", 1)
    assert caught.value.rule == "UMQ-49"
    with pytest.raises(LocalProtocolError) as caught:
        callbacks.register("large", 2**64)
    assert caught.value.rule == "UMQ-84"


@pytest.mark.rule("UMQ-106", "UMQ-98")
def test_an_unknown_callback_is_answered() -> None:
    callbacks: Callbacks[str] = Callbacks()
    answer = callbacks.find(Callback(219, 4454, "x"))
    assert isinstance(answer, CallException)
    assert encode(answer) == "E63:2 Callback not found"


@pytest.mark.rule("UMQ-136")
def test_callbacks_are_limited() -> None:
    callbacks: Callbacks[str] = Callbacks(limit=1)
    callbacks.register("one")
    with pytest.raises(LocalProtocolError) as caught:
        callbacks.register("two")
    assert caught.value.rule == "UMQ-136"
    assert len(callbacks) == 1


def test_unregistering_twice_is_no_mistake() -> None:
    callbacks: Callbacks[str] = Callbacks()
    callbacks.unregister(callbacks.register("one"))
    callbacks.unregister(1)
    assert len(callbacks) == 0
