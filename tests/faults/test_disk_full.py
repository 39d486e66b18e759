"""A journal whose disk is full: what can't be made safe is not acknowledged, and the hub recovers by itself."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from polywire.protocols.micromsg import Error, Message
from polywire.wire.frame import Frame
from tests.faults.small_disk import SmallDisk, small_disk
from tests.hub_process import HubProcess, running_hub
from tests.interop.fmqp_speaker import Fmqp
from tests.interop.micromsg_speaker import Micromsg
from tests.interop.speaker import HungUpError, RefusedError, Speaker, StreamWire
from tests.interop.speakers import speak

SECONDS = 30.0
ACKNOWLEDGING = ["mqtt", "umq", "sabc", "micromsg"]
FAILED = "polywire_journal_failed"
UNRECORDED = "polywire_journal_unrecorded_total"
BODY = 8192
"""Random bytes in a message: more than may be left over in the last page of a file."""

pytestmark = pytest.mark.timeout(180)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "disk") as mounted:
        yield mounted


class Bodies:
    """Messages that were tried, and those that were acknowledged, in order."""

    def __init__(self) -> None:
        self.tried: list[bytes] = []
        self.safe: list[bytes] = []

    def publish(self, speaker: Speaker) -> None:
        """One more into the queue."""
        body = f"{len(self.tried)} ".encode() + os.urandom(BODY // 2).hex().encode()
        self.tried.append(body)
        speaker.publish("queue/q", body)
        self.safe.append(body)


def refusal(kind: str, hub: HubProcess, bodies: Bodies) -> str:
    """How a publication that wants an acknowledgement is refused."""
    with speak(kind, hub.addresses) as speaker:
        if isinstance(speaker, Micromsg):
            speaker._send(Message(1, "q", b"not taken"))
            return speaker._until(_error)
        try:
            bodies.publish(speaker)
        except RefusedError as error:
            return error.code
        except HungUpError:
            return "hung up"
    return "acknowledged"


def _error(frame: Frame) -> str | None:
    return frame.name if isinstance(frame, Error) else None


def wait_until_ready(hub: HubProcess) -> None:
    end = time.monotonic() + SECONDS
    while hub.get("/readyz")[0] != 200:
        assert time.monotonic() < end, "the hub does not recover"


def settings(on_failure: str) -> tuple[str, ...]:
    return ("journal.segment_size=65536", f"journal.on_failure={on_failure}")


@pytest.mark.parametrize("on_failure", ["continue", "refuse"])
def test_a_full_disk_refuses_acknowledgements_and_loses_none(disk: SmallDisk, on_failure: str) -> None:
    bodies = Bodies()
    journal = disk.path / "journal"
    with running_hub(*settings(on_failure), journal=journal) as hub:
        for kind in ACKNOWLEDGING:
            with speak(kind, hub.addresses) as speaker:
                bodies.publish(speaker)
                bodies.publish(speaker)
        disk.fill()
        # The first one finds out. What it wrote stays where it is until there is room, and is safe then.
        assert refusal("mqtt", hub, bodies) == "hung up"
        assert hub.get("/readyz") == (503, "the journal can't be written\n")
        assert hub.metric(FAILED) == 1
        hub.wait_for_log("can't be written")
        refusals = [refusal(kind, hub, bodies) for kind in ACKNOWLEDGING]
        assert refusals == ["hung up", "8", "503", "shutting-down"]
        assert hub.get("/healthz")[0] == 200
        with speak("mqtt", hub.addresses) as worker:
            worker.subscribe("queue/q")
            taken = worker.receive().body
            assert taken == bodies.safe[0]
        disk.free()
        wait_until_ready(hub)
        assert hub.metric(FAILED) == 0
        hub.wait_for_log("can be written again")
        for kind in ACKNOWLEDGING:
            with speak(kind, hub.addresses) as speaker:
                bodies.publish(speaker)
        hub.process.send_signal(signal.SIGKILL)
        hub.process.wait(20)
    with running_hub(*settings(on_failure), journal=journal) as hub:
        left = drained(hub)
        assert taken not in left
        assert [body for body in left if body in bodies.safe] == bodies.safe[1:]
        assert len(left) == len(set(left))
        assert set(left) <= set(bodies.tried)
        assert hub.stop() == 0


def drained(hub: HubProcess) -> list[bytes]:
    found = []
    with speak("mqtt", hub.addresses) as speaker:
        speaker.publish("queue/q", b"end")
        speaker.subscribe("queue/q")
        while (body := speaker.receive().body) != b"end":
            found.append(body)
    return found


@pytest.mark.parametrize("on_failure", ["continue", "refuse"])
def test_publishers_that_want_no_acknowledgement_go_on_or_are_refused(disk: SmallDisk, on_failure: str) -> None:
    dropped = 'polywire_dropped_total{protocol="fmqp",reason="journal-unavailable"}'
    with running_hub(*settings(on_failure), journal=disk.path / "journal") as hub:
        disk.fill()
        assert refusal("mqtt", hub, Bodies()) == "hung up"
        with (
            speak("umq", hub.addresses) as listener,
            Fmqp(StreamWire(hub.addresses["fmqp"]), marks=False) as publisher,
        ):
            listener.subscribe("t")
            before = hub.metric(UNRECORDED)
            publisher.publish("t", b"while full")
            if on_failure == "continue":
                assert listener.receive().body == b"while full"
                assert hub.metric(UNRECORDED) > before
            else:
                wait_for_metric(hub, dropped)
            disk.free()
            wait_until_ready(hub)
            publisher.publish("t", b"with room")
            assert listener.receive().body == b"with room"
        assert hub.stop() == 0


def wait_for_metric(hub: HubProcess, line: str) -> None:
    end = time.monotonic() + SECONDS
    while line not in hub.get("/metrics")[1]:
        assert time.monotonic() < end, f"there is no {line}"


def test_a_hub_can_be_stopped_while_its_disk_is_full_and_starts_when_there_is_room(disk: SmallDisk) -> None:
    bodies = Bodies()
    journal = disk.path / "journal"
    with running_hub(*settings("continue"), journal=journal) as hub:
        with speak("umq", hub.addresses) as speaker:
            bodies.publish(speaker)
        disk.fill()
        assert refusal("mqtt", hub, bodies) == "hung up"
        assert hub.stop() == 0
        hub.wait_for_log("could not be written completely")
    disk.free()
    with running_hub(*settings("continue"), journal=journal) as hub:
        assert drained(hub) == bodies.safe
        assert hub.stop() == 0
