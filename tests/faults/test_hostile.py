"""A hostile hour in five seconds: everything at once, while well-behaved clients lose nothing."""

import contextlib
import threading
import time
from pathlib import Path

import argon2
import pytest

from tests.faults.attackers import LIGHT_ATTACKS, Attack
from tests.faults.friends import FRIENDS, Friend, friend
from tests.hub_process import HubProcess, running_hub

HOSTILE_SECONDS = 5.0
MEMORY = 450_000
"""KiB the hub may have at most: two passwords being hashed take 128 MiB, each lazy reader up to twice its outbox."""

LOG_LINES = 200
BETWEEN = 0.01
"""Seconds between two messages of a conversation: the attackers live in the same process and need their turns."""

SETTINGS = (
    "limits.handshake_time=2",
    "limits.outbox=1 MiB",
    "limits.message_size=4 MiB",
    "auth.anonymous=true",
    "auth.throttle.longest_wait=2",
)


def users_file(folder: Path) -> Path:
    """Anna, whose password is ``right``. Checking it takes as much memory as by default, and a third of the time."""
    path = folder / "users"
    path.write_text(f"anna:{argon2.PasswordHasher(time_cost=1).hash('right')}:\n", encoding="utf-8")
    path.chmod(0o600)
    return path


def memory(hub: HubProcess) -> int:
    """The most resident memory the hub ever had, in KiB."""
    status = Path(f"/proc/{hub.process.pid}/status").read_text(encoding="utf-8")
    return int(status.split("VmHWM:")[1].split()[0])


class Conversation:
    """A publisher and a subscriber of one protocol, each in a thread of its own."""

    def __init__(self, publisher: Friend, subscriber: Friend, topic: str) -> None:
        self._publisher = publisher
        self._subscriber = subscriber
        self.topic = topic
        self.sent = 0
        self.slowest = 0.0
        self.problems: list[str] = []
        subscriber.subscribe(topic)

    def talk(self, stop: threading.Event) -> None:
        """Publish one after the other, each when the one before is acknowledged."""
        try:
            while not stop.wait(BETWEEN):
                started = time.monotonic()
                self._publisher.publish(self.topic, f"{self.sent}".encode())
                self.sent += 1
                self.slowest = max(self.slowest, time.monotonic() - started)
            self._publisher.publish(self.topic, b"end")
        except Exception as error:  # noqa: BLE001 - told by the test, from its own thread
            self.problems.append(f"{self.topic}: publishing {self.sent}: {error!r}")
            self._publisher.close()
            self._subscriber.close()

    def listen(self) -> None:
        """Hear everything, in order."""
        expected = 0
        try:
            while (body := self._subscriber.hear()) != b"end":
                if body != f"{expected}".encode():
                    self.problems.append(f"{self.topic}: heard {body!r}, not {expected}")
                    return
                expected += 1
        except Exception as error:  # noqa: BLE001 - told by the test, from its own thread
            self.problems.append(f"{self.topic}: listening for {expected}: {error!r}")


def assaulted(hub: HubProcess, act: Attack, stop: threading.Event, problems: list[str]) -> None:
    try:
        act(hub, stop)
    except Exception as error:  # noqa: BLE001 - told by the test, from its own thread
        problems.append(f"{act.__name__}: {error!r}")


@pytest.mark.timeout(150)
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
def test_a_hostile_hour_costs_the_well_behaved_nothing(tmp_path: Path) -> None:
    with running_hub(*SETTINGS, f"auth.users={users_file(tmp_path)}") as hub, contextlib.ExitStack() as stack:
        talks: list[Conversation] = []
        for key in FRIENDS:
            user = "" if key == "fmqp" else "anna"
            pair = [friend(hub, key, user=user, password="right") for _ in range(2)]
            for each in pair:
                stack.callback(each.close)
            talks.append(Conversation(pair[0], pair[1], f"friends/{key}"))
        stop, peace = threading.Event(), threading.Event()
        problems: list[str] = []
        attackers = [
            threading.Thread(target=assaulted, args=(hub, act, stop, problems), daemon=True) for act in LIGHT_ATTACKS
        ]
        talkers = [threading.Thread(target=each.talk, args=(peace,), daemon=True) for each in talks]
        listeners = [threading.Thread(target=each.listen, daemon=True) for each in talks]
        for thread in (*listeners, *talkers, *attackers):
            thread.start()
        stop.wait(HOSTILE_SECONDS)
        newcomer = friend(hub, "mqtt", user="anna", password="right")  # in the midst of it
        newcomer.close()
        stop.set()
        for thread in attackers:
            thread.join(30)
        peace.set()
        for thread in (*talkers, *listeners):
            thread.join(40)
        assert problems == []
        assert [each for talk in talks for each in talk.problems] == []
        assert min(talk.sent for talk in talks) > 20, [talk.sent for talk in talks]
        hub.login = "anna:right"
        status, page = hub.get("/metrics")
        end = time.monotonic() + 20
        while status == 429 and time.monotonic() < end:  # others at this address have guessed passwords
            status, page = hub.get("/metrics")
        assert status == 200
        assert "internal-error" not in page
        assert memory(hub) < MEMORY
        assert hub.stop() == 0
        log = "".join(hub.errors)
        assert "Traceback" not in log
        assert "Exception" not in log
        assert len(hub.errors) < LOG_LINES
