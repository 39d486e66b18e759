"""Well-behaved clients of all five protocols on plain sockets: they subscribe, publish, receive and acknowledge.

``FRIENDS`` has one for each listener, WebSocket ones included. All waiting is bounded by the socket's time limit.
"""

import base64
import itertools
import json
import os
import socket
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable

from polywire.protocols import fmqp, mqtt
from polywire.protocols.micromsg import frames as micromsg
from polywire.protocols.micromsg.text import BATCH_ACK, read_extensions
from tests.hub_process import HubProcess

SECONDS = 30.0
END = b"\r\n\r\n\0"


class HungUpError(Exception):
    """The hub has closed the connection. The closing frame of a WebSocket is the argument."""


class Line:
    """A byte stream."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection

    def send(self, data: bytes) -> None:
        """All of it."""
        self.socket.sendall(data)

    def receive(self) -> bytes:
        """What comes next."""
        data = self.socket.recv(65536)
        if not data:
            raise HungUpError
        return data


def masked(opcode: int, payload: bytes) -> bytes:
    """A WebSocket frame as clients write them; ``opcode`` with its FIN bit. The mask changes nothing: it is 0."""
    if len(payload) < 126:
        size = bytes([0x80 | len(payload)])
    elif len(payload) < 65536:
        size = b"\xfe" + len(payload).to_bytes(2, "big")
    else:
        size = b"\xff" + len(payload).to_bytes(8, "big")
    return bytes([opcode]) + size + bytes(4) + payload


def upgrade(path: str, *more: str) -> bytes:
    """The request that opens a WebSocket."""
    key = base64.b64encode(os.urandom(16)).decode()
    lines = [f"GET {path} HTTP/1.1", "Host: hub", "Upgrade: websocket", "Connection: Upgrade"]
    lines += [f"Sec-WebSocket-Key: {key}", "Sec-WebSocket-Version: 13", *more, "", ""]
    return "\r\n".join(lines).encode()


class WebSocketLine(Line):
    """A WebSocket; ``receive`` gives whole messages."""

    def __init__(self, connection: socket.socket, path: str, opcode: int) -> None:
        super().__init__(connection)
        self._opcode = opcode
        self._data = b""
        connection.sendall(upgrade(path))
        while b"\r\n\r\n" not in self._data:
            self._data += super().receive()
        head, _, self._data = self._data.partition(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 101 "):
            raise HungUpError(head)

    def send(self, data: bytes) -> None:
        """One message."""
        self.socket.sendall(masked(self._opcode, data))

    def receive(self) -> bytes:
        """One message."""
        head = self._take(2)
        size = head[1]
        if size >= 126:
            size = int.from_bytes(self._take(2 if size == 126 else 8), "big")
        payload = self._take(size)
        if head[0] == 0x88:
            raise HungUpError(payload)
        return payload

    def _take(self, count: int) -> bytes:
        while len(self._data) < count:
            self._data += super().receive()
        taken, self._data = self._data[:count], self._data[count:]
        return taken


class Friend(ABC):
    """One client, logged in. ``words`` are what the hub said that was no message."""

    def __init__(self, line: Line, user: str = "", password: str = "") -> None:
        self.line = line
        self.heard: deque[bytes] = deque()
        self.words: deque[object] = deque()
        self.numbers = itertools.count(1)
        self.log_in(user, password)

    def close(self) -> None:
        """Hang up."""
        self.line.socket.close()

    def hear(self) -> bytes:
        """The next message's body."""
        while not self.heard:
            self.read()
        return self.heard.popleft()

    def word(self) -> object:
        """What the hub says next that is no message."""
        while not self.words:
            self.read()
        return self.words.popleft()

    @abstractmethod
    def log_in(self, user: str, password: str) -> None:
        """The protocol's handshake."""

    @abstractmethod
    def subscribe(self, topic: str) -> None:
        """Returns when the hub has done it."""

    @abstractmethod
    def publish(self, topic: str, body: bytes) -> None:
        """Returns when the hub has acknowledged it, or shown that it came."""

    @abstractmethod
    def push(self, topic: str, body: bytes) -> bytes:
        """The bytes (or the message) that publish without waiting for anything."""

    @abstractmethod
    def read(self) -> None:
        """Take what comes, and acknowledge messages."""


