"""A cluster whose nodes fail one after the other, while clients of all protocols work on other nodes than each other.

A campaign consists of rounds. A round has a seed, from which its plan follows: which fault happens to which node, and
when. The nodes live through all of it; at its end everything the cluster owes is checked, as after kills of a single
hub (``checks.py``).
"""

import contextlib
import os
import random
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from faults.checks import Load
from faults.kills import FailureError, Tally
from faults.load import Caller, Life, PartPublisher, Publisher, Returner, SurePublisher
from polywire.journal.verify import verify
from tests.doors import doors, wait_until_told
from tests.hub_process import HubProcess, StartError, running_hub

NODES = 3
FAULTS_IN_A_ROUND = 5
WHOLE_SECONDS = 60.0
"""How long the cluster may take until all nodes are connected again."""

FAULTS = {
    "kill": "a node is killed, and started again by its supervisor",
    "drain": "a node hands over what it has, ends, and is started again",
    "rolling": "all nodes are drained, one after the other",
    "pause": "a node stands still until its supervisor kills it",
    "cut": "the clients of a node are cut off",
    "twice": "two nodes are killed at the same moment",
}


class Workers:
    """Three workers of one hub, and what can happen to them."""

    def __init__(self, hub: HubProcess) -> None:
        self.hub = hub
        self.names = list(hub.workers())
        self.restarts = 0

    def kill(self, *names: str) -> None:
        """Kill workers; the supervisor starts them again."""
        pids = self.hub.workers()
        for name in names:
            os.kill(pids[name], signal.SIGKILL)
        self._wait(dict.fromkeys(names, 0) | {name: pids[name] for name in names})

    def pause(self, name: str) -> None:
        """Stop a worker's process, until the supervisor does not put up with it any longer."""
        pid = self.hub.workers()[name]
        os.kill(pid, signal.SIGSTOP)
        self._wait({name: pid})

    def drain(self, name: str) -> None:
        """Let a worker hand over, and be started again."""
        pid = self.hub.workers()[name]
        status, text = self.hub.post(f"/v1/nodes/{name}/drain")
        assert status == 202, text
        self._wait({name: pid})

    def _wait(self, old: dict[str, int]) -> None:
        """Wait until these workers have other processes, and everyone is connected to everyone."""
        end = time.monotonic() + WHOLE_SECONDS
        while True:
            nodes = self.hub.cluster()["nodes"]
            renewed = all(each["pid"] != old.get(each["node"]) for each in nodes)
            links = [link["up"] for each in nodes for link in each.get("links", {}).values()]
            if renewed and len(links) == NODES * (NODES - 1) and all(links):
                return
            assert time.monotonic() < end, f"the cluster does not become whole again: {nodes}"
            time.sleep(0.05)


class Round:
    """One cluster, from its start to its end."""

    def __init__(self, seed: int, faults: frozenset[str], folder: Path, tally: Tally) -> None:
        self._chance = random.Random(seed)  # noqa: S311 - a plan, no secret
        self._faults = [name for name in FAULTS if name in faults]
        self._folder = folder
        self._tally = tally
        self._load = Load()
        self.log: list[str] = []

    def run(self) -> None:
        """Work, suffer, and be checked."""
        sets = ("limits.offline_messages=1000000", "journal.keep_size=0")
        with running_hub(*sets, journal=self._folder, workers=NODES) as hub, doors(hub) as ways:
            self.log = hub.errors
            cluster = Workers(hub)
            places = [ways.addresses[name] for name in cluster.names]
            load = self._load
            load.subscribe(places[0])
            for one in places:
                for other in places:
                    if one is not other:
                        wait_until_told(one["fmqp"], other["fmqp"])
            dying = threading.Event()
            for index, worker in enumerate(load.workers):
                place = places[index % NODES]
                life = Life(place, 0.01, cuts=True, refusals=True, dying=dying, elsewhere=places[(index + 1) % NODES])
                worker.start(life)
            for worker in load.workers:
                if isinstance(worker, (Publisher, SurePublisher, PartPublisher, Caller)):
                    assert worker.up.wait(WHOLE_SECONDS), f"{worker.name} does not get going"
            for _ in range(FAULTS_IN_A_ROUND):
                time.sleep(self._chance.uniform(0.2, 1.5))  # the moment of the fault is the point
                self._happen(self._chance.choice(self._faults), cluster, ways.cut)
            time.sleep(self._chance.uniform(0.2, 1.0))
            dying.set()
            for name in cluster.names:
                ways.cut(name)
            load.join()
            self._check(places)
            code = hub.stop()
            assert code == 0, f"the hub ended with {code}"
            wrong = [line for line in hub.errors if "Traceback" in line]
            assert not wrong, f"the log has a traceback: {''.join(hub.errors[-40:])}"
        self._check_journals()

    def _happen(self, fault: str, cluster: Workers, cut: Callable[[str], None]) -> None:
        name, other = self._chance.sample(cluster.names, 2)
        self._tally.add(f"faults: {fault}")
        if fault == "kill":
            cluster.kill(name)
        elif fault == "twice":
            cluster.kill(name, other)
        elif fault == "pause":
            cluster.pause(name)
        elif fault == "drain":
            cluster.drain(name)
        elif fault == "rolling":
            for each in cluster.names:
                cluster.drain(each)
        else:
            cut(name)

    def _check(self, places: list[dict[str, str]]) -> None:
        load, tally = self._load, self._tally
        for place in places:
            load.check_retained(place)
        load.check_queues(self._chance.choice(places))
        load.check_sessions(self._chance.choice(places))
        tally.add("messages acknowledged", load.acknowledged())
        tally.add("messages taken from queues", sum(len(each.taken()[0]) for each in load.consumers))
        tally.add("messages delivered to kept sessions", sum(len(each.got) for each in load.away))
        tally.add("messages heard in order", sum(each.heard for each in load.listeners))
        tally.add("calls", load.caller.calls)
        tally.add("kept sessions that moved", sum(isinstance(each, Returner) for each in load.workers))

    def _check_journals(self) -> None:
        for folder in sorted(self._folder.glob("worker-*")):
            unsound = [str(finding) for each in verify(folder) if not each.sound for finding in each.findings]
            assert not unsound, f"the journal {folder.name} is damaged: {unsound}"


def campaign(seed: int, rounds: int, *, only: frozenset[str], say: Callable[[str], None], keep: Path) -> Tally:
    """Round after round, the next one with the next seed. ``FailureError`` at the first broken promise."""
    tally = Tally()
    for _ in range(rounds):
        with _folder() as folder:
            begun = time.monotonic()
            one = Round(seed, only, folder, tally)
            try:
                one.run()
            except (AssertionError, OSError, StartError) as error:
                kept = keep / f"cluster-{seed}"
                shutil.rmtree(kept, ignore_errors=True)
                with contextlib.suppress(OSError):
                    shutil.copytree(folder, kept)
                log = "".join(one.log[-60:])
                raise FailureError(seed, tally.counts["rounds"], str(error) or repr(error), log, kept) from error
        tally.add("rounds")
        acknowledged = tally.counts["messages acknowledged"]
        say(f"seed {seed}: {time.monotonic() - begun:.0f} s, {acknowledged:,} messages acknowledged, none lost")
        seed += 1
    return tally


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="polywire-faults-") as name:
        yield Path(name) / "journal"
