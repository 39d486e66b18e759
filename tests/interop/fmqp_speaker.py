"""A blocking FMQP client for tests, on the codec."""

import contextlib
import itertools
import os
from collections.abc import Mapping

from polywire.protocols.fmqp import Decoder, Publication, Subscription, encode
from polywire.protocols.fmqp.frames import CACHE
from polywire.wire.frame import Frame
from tests.interop.speaker import CannotSayError, HeaderValue, Heard, HungUpError, Speaker, Wire

MARKERS = itertools.cycle(f"fmqp-speaker/{os.getpid()}/{number}" for number in range(256))
"""Topics that no other speaker has now. They come again: a hub remembers topics that were in use."""


class Fmqp(Speaker):
    """FMQP answers nothing, so each operation waits for a publication of its own behind it.

    ``marks``: it may do so. Without, nothing says when the hub has handled what was sent.
    """

    has_rest = False

    def __init__(self, wire: Wire, user: str = "", password: str = "", *, marks: bool = True) -> None:
        super().__init__(wire)
        if user or password:
            raise CannotSayError("FMQP has no logins; the certificate or the listener is who a client is")
        self._decoder = Decoder()
        self._marker = next(MARKERS) if marks else ""
        if marks:
            self._send(Subscription(self._marker))
            self._settled()

    def subscribe(self, pattern: str) -> None:
        if pattern.endswith("**"):
            raise CannotSayError("FMQP's wildcard is one level")
        self._send(Subscription(pattern))
        self._settled()

    def publish(
        self,
        channel: str,
        body: bytes,
        *,
        headers: Mapping[str, HeaderValue] | None = None,
        content_type: str = "",
        attachments: tuple[bytes, ...] = (),
        retain: bool = False,
    ) -> None:
        if headers or content_type or attachments:
            raise CannotSayError("FMQP carries a body and nothing else")
        self._send(Publication(channel, body, CACHE if retain else 0))
        self._settled()

    def receive(self, *, acknowledge: bool = True) -> Heard:  # noqa: ARG002 - FMQP has no acks
        frame = self._until(lambda frame: frame if isinstance(frame, Publication) else None)
        return Heard(frame.topic, frame.body, retained=frame.cache)

    def heard_before_the_end(self) -> list[Frame]:
        """Everything that comes until the hub hangs up."""
        with contextlib.suppress(HungUpError, ConnectionResetError):
            self._until(_nothing)
        return self._waiting

    def _settled(self) -> None:
        if self._marker:
            marker = Publication(self._marker, str(next(self._numbers)).encode())
            self._send(marker)
            self._until(lambda frame: frame if frame == marker else None)

    def _send(self, frame: Frame) -> None:
        self.wire.send(encode(frame))

    def _heard(self, data: str | bytes) -> list[Frame]:
        assert isinstance(data, bytes)
        return self._decoder.feed(data)


def _nothing(_: Frame) -> Frame | None:
    return None
