"""``polywire serve --workers N``: a supervisor, and the worker processes it keeps running.

Each worker is a whole hub with a journal of its own, and all listen on the same ports. They are one fabric: the
supervisor says who is alive, and they connect to each other over Unix sockets (``polywire.fabric.workers``). The
supervisor routes no messages. It holds the ports, answers on the HTTP listener for all (``front.py``), starts workers
that ended again, and kills those that hang.

A line connects the supervisor to each worker, a socket pair. Over it the worker reports that it is alive; the
supervisor names the members, and asks for what only the worker knows. When the line breaks, the other end has gone.
"""

import asyncio
import contextlib
import errno
import json
import logging
import os
import pickle
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Literal

import msgspec

from polywire.backoff import Backoff
from polywire.errors import PolywireError
from polywire.fabric.workers import Frames, Member, Members, WorkerError, WorkerMembership
from polywire.registry import HTTP
from polywire.server import logs
from polywire.server.address import Address
from polywire.server.config import ConfigError, Loaded, Problem, load
from polywire.server.listeners import Sharing, not_listening
from polywire.server.server import NEED_RESTART, Server, Stopping, launch, loop_factory, prepare, run

BEAT_SECONDS: Final = 1.0
HANG_SECONDS: Final = 10.0
"""A worker whose event loop has not run for so long is killed and started again."""

ANSWER_SECONDS: Final = 10.0
RELOAD_SECONDS: Final = 60.0
STEADY_SECONDS: Final = 60.0
"""A worker that has run for so long is started again at once when it ends."""

RESTART: Final = Backoff(first=0.2, most=15.0)
DRAIN_MARGIN: Final = 15.0
"""Seconds beyond ``limits.drain_time`` that workers have to end."""

PROGRAM: Final = f"import sys; from {__name__} import main; sys.exit(main())"

FOLDER: Final = "worker-{}"
"""The journal of a worker, inside the directory of the journal."""

log = logging.getLogger("polywire.server")


class Assignment(msgspec.Struct, frozen=True):
    """What a worker is told first: who it is, and how it is configured. ``sockets`` are descriptors by their path.

    ``loaded`` is a whole configuration, pickled: a file that was broken since must not keep a worker from starting.
    """

    node: str
    life: int
    workers: tuple[str, ...]
    folder: str
    loaded: bytes
    insecure: bool
    sockets: dict[str, int]


class Ask(msgspec.Struct, frozen=True, tag=True):
    """The supervisor wants something of a worker."""

    number: int
    what: Literal["reload", "metrics", "status", "publish", "drain"]
    body: bytes = b""


class Answer(msgspec.Struct, frozen=True, tag=True):
    """The answer to an ``Ask``; ``error`` says why there is none."""

    number: int
    body: bytes = b""
    error: str = ""


class Present(msgspec.Struct, frozen=True, tag=True):
    """A worker can be reached by the others."""

    member: Member


class Leaving(msgspec.Struct, frozen=True, tag=True):
    """A worker wants to be named no more."""


class Beat(msgspec.Struct, frozen=True, tag=True):
    """A worker's event loop runs."""


class Started(msgspec.Struct, frozen=True, tag=True):
    """A worker listens."""


class Failed(msgspec.Struct, frozen=True, tag=True):
    """A worker can't start."""

    problem: str


class Signalled(msgspec.Struct, frozen=True, tag=True):
    """A client wants the hub to ``stop`` or to ``terminate``."""

    what: str


FromWorker = Present | Leaving | Beat | Started | Failed | Signalled | Answer
FromSupervisor = Members | Ask

_from_worker = msgspec.msgpack.Decoder(FromWorker)
_from_supervisor = msgspec.msgpack.Decoder(FromSupervisor)
_encode = msgspec.msgpack.encode


