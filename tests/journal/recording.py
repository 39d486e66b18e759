"""Rows as a hub records them, without a hub around them and without a disk below."""

from typing import Any

import pyarrow as pa

from polywire.hub.channels import to_stars
from polywire.hub.client import Client
from polywire.hub.message import Message
from polywire.hub.recorder import Recorder
from polywire.journal.committer import BatchMaker
from polywire.journal.format import PLAIN_SCHEMA
from tests.sessions import Site

TIME = 1_700_000_000_000_000_000
MQTT = 3


class Recording:
    """A recorder with one client to record, and its rows as a table."""

    def __init__(self, first: int = 0) -> None:
        self.told = 0
        self.recorder = Recorder(first, lambda: TIME, self._rows)
        self.client: Client = Site().connect("fmqp", lambda *_: None).client

    def publish(self, channel: str, body: bytes, *, retain: bool = False, heard: bool = True) -> Message:
        """Record a publication."""
        return self.record(Message(channel, body, retain=retain, time=TIME), heard=heard)

    def record(self, message: Message, *, heard: bool = True) -> Message:
        """Record a message to a topic."""
        message.offset = self.recorder.published(message, self.client, 0, heard=heard)
        return message

    def enqueue(self, queue: str, body: bytes) -> int:
        """Record a message in a queue."""
        return self.recorder.enqueued(Message(f"queue/{queue}", body, time=TIME), self.client)

    def clear(self, channel: str) -> None:
        """Record that a topic has no retained message any more."""
        self.recorder.cleared(self.client.protocol, self.client.number, self.client.name, to_stars(channel))

    def store(self, name: str, topic: str, message: Message, qos: int, packet: int = 0, *, retain: bool = False) -> int:
        """Record that a message is due to a kept session."""
        return self.recorder.stored(MQTT, name, topic, message.offset, message.body, qos, packet, retain=retain)

    def wills_over(self, group: int = 0) -> None:
        """Record that a group of the client's last wills is over."""
        self.recorder.wills_over(self.client.protocol, self.client.number, self.client.name, group)

    def table(self) -> Any:
        """All rows since the last call, as readers see them."""
        maker = BatchMaker("here")
        batches = [maker.make(columns) for columns in self.recorder.take()]
        for batch in batches:
            batch.validate(full=True)
        return pa.Table.from_batches(batches).cast(PLAIN_SCHEMA) if batches else PLAIN_SCHEMA.empty_table()

    def rows(self) -> list[dict[str, Any]]:
        """The same as dictionaries."""
        return list(self.table().to_pylist())

    def _rows(self) -> None:
        self.told += 1
