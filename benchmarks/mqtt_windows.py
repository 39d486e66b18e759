"""Publishers that wait: many MQTT connections, each with so many QoS 1 messages in flight and no more."""

import multiprocessing
import select
import socket
import time

from benchmarks.hub_peers import BODY
from polywire.protocols.mqtt import Connect, Publish, encode

SECONDS = 120
ACK_OCTETS = 4


class Publisher:
    """One connection: for each PUBACK that comes the next message goes."""

    def __init__(self, port: int, number: int, window: int, messages: int) -> None:
        self._frames = [
            encode(Publish(f"sensors/{number:03}/{at % 4}", BODY, 1, packet_id=at + 1)) for at in range(window)
        ]
        self._all = b"".join(self._frames)
        self._size = len(self._frames[0])
        self._window = window
        self._at = 0
        self.left = messages
        self.unacknowledged = 0
        self._rest = 0
        self.connection = socket.create_connection(("127.0.0.1", port), timeout=SECONDS)
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.connection.sendall(encode(Connect(f"publisher-{number}", clean_session=True)))
        assert self.connection.recv(4) == b"\x20\x02\x00\x00"

    def send(self, count: int) -> None:
        """Send so many messages, or what is left."""
        count = min(count, self.left)
        if not count:
            return
        data = self._all
        if count < self._window or self._at:
            end = self._at + count
            data = data[self._at * self._size : end * self._size]
            if end > self._window:
                data += self._all[: (end - self._window) * self._size]
            self._at = end % self._window
        self.left -= count
        self.unacknowledged += count
        self.connection.sendall(data)

    def acknowledged(self, octets: int) -> None:
        """So many bytes of PUBACKs have come."""
        octets += self._rest
        count, self._rest = divmod(octets, ACK_OCTETS)
        self.unacknowledged -= count
        self.send(count)


def publish(port: int, numbers: range, window: int, messages: int, result: "multiprocessing.Queue[float]") -> None:
    """A process with some of the publishers; tells when its first message went and its last was acknowledged."""
    # Not a selector of the standard library: it takes its time, on a core the broker could use.
    poll = select.epoll()
    publishers = {each.connection.fileno(): each for each in (Publisher(port, n, window, messages) for n in numbers)}
    for descriptor in publishers:
        poll.register(descriptor, select.EPOLLIN)
    buffer = bytearray(1 << 16)
    result.put(0.0)
    started = time.perf_counter()
    for each in publishers.values():
        each.send(window)
    open_ones = len(publishers)
    while open_ones and time.perf_counter() - started < SECONDS:
        for descriptor, _ in poll.poll(1):
            each = publishers[descriptor]
            each.acknowledged(each.connection.recv_into(buffer))
            if not each.left and not each.unacknowledged:
                poll.unregister(descriptor)
                each.connection.close()
                open_ones -= 1
    result.put(started)
    result.put(time.perf_counter() if not open_ones else -1.0)


def acknowledged_rate(port: int, publishers: int, window: int, messages: int) -> float:
    """Messages a second that a broker acknowledges, all publishers together."""
    context = multiprocessing.get_context("spawn")
    result: multiprocessing.Queue[float] = context.Queue()
    process = context.Process(
        target=publish, args=(port, range(publishers), window, messages // publishers, result), daemon=True
    )
    process.start()
    result.get(timeout=60)
    started, ended = result.get(timeout=SECONDS + 30), result.get(timeout=30)
    process.join(10)
    if ended < 0:
        raise RuntimeError("not all messages were acknowledged")
    return messages // publishers * publishers / (ended - started)