class Worker:
    """A worker as its supervisor sees it, through all of its lives."""

    def __init__(self, supervisor: "Supervisor", node: str, journal: Path | None) -> None:
        self.node: Final = node
        self.journal: Final = journal
        self.state = "starting"
        self.restarts = 0
        self.problem = ""
        self.member: Member | None = None
        self.started = asyncio.Event()
        self.ended = asyncio.Event()  # for good
        self.leaving = False
        self.since = 0.0
        self.pid = 0
        self._supervisor = supervisor
        self._frames: Frames | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._beat = 0.0
        self._listening = False
        self._hung = False
        self._asked: dict[int, asyncio.Future[bytes]] = {}
        self._numbers = 0
        self._stopping = asyncio.Event()

    @property
    def ready(self) -> bool:
        """Whether it takes clients."""
        return self.state == "running"

    async def keep_running(self) -> None:
        """Start it, and start it again whenever it ends, until it is to stop. One that never listened is given up."""
        attempt = 0
        while not self._stopping.is_set():
            begun = time.monotonic()
            how = await self._live()
            if self._stopping.is_set() or not self.started.is_set():
                break
            attempt = 0 if time.monotonic() - begun > STEADY_SECONDS else attempt
            pause = RESTART.pause(attempt - 1) if attempt else 0.0
            attempt += 1
            self.restarts += 1
            level = logging.INFO if self.leaving else logging.ERROR  # drained, or not
            log.log(level, "%s %s; it is started again%s", self.node, how, f" in {pause:.1f} s" if pause else "")
            self._set("restarting")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), pause)
        self._set("ended")
        self.ended.set()

    async def _live(self) -> str:
        """One life. Returns how it ended."""
        ours, theirs = socket.socketpair()
        assignment = self._supervisor.assignment(self)
        with theirs:
            inherited = (theirs.fileno(), *assignment.sockets.values())
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-c", PROGRAM, str(theirs.fileno()), self.node),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                pass_fds=inherited,
                start_new_session=True,  # Ctrl-C is for the supervisor
            )
        self.pid = self._process.pid
        self.since = time.time()
        self._beat = time.monotonic()
        self._listening = self._hung = self.leaving = False
        self._set("starting")
        loop = asyncio.get_running_loop()
        frames = self._frames = Frames(self._received, self._hung_up)
        await loop.create_unix_connection(lambda: frames, sock=ours)
        frames.send(_encode(assignment))
        code = await self._process.wait()
        self._frames = None
        frames.abort()
        self._hung_up()
        how = "hung, and was killed" if self._hung else _ending(code)
        if self.problem:
            how += f": {self.problem}"
        self.gone(how)
        self._supervisor.let_leave()
        return how

    def tell(self, members: Members) -> None:
        """Name all members."""
        if self._frames is not None:
            self._frames.send(_encode(members))

    async def ask(self, what: str, body: bytes = b"", seconds: float = ANSWER_SECONDS) -> bytes:
        """Ask it for something. Raises ``WorkerError``."""
        if self._frames is None or self.state not in {"running", "draining"}:
            raise WorkerError(f"{self.node} is {self.state}")
        self._numbers += 1
        number = self._numbers
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._asked[number] = answer
        self._frames.send(_encode(Ask(number, what, body)))  # type: ignore[arg-type] # checked where it is received
        try:
            async with asyncio.timeout(seconds):
                return await answer
        except TimeoutError:
            raise WorkerError(f"{self.node} gave no answer within {seconds:g} s") from None
        finally:
            self._asked.pop(number, None)

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        """End it for good."""
        self._stopping.set()
        if self.state != "ended":
            self._set("draining")
        self.signal(how)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to its process."""
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    def check(self, now: float) -> None:
        """Kill it if it hangs."""
        if self._listening and not self._hung and now - self._beat > HANG_SECONDS:
            log.error("%s has not answered for %.0f s: it is killed", self.node, now - self._beat)
            self._hung = True
            self.signal(signal.SIGKILL)

    def forgive(self, seconds: float) -> None:
        """The supervisor itself did not run for so long, and could not hear it."""
        self._beat += seconds

    def _received(self, data: bytes) -> None:
        message = _from_worker.decode(data)
        self._beat = time.monotonic()
        match message:
            case Present(member):
                self.member = member
                self._supervisor.name_members()
            case Leaving():
                self.leaving = True
                self._supervisor.let_leave()
            case Started():
                self._listening = True
                self.problem = ""
                self._set("running")
                self.started.set()
            case Failed(problem):
                self.problem = problem
            case Signalled(what):
                self._supervisor.signalled(what)
            case Answer(number, body, error):
                answer = self._asked.get(number)
                if answer is not None and not answer.done():
                    if error:
                        answer.set_exception(WorkerError(f"{self.node}: {error}"))
                    else:
                        answer.set_result(body)
            case Beat():
                pass

    def _hung_up(self) -> None:
        for each in self._asked.values():
            if not each.done():
                each.set_exception(WorkerError(f"{self.node} has ended"))

    def gone(self, reason: str) -> None:
        """The others can't reach it any more."""
        if self.member is not None:
            self.member = None
            self._supervisor.gone[self.node] = reason
            self._supervisor.name_members()

    def _set(self, state: str) -> None:
        self.state = state
        self._supervisor.changed.set()


