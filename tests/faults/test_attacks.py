"""Every attack by itself, beside well-behaved clients of every protocol: they are served in time, and lose nothing."""

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
from pathlib import Path

import pytest

from faults.load import arrow_stream
from tests.faults.attackers import ATTACKS
from tests.faults.friends import FRIENDS, Friend, friend
from tests.hub_process import HubProcess, running_hub
from tests.interop.speaker import Speaker
from tests.interop.speakers import speak

QUIET_SECONDS = 2.0
ATTACK_SECONDS = 6.0
BETWEEN = 0.02
P99 = 0.1
"""Seconds that 99 of 100 round trips may take at most, on a machine that has nothing else to do."""

MEMORY = 400 * 1024
"""KiB that a hub with default limits may have at most."""


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
        self._caller._waiting.clear()  # echoes of its own
        self._provider._waiting.clear()


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


def p99(talks: list[Talk]) -> float:
    """Of all round trips so far, which are forgotten then."""
    trips = [trip for talk in talks for trip in talk.trips]
    for talk in talks:
        talk.trips = []
    return statistics.quantiles(trips, n=100)[98]


def most_memory(hub: HubProcess) -> int:
    """The most resident memory the hub ever had, in KiB."""
    status = Path(f"/proc/{hub.process.pid}/status").read_text(encoding="utf-8")
    return int(status.split("VmHWM:")[1].split()[0])


@pytest.mark.timeout(180)
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
@pytest.mark.parametrize("attack", [attack.__name__ for attack in ATTACKS])
def test_an_attack_costs_the_well_behaved_nothing(attack: str, tmp_path: Path) -> None:
    with running_hub(journal=tmp_path) as hub:
        with talking(hub) as talks:
            time.sleep(QUIET_SECONDS)  # to know how fast this machine is today
            quiet = p99(talks)
            command = [sys.executable, "-m", "tests.faults.attackers", attack, json.dumps(hub.addresses)]
            with subprocess.Popen([*command, str(ATTACK_SECONDS)]) as attacker:  # noqa: S603 - our own module
                try:
                    time.sleep(ATTACK_SECONDS)
                    attacked = p99(talks)
                    assert attacker.wait(60) == 0
                finally:
                    attacker.kill()
        problems = [talk.problem for talk in talks if talk.problem]
        memory = most_memory(hub)
        print(f"{attack}: p99 {attacked * 1000:.0f} ms, quiet {quiet * 1000:.0f} ms, {memory // 1024} MiB")  # noqa: T201
        assert problems == []
        assert memory < MEMORY, f"{memory // 1024} MiB"
        assert attacked < max(P99, 4 * quiet), f"p99 {attacked * 1000:.0f} ms, {quiet * 1000:.0f} ms before the attack"
        page = hub.get("/metrics")[1]
        assert "internal-error" not in page
        assert "polywire_journal_failed 0.0" in page
        hub.stop()
        assert not [line for line in hub.errors if "Traceback" in line or " ERROR " in line]
