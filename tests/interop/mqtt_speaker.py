"""A blocking MQTT client for tests, on the codec, that also speaks RPC over MQTT."""

import secrets
from collections.abc import Callable, Mapping
from typing import TypeVar

from polywire.protocols.mqtt import Connack, Connect, Decoder, Puback, Publish, Suback, Subscribe, encode
from polywire.protocols.mqttrpc import Decoder as RpcDecoder
from polywire.protocols.mqttrpc import ErrorData, RemoteProtocolError, Request, Response
from polywire.protocols.mqttrpc import encode as encode_rpc
from polywire.wire.frame import Frame
from tests.interop.speaker import CannotSayError, FailureError, Handler, HeaderValue, Heard, RefusedError, Speaker, Wire

REFUSED = 0x80
R = TypeVar("R", Request, Response)


class Mqtt(Speaker):
    """Everything goes with QoS 1, both ways."""

    def __init__(self, wire: Wire, user: str = "", password: str = "") -> None:
        super().__init__(wire)
        self._decoder = Decoder(role="client")
        self._rpc = RpcDecoder()
        self._send(
            Connect(
                "",
                clean_session=True,
                keep_alive=0,
                will=None,
                user_name=user or None,
                password=password.encode() if user else None,
            )
        )
        answer = self._until(lambda frame: frame if isinstance(frame, Connack) else None)
        if answer.return_code:
            raise RefusedError(str(answer.return_code))

    def subscribe(self, pattern: str) -> None:
        number = next(self._numbers)
        levels = ["#" if level == "**" else "+" if level == "*" else level for level in pattern.split("/")]
        self._send(Subscribe(number, (("/".join(levels), 1),)))

        def answer(frame: Frame) -> Suback | None:
            return frame if isinstance(frame, Suback) and frame.packet_id == number else None

        if self._until(answer).return_codes == (REFUSED,):
            raise RefusedError("80")

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
            raise CannotSayError("MQTT 3.1.1 carries a body and the retain flag")
        number = next(self._numbers)
        self._send(Publish(channel, body, 1, retain, dup=False, packet_id=number))

        def answer(frame: Frame) -> Puback | None:
            return frame if isinstance(frame, Puback) and frame.packet_id == number else None

        self._until(answer)

    def receive(self, *, acknowledge: bool = True) -> Heard:
        frame = self._until(lambda frame: frame if isinstance(frame, Publish) else None)
        if acknowledge:
            self._acknowledge(frame)
        return Heard(frame.topic, frame.payload, retained=frame.retain)

    def begin_call(self, service: str, method: str, body: bytes) -> tuple[str, int]:
        topic, number = f"/{service}", secrets.randbits(63) | 1
        self.subscribe(topic)
        self.request(topic, Request(number, method, body))
        return topic, number

    def request(self, topic: str, request: Request) -> None:
        """Publish one Request, of a stream perhaps."""
        self.publish(topic, encode_rpc(request))

    def end_call(self, ticket: object) -> bytes:
        assert isinstance(ticket, tuple)
        number = ticket[1]
        response = self._envelope(Response, lambda response: response.correlation_id == number)[1]
        data = response.error_data
        if data is not None:
            raise RefusedError(str(data.code), f"{data.tag}: {data.user_message}", response)
        return response.value or b""

    def serve(self, service: str) -> None:
        self.subscribe(f"/{service}")

    def answer(self, handler: Handler) -> None:
        topic, request = self._envelope(Request, lambda _: True)
        try:
            response = Response(
                request.correlation_id, "", handler(request.type_url, request.value or b""), None, eos=True
            )
        except FailureError as failure:
            data = ErrorData(failure.code, failure.tag, failure.text, failure.retry_after)
            response = Response(request.correlation_id, "", None, data, eos=True)
        self.publish(topic, encode_rpc(response))

    def answer_stream(self, values: list[bytes]) -> None:
        """Wait for one call, and answer it with a stream."""
        topic, request = self._envelope(Request, lambda _: True)
        for value in values:
            self.publish(topic, encode_rpc(Response(request.correlation_id, "", value)))
        self.publish(topic, encode_rpc(Response(request.correlation_id, eos=True)))

    def _envelope(self, kind: type[R], test: Callable[[R], bool]) -> tuple[str, R]:
        """The next publication that is a message of RPC over MQTT of this kind, and its topic."""

        def wanted(frame: Frame) -> tuple[Publish, R] | None:
            if isinstance(frame, Publish) and frame.topic.startswith("/"):
                try:
                    (found,) = self._rpc.feed(frame.payload)
                except RemoteProtocolError:
                    return None
                if isinstance(found, kind) and test(found):
                    return frame, found
            return None

        frame, found = self._until(wanted)
        self._acknowledge(frame)
        return frame.topic, found

    def _acknowledge(self, frame: Publish) -> None:
        if frame.qos:
            assert frame.packet_id is not None
            self._send(Puback(frame.packet_id))

    def _send(self, frame: Frame) -> None:
        self.wire.send(encode(frame))

    def _heard(self, data: str | bytes) -> list[Frame]:
        assert isinstance(data, bytes)
        return self._decoder.feed(data)
