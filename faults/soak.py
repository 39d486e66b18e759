"""Churn on all protocols for a long time: what clients leave behind must not add up.

Threads connect, subscribe, publish, retain, queue, call, leave wills, and end politely or rudely, in an order that
follows from the seed, with names from a bounded set. The hub's memory is sampled; after a warm-up it has to stay flat.
"""

import contextlib
import http.client
import random
import socket
import statistics
import struct
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from faults.load import ENDED, arrow_stream
from polywire.protocols import fmqp
from polywire.protocols.fmqp.frames import CACHE, LAST_WILL
from polywire.protocols.mqtt import Connect, Disconnect, Publish, Subscribe, Will, encode
from tests.hub_process import PROGRAM, HubProcess, running_hub
from tests.interop.speaker import CannotSayError, RefusedError, Speaker, StreamWire
from tests.interop.speakers import CALLING, PROTOCOLS, speak

THREADS = 6
NAMES = 200
"""Different topics and services."""

QUEUES = 20
SESSIONS = 20
"""Fewer, since each of them has to be full before the memory can be flat."""

SAMPLE_SECONDS = 10.0
WARM_SECONDS = 120.0
FLAT = 0.05
"""How much the memory may grow after the warm-up."""

SETTINGS = (
    *("journal.segment_size=1 MiB", "journal.keep_size=4 MiB", "limits.call_time=2"),
    *("limits.offline_messages=20", "limits.queue_messages=50"),
)
"""With these, everything that may be kept is full after a minute or two."""

BARS = "▁▂▃▄▅▆▇█"


class Churn:
    """The clients. ``counts`` is what they have done, ``problems`` what they did not expect."""

    def __init__(self, hub: HubProcess, seed: int) -> None:
        self._hub = hub
        self._seed = seed
        self.counts: Counter[str] = Counter()
        self.problems: list[str] = []
        self._deeds: list[Callable[[random.Random], None]] = [
            self._talk,
            self._queue,
            self._call,
            self._keep_session,
            self._leave_will,
            self._post,
            self._read_pages,
            self._be_rude,
        ]

    def run(self, number: int, stop: threading.Event) -> None:
        """Be one of the threads."""
        chance = random.Random(f"{self._seed}/{number}")  # noqa: S311 - no secret
        while not stop.is_set():
            deed = chance.choice(self._deeds)
            name = deed.__name__.strip("_").replace("_", " ")
            try:
                deed(chance)
                self.counts[name] += 1
            except (RefusedError, *ENDED) as error:
                self.counts[f"{name}, refused"] += 1
                if isinstance(error, ConnectionRefusedError):
                    self.problems.append(f"{name}: {error!r}")
                    return
            except Exception as error:  # noqa: BLE001 - reported at the end
                self.problems.append(f"{name}: {error!r}")

    def _topic(self, chance: random.Random) -> str:
        return f"soak/{chance.randrange(NAMES)}"

    def _talk(self, chance: random.Random) -> None:
        """Publish over one protocol, some of it retained, and hear it over another."""
        topic = self._topic(chance)
        addresses = self._hub.addresses
        with speak(chance.choice(PROTOCOLS), addresses) as one, speak(chance.choice(PROTOCOLS), addresses) as other:
            one.subscribe(topic)
            for number in range(chance.randint(1, 20)):
                body = f"{number} {chance.random()}".encode() * chance.choice((1, 100))
                self._publish(other, topic, body, retain=chance.random() < 0.3)
                while one.receive().body != body:
                    pass  # what was retained, or somebody else's

    @staticmethod
    def _publish(speaker: Speaker, topic: str, body: bytes, *, retain: bool) -> None:
        with contextlib.suppress(CannotSayError):
            speaker.publish(topic, body, retain=retain)
            return
        speaker.publish(topic, body)

    def _queue(self, chance: random.Random) -> None:
        """Put into a queue, and take as much from it."""
        queue = f"queue/{chance.randrange(QUEUES)}"
        addresses = self._hub.addresses
        with speak(chance.choice(PROTOCOLS), addresses) as putting, speak("mqtt", addresses) as taking:
            taking.subscribe(queue)
            for number in range(chance.randint(1, 10)):
                putting.publish(queue, b"%d" % number)
            if chance.random() < 0.8:
                taking.receive()

    def _call(self, chance: random.Random) -> None:
        """Offer a service, and call it."""
        service = f"service-{chance.randrange(NAMES)}-{threading.get_ident()}"
        addresses = self._hub.addresses
        with speak(chance.choice(CALLING), addresses) as provider, speak(chance.choice(CALLING), addresses) as caller:
            provider.serve(service)
            ticket = caller.begin_call(service, "Echo", b"body")
            if chance.random() < 0.9:
                provider.answer(lambda _, body: body)
                assert caller.end_call(ticket) == b"body"

    def _keep_session(self, chance: random.Random) -> None:
        """Come back to an MQTT session, subscribe, and leave it, or end it."""
        wire = StreamWire(self._hub.addresses["mqtt"])
        with contextlib.closing(wire):
            clean = chance.random() < 0.3
            wire.send(encode(Connect(f"kept-{chance.randrange(SESSIONS)}", clean, 0)))
            wire.receive()
            wire.send(encode(Subscribe(1, ((self._topic(chance), chance.randint(0, 2)),))))
            wire.receive()
            if chance.random() < 0.5:
                wire.send(encode(Disconnect()))

    def _leave_will(self, chance: random.Random) -> None:
        """Hang up without a word, with a last will."""
        if chance.random() < 0.5:
            wire = StreamWire(self._hub.addresses["mqtt"])
            with contextlib.closing(wire):
                will = Will(self._topic(chance), b"gone" * 10, chance.randint(0, 2), chance.random() < 0.5)
                wire.send(encode(Connect("", clean_session=True, keep_alive=0, will=will)))
                wire.receive()
            return
        wire = StreamWire(self._hub.addresses["fmqp"])
        with contextlib.closing(wire):
            flags = LAST_WILL | (CACHE if chance.random() < 0.5 else 0)
            wire.send(b"".join(fmqp.encode(fmqp.Publication(self._topic(chance), b"gone", flags)) for _ in range(5)))
            wire.send(fmqp.encode(fmqp.Subscription(f"marker/{chance.randrange(NAMES)}")))

    def _post(self, chance: random.Random) -> None:
        """Publish a part."""
        rows = [{"channel": self._topic(chance), "body": b"part" * 10, "retain": False, "queue": False}] * 20
        names = {"polywire-query": f"soak-{chance.randrange(NAMES)}", "polywire-part": "0"}
        names["polywire-batch"] = str(time.monotonic_ns())
        port = self._hub.port("http")
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=20)) as connection:
            connection.request("POST", "/publish", arrow_stream(rows), names)
            answer = connection.getresponse()
            words = answer.read()
            assert answer.status in {200, 503}, words

    def _read_pages(self, chance: random.Random) -> None:
        """Look at what there is to see."""
        page = chance.choice(("/healthz", "/readyz", "/metrics", "/journal/", "/nowhere"))
        assert self._hub.get(page)[0] in {200, 404, 503}

    def _be_rude(self, chance: random.Random) -> None:
        """Send half of something, or nonsense, and reset the connection."""
        key = chance.choice(tuple(self._hub.addresses))
        with socket.create_connection(("127.0.0.1", self._hub.port(key)), timeout=20) as connection:
            whole = encode(Publish("soak/rude", b"x" * 1000))
            connection.sendall(
                chance.choice((whole[: chance.randrange(len(whole))], chance.randbytes(200), b"GET / H"))
            )
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def memory(hub: HubProcess) -> int:
    """The hub's resident memory in KiB."""
    status = Path(f"/proc/{hub.process.pid}/status").read_text(encoding="ascii")
    return int(status.split("VmRSS:")[1].split()[0])


