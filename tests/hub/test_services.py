"""Services and calls: turns, deadlines, streams, and either side going away."""

import pytest

from polywire.hub.client import Client
from polywire.hub.message import Message
from polywire.hub.services import END, Call, Caller, CallError, Provider, Services
from tests.hub.links import Clock
from tests.sessions import Site


class Asking(Caller):
    def __init__(self, client: Client | None = None) -> None:
        self.connection = client
        self.heard: list[object] = []

    def reply(self, call: Call, message: Message, *, last: bool) -> None:
        assert call.caller is self
        self.heard.append((message.body, last))

    def fail(self, call: Call, error: CallError) -> None:
        assert call.ended
        self.heard.append(error.code)


class Answering(Provider):
    def __init__(self, client: Client | None = None) -> None:
        self.connection = client
        self.asked: list[object] = []
        self.calls: list[Call] = []

    def request(self, call: Call, message: Message, *, last: bool) -> None:
        self.calls.append(call)
        self.asked.append((call.method, message.body, last))

    def cancel(self, call: Call, error: CallError) -> None:
        assert call.ended
        self.asked.append(error.tag)


class House:
    """Services with a clock, a caller and a provider of "echo"."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.services = Services(self.clock.later, self.clock.nanoseconds)
        self.caller, self.provider = Asking(), Answering()
        self.services.serve("echo", self.provider)

    def call(self, service: str = "echo", *, streamed: bool = False, last: bool = True) -> Call:
        call = Call(self.caller, service, "Say", streamed=streamed)
        self.services.start(call, Message("", b"?"), last=last, seconds=5)
        return call


@pytest.fixture
def house() -> House:
    return House()


def test_a_call_reaches_the_provider_and_its_reply_the_caller(house: House) -> None:
    call = house.call()
    assert house.provider.asked == [("Say", b"?", True)]
    assert house.services.reply(call, Message("", b"!"))
    assert house.caller.heard == [(b"!", True)]
    assert house.services.under_way() == 0
    assert all(alarm.cancelled for alarm in house.clock.alarms)


def test_a_call_ends_once(house: House) -> None:
    call = house.call()
    assert house.services.reply(call, Message("", b"!"))
    assert not house.services.reply(call, Message("", b"!"))
    assert not house.services.fail(call, CallError(500, "failed", ""))
    assert not house.services.cancel(call, CallError(499, "x", ""))
    assert house.caller.heard == [(b"!", True)]


def test_providers_take_turns(house: House) -> None:
    other = Answering()
    house.services.serve("echo", other)
    for _ in range(4):
        house.call()
    assert (len(house.provider.asked), len(other.asked)) == (2, 2)


def test_a_service_nobody_offers_fails_at_once(house: House) -> None:
    house.call("nobody")
    assert house.caller.heard == [404]


def test_a_service_may_be_reached_elsewhere(house: House) -> None:
    other = Answering()
    house.services.elsewhere = {"far": other}.get
    house.call("far")
    house.call("echo")
    assert (len(other.asked), len(house.provider.asked)) == (1, 1)


def test_a_deadline_tells_both_sides(house: House) -> None:
    call = house.call()
    house.clock.advance(5)
    assert house.caller.heard == [504]
    assert house.provider.asked[-1] == "timeout"
    assert not house.services.reply(call, Message("", b"late"))


def test_a_caller_that_goes_away_cancels_its_calls(house: House) -> None:
    house.call()
    house.call()
    assert house.services.under_way() == 2
    while house.services.end_one(house.caller):
        pass
    assert house.provider.asked[2:] == ["caller-gone", "caller-gone"]
    assert (house.caller.heard, house.services.under_way()) == ([], 0)


def test_a_provider_that_goes_away_fails_its_calls_and_offers_nothing(house: House) -> None:
    house.call()
    while house.services.end_one(house.provider):
        pass
    assert house.caller.heard == [503]
    assert not house.services.offered("echo")
    house.call()
    assert house.caller.heard == [503, 404]


def test_both_directions_may_be_streams(house: House) -> None:
    call = house.call(streamed=True, last=False)
    assert house.services.more(call, Message("", b"2"), last=False)
    assert house.services.more(call, Message("", b"3"), last=True)
    assert house.provider.asked == [("Say", b"?", False), ("Say", b"2", False), ("Say", b"3", True)]
    house.services.reply(call, Message("", b"a"), last=False)
    house.services.reply(call, Message("", b"b"), last=True)
    assert house.caller.heard == [(b"a", False), (b"b", True)]
    assert not house.services.more(call, Message("", b"4"), last=True)


def test_a_caller_that_takes_one_reply_gets_the_first_as_its_last(house: House) -> None:
    call = house.call()
    house.services.reply(call, Message("", b"a"), last=False)
    assert house.caller.heard == [(b"a", True)]
    assert call.ended


def test_an_unserved_service_finishes_the_calls_under_way(house: House) -> None:
    call = house.call()
    assert house.services.unserve("echo", house.provider)
    assert not house.services.unserve("echo", house.provider)
    house.services.reply(call, Message("", b"!"))
    assert house.caller.heard == [(b"!", True)]


def test_a_draining_hub_refuses_new_calls(house: House) -> None:
    call = house.call()
    house.services.draining = True
    house.call()
    assert house.caller.heard == [503]
    house.services.reply(call, Message("", b"!"))
    assert house.caller.heard == [503, (b"!", True)]


def test_the_end_of_a_call_is_reported_with_its_code_and_time(house: House) -> None:
    ends: list[tuple[str, int, int]] = []
    house.services.on_end = lambda call, code, taken: ends.append((call.method, code, taken))
    call = house.call()
    house.clock.advance(2)
    house.services.reply(call, Message("", b"!"))
    assert ends == [("Say", 200, 2_000_000_000)]


@pytest.mark.parametrize("jump", [86400.0, -86400.0])
def test_the_time_a_call_took_has_nothing_to_do_with_the_time_of_day(jump: float) -> None:
    site, provider, ends = Site(), Answering(), list[int]()
    services = site.hub.services
    services.on_end = lambda _call, _code, taken: ends.append(taken)
    services.serve("echo", provider)
    call = Call(Asking(), "echo", "Say")
    services.start(call, Message("", b"?"), seconds=5)
    site.clock.jump = jump
    site.clock.advance(2)
    services.reply(call, Message("", b"!"))
    assert ends == [2_000_000_000]


def test_offering_twice_is_told(house: House) -> None:
    assert not house.services.serve("echo", house.provider)
    assert house.services.names() == ["echo"]


def test_a_provider_knows_how_long_a_call_may_take(house: House) -> None:
    assert house.call().seconds == 5


def test_a_stream_may_end_without_another_reply(house: House) -> None:
    call = house.call(streamed=True)
    house.services.reply(call, Message("", b"1"), last=False)
    house.services.reply(call, END, last=True)
    assert house.caller.heard == [(b"1", False), (b"", True)]
    assert call.ended