class FmqpFriend(Friend):
    """FMQP has no acknowledgements: a marker of its own shows that the hub has handled what was sent before."""

    def log_in(self, user: str, password: str) -> None:  # noqa: ARG002 - there is none
        self._decoder = fmqp.Decoder()
        self._marker = f"marker/{os.urandom(8).hex()}"
        self.line.send(fmqp.encode(fmqp.Subscription(self._marker)))
        self._settle()

    def subscribe(self, topic: str) -> None:
        self.line.send(fmqp.encode(fmqp.Subscription(topic)))
        self._settle()

    def publish(self, topic: str, body: bytes) -> None:
        self.line.send(self.push(topic, body))
        self._settle()

    def push(self, topic: str, body: bytes) -> bytes:
        return fmqp.encode(fmqp.Publication(topic, body))

    def read(self) -> None:
        for frame in self._decoder.feed(self.line.receive()):
            assert isinstance(frame, fmqp.Publication)
            if frame.topic == self._marker:
                self.words.append(frame.body)
            else:
                self.heard.append(frame.body)

    def _settle(self) -> None:
        number = str(next(self.numbers)).encode()
        self.line.send(fmqp.encode(fmqp.Publication(self._marker, number)))
        assert self.word() == number


class MqttFriend(Friend):
    """MQTT with QoS 1 both ways."""

    def log_in(self, user: str, password: str) -> None:
        self._decoder = mqtt.Decoder(role="client")
        connect = mqtt.Connect(
            "",
            clean_session=True,
            keep_alive=0,
            will=None,
            user_name=user or None,
            password=password.encode() if user else None,
        )
        self.line.send(mqtt.encode(connect))
        assert self.word() == mqtt.Connack(session_present=False, return_code=0)

    def subscribe(self, topic: str) -> None:
        self.line.send(mqtt.encode(mqtt.Subscribe(1, ((topic, 1),))))
        assert self.word() == mqtt.Suback(1, (1,))

    def publish(self, topic: str, body: bytes) -> None:
        number = next(self.numbers) % 60000 + 1
        self.line.send(mqtt.encode(mqtt.Publish(topic, body, qos=1, packet_id=number)))
        assert self.word() == mqtt.Puback(number)

    def push(self, topic: str, body: bytes) -> bytes:
        return mqtt.encode(mqtt.Publish(topic, body))

    def read(self) -> None:
        for frame in self._decoder.feed(self.line.receive()):
            if isinstance(frame, mqtt.Publish):
                self.heard.append(frame.payload)
                if frame.packet_id:
                    self.line.send(mqtt.encode(mqtt.Puback(frame.packet_id)))
            else:
                self.words.append(frame)


class MicromsgFriend(Friend):
    """MicroMsg2 with ``batch-ack``."""

    def log_in(self, user: str, password: str) -> None:
        self._decoder = micromsg.Decoder(micromsg.CLIENT)
        auth = f";x-auth:user={user},password={password}" if user else ""
        self.line.send(self._terms(f"pub-sub;batch-ack:max-count=100{auth}"))
        reply = self.word()
        assert isinstance(reply, micromsg.Handshake)
        (count,) = [each.max_count for each in reply.optional if each.name == BATCH_ACK]
        self.line.send(self._terms(f"pub-sub;batch-ack:max-count={count}{auth}"))
        self._ping()

    def subscribe(self, topic: str) -> None:
        self.line.send(micromsg.encode(micromsg.Command("subscribe", (("destination", f"topic/{topic}"),))))
        self._ping()

    def publish(self, topic: str, body: bytes) -> None:
        self.line.send(self.push(topic, body))
        done = micromsg.Extension(2, self._number.to_bytes(2, "big"))
        while (said := self.word()) != done:  # what was pushed before may be acknowledged alone
            assert isinstance(said, micromsg.Extension), said

    def push(self, topic: str, body: bytes) -> bytes:
        self._number = (next(self.numbers) - 1) % 65535 + 1
        return micromsg.encode(micromsg.Message(self._number, f"topic/{topic}", body, ""))

    def read(self) -> None:
        last = 0
        for frame in self._decoder.feed(self.line.receive()):
            if isinstance(frame, micromsg.Message):
                self.heard.append(frame.payload)
                last = frame.sequence
            else:
                self.words.append(frame)
        if last:
            self.line.send(micromsg.encode(micromsg.Extension(2, last.to_bytes(2, "big"))))

    @staticmethod
    def _terms(use: str) -> bytes:
        return micromsg.encode(micromsg.Handshake("friend", read_extensions(use.encode()), ()))

    def _ping(self) -> None:
        self.line.send(micromsg.encode(micromsg.Command("ping", ())))
        assert self.word() == micromsg.Command("pong", ())


