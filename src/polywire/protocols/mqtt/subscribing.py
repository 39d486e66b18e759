"""A client's SUBSCRIBE and UNSUBSCRIBE packets and their answers, over as many connections as there are."""

from collections.abc import Callable
from typing import Final

from polywire.protocols.mqtt.frames import Suback, Subscribe, Unsuback, encode
from polywire.protocols.mqtt.listening import Ear, Table
from polywire.protocols.mqtt.publishing import Publishing

FILTERS_AT_ONCE: Final = 500


class Subscribing:
    """Keeps the server's idea of our subscriptions like the table's. ``write`` sends on the live connection."""

    def __init__(self, publishing: Publishing, write: Callable[[bytes], None], *, remembered: bool) -> None:
        self._publishing: Final = publishing  # it has the packet ids
        self._write: Final = write
        self._remembered: Final = remembered  # the server may know us when we come back
        self._live = False
        self._asked: Final[dict[int, list[str]]] = {}
        self._unsaid: Final[set[str]] = set()  # filters that a server which remembers us must still forget

    @property
    def awaiting(self) -> bool:
        """Whether an answer is to come."""
        return bool(self._asked)

    async def listen(self, ear: Ear, table: Table) -> None:
        """Subscribe, and wait for the answer, over more than one connection if need be."""
        encode(Subscribe(1, ((ear.topic_filter, ear.qos),)))  # raises before anything has changed
        table.add(ear)
        self._unsaid.discard(ear.topic_filter)
        if self._live:
            self._subscribe([(ear.topic_filter, table.qos(ear.topic_filter))])
            table.intake.decide()
        try:
            await ear.receipt
        except BaseException:
            ear.close()
            raise

    def forget(self, topic_filter: str) -> None:
        """Nobody here listens to this filter any more."""
        if self._live:
            self._write(encode(self._publishing.sender.unsubscribe((topic_filter,))))
        elif self._remembered:
            self._unsaid.add(topic_filter)

    def attach(self, table: Table, *, resumed: bool) -> None:
        """There is a connection: say what the server does not know. ``resumed``: it knows what it has answered."""
        self._live = True
        wanted = table.filters(unanswered=resumed)
        for start in range(0, len(wanted), FILTERS_AT_ONCE):
            self._subscribe(wanted[start : start + FILTERS_AT_ONCE])
        if resumed:
            for topic_filter in sorted(self._unsaid):
                self.forget(topic_filter)
        self._unsaid.clear()

    def detach(self) -> None:
        """There is none any more."""
        self._live = False
        self._asked.clear()

    def answered(self, frame: Suback | Unsuback, table: Table) -> None:
        """The server has answered."""
        self._publishing.sender.acknowledged(frame)
        if isinstance(frame, Suback):
            filters = self._asked.pop(frame.packet_id, [])
            for topic_filter, code in zip(filters, frame.return_codes, strict=False):
                table.granted(topic_filter, code)

    def _subscribe(self, filters: list[tuple[str, int]]) -> None:
        frame = self._publishing.sender.subscribe(tuple(filters))
        self._asked[frame.packet_id] = [name for name, _ in filters]
        self._write(encode(frame))
