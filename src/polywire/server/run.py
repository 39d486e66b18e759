"""``polywire serve``: the hub's process, from its start to its end.

SIGTERM and Ctrl-C drain, a second one ends at once; SIGHUP reloads the configuration. Standard output gets the
``ready`` line and nothing else.
"""

import asyncio
import gc
import importlib.util
import json
import logging
import signal
import time
from collections.abc import Callable
from pathlib import Path

from polywire.errors import PolywireError
from polywire.memory import leave_out_pandas, tune_allocator
from polywire.server import logs, runtime
from polywire.server.config import Loaded
from polywire.server.server import Server, raise_limit

COLLECT = (10_000, 20, 20)
"""After how many new objects, and rounds, the garbage collector runs: rarely, because few of the hub's objects
have cycles, and looking at everything takes tens of milliseconds when there are many clients."""

log = logging.getLogger("polywire.server")


def serve(loaded: Loaded, *, insecure: bool = False, pid_file: Path | None = None) -> int:
    """Run the hub until SIGTERM, SIGINT or a client's signal. Returns the exit code.

    ``pid_file`` is where its runtime file goes instead of the usual place.
    """
    logs.set_up(loaded.config.log)
    tune_allocator()
    leave_out_pandas()
    raise_limit()
    if pid_file is not None:
        runtime.check_free(pid_file)
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(_serve(loaded, insecure=insecure, pid_file=pid_file))


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Uvloop's loop where there is uvloop, else the standard one."""
    if importlib.util.find_spec("uvloop") is None:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = importlib.import_module("uvloop").new_event_loop
    return factory


async def _serve(loaded: Loaded, *, insecure: bool, pid_file: Path | None) -> int:
    loop = asyncio.get_running_loop()
    server = Server(loaded, insecure=insecure)
    stopping = asyncio.Event()
    at_once = asyncio.Event()

    def stop() -> None:
        if stopping.is_set():
            at_once.set()
        stopping.set()

    def signalled(what: str) -> None:
        """A client's signal: ``stop`` drains, ``terminate`` does not."""
        log.warning("a client asked the hub to %s", what)
        server.refuse_new_work()
        if what == "terminate":
            at_once.set()
        stopping.set()

    await server.start()
    server.hub.on_signal = signalled
    for each in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(each, stop)
    about = _About(server)
    loop.add_signal_handler(signal.SIGHUP, about.reload)
    about.create(pid_file)
    gc.collect()
    gc.freeze()  # what is here now stays; the collector need not look at it again
    gc.set_threshold(*COLLECT)
    print("ready " + json.dumps(server.ready()), flush=True)  # noqa: T201 - the contract with the process that started us
    try:
        await stopping.wait()
        if not at_once.is_set():
            server.refuse_new_work()  # at once: the log reports what has happened, not what will
            about.tell(draining=True)
            log.info("draining")
            draining = asyncio.create_task(server.drain())
            ended = asyncio.create_task(at_once.wait())
            await asyncio.wait({draining, ended}, return_when=asyncio.FIRST_COMPLETED)
            ended.cancel()
            if draining.done():
                draining.result()
                log.info("stopped")
                return 0
            draining.cancel()
        for endpoint in list(server.gate.connections):
            endpoint.abort()
        await server.close()
        log.info("stopped at once")
        return 0
    finally:
        about.remove()


class _About:
    """What other programs can see of this hub: its runtime file, and how its last reload ended."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._file: runtime.RuntimeFile | None = None
        self._reloads = 0

    def create(self, path: Path | None) -> None:
        """Write the runtime file."""
        try:
            self._file = runtime.create(path, self._server.loaded, self._server.ready())
        except OSError as error:
            words = "no runtime file (%s): polywire status, reload and stop will not find this hub"
            log.warning(words, error)

    def reload(self) -> None:
        """SIGHUP: apply the current configuration."""
        try:
            left = self._server.reload()
        except PolywireError as error:
            log.error("reload failed, nothing has changed: %s", error)  # noqa: TRY400 - the message says it all
            self._report(str(error))
        else:
            logs.set_up(self._server.loaded.config.log)
            self._server.gate.when_renewed(lambda: self._reloaded(left))

    def _reloaded(self, left: list[str]) -> None:
        """The new configuration is in effect, its rules for every client."""
        log.info("configuration reloaded")
        for section in left:
            log.warning("[%s] has changed, which takes effect at the next start", section)
        self._report(left=tuple(left))

    def _report(self, problem: str = "", left: tuple[str, ...] = ()) -> None:
        self._reloads += 1
        done = runtime.Reload(self._reloads, time.time(), problem, left)
        self.tell(reload=done, drain_time=self._server.loaded.config.limits.drain_time)

    def tell(self, **changes: object) -> None:
        """Change what the runtime file says."""
        if self._file is not None:
            try:
                self._file.update(**changes)
            except OSError as error:
                log.warning("the runtime file can't be written: %s", error)

    def remove(self) -> None:
        """The hub has ended."""
        if self._file is not None:
            self._file.remove()
