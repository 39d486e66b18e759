"""What waits to be sent, what is in flight, and which message is to blame where connections end."""

import asyncio

import pytest

from polywire.client import outgoing as module
from polywire.client.errors import BufferFull, Closed, ConnectionLost, Refused, TooLarge
from polywire.client.outgoing import ALONE, CONTROL, FIRST, LARGE, MOST_HOLD, TOGETHER, Entry, Outgoing, Promise
from tests.client.loops import run
from tests.client.sink import Sink

LOST = ConnectionLost("cut")


class Carrier:
    """A connection that takes ``space`` messages, and acknowledges them when told, or at once."""

    def __init__(self, space: int = 1000, *, at_once: bool = False) -> None:
        self.space = space
        self.at_once = at_once
        self.sent: list[Entry[str]] = []

    def room(self, _what: str, /) -> bool:
        return len(self.sent) < self.space

    def send(self, entry: Entry[str], /) -> None:
        if entry.what == "impossible":
            raise ValueError(entry.what)
        self.sent.append(entry)
        if self.at_once:
            entry.settle(Promise.SENT)

    @property
    def texts(self) -> list[str]:
        return [entry.what for entry in self.sent]


def begin(outgoing: Outgoing[str], carrier: Carrier) -> Carrier:
    outgoing.begin(carrier)
    outgoing.pump()
    return carrier


def test_what_waits_goes_out_in_order_as_far_as_there_is_room() -> None:
    async def main() -> None:
        outgoing: Outgoing[str] = Outgoing(1000)
        receipts = [outgoing.post(str(number), 1) for number in range(5)]
        carrier = begin(outgoing, Carrier(3, at_once=True))
        assert carrier.texts == ["0", "1", "2"]
        assert [receipt.done for receipt in receipts] == [True, True, True, False, False]
        outgoing.pause()
        outgoing.put_back([("first", 5), ("second", 6)])
        assert begin(outgoing, Carrier(at_once=True)).texts == ["first", "second", "3", "4"]
        assert outgoing.idle
        assert outgoing.octets == 0

    run(main)


def test_the_link_is_written_to_directly_only_while_nothing_waits() -> None:
    async def main() -> None:
        outgoing: Outgoing[str] = Outgoing()
        outgoing.post("a", 1)
        link, carrier = Sink(), Carrier(1, at_once=True)
        outgoing.begin(carrier, link)
        found = [outgoing.direct]
        outgoing.pump()
        assert [*found, outgoing.direct] == [None, link]
        outgoing.post("b", 1)  # there is no room for it
        found = [outgoing.direct]
        carrier.space = 2
        outgoing.pump()
        assert carrier.texts == ["a", "b"]
        assert [*found, outgoing.direct] == [None, link]
        outgoing.pause()
        found = [outgoing.direct]
        begin(outgoing, Carrier())  # a connection that has no link to write to
        assert [*found, outgoing.direct] == [None, None]

    run(main)


def test_it_is_bounded_but_takes_one_message_of_any_size() -> None:
    async def main() -> None:
        outgoing: Outgoing[str] = Outgoing(1000)
        outgoing.post("large", 5000)
        with pytest.raises(BufferFull) as caught:
            outgoing.post("another", 1)
        assert (caught.value.limit, caught.value.sent) == (1000, False)

    run(main)


def test_what_never_goes_out_fails() -> None:
    async def main() -> None:
        outgoing: Outgoing[str] = Outgoing()
        carrier = begin(outgoing, Carrier(1))
        sent, waiting = outgoing.post("a", 1), outgoing.post("b", 1)
        assert carrier.texts == ["a"]
        outgoing.fail(Closed("gone"))
        assert (outgoing.idle, outgoing.octets) == (True, 0)
        with pytest.raises(Closed, match="gone; it was sent, and may have arrived"):
            await sent
        with pytest.raises(Closed, match="gone; it was not sent"):
            await waiting
        with pytest.raises(Closed):
            outgoing.post("c", 1)

    run(main)