class SabcFriend(Friend):
    """sABC; messages are answered with OK."""

    def log_in(self, user: str, password: str) -> None:
        self._data = b""
        login = [f"client-id::{user}", f"client-passcode::{password}"] if user else ["client-id::friend"]
        self.line.send("\r\n".join(["CONNECT", *login]).encode() + END)
        connected = str(self.word())
        assert connected.startswith("CONNECTED\r\n"), connected
        self.session = connected.split("session-id::")[1].split("\r\n", maxsplit=1)[0]

    def subscribe(self, topic: str) -> None:
        self._ask("op::subscribe", f"destination::{topic}")

    def publish(self, topic: str, body: bytes) -> None:
        self._ask(f"destination::{topic}", body=body)

    def push(self, topic: str, body: bytes) -> bytes:
        return self.frame(f"destination::{topic}", "send-only::yes", body=body)

    def frame(self, *lines: str, body: bytes = b"") -> bytes:
        """A message of this session."""
        head = ["MESSAGE", f"session-id::{self.session}", f"msg-id::{next(self.numbers)}", *lines]
        return "\r\n".join(head).encode() + (b"\r\n\r\n" + body if body else b"") + END

    def read(self) -> None:
        self._data += self.line.receive()
        *frames, self._data = self._data.split(END)
        for each in frames:
            if b"\r\ndestination::" in each:
                self.heard.append(each.partition(b"\r\n\r\n")[2])
            else:
                self.words.append(each.decode())

    def _ask(self, *lines: str, body: bytes = b"") -> None:
        self.line.send(self.frame(*lines, body=body))
        answer = str(self.word())
        assert answer.startswith("MESSAGE\r\n"), answer
        assert answer.endswith("OK"), answer


class UmqFriend(Friend):
    """UMQ over its WebSocket; requests are answered with R."""

    def log_in(self, user: str, password: str) -> None:
        who = json.dumps({"user": user, "password": password}) if user else ""
        self.line.send(f"H1:{who}".encode())
        assert self.word() == "W1:"

    def subscribe(self, topic: str) -> None:
        self._ask("subscribe", topic, 1)

    def publish(self, topic: str, body: bytes) -> None:
        self._ask("publish", topic, body.decode())

    def push(self, topic: str, body: bytes) -> bytes:
        return f"C{next(self.numbers) % 9 + 1}:{json.dumps(['publish', topic, body.decode()])}".encode()

    def read(self) -> None:
        message = self.line.receive().decode()
        if message.startswith("T"):
            self.heard.append(message.partition(":")[2].encode())
        else:
            self.words.append(message)

    def _ask(self, *call: object) -> None:
        number = f"{next(self.numbers) % 9 + 1}"
        self.line.send(f"C{number}:{json.dumps(call)}".encode())
        assert self.word() == f"R{number}:null"


TEXT, BINARY = 0x81, 0x82
FRIENDS: dict[str, tuple[Callable[[Line, str, str], Friend], int]] = {
    "umq": (UmqFriend, TEXT),
    "micromsg": (MicromsgFriend, 0),
    "fmqp": (FmqpFriend, 0),
    "mqtt": (MqttFriend, 0),
    "mqtt_ws": (MqttFriend, BINARY),
    "sabc": (SabcFriend, 0),
    "sabc_ws": (SabcFriend, TEXT),
}


def reach(hub: HubProcess, key: str, *, port: int = 0, source: str = "127.0.0.1") -> socket.socket:
    """A connection to a listener, through another port if there is a proxy."""
    where = ("127.0.0.1", port or hub.port(key))
    connection = socket.create_connection(where, timeout=SECONDS, source_address=(source, 0))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def line(hub: HubProcess, key: str, *, port: int = 0, source: str = "127.0.0.1") -> Line:
    """The same, as a line of its transport."""
    connection = reach(hub, key, port=port, source=source)
    opcode = FRIENDS[key][1]
    if not opcode:
        return Line(connection)
    try:
        return WebSocketLine(connection, "/" + key.removesuffix("_ws"), opcode)
    except BaseException:
        connection.close()
        raise


def friend(hub: HubProcess, key: str, *, port: int = 0, user: str = "", password: str = "") -> Friend:
    """A client on a listener, logged in."""
    made = line(hub, key, port=port)
    try:
        return FRIENDS[key][0](made, user, password)
    except BaseException:
        made.socket.close()
        raise