def _ending(code: int) -> str:
    """How a process ended."""
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


class Supervisor:
    """Keeps workers running, and is one hub to the outside: see ``server.Service``."""

    def __init__(self, loaded: Loaded, workers: int, *, insecure: bool) -> None:
        self._given = loaded
        self._running: Final = loaded.config
        self._insecure = insecure
        self._ports: list[socket.socket] = []
        self._sockets: dict[str, socket.socket] = {}
        self._addresses: dict[str, Address] = {}
        self._folder: Path | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._watch: asyncio.TimerHandle | None = None
        self._watched = 0.0
        self._on_signal: Callable[[str], None] | None = None
        self._life = 0
        self.gone: dict[str, str] = {}
        self.changed = asyncio.Event()
        base = loaded.config.fabric.node or loaded.config.journal.node or socket.gethostname()
        folder = loaded.config.journal.path.absolute() if loaded.config.journal.enabled else None
        self.workers: Final = [
            Worker(self, f"{base}-{number}", folder and folder / FOLDER.format(number))
            for number in range(1, workers + 1)
        ]
        from polywire.server.front import Front  # noqa: PLC0415 - needs aiohttp and Arrow, which a worker has no use for

        off = [f"listen.{key}=off" for key in loaded.config.listen.addresses() if key != HTTP]
        fronts = load(loaded.path, (*loaded.sets, *off, "journal.enabled=false", "fabric.kind=none"))
        kind = "workers" if loaded.config.fabric.kind == "none" else loaded.config.fabric.kind
        self.front: Final = Front(self.workers, fronts, kind, insecure=insecure)

    @property
    def loaded(self) -> Loaded:
        """The configuration that is in effect."""
        return self._given

    @property
    def draining(self) -> bool:
        """Whether everything is to end."""
        return not self.front.server.gate.open

    def heed(self, on_signal: Callable[[str], None]) -> None:
        """Call this when a client wants the hub to ``stop`` or to ``terminate``."""
        self._on_signal = on_signal

    def signalled(self, what: str) -> None:
        """A client of a worker has sent a signal."""
        if self._on_signal is not None:
            self._on_signal(what)

    async def start(self) -> None:
        """Take the ports, and start all workers. Ends when all of them listen."""
        config = self._given.config
        addresses = config.listen.addresses()
        if set(addresses) <= {HTTP}:
            raise ConfigError([Problem("workers need a listener besides http", "listen")])
        if config.journal.enabled:
            _check_journals(config.journal.path, len(self.workers))
        self._folder = Path(tempfile.mkdtemp(prefix="polywire-"))
        try:
            self._take_ports(addresses)
            await self.front.server.start()
            self._tasks = [asyncio.create_task(each.keep_running()) for each in self.workers]
            await self._all_started()
        except BaseException:
            for each in self.workers:
                each.stop(signal.SIGKILL)
            await self._let_go()
            raise
        self._watched = time.monotonic()
        self._check()

    def ready(self) -> dict[str, str]:
        """The listeners and their addresses."""
        found = {**{key: str(each) for key, each in self._addresses.items()}, **self.front.server.ready()}
        return {key: found[key] for key in self._running.listen.addresses()}

    async def reload(self) -> list[str]:
        """Apply the current configuration, in all workers. A bad file changes nothing."""
        loaded = self._given.again()
        loaded.check(insecure=self._insecure)
        self._given = loaded
        logs.set_up(loaded.config.log)
        if HTTP in self._running.listen.addresses():
            await self.front.server.reload()
        await asyncio.gather(*(each.ask("reload", seconds=RELOAD_SECONDS) for each in self.workers if each.ready))
        new, old = loaded.config, self._running
        left = [name for name in NEED_RESTART if getattr(new, name) != getattr(old, name)]
        return ["listen", *left] if new.listen.addresses() != old.listen.addresses() else left

    def refuse_new_work(self) -> None:
        """Take no more clients and no more messages."""
        self.front.server.refuse_new_work()
        for each in self.workers:
            each.stop()

    async def drain(self) -> None:
        """Let all workers end without losing what they accepted."""
        self.refuse_new_work()
        await self._end(self._given.config.limits.drain_time + DRAIN_MARGIN)

    async def terminate(self) -> None:
        """End all workers now."""
        self.front.server.gate.open = False
        for each in self.workers:
            each.stop()
            each.signal(signal.SIGINT)  # another signal than that of stop, as two of the same may arrive as one
        await self._end(DRAIN_MARGIN)

    async def _end(self, seconds: float) -> None:
        """Wait until all workers have ended, kill those that take longer, and end this process's part."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await asyncio.gather(*(each.ended.wait() for each in self.workers))
        for each in self.workers:
            if not each.ended.is_set():
                log.error("%s has not ended within %g s: it is killed", each.node, seconds)
                each.signal(signal.SIGKILL)
        await self._let_go()

    def name_members(self) -> None:
        """Tell every worker who is there."""
        found = Members(tuple(each.member for each in self.workers if each.member is not None), dict(self.gone))
        for each in self.workers:
            each.tell(found)

    def let_leave(self) -> None:
        """Let workers go that are ready to: all at once where all are to end, as each may wait for another's answer."""
        present = [each for each in self.workers if each.member is not None]
        if not self.draining or all(each.leaving for each in present):
            for each in present:
                if each.leaving:
                    each.gone("left")

    def assignment(self, worker: Worker) -> Assignment:
        """What a worker is to be, in a new life."""
        self._life = max(self._life + 1, time.time_ns() // 1_000_000)
        return Assignment(
            worker.node,
            self._life,
            tuple(each.node for each in self.workers),
            str(self._folder),
            pickle.dumps(self._of_worker(worker)),
            self._insecure,
            {path: each.fileno() for path, each in self._sockets.items()},
        )

    def _of_worker(self, worker: Worker) -> Loaded:
        """The configuration of a worker: the common one, with the ports that were found and a journal of its own."""
        given = self._given
        sets = [f"listen.{key}={address}" for key, address in self._addresses.items()]
        sets += [f"listen.{HTTP}=off", f"journal.node={json.dumps(worker.node)}"]
        journal = msgspec.structs.replace(given.config.journal, node=worker.node)
        if worker.journal is not None:
            sets.append(f"journal.path={json.dumps(str(worker.journal), ensure_ascii=False)}")
            journal = msgspec.structs.replace(journal, path=worker.journal)
        fabric = msgspec.structs.replace(given.config.fabric, node=worker.node)
        sets.append(f"fabric.node={json.dumps(worker.node)}")
        listen = msgspec.structs.replace(given.config.listen, **self._addresses, **{HTTP: None})
        config = msgspec.structs.replace(given.config, journal=journal, fabric=fabric, listen=listen)
        return replace(given, config=config, sets=(*given.sets, *sets))

    async def _all_started(self) -> None:
        """Wait until every worker listens. If one ends before that, none is to run."""
        while not all(each.started.is_set() for each in self.workers):
            failed = next((each for each in self.workers if each.ended.is_set()), None)
            if failed is not None:
                raise ConfigError([Problem(failed.problem or f"{failed.node} did not start; its log says why")])
            self.changed.clear()
            await self.changed.wait()

    def _take_ports(self, addresses: dict[str, Address]) -> None:
        """Find the ports where any will do, and keep others from taking them."""
        found: dict[tuple[str, int], int] = {}
        for key, address in addresses.items():
            if key == HTTP:
                continue
            try:
                if address.scheme == "unix":
                    self._sockets[address.path] = _listen_at(address.path)
                    self._addresses[key] = address
                    continue
                shared = (address.host, address.port) if address.websocket else (key, address.port)
                if shared not in found:
                    found[shared] = self._take_port(address.host, address.port)
            except OSError as error:
                raise not_listening(key, address, error) from error
            self._addresses[key] = address.bound(found[shared])

    def _take_port(self, host: str, port: int) -> int:
        """Bind a port that the workers share. This socket does not listen, so it gets no connections."""
        family, _, _, _, where = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE if host else 0
        )[0]
        with socket.socket(family, socket.SOCK_STREAM) as probe:  # without sharing: finds other programs, ours too
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(where)
        holder = socket.socket(family, socket.SOCK_STREAM)
        self._ports.append(holder)
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        holder.bind(where)
        bound: int = holder.getsockname()[1]
        return bound

    def _check(self) -> None:
        """Look for workers that hang."""
        now = time.monotonic()
        late = now - self._watched - BEAT_SECONDS
        for each in self.workers:
            if late > BEAT_SECONDS:
                each.forgive(late)
            each.check(now)
        self._watched = now
        self._watch = asyncio.get_running_loop().call_later(BEAT_SECONDS, self._check)

    async def _let_go(self) -> None:
        """Everything has ended but what this process holds itself."""
        if self._watch is not None:
            self._watch.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.front.server.close()
        for each in self._ports:
            each.close()
        for path, held in self._sockets.items():
            held.close()
            _remove(path)
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