def test_a_message_that_cannot_be_sent_is_its_publishers_problem_alone() -> None:
    async def main() -> None:
        outgoing: Outgoing[str] = Outgoing()
        waited = [outgoing.post(text, 1) for text in ("a", "impossible", "b")]
        carrier = begin(outgoing, Carrier(at_once=True))
        assert carrier.texts == ["a", "b"]
        with pytest.raises(ValueError, match="impossible"):
            await waited[1]
        with pytest.raises(ValueError, match="impossible"):
            outgoing.post("impossible", 1)
        assert outgoing.idle

    run(main)


def test_the_window_opens_with_each_acknowledgement() -> None:
    async def main() -> None:
        outgoing: Outgoing[str] = Outgoing(window=FIRST + 1)
        carrier = begin(outgoing, Carrier())
        for number in range(3 * FIRST):
            outgoing.post(str(number), 1)
        assert len(carrier.sent) == FIRST
        carrier.sent[0].settle(Promise.ACKNOWLEDGED)
        assert len(carrier.sent) == FIRST + 2
        carrier.sent[1].settle(Promise.ACKNOWLEDGED)
        assert len(carrier.sent) == FIRST + 3

    run(main)


def test_what_was_in_flight_goes_first_on_the_next_connection() -> None:
    async def main() -> None:
        outgoing: Outgoing[str] = Outgoing()
        carrier = begin(outgoing, Carrier(3))
        receipts = [outgoing.post(text, 1) for text in "abcd"]
        settled = asyncio.ensure_future(outgoing.settled())
        carrier.sent[0].settle(Promise.ACKNOWLEDGED)
        outgoing.accepted(carrier.sent[1])
        carrier.sent[2].settle(LOST)
        outgoing.pause(LOST)
        again = Carrier()
        outgoing.begin(again)
        outgoing.pump(again=True)
        assert again.texts == ["c"]
        carrier.sent[1].settle(Promise.ACKNOWLEDGED)
        again.sent[0].settle(Promise.ACKNOWLEDGED)
        assert again.texts == ["c", "d"]
        assert not settled.done()
        again.sent[1].settle(Promise.ACKNOWLEDGED)
        assert [await receipt for receipt in receipts] == [Promise.ACKNOWLEDGED] * 4
        await settled

    run(main)


def test_what_nobody_awaits_any_more_is_not_sent_and_not_sent_again() -> None:
    async def main() -> None:
        outgoing: Outgoing[str] = Outgoing()
        carrier = begin(outgoing, Carrier(1))
        receipts = [outgoing.post(text, 1) for text in "ab"]
        withdrawn = [receipt.withdraw() for receipt in receipts if receipt.withdraw is not None]
        assert withdrawn == [True, False]
        assert outgoing.octets == 0
        outgoing.pause(LOST)
        assert outgoing.idle
        assert carrier.texts == ["a"]

    run(main)


