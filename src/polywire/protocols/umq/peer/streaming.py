"""Topics as an application has them: a ``Subscription`` to read updates from, a ``Publication`` to send them with.

The subscriber chooses the topic's id and tells it to the publisher in a request of its own making; UMQ does not say
how.
"""

import asyncio
from collections.abc import Sequence
from typing import Self

from polywire.client.errors import ConnectionLost
from polywire.client.inbox import Inbox, Intake
from polywire.protocols.umq.base36 import write
from polywire.protocols.umq.frames import TopicClose, TopicUpdate, Unsubscribe
from polywire.protocols.umq.peer.arriving import Received
from polywire.protocols.umq.peer.asking import Hold, check_text
from polywire.protocols.umq.peer.sending import Attachable, Sender
from polywire.protocols.umq.topics import Action, Publications, Subscriptions

ATTACHMENT = 64 * 1024
"""Octets that an attachment which has not come yet counts in an inbox."""


class Subscription:
    """The updates of one topic, as an async iterator that ends with the topic.

    Leave it with ``leave`` or ``async with``.
    A reader that does not keep up makes the connection stop reading (``polywire.client.inbox``).
    """

    def __init__(self, streaming: "Streaming", topic_id: int, intake: Intake, limit: int) -> None:
        self.topic_id = topic_id
        self.inbox: Inbox[Received] = Inbox(intake, limit, on_close=lambda: streaming.ended(self))
        self._streaming = streaming

    @property
    def name(self) -> str:
        """The id in base 36, as it stands in messages."""
        return write(self.topic_id)

    def leave(self) -> None:
        """Want no more of it: ``U``. What waits is dropped."""
        self._streaming.leave(self)

    def forget(self) -> None:
        """The request that asked for the topic has failed: nothing is sent, and the id is free again."""
        self._streaming.forget(self)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Received:
        return await self.inbox.__anext__()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.leave()


class Publication:
    """A topic the other side has subscribed to. Ends with ``close``, or when the subscriber leaves."""

    def __init__(self, streaming: "Streaming", topic_id: int) -> None:
        self.topic_id = topic_id
        self._streaming = streaming
        self._ended = asyncio.Event()

    @property
    def ended(self) -> bool:
        """Whether nobody wants updates any more."""
        return self._ended.is_set()

    async def update(self, text: str, attachments: Sequence[Attachable] = ()) -> bool:
        """Send an update, and wait where the connection does not take more. False once the topic has ended."""
        return await self._streaming.update(self, text, attachments)

    def close(self) -> None:
        """End the topic: ``D``."""
        self._streaming.close(self)

    async def wait_ended(self) -> None:
        """Wait until the subscriber has left, the topic was closed, or the connection has ended."""
        await self._ended.wait()

    def end(self) -> None:
        """Note that it has ended."""
        self._ended.set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()


class Streaming:
    """All topics of one connection, at most ``limit`` in each direction."""

    def __init__(self, sender: Sender, intake: Intake, hold: Hold, *, limit: int) -> None:
        self._sender = sender
        self._intake = intake
        self._hold = hold
        self._subscriptions = Subscriptions(limit=limit)
        self._subscribed: dict[int, Subscription] = {}
        self._publications = Publications(limit=limit)
        self._published: dict[int, Publication] = {}

    def __len__(self) -> int:
        """How many topics this side has subscribed to."""
        return len(self._subscriptions)

    def subscribe(self, topic_id: int | None, limit: int) -> Subscription:
        """Be ready for a topic's updates."""
        chosen = self._subscriptions.open(topic_id)
        subscription = Subscription(self, chosen, self._intake, limit)
        self._subscribed[chosen] = subscription
        return subscription

    def leave(self, subscription: Subscription) -> None:
        """Send ``U``, where the topic has not ended."""
        subscription.inbox.close()
        self.ended(subscription)

    def ended(self, subscription: Subscription) -> None:
        """Nobody reads it any more."""
        if self._subscribed.get(subscription.topic_id) is subscription:
            del self._subscribed[subscription.topic_id]
            leaving = self._subscriptions.leave(subscription.topic_id)
            if leaving is not None and self._sender.is_open:
                self._sender.send(leaving)

    def forget(self, subscription: Subscription) -> None:
        """Undo ``subscribe``."""
        if self._subscribed.get(subscription.topic_id) is subscription:
            del self._subscribed[subscription.topic_id]
            self._subscriptions.forget(subscription.topic_id)
        subscription.inbox.close()

    def publish(self, topic_id: int) -> Publication:
        """Accept a subscription. Raises ``MethodError``, which a handler may let pass: it becomes the ``E``."""
        self._publications.open(topic_id)
        publication = Publication(self, topic_id)
        self._published[topic_id] = publication
        return publication

    async def update(self, publication: Publication, text: str, attachments: Sequence[Attachable]) -> bool:
        """Send a ``T``."""
        check_text(text)
        if publication.ended:
            return False
        self._sender.check(attachments)
        self._sender.send(TopicUpdate(publication.topic_id, text, len(attachments)), attachments)
        await self._sender.room()
        return not publication.ended

    def close(self, publication: Publication) -> None:
        """Send ``D``, where the topic is live."""
        if not publication.ended:
            publication.end()
            del self._published[publication.topic_id]
            closing = self._publications.close(publication.topic_id)
            if closing is not None and self._sender.is_open:
                self._sender.send(closing)

    def updated(self, frame: TopicUpdate) -> None:
        """Take a ``T``."""
        action = self._subscriptions.updated(frame)
        if action is Action.SEND_UNSUBSCRIBE:
            self._sender.send(Unsubscribe(frame.topic_id))
        elif action is Action.DELIVER:
            received = self._hold(frame.payload, frame.attachments, frame.ordinal)
            octets = len(frame.payload) + frame.attachments * ATTACHMENT
            self._subscribed[frame.topic_id].inbox.put(received, octets)

    def closed(self, frame: TopicClose) -> None:
        """Take a ``D``."""
        subscription = self._subscribed.pop(frame.topic_id, None)
        if self._subscriptions.closed(frame) is Action.END and subscription is not None:
            subscription.inbox.fail(None)

    def unsubscribed(self, frame: Unsubscribe) -> None:
        """Take a ``U``."""
        closing = self._publications.unsubscribed(frame)
        if closing is not None:
            self._sender.send(closing)
            self._published.pop(frame.topic_id).end()

    def lost(self, reason: str) -> None:
        """The connection has ended."""
        for subscription in self._subscribed.values():
            subscription.inbox.fail(ConnectionLost(reason))
        for publication in self._published.values():
            publication.end()
        self._subscribed.clear()
        self._published.clear()