def _remove(path: str) -> None:
    Path(path).unlink(missing_ok=True)


def serve(loaded: Loaded, workers: int, *, insecure: bool = False, pid_file: Path | None = None) -> int:
    """Run so many workers as one hub, as ``polywire.server.server.serve`` runs one."""
    return launch(lambda: Supervisor(loaded, workers, insecure=insecure), loaded, pid_file)


def _listen_at(path: str) -> socket.socket:
    """A Unix socket that several processes accept from. A file that a killed hub has left is replaced."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        try:
            made.bind(path)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or not _is_left(path):
                raise
            Path(path).unlink()
            made.bind(path)
        made.listen(1)  # each worker asks for more
    except BaseException:
        made.close()
        raise
    made.set_inheritable(True)
    return made


def _is_left(path: str) -> bool:
    """Whether a Unix socket belongs to nobody any more."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
    return False


def _check_journals(folder: Path, workers: int) -> None:
    """Refuse to leave aside what another number of workers has stored."""
    found = [] if not folder.is_dir() else sorted(each.name for each in folder.iterdir())
    expected = {FOLDER.format(number) for number in range(1, workers + 1)}
    others = [name for name in found if name.startswith(FOLDER.format("")) and name not in expected]
    if others:
        many = len(others) + sum(name in expected for name in found)
        words = (
            f"{folder} has journals of more workers ({', '.join(others)}): their queues and sessions would be missing; "
            f"start with --workers {many}, or move them away"
        )
        raise ConfigError([Problem(words, "journal.path")])
    if any(name.endswith((".arrow", ".parquet")) for name in found):
        words = (
            f"{folder} is the journal of a hub without workers: its queues and sessions would be missing; start "
            "without --workers, or choose another directory"
        )
        raise ConfigError([Problem(words, "journal.path")])


