"""A blocking sABC client for tests, on the codec, over a byte stream or WebSocket messages."""

from collections.abc import Mapping

from polywire.protocols.sabc import Assembly, Connect, Connected, Decoder, Error, Message, MessageDecoder, Whole, encode
from polywire.protocols.sabc.headers import header
from polywire.wire.frame import Frame
from tests.interop.speaker import CannotSayError, FailureError, Handler, HeaderValue, Heard, RefusedError, Speaker, Wire

OWN = {"destination", "subscription", "service", "method", "content-type", "content-encoding"}
OK = b"OK"


class Sabc(Speaker):
    """``messages``: the wire keeps messages apart, as WebSocket does."""

    def __init__(self, wire: Wire, user: str = "", password: str = "", *, messages: bool = False) -> None:
        super().__init__(wire)
        self._decoder: Decoder | MessageDecoder = MessageDecoder() if messages else Decoder()
        self._assembly = Assembly()
        self.wire.send(encode(Connect(user or "interop", password or None)))
        answer = self._until(lambda frame: frame if isinstance(frame, Connected | Error) else None)
        if isinstance(answer, Error):
            raise _refused(answer)
        assert isinstance(answer, Connected)
        self._session = answer.session_id

    def subscribe(self, pattern: str) -> None:
        self._end(self._ask(("op", "subscribe"), ("destination", pattern)))

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
        if attachments or retain:
            raise CannotSayError("sABC has neither attachments nor retained messages")
        lines = [("op", "publish"), ("destination", channel)]
        for key, value in (headers or {}).items():
            if not isinstance(value, str):
                raise CannotSayError("sABC's headers are texts")
            lines.append((key, value))
        if content_type:
            lines.append(("content-type", content_type))
        assert self._end(self._ask(*lines, body=body)) == OK

    def receive(self, *, acknowledge: bool = True) -> Heard:
        def pushed(frame: Frame) -> Whole | None:
            return frame if isinstance(frame, Whole) and header(frame.headers, "subscription") is not None else None

        found = self._until(pushed)
        if acknowledge and not found.send_only:
            self.wire.send(encode(Message(self._session, None, OK, (), found.msg_id)))
        headers = {key: value for key, value in found.headers if key not in OWN}
        channel = header(found.headers, "destination") or ""
        return Heard(channel, found.body, headers, header(found.headers, "content-type") or "")

    def begin_call(self, service: str, method: str, body: bytes) -> str:
        return self._ask(("op", "call"), ("service", service), ("method", method), body=body)

    def end_call(self, ticket: object) -> bytes:
        assert isinstance(ticket, str)
        return self._end(ticket)

    def serve(self, service: str) -> None:
        self._end(self._ask(("op", "serve"), ("service", service)))

    def answer(self, handler: Handler) -> None:
        def asked(frame: Frame) -> Whole | None:
            return frame if isinstance(frame, Whole) and header(frame.headers, "service") is not None else None

        found = self._until(asked)
        try:
            reply: Frame = Message(
                self._session, None, handler(header(found.headers, "method") or "", found.body), (), found.msg_id
            )
        except FailureError as failure:
            headers = [("error-tag", failure.tag)] if failure.tag else []
            if failure.retry_after:
                headers.append(("retry-after", str(failure.retry_after)))
            reply = Error(str(failure.code), failure.text.encode(), self._session, found.msg_id, tuple(headers))
        self.wire.send(encode(reply))

    def _ask(self, *headers: tuple[str, str], body: bytes = b"") -> str:
        """Send a message; its msg-id."""
        msg_id = str(next(self._numbers))
        self.wire.send(encode(Message(self._session, msg_id, body, headers)))
        return msg_id

    def _end(self, msg_id: str) -> bytes:
        """The answer to a message."""

        def answer(frame: Frame) -> Whole | Error | None:
            return frame if isinstance(frame, Whole | Error) and frame.ref_msg_id == msg_id else None

        found = self._until(answer)
        if isinstance(found, Error):
            raise _refused(found)
        assert isinstance(found, Whole)
        return found.body

    def _heard(self, data: str | bytes) -> list[Frame]:
        octets = data.encode() if isinstance(data, str) else data
        found: list[Frame] = []
        for frame in self._decoder.feed(octets):
            if isinstance(frame, Message):
                whole = self._assembly.add(frame)
                if whole is not None:
                    found.append(whole)
            else:
                found.append(frame)
        return found


def _refused(error: Error) -> RefusedError:
    return RefusedError(error.error_code or "", error.body.decode(), error)
