"""Every attack by itself, beside well-behaved clients of every protocol: they are served in time, and lose nothing.

``python -m faults attacks`` holds the hub to ``P99`` and ``MEMORY``, on a machine that has nothing else to do. Tests
run every attack too, more briefly, and leave out the time.
"""

import contextlib
import http.client
import json
import statistics
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from faults.load import arrow_stream
from tests.faults.friends import FRIENDS, Friend, friend
from tests.hub_process import PROGRAM, HubProcess, Process, running_hub
from tests.interop.speaker import Speaker
from tests.interop.speakers import speak
from tests.nursery import nursery

BETWEEN = 0.02
SWITCH = 0.0005
"""Seconds after which another client of this process goes on: their own turns are not to be measured."""

ATTACKERS = "tests.faults.attackers"
YIELDS = 10
"""How far an attacker steps back (``nice``): it would use a machine of its own, not the hub's and its clients'."""

P99 = 0.1
"""Seconds that 99 of 100 round trips may take at most."""

MEMORY = 400
"""MiB that a hub with default limits may have at most."""


class Talk(ABC):
    """A client that goes round and round, and how long that took."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.trips: list[float] = []
        self.problem = ""

    @abstractmethod
    def trip(self, number: int) -> None:
        """Once around."""

    def run(self, stop: threading.Event) -> None:
        number = 0
        try:
            while not stop.wait(BETWEEN):
                started = time.monotonic()
                self.trip(number)
                self.trips.append(time.monotonic() - started)
                number += 1
        except Exception as error:  # noqa: BLE001 - reported by the test, from its own thread
            self.problem = f"{self.name}, trip {number}: {error!r}"


class Topics(Talk):
    """What is published is acknowledged, and heard: all of it, in order."""

    def __init__(self, key: str, publisher: Friend, subscriber: Friend) -> None:
        super().__init__(key)
        self._publisher, self._subscriber = publisher, subscriber
        subscriber.subscribe(f"friends/{key}")

    def trip(self, number: int) -> None:
        self._publisher.publish(f"friends/{self.name}", f"{number}".encode())
        heard = self._subscriber.hear()
        assert heard == f"{number}".encode(), f"heard {heard!r}, not {number}"


class Calls(Talk):
    """RPC over MQTT."""

    def __init__(self, caller: Speaker, provider: Speaker) -> None:
        super().__init__("mqttrpc")
        self._caller, self._provider = caller, provider
        provider.serve("friends")

    def trip(self, number: int) -> None:
        body = f"{number}".encode()
        ticket = self._caller.begin_call("friends", "Echo", body)
        self._provider.answer(lambda _, sent: sent)
        assert self._caller.end_call(ticket) == body
        self._caller._waiting.clear()  # noqa: SLF001 - echoes of its own
        self._provider._waiting.clear()  # noqa: SLF001 - as above


class Parts(Talk):
    """HTTP: a part each time, on one connection; where the hub has closed that meanwhile, it is sent again."""

    def __init__(self, connection: http.client.HTTPConnection) -> None:
        super().__init__("http")
        self._connection = connection

    def trip(self, number: int) -> None:
        row = {"channel": "friends/http", "body": b"part", "retain": False, "queue": False}
        names = {"polywire-query": "friends", "polywire-batch": str(number), "polywire-part": "0"}
        try:
            status, words = self._post(arrow_stream([row]), names)
        except ConnectionError:
            self._connection.close()
            status, words = self._post(arrow_stream([row]), names)
        assert status == 200, (status, words)

    def _post(self, body: bytes, names: dict[str, str]) -> tuple[int, bytes]:
        self._connection.request("POST", "/publish", body, names)
        answer = self._connection.getresponse()
        return answer.status, answer.read()


@contextlib.contextmanager
def talking(hub: HubProcess) -> Iterator[list[Talk]]:
    """Clients of every protocol at work."""
    with contextlib.ExitStack() as stack:
        stack.callback(sys.setswitchinterval, sys.getswitchinterval())
        sys.setswitchinterval(SWITCH)
        talks: list[Talk] = []
        for key in FRIENDS:
            pair = [friend(hub, key) for _ in range(2)]
            for each in pair:
                stack.callback(each.close)
            talks.append(Topics(key, pair[0], pair[1]))
        speakers = [stack.enter_context(speak("mqtt", hub.addresses)) for _ in range(2)]
        talks.append(Calls(speakers[0], speakers[1]))
        connection = http.client.HTTPConnection("127.0.0.1", hub.port("http"), timeout=30)
        stack.callback(connection.close)
        talks.append(Parts(connection))
        stop = threading.Event()
        threads = [threading.Thread(target=talk.run, args=(stop,), daemon=True) for talk in talks]
        for thread in threads:
            thread.start()
        try:
            yield talks
        finally:
            stop.set()
            for thread in threads:
                thread.join(60)


@dataclass(frozen=True)
class Outcome:
    """What an attack came to: seconds of the 99th percentile, MiB of the hub at most, and everything that is wrong."""

    p99: float
    trips: int
    memory: int
    problems: list[str]


def most_memory(hub: HubProcess) -> int:
    """The most resident memory the hub ever had, in MiB."""
    status = Path(f"/proc/{hub.process.pid}/status").read_text(encoding="utf-8")
    return int(status.split("VmHWM:")[1].split()[0]) // 1024


def attacked(attack: str, journal: Path, seconds: float, *, forked: bool = False) -> Outcome:
    """Attack a hub with default limits for so long, beside clients of every protocol. Forked ones start faster."""
    with running_hub(journal=journal, program=() if forked else PROGRAM) as hub:
        with talking(hub) as talks:
            words = [attack, json.dumps(hub.addresses), str(seconds)]
            if forked:
                attacker: Process = nursery().start(ATTACKERS, ["attackers", *words], {})
            else:
                command = ["nice", "-n", str(YIELDS), sys.executable, "-m", ATTACKERS, *words]
                attacker = subprocess.Popen(command)  # noqa: S603 - our own module
            try:
                code = attacker.wait(seconds + 60)
            finally:
                attacker.kill()
                attacker.wait(10)
        problems = [talk.problem for talk in talks if talk.problem]
        problems += [f"{talk.name} did not get around once" for talk in talks if not talk.trips]
        if code != 0:
            problems.append(f"the attacker ended with code {code}")
        memory = most_memory(hub)
        if memory >= MEMORY:
            problems.append(f"the hub took {memory} MiB, {MEMORY} are allowed")
        page = hub.get("/metrics")[1]
        if "internal-error" in page or "polywire_journal_failed 0.0" not in page:
            problems.append("the hub reports an internal error or a failed journal")
        hub.stop()
        problems += [line for line in hub.errors if "Traceback" in line or " ERROR " in line]
    trips = [trip for talk in talks for trip in talk.trips]
    return Outcome(statistics.quantiles(trips, n=100)[98] if len(trips) > 1 else seconds, len(trips), memory, problems)
