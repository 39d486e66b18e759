"""The unified client for scripts and notebooks: the same names, and every call blocks.

    with polywire.sync.connect("fmqp://127.0.0.1:7103") as bus:
        bus.publish("home/door", "open")
        with bus.subscribe("home/*") as messages:
            for message in messages: ...

Each bus has a thread with an event loop, in which the asyncio client runs; so connections stay alive and are restored
while the script does something else. Several threads may share a bus. ``timeout`` is in seconds, None: no limit.
"""

import asyncio
import concurrent.futures
import contextlib
import inspect
import ssl
import threading
import weakref
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final, Generic, Self, TypeVar, cast

from polywire.backoff import BACKOFF, Backoff
from polywire.client import bus as asynchronous
from polywire.client.adapter import Answer, Handler, Service
from polywire.client.bus import CALL_TIME, Queue, Stream
from polywire.client.errors import Closed, Timeout
from polywire.client.inbox import LIMIT
from polywire.client.message import Body, Demand, Header, Message, Request
from polywire.client.outgoing import BUFFER, Promise
from polywire.client.reconnect import OnDisconnect, OnReconnect
from polywire.client.transport import DIAL_TIME

Result = TypeVar("Result")
Item = TypeVar("Item")

TOGETHER: Final = 1000
"""Messages of ``publish_all`` that are in flight at once."""


class Thread:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._lock = threading.Lock()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="polywire", daemon=True)
        self._thread.start()

    def wait(self, what: str, coroutine: Coroutine[Any, Any, Result], seconds: float | None = None) -> Result:
        """What the coroutine returns, once it does. It is cancelled after so many seconds, or with Ctrl-C."""
        with self._lock:
            if self._stopping or threading.current_thread() is self._thread:
                coroutine.close()
                raise Closed("the bus was closed")
            # The clock runs over there, so that what is done just in time is not lost on its way here.
            future = asyncio.run_coroutine_threadsafe(_limited(what, coroutine, seconds), self._loop)
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            coroutine.close()  # it may not have begun
            raise Closed("the bus was closed") from None
        except BaseException:
            future.cancel()
            raise

    def stop(self) -> None:
        """End the loop and the thread."""
        with self._lock:
            # What was given to the loop before is begun before it stops, and cancelled then.
            if not self._stopping:
                self._stopping = True
                self._loop.call_soon_threadsafe(self._loop.stop)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.get_loop().run_forever()


class Messages(Generic[Item]):
    """Messages as they come: an iterator that waits. Close it, or use ``with``, to want no more."""

    def __init__(self, thread: Thread, stream: Stream[Item]) -> None:
        self._thread = thread
        self._stream = stream
        self._begun = False

    def __enter__(self) -> Self:
        self._begin()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[Item]:
        return self

    def __next__(self) -> Item:
        try:
            found = self._thread.wait("the next message", self._next())
        except Closed as closed:
            if closed.__cause__ is not None:
                raise
            found = None
        if found is None:
            raise StopIteration
        return found[0]

    def get(self, timeout: float | None = None) -> Item:
        """The next message. ``Timeout`` where none comes in time, ``Closed`` where none will."""
        found = self._thread.wait("the next message", self._next(), timeout)
        if found is None:
            raise Closed("there are no more messages")
        return found[0]

    def close(self) -> None:
        """Want no more."""
        self._thread.wait("closing", self._stream.close())

    def _begin(self) -> None:
        if not self._begun:
            self._begun = True
            self._thread.wait("subscribing", self._stream.__aenter__())

    async def _next(self) -> tuple[Item] | None:
        try:
            return (await anext(self._stream),)
        except StopAsyncIteration:
            return None


class Jobs(Messages[Message]):
    """A queue, to put into and to take from. A message is acknowledged when the next one is asked for."""

    def __init__(self, thread: Thread, queue: Queue) -> None:
        super().__init__(thread, queue)
        self._queue = queue

    def __exit__(self, *raised: object) -> None:
        self._thread.wait("closing", self._queue.__aexit__(*raised))

    def handle(self, handler: Callable[[Message], None], *, delay: float = 0.0) -> None:
        """Call ``handler`` with each message, as ``polywire.Queue.handle``, in a thread of its own."""

        async def handle(message: Message) -> None:
            await asyncio.to_thread(handler, self._own(message))

        self._thread.wait("handling", self._queue.handle(handle, delay=delay))

    async def _next(self) -> tuple[Message] | None:
        found = await super()._next()
        return None if found is None else (self._own(found[0]),)

    def _own(self, message: Message) -> Message:
        """The message for a program that acknowledges it in a thread of its own."""

        async def acknowledged() -> None:
            message.ack()

        async def rejected(delay: float, reason: str) -> None:
            message.nack(delay, reason)

        def acknowledge() -> None:
            with contextlib.suppress(Closed):  # the message is back in its queue
                self._thread.wait("acknowledging", acknowledged())

        def reject(delay: float, reason: str) -> None:
            with contextlib.suppress(Closed):
                self._thread.wait("rejecting", rejected(delay, reason))

        return replace(message, acknowledge=acknowledge, reject=reject)

    @property
    def name(self) -> str:
        """The queue's."""
        return self._queue.name

    def put(
        self,
        body: Body,
        *,
        headers: Mapping[str, Header] | None = None,
        content_type: str | None = None,
        timeout: float | None = None,
    ) -> Promise:
        """Put a message in, and wait for the promise."""

        async def put() -> Promise:
            return await self._queue.put(body, headers=headers, content_type=content_type, timeout=timeout)

        return self._thread.wait("putting", put())