@dataclass
class _Line:
    """A worker's end of the line. It is also the worker's report (``server.Report``)."""

    assignment: Assignment
    stopping: Stopping
    frames: Frames = field(init=False)
    membership: WorkerMembership = field(init=False)
    server: Server | None = None
    tasks: set["asyncio.Task[None]"] = field(default_factory=set)

    def __post_init__(self) -> None:
        given = self.assignment
        self.frames = Frames(self._received, self._orphaned)
        self.membership = WorkerMembership(given.node, given.life, Path(given.folder), given.workers, self)

    def present(self, member: Member) -> None:
        """The others can reach this worker."""
        self.frames.send(_encode(Present(member)))

    def leaving(self) -> None:
        """Name this worker no more."""
        self.frames.send(_encode(Leaving()))

    def started(self, _: object) -> None:
        """It listens."""
        self.frames.send(_encode(Started()))
        self._beat()

    def draining(self) -> None:
        """The supervisor wanted this, or will notice it."""

    def ended(self) -> None:
        """The end of the process says it."""

    def failed(self, problem: str) -> None:
        """It can't start."""
        self.frames.send(_encode(Failed(problem)))
        self.frames.close()

    def signalled(self, what: str) -> None:
        """A client's signal is for all workers."""
        self.frames.send(_encode(Signalled(what)))

    def _beat(self) -> None:
        self.frames.send(_encode(Beat()))
        asyncio.get_running_loop().call_later(BEAT_SECONDS, self._beat)

    def _orphaned(self) -> None:
        """Without a supervisor the ports are nobody's, and the next one will want the journal."""
        log.error("the supervisor has ended")
        self.membership.orphaned()
        self.stopping.terminate()

    def _received(self, data: bytes) -> None:
        match _from_supervisor.decode(data):
            case Members() as found:
                self.membership.members(found)
            case Ask() as ask:
                task = asyncio.get_running_loop().create_task(self._answer(ask))
                self.tasks.add(task)
                task.add_done_callback(self.tasks.discard)

    async def _answer(self, ask: Ask) -> None:
        try:
            answer = Answer(ask.number, await self._do(ask))
        except PolywireError as error:
            answer = Answer(ask.number, error=str(error))
        except Exception as error:
            log.exception("the supervisor asked for %s", ask.what)
            answer = Answer(ask.number, error=repr(error))
        self.frames.send(_encode(answer))

    async def _do(self, ask: Ask) -> bytes:
        server = self.server
        if server is None:
            raise WorkerError("is starting")
        match ask.what:
            case "reload":
                return msgspec.json.encode(await server.reload())
            case "metrics":
                return await server.metrics.page()
            case "status":
                return msgspec.json.encode(server.status())
            case "publish":
                from polywire.server.front import publish  # noqa: PLC0415 - needs aiohttp and Arrow, which only parts do

                return await publish(server, ask.body)
            case "drain":
                self.stopping.stop()
                return b""