def soak(seed: int, minutes: float, say: Callable[[str], None]) -> list[str]:
    """Churn for so long. Returns what is wrong."""
    wrong: list[str] = []
    samples: list[int] = []
    with tempfile.TemporaryDirectory(prefix="polywire-soak-") as folder:
        with running_hub(*SETTINGS, journal=Path(folder), program=PROGRAM) as hub:
            churn, stop = Churn(hub, seed), threading.Event()
            threads = [threading.Thread(target=churn.run, args=(n, stop), daemon=True) for n in range(THREADS)]
            for thread in threads:
                thread.start()
            started = time.monotonic()
            while time.monotonic() - started < minutes * 60 and len(churn.problems) < 10:
                stop.wait(SAMPLE_SECONDS)
                samples.append(memory(hub))
                passed, done = time.monotonic() - started, churn.counts.total()
                say(f"{passed:5.0f} s {samples[-1] / 1024:7.1f} MiB  {done:>8,} done")
            stop.set()
            for thread in threads:
                thread.join(60)
            wrong += churn.problems
            wrong += [line for line in hub.errors if "Traceback" in line or " ERROR " in line]
            if not wrong:
                wrong += left_behind(hub)
            if hub.stop() != 0:
                wrong.append("the hub did not end well")
        say("\n" + sparkline(samples))
        for name, count in sorted(churn.counts.items()):
            say(f"  {name:<28} {count:>8,}")
    wrong += judge(samples, WARM_SECONDS / SAMPLE_SECONDS)
    return wrong


def left_behind(hub: HubProcess) -> list[str]:
    """The connections that there still are some seconds after the last client has gone."""
    end = time.monotonic() + SAMPLE_SECONDS
    while True:
        page = hub.get("/metrics")[1].splitlines()
        left = [line for line in page if line.startswith("polywire_connections{") and not line.endswith(" 0.0")]
        if not left or time.monotonic() > end:
            return [f"left behind: {line}" for line in left]
        time.sleep(0.2)


def sparkline(samples: list[int]) -> str:
    """The samples as a line of bars, from 0 to the highest."""
    most = max(samples, default=1)
    bars = "".join(BARS[min(len(BARS) - 1, each * len(BARS) // most)] for each in samples)
    return f"memory: {bars} {min(samples, default=0) / 1024:.1f} to {most / 1024:.1f} MiB"


def judge(samples: list[int], warm: float) -> list[str]:
    """What is wrong with these samples, of which the first ones, until the hub is warm, don't count."""
    flat = samples[int(warm) :]
    if len(flat) < 4:
        return []
    third = max(1, len(flat) // 3)
    before, after = statistics.median(flat[:third]), statistics.median(flat[-third:])
    if after > before * (1 + FLAT):
        growth = after / before - 1
        return [f"the memory grew by {growth:.1%}, from {before / 1024:.1f} to {after / 1024:.1f} MiB"]
    return []
