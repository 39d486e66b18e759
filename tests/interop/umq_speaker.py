"""A blocking UMQ client for tests, on the codec and somebody else's WebSocket."""

import json
from collections.abc import Mapping

from polywire.protocols.umq import (
    Attachment,
    Call,
    Callback,
    CallException,
    Decoder,
    Fatal,
    Hello,
    Result,
    TopicClose,
    TopicUpdate,
    Welcome,
    encode,
)
from polywire.protocols.umq.methods import Body, read_bare_body, read_envelope, read_request, write_bare_body
from polywire.wire.frame import Frame
from tests.interop.speaker import CannotSayError, FailureError, Handler, HeaderValue, Heard, RefusedError, Speaker, Wire

Carrying = Call | Callback | Result | TopicUpdate


class Umq(Speaker):
    """``envelope``: subscriptions ask for updates in envelopes, which tell channel and headers."""

    def __init__(self, wire: Wire, user: str = "", password: str = "", *, envelope: bool = False) -> None:
        super().__init__(wire)
        self._decoder = Decoder()
        self._envelope = envelope
        self.tells_channel = envelope  # type: ignore[misc] # here it depends on the instance
        self._send(Hello(1, json.dumps({"user": user, "password": password}) if user else ""))

        def welcome(frame: Frame) -> Frame | None:
            return frame if isinstance(frame, Welcome | Fatal) else None

        answer = self._until(welcome)
        if isinstance(answer, Fatal):
            raise RefusedError(str(answer.code), answer.message)

    def subscribe(self, pattern: str) -> None:
        self.ask(["subscribe", pattern, next(self._numbers), {"envelope": self._envelope}])

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
        if any(not isinstance(value, str | int | float) for value in (headers or {}).values()):
            raise CannotSayError("JSON has no dates")
        options: dict[str, object] = {"headers": dict(headers or {}), "retain": retain}
        if content_type:
            options["content_type"] = content_type
        value, sent = _json_body(body, attachments)
        self.ask(["publish", channel, value, options], sent)

    def receive(self, *, acknowledge: bool = True) -> Heard:  # noqa: ARG002 - UMQ has no acks
        frame = self._until(_update)
        attachments = self._attachments(frame)
        if not self._envelope:
            body, rest = _whole(read_bare_body(frame.payload, len(attachments)), attachments)
            return Heard("", body, attachments=rest)
        envelope = read_envelope(frame.payload, len(attachments))
        body, rest = _whole(envelope.body, attachments)
        return Heard(envelope.channel, body, dict(envelope.headers), attachments=rest)

    def begin_call(self, service: str, method: str, body: bytes) -> int:
        value, sent = _json_body(body)
        return self.begin(["call", service, method, value], sent)

    def end_call(self, ticket: object) -> bytes:
        assert isinstance(ticket, int)
        payload, attachments = self.end(ticket)
        return _whole(read_bare_body(payload, len(attachments)), attachments)[0]

    def begin_stream(self, service: str, method: str, body: bytes) -> tuple[int, int]:
        """A call whose responses are updates: the ids of the call and of its topic."""
        value, sent = _json_body(body)
        topic = next(self._numbers)
        return self.begin(["call", service, method, value, {"stream": topic}], sent), topic

    def end_stream(self, ticket: tuple[int, int]) -> list[bytes]:
        """All responses up to the end. A stream that ends with an error raises ``RefusedError``."""
        call_id, topic = ticket

        def event(frame: Frame) -> TopicUpdate | TopicClose | None:
            return frame if isinstance(frame, TopicUpdate | TopicClose) and frame.topic_id == topic else None

        responses = []
        while isinstance(frame := self._until(event), TopicUpdate):
            attachments = self._attachments(frame)
            responses.append(_whole(read_bare_body(frame.payload, len(attachments)), attachments)[0])
        self.end(call_id)
        return responses

    def serve(self, service: str) -> None:
        self.ask(["serve", service, next(self._numbers)])

    def answer(self, handler: Handler) -> None:
        frame = self._until(lambda frame: frame if isinstance(frame, Callback) else None)
        attachments = self._attachments(frame)
        request = read_request(frame.payload, len(attachments))
        try:
            reply = write_bare_body(handler(request.method, _whole(request.body, attachments)[0]))
        except FailureError as failure:
            wait = f" (retry after {failure.retry_after} ms)" if failure.retry_after else ""
            words = f"{failure.code} {failure.tag}{wait}: {failure.text}" if failure.tag else failure.text
            self._send(CallException(frame.call_id, words))
            return
        self._send(Result(frame.call_id, reply.text, len(reply.attachments)), reply.attachments)

    def ask(self, what: list[object], attachments: tuple[bytes, ...] = ()) -> str:
        """Call a method of the hub, and wait for its answer."""
        return self.end(self.begin(what, attachments))[0]

    def begin(self, what: list[object], attachments: tuple[bytes, ...] = ()) -> int:
        """Send a request; its id."""
        call_id = next(self._numbers)
        self._send(Call(call_id, json.dumps(what, ensure_ascii=False), len(attachments)), attachments)
        return call_id

    def end(self, call_id: int) -> tuple[str, tuple[bytes, ...]]:
        """The answer to a request."""

        def answer(frame: Frame) -> Result | CallException | None:
            return frame if isinstance(frame, Result | CallException) and frame.call_id == call_id else None

        found = self._until(answer)
        if isinstance(found, CallException):
            code, _, text = found.payload.partition(" ")
            raise RefusedError(code, text, found) if code.isdigit() else RefusedError("", found.payload, found)
        assert isinstance(found, Result)
        return found.payload, self._attachments(found)

    def _attachments(self, owner: Carrying) -> tuple[bytes, ...]:
        def next_one(frame: Frame) -> Attachment | None:
            return frame if isinstance(frame, Attachment) and frame.owner == owner.ordinal else None

        return tuple(self._until(next_one).body for _ in range(owner.attachments))

    def _send(self, frame: Frame, attachments: tuple[bytes, ...] = ()) -> None:
        self.wire.send(encode(frame))
        for each in attachments:
            self.wire.send(each)

    def _heard(self, data: str | bytes) -> list[Frame]:
        return self._decoder.feed(data)


def _update(frame: Frame) -> TopicUpdate | None:
    return frame if isinstance(frame, TopicUpdate) else None


def _whole(body: Body, attachments: tuple[bytes, ...]) -> tuple[bytes, tuple[bytes, ...]]:
    """The body's bytes, and the attachments that are not the body."""
    return (attachments[0], attachments[1:]) if body.data is None else (body.data, attachments)


def _json_body(body: bytes, attachments: tuple[bytes, ...] = ()) -> tuple[str | None, tuple[bytes, ...]]:
    try:
        return body.decode(), attachments
    except UnicodeDecodeError:
        return None, (body, *attachments)