class Bus:
    """A connection that reconnects automatically. Created by ``polywire.sync.connect``."""

    def __init__(self, thread: Thread, bus: asynchronous.Bus) -> None:
        self._thread = thread
        self._bus = bus
        self._end = weakref.finalize(self, _end, thread, bus)

    def __repr__(self) -> str:
        return repr(self._bus)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def protocol(self) -> str:
        """What it speaks."""
        return self._bus.protocol

    @property
    def connected(self) -> bool:
        """Whether there is a live connection now."""
        return self._bus.connected

    def publish(
        self,
        channel: str,
        body: Body,
        *,
        headers: Mapping[str, Header] | None = None,
        content_type: str | None = None,
        retain: bool = False,
        timeout: float | None = None,
    ) -> Promise:
        """Publish to a topic, and wait for the promise: sent, acknowledged, or an exception that says what became."""

        async def publish() -> Promise:
            return await self._bus.publish(
                channel, body, headers=headers, content_type=content_type, retain=retain, timeout=timeout
            )

        return self._thread.wait("publishing", publish())

    def publish_all(self, channel: str, bodies: Iterable[Body], *, timeout: float | None = None) -> int:
        """Publish many messages to a topic, many at once, and wait for all promises. Returns how many there were."""
        whole = list(bodies)

        async def publish() -> int:
            for start in range(0, len(whole), TOGETHER):
                receipts = [self._bus.publish(channel, body) for body in whole[start : start + TOGETHER]]
                for receipt in receipts:
                    await receipt
            return len(whole)

        return self._thread.wait("publishing", publish(), timeout)

    def subscribe(self, pattern: str, *, limit: int = LIMIT) -> Messages[Message]:
        """Messages of the topics that match, as ``polywire.Bus.subscribe``."""
        return Messages(self._thread, self._bus.subscribe(pattern, limit=limit))

    def queue(self, name: str, *, limit: int = LIMIT) -> Jobs:
        """A queue, to put into and to take from."""
        return Jobs(self._thread, self._bus.queue(name, limit=limit))

    def call(
        self,
        service: str,
        method: str,
        body: Body = b"",
        *,
        timeout: float = CALL_TIME,
        headers: Mapping[str, Header] | None = None,
        content_type: str | None = None,
    ) -> Message:
        """Call a service, and wait for its answer."""
        calling = self._bus.call(service, method, body, timeout=timeout, headers=headers, content_type=content_type)
        return self._thread.wait("the call", calling)

    def serve(self, service: str, handler: Handler) -> "Serving":
        """Offer a service until what this returns, or the bus, is closed. The handler runs in threads of its own."""
        return Serving(self._thread, self._thread.wait("serving", self._bus.serve(service, _in_a_thread(handler))))

    def watch_demand(self, pattern: str, *, limit: int = LIMIT) -> Messages[Demand]:
        """How many subscribers the topics that match have, whenever that changes."""
        return Messages(self._thread, self._bus.watch_demand(pattern, limit=limit))

    def ping(self, *, timeout: float | None = None) -> None:
        """A round trip to the peer and back."""
        self._thread.wait("the ping", self._bus.ping(), timeout)

    def close(self) -> None:
        """Send what can be sent, and close the connection."""
        self._end()


class Serving:
    """A service that is offered."""

    def __init__(self, thread: Thread, service: Service) -> None:
        self._thread = thread
        self._service = service

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Offer it no more."""
        self._thread.wait("closing", self._service.close())


def connect(
    url: str | None = None,
    *,
    protocol: str | None = None,
    user: str | None = None,
    password: str | None = None,
    token: str | None = None,
    tls: ssl.SSLContext | None = None,
    connect_time: float = DIAL_TIME,
    backoff: Backoff | None = BACKOFF,
    buffer: int = BUFFER,
    client_id: str | None = None,
    qos: int = 1,
    max_size: int | None = None,
    on_disconnect: OnDisconnect | None = None,
    on_reconnect: OnReconnect | None = None,
) -> Bus:
    """A connected bus; the arguments are those of ``polywire.connect``. The callbacks run in threads of their own."""
    opening = asynchronous.connect(
        url,
        protocol=protocol,
        user=user,
        password=password,
        token=token,
        tls=tls,
        connect_time=connect_time,
        backoff=backoff,
        buffer=buffer,
        client_id=client_id,
        qos=qos,
        max_size=max_size,
        on_disconnect=None if on_disconnect is None else lambda reason: asyncio.to_thread(on_disconnect, reason),
        on_reconnect=None if on_reconnect is None else lambda: asyncio.to_thread(on_reconnect),
    )

    async def opened() -> asynchronous.Bus:
        return await opening

    thread = Thread()
    try:
        return Bus(thread, thread.wait("connecting", opened()))
    except BaseException:
        thread.stop()
        raise


def _end(thread: Thread, bus: asynchronous.Bus) -> None:
    """Close a bus, by its program or because it is no longer referenced."""
    try:
        thread.wait("closing", bus.close())
    finally:
        thread.stop()


def _in_a_thread(handler: Handler) -> Handler:
    """A handler that may wait as long as it likes: not in the thread of the event loop."""
    if inspect.iscoroutinefunction(handler):
        return handler

    async def handle(request: Request) -> Answer:
        return await asyncio.to_thread(cast("Callable[[Request], Answer]", handler), request)

    return handle


async def _limited(what: str, coroutine: Coroutine[Any, Any, Result], seconds: float | None) -> Result:
    try:
        async with asyncio.timeout(seconds) as limit:
            return await coroutine
    except TimeoutError as error:
        if seconds is None or not limit.expired():
            raise
        raise Timeout(what, seconds) from error
