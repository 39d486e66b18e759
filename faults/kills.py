"""A hub that is killed again and again while clients of all protocols work on it, amid every other fault there is.

A campaign consists of rounds. A round has a seed, from which its whole plan follows: the hub's settings, when it is
killed, and what else happens. All lives of a round share a journal; at its end everything the hub owes is checked.
"""

import collections
import contextlib
import random
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from faults import files
from faults.checks import Load
from faults.load import Life
from faults.nursery import Hubs
from tests.faults.attackers import LIGHT_ATTACKS, Attack
from tests.faults.proxy import Proxy
from tests.faults.small_disk import CannotMountError, SmallDisk, mounted_disk
from tests.hub_process import HubProcess, StartError

LIVES = 20
"""Kills in one round."""

SHORTEST, LONGEST = 0.05, 0.6
"""Seconds the hub lives once everyone is at work."""

AIM_SECONDS = 3.0
"""How long a life may take until the moment comes in which the hub is to be killed."""

SLOW_SECONDS = 0.02
"""How much longer each fsync takes where the power is cut: on a slow disk a kill often comes before its end."""

DISK_SIZE = "48m"
READY_SECONDS = 30.0
HOUR, DAY = 3600, 86400
JUMPS = (-3 * DAY, -DAY, -HOUR, -61, 61, HOUR, DAY, 3 * DAY)
FAULTS = {
    "housekeeping": "the kill comes in the middle of a snapshot, a compaction or a deletion",
    "clock": "the hub's time of day jumps by up to three days",
    "torn": "a torn batch, zeros or garbage at the end of the newest file",
    "power": "what no fsync has made safe is gone",
    "loss": "what was safe is gone, which the next start must notice and refuse",
    "disk": "the disk is full for a while, or until the kill",
    "cut": "connections are cut while they are used",
    "attack": "a hostile client is at work",
}


class FailureError(Exception):
    """The hub broke a promise. ``log`` is what it last wrote, ``kept`` where its journal is."""

    def __init__(self, seed: int, life: int, reason: str, log: str, kept: Path) -> None:
        super().__init__(reason)
        self.seed, self.life, self.reason, self.log, self.kept = seed, life, reason, log, kept


@dataclass
class Tally:
    """What has happened, by its name."""

    counts: collections.Counter[str] = field(default_factory=collections.Counter)

    def add(self, what: str, count: int = 1) -> None:
        self.counts[what] += count

    def lines(self) -> list[str]:
        """A table."""
        return [f"  {what:<48} {count:>9,}" for what, count in self.counts.items()]


def campaign(
    seed: int, kills: int, *, only: frozenset[str], minutes: float | None, say: Callable[[str], None], keep: Path
) -> Tally:
    """Round after round, the next one with the next seed. ``FailureError`` at the first broken promise."""
    tally = Tally()
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="polywire-faults-") as folder:
        while tally.counts["kills"] < kills:
            if minutes is not None and time.monotonic() - started > minutes * 60:
                break
            begun, before = time.monotonic(), tally.counts["kills"]
            lives = min(LIVES, kills - before)
            place = Path(folder) / str(seed)
            place.mkdir()
            with Hubs(place) as hubs, contextlib.ExitStack() as stack:
                Round(seed, lives, only, hubs, place, tally, stack, keep).run()
            shutil.rmtree(place, ignore_errors=True)
            took = time.monotonic() - begun
            done, acknowledged = tally.counts["kills"], tally.counts["messages acknowledged"]
            pace = f"{done} of {kills} kills, {took / lives:.1f} s each"
            say(f"seed {seed}: {pace}, {acknowledged:,} messages acknowledged, none lost")
            tally.add("rounds")
            seed += 1
    return tally