class Clock:
    """Time as the tests tell it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(module, "monotonic", lambda: self.now)


def cut(outgoing: Outgoing[str], clock: Clock, *, before: float = 0.0, after: float = 0.001) -> list[str]:
    """One connection: it lasts for a while, then what may be sent is, and it ends. What was sent."""
    carrier = Carrier()
    outgoing.begin(carrier)
    clock.now += before
    outgoing.pump()
    clock.now += after
    outgoing.pause(LOST)
    return carrier.texts


@pytest.mark.parametrize(("size", "times"), [(5, ALONE), (LARGE, ALONE - 1)])
def test_a_message_fails_that_ended_each_connection_which_lasted_without_it(
    size: int, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        clock = Clock(monkeypatch)
        outgoing: Outgoing[str] = Outgoing()
        receipt = outgoing.post("bad", 1, size=size)
        assert cut(outgoing, clock) == cut(outgoing, clock) == ["bad"]
        for _ in range(times):
            assert not receipt.done
            assert cut(outgoing, clock, before=1) == ["bad"]
        with pytest.raises(Refused, match=f"each time this message of {size} bytes was sent"):
            await receipt
        assert outgoing.idle

    run(main)


def test_connections_that_end_anyway_are_no_messages_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        clock = Clock(monkeypatch)
        outgoing: Outgoing[str] = Outgoing()
        receipt = outgoing.post("good", 1, size=LARGE)
        for number in range(100):
            # A network that cuts every connection after a second or so, whatever is sent.
            cut(outgoing, clock, before=0.9 if number % 2 else 0.2, after=0.5)
        assert not receipt.done
        for _ in range(20):
            cut(outgoing, clock, before=1)
            cut(outgoing, clock)  # this one does not live long enough for it to be sent
        assert not receipt.done

    run(main)


def test_a_message_that_is_held_back_is_cleared_by_a_connection_that_ends_without_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        clock = Clock(monkeypatch)
        outgoing: Outgoing[str] = Outgoing()
        for text in "ab":
            outgoing.post(text, 1)
        sent = [cut(outgoing, clock) for _ in range(TOGETHER + 4)]
        # Connections that never last get on, too: nothing is held back twice in a row.
        assert sent == [["a", "b"]] * TOGETHER + [["a"], [], ["a", "b"], ["a", "b"]]

    run(main)


def test_a_connection_that_ends_late_does_not_delay_the_next_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        clock = Clock(monkeypatch)
        outgoing: Outgoing[str] = Outgoing()
        outgoing.post("a", 1)
        assert cut(outgoing, clock, after=60) == ["a"]
        assert cut(outgoing, clock, after=60) == ["a"]
        assert cut(outgoing, clock, before=MOST_HOLD - 1) == []
        assert cut(outgoing, clock, before=MOST_HOLD, after=MOST_HOLD / CONTROL) == ["a"]

    run(main)


def test_among_others_a_large_message_is_suspected_first(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        clock = Clock(monkeypatch)
        outgoing: Outgoing[str] = Outgoing()
        for text, size in (("a", 1), ("large", LARGE), ("b", 1)):
            outgoing.post(text, 1, size=size)
        assert cut(outgoing, clock) == ["a", "large", "b"]
        for _ in range(2):
            assert cut(outgoing, clock) == ["a"]  # since it may not be sent beside others
        carrier = begin(outgoing, Carrier())
        assert carrier.texts == []  # held, since it was alone at both ends
        clock.now += 1
        outgoing.pump()
        assert carrier.texts == ["a"]
        for number, texts in enumerate((["a", "large"], ["a", "large", "b"])):
            carrier.sent[number].settle(Promise.ACKNOWLEDGED)
            assert carrier.texts == texts

    run(main)


def test_a_suspect_is_sent_when_its_time_has_come() -> None:
    async def main() -> None:
        outgoing: Outgoing[str] = Outgoing()
        receipt = outgoing.post("a", 1)
        for _ in range(2):
            begin(outgoing, Carrier())
            outgoing.pause(LOST)
        begin(outgoing, Carrier(at_once=True))
        assert not receipt.done
        assert await receipt is Promise.SENT

    run(main)


def test_where_the_peer_says_so_the_largest_is_too_large() -> None:
    async def main() -> None:
        outgoing: Outgoing[str] = Outgoing()
        begin(outgoing, Carrier())
        small, large = outgoing.post("a", 1, size=1), outgoing.post("b", 1, size=2)
        outgoing.pause(ConnectionLost("too large", too_large=True, limit=1))
        assert not small.done
        with pytest.raises(TooLarge) as caught:
            await large
        assert (caught.value.size, caught.value.limit) == (2, 1)

    run(main)


def test_small_messages_that_were_in_flight_at_several_ends_are_sent_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        clock = Clock(monkeypatch)
        outgoing: Outgoing[str] = Outgoing()
        for text in "ab":
            outgoing.post(text, 1)
        for _ in range(TOGETHER):
            assert cut(outgoing, clock) == ["a", "b"]
        assert cut(outgoing, clock) == ["a"]

    run(main)
