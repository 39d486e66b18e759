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
import sys
from collections.abc import Callable, Iterator

from polywire.errors import PolywireError
from polywire.memory import leave_out_pandas, tune_allocator
from polywire.server.config import Config, Loaded
from polywire.server.descriptors import raise_limit
from polywire.server.server import Server

log = logging.getLogger("polywire.server")


def serve(loaded: Loaded, *, insecure: bool = False) -> int:
    """Run the hub until it is told to stop. Returns the exit code."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("picows").setLevel(logging.WARNING)  # it tells of every connection that ends
    tune_allocator()
    leave_out_pandas()
    raise_limit()
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(_serve(loaded, insecure=insecure))


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Uvloop's loop where there is uvloop, else the standard one."""
    if importlib.util.find_spec("uvloop") is None:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = importlib.import_module("uvloop").new_event_loop
    return factory


async def _serve(loaded: Loaded, *, insecure: bool) -> int:
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

    for words in _not_yet(loaded.config):
        log.warning(words)
    await server.start()
    server.hub.on_signal = signalled
    for each in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(each, stop)
    loop.add_signal_handler(signal.SIGHUP, _reload, server)
    gc.collect()
    gc.freeze()  # what is here now stays; the collector need not look at it again
    print("ready " + json.dumps(server.ready()), flush=True)  # noqa: T201 - the contract with whoever started us
    await stopping.wait()
    if not at_once.is_set():
        server.refuse_new_work()  # at once: the log tells what has happened, not what will
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


def _not_yet(config: Config) -> Iterator[str]:
    """What the configuration asks for and this version does not do."""
    if config.fabric.kind != "local":
        yield "there is no cluster yet: this hub runs by itself"


def _reload(server: Server) -> None:
    try:
        left = server.reload()
    except PolywireError as error:
        log.error("reload failed, nothing has changed: %s", error)  # noqa: TRY400 - the message says it all
        return
    log.info("configuration reloaded")
    for section in left:
        log.warning("[%s] has changed, which takes effect at the next start", section)