class Round:
    """All lives on one journal."""

    def __init__(
        self,
        seed: int,
        lives: int,
        only: frozenset[str],
        hubs: Hubs,
        place: Path,
        tally: Tally,
        stack: contextlib.ExitStack,
        keep: Path,
    ) -> None:
        self._seed, self._lives, self._hubs, self._tally, self._keep = seed, lives, hubs, tally, keep
        self._chance = chance = random.Random(seed)  # noqa: S311 - a plan, no secret
        self._faults = [name for name in FAULTS if name in only]
        self._disk: SmallDisk | None = None
        self._load = Load()
        self._life = 0
        self._hub: HubProcess | None = None
        folder = place / "journal"
        if "disk" in self._faults and chance.random() < 0.4:
            try:
                self._disk = stack.enter_context(mounted_disk(place / "disk", DISK_SIZE))
                folder = self._disk.path / "journal"
            except CannotMountError as error:
                tally.add(f"no full disk: {error}")
        self._folder = folder
        self._fsync = chance.choice(["group", "group", "always", "os"])
        self._keep_size = chance.choice(["0", "64 KiB", "512 KiB"])
        self._sets = (
            f"journal.segment_size={chance.choice([16384, 32768, 65536])}",
            f"journal.keep_size={self._keep_size}",
            f"journal.fsync={self._fsync}",
            f"journal.compact={chance.choice(['true', 'true', 'true', 'false'])}",
            f"journal.on_failure={chance.choice(['continue', 'refuse'])}",
            "limits.offline_messages=1000000",
        )

    def run(self) -> None:
        """Live and die, then check what is left."""
        try:
            while self._life < self._lives:
                self._live()
                self._life += 1
            self._hubs.set_clock(0)
            self._hubs.slow_down(0)
            self._finish()
        except (AssertionError, OSError, StartError) as error:
            log = "".join(self._hub.errors[-30:]) if self._hub is not None else ""
            raise FailureError(self._seed, self._life, _reason(error), log, self._save()) from error

    def _live(self) -> None:
        chance, load = self._chance, self._load
        fault = chance.choice(self._faults) if self._faults and chance.random() < 0.85 else ""
        hub = self._start()
        if self._life == 0:
            load.subscribe(hub.addresses)
        else:
            load.check_retained(hub.addresses)
        full = fault == "disk" and self._disk is not None
        life = Life(hub.addresses, chance.choice([0.0, 0.002, 0.01]), cuts=fault == "cut", refusals=full)
        if fault == "housekeeping":
            life.pace = 0.02  # housekeeping runs only while nobody else wants the processor
        duration = chance.uniform(SHORTEST, LONGEST)
        self._hubs.slow_down(SLOW_SECONDS if fault == "power" else 0)
        with contextlib.ExitStack() as stack:
            proxies: list[Proxy] = []
            if life.cuts:
                life.addresses = proxied_addresses(hub, proxies)
                for proxy in proxies:
                    stack.callback(proxy.close)
            absent = {each for each in load.listeners if chance.random() < 0.6}
            sensitive = {
                load.consumers[0],
                load.returners[1],
            }  # QoS 2 is not kept through a kill while the disk is full
            load.start(life, absent | (sensitive if full else set()))
            if fault == "housekeeping":
                self._await_housekeeping(chance.choice(["snapshot", "compaction", "deletion"]))
                duration = chance.uniform(0, 0.02)
            elif fault == "clock":
                time.sleep(duration / 2)
                self._hubs.set_clock(chance.choice([0, *JUMPS]))
                self._tally.add("clock jumps")
            elif fault == "cut":
                for _ in range(chance.randint(1, 4)):
                    time.sleep(duration / 2)
                    for proxy in proxies:
                        proxy.cut()
                    self._tally.add("connections cut")
            elif fault == "attack":
                stack.enter_context(attacked(hub, chance.choice(LIGHT_ATTACKS)))
                self._tally.add("attacks")
            elif full:
                self._fill(hub, duration, until_the_end=chance.random() < 0.4)
            time.sleep(duration)  # the moment of the kill is the point
            before = files.first_segment(self._folder)
            life.dying.set()
            hub.process.kill()
            hub.process.wait(READY_SECONDS)
            during = files.housekeeping_in(self._folder)
            if during or files.first_segment(self._folder) > before:
                self._tally.add(f"kills during a {during or 'deletion'}")
        load.join()
        self._tally.add("kills")
        self._check_log(hub)
        self._damage(fault)

    def _start(self, *more: str) -> HubProcess:
        if self._disk is not None and self._disk.is_full():
            self._disk.free()
        begun = time.monotonic()
        self._hub = self._hubs.start(self._folder, *self._sets, *more)
        self._tally.counts["slowest start in ms"] = max(
            self._tally.counts["slowest start in ms"], int((time.monotonic() - begun) * 1000)
        )
        return self._hub

    def _await_housekeeping(self, what: str) -> None:
        """Wait until it is at work, for a while."""
        end = time.monotonic() + AIM_SECONDS
        first = files.first_segment(self._folder)
        while time.monotonic() < end:
            with contextlib.suppress(FileNotFoundError):
                deleted = what == "deletion" and files.first_segment(self._folder) > first
                if deleted:
                    self._tally.add("kills right after a deletion")
                if deleted or files.housekeeping_in(self._folder) == what:
                    return
            time.sleep(0.002)

    def _fill(self, hub: HubProcess, seconds: float, *, until_the_end: bool) -> None:
        assert self._disk is not None
        self._disk.fill()
        self._tally.add("full disks")
        if until_the_end:
            self._tally.add("kills while the disk was full")
            return
        time.sleep(seconds)
        self._disk.free()
        end = time.monotonic() + READY_SECONDS
        while hub.get("/readyz")[0] != 200:
            assert time.monotonic() < end, "the hub does not recover from a full disk"
            time.sleep(0.05)

    def _damage(self, fault: str) -> None:
        """What happens to the files while no hub runs."""
        chance, folder = self._chance, self._folder
        if fault == "torn" and files.tear(folder, chance):
            self._tally.add("torn tails")
        elif fault == "power" and self._fsync != "os":
            gone = files.cut_power(folder, self._hubs.synced(), chance)
            self._tally.add("power cuts")
            self._tally.add("bytes lost in power cuts", gone)
        elif fault == "loss":
            lost = files.lose(folder, chance)
            if lost is not None:
                self._check_refusal()
                lost[0].write_bytes(lost[1])  # as from a backup
                self._tally.add("losses noticed and refused")

    def _check_refusal(self) -> None:
        refusal: StartError | None = None
        try:
            self._start("journal.on_loss=refuse")
        except StartError as error:
            refusal = error
        assert refusal is not None, "a hub starts although rows that were safe are gone"
        assert refusal.code == 1, f"a journal that lost rows ends the hub with {refusal.code}: {refusal.said}"
        assert "were safe in" in refusal.said, f"the refusal does not say what is lost: {refusal.said}"

    def _check_log(self, hub: HubProcess) -> None:
        wrong = [line for line in hub.errors if "Traceback" in line or "failed, its connection is closed" in line]
        assert not wrong, f"the hub's log has a traceback: {''.join(hub.errors[-40:])}"

    def _finish(self) -> None:
        hub = self._start()
        load, tally = self._load, self._tally
        load.check_retained(hub.addresses)
        load.check_queues(hub.addresses)
        load.check_sessions(hub.addresses)
        code = hub.stop()
        assert code == 0, f"the hub ended with {code}"
        self._check_log(hub)
        load.check_journal(self._folder, whole=self._keep_size == "0")
        tally.add("messages acknowledged", load.acknowledged())
        tally.add("of those by QoS 2", len(load.sure.queued.safe) + len(load.sure.away.safe))
        tally.add("of those in parts by HTTP", len(load.parts.queued.safe) + len(load.parts.away.safe))
        tally.add("parts sent again", load.parts.repeated)
        tally.add("messages taken from queues", sum(len(each.taken()[0]) for each in load.consumers))
        tally.add("messages delivered to kept sessions", sum(len(each.got) for each in load.away))
        tally.add("messages heard in order", sum(each.heard for each in load.listeners))
        tally.add("last wills", len(load.mortal.kept.safe))
        tally.add("calls", load.caller.calls)

    def _save(self) -> Path:
        """Keep the journal, so that the failure can be examined."""
        kept = self._keep / str(self._seed)
        shutil.rmtree(kept, ignore_errors=True)
        with contextlib.suppress(OSError):
            shutil.copytree(self._folder, kept)
        return kept


def _reason(error: BaseException) -> str:
    return str(error) if isinstance(error, (AssertionError, StartError)) and str(error) else repr(error)


def proxied_addresses(hub: HubProcess, proxies: list[Proxy]) -> dict[str, str]:
    """The addresses of proxies before each listener; WebSocket listeners may share one."""
    made: dict[int, Proxy] = {}
    for key in hub.addresses:
        port = hub.port(key)
        if port not in made:
            made[port] = Proxy(port)
    proxies += made.values()
    return {key: at.replace(f":{hub.port(key)}", f":{made[hub.port(key)].port}") for key, at in hub.addresses.items()}


@contextlib.contextmanager
def attacked(hub: HubProcess, attack: Attack) -> Iterator[None]:
    """While somebody hostile is at work."""
    stop = threading.Event()

    def act() -> None:
        with contextlib.suppress(Exception):  # what becomes of the attacker is not the point
            attack(hub, stop)

    thread = threading.Thread(target=act, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(30)