class _WorkerServer(Server):
    """A hub whose clients' signals are for all workers."""

    def heed(self, on_signal: Callable[[str], None]) -> None:
        """Leave it to the supervisor to end this worker with the others."""


async def _work(assignment: Assignment, loaded: Loaded, line: socket.socket) -> int:
    """Be a worker."""
    stopping = Stopping()
    report = _Line(assignment, stopping)
    loop = asyncio.get_running_loop()
    await loop.create_unix_connection(lambda: report.frames, sock=line)
    sockets = {path: socket.socket(fileno=number) for path, number in assignment.sockets.items()}
    try:
        server = _WorkerServer(
            loaded,
            insecure=assignment.insecure,
            name=assignment.node,
            membership=report.membership,
            sharing=Sharing(reuse_port=True, sockets=sockets),
        )
        server.hub.on_signal = report.signalled
        report.server = server
        return await run(server, report, stopping)
    except PolywireError as error:
        report.failed(str(error))
        await asyncio.sleep(0)
        return 1


def main() -> int:
    """The main function of a worker's process, whose line is the descriptor in its argument."""
    line = socket.socket(fileno=int(sys.argv[1]))
    size = int.from_bytes(_exactly(line, 4), "little")
    assignment = msgspec.msgpack.decode(_exactly(line, size), type=Assignment)
    loaded: Loaded = pickle.loads(assignment.loaded)  # noqa: S301 - it comes from our own supervisor
    prepare(loaded, assignment.node)
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(_work(assignment, loaded, line))


def _exactly(line: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = line.recv(size - len(data))
        if not more:
            os._exit(1)  # the supervisor has ended before this worker began
        data += more
    return data
