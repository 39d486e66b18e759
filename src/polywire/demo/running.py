"""Hub and pipeline together, in the foreground, until somebody stops them: what ``make run`` does."""

import asyncio
import contextlib
import signal
import sys
from collections.abc import Callable
from pathlib import Path

STOP_SECONDS = 60.0


async def run_both(folder: Path, say: Callable[[str], None], *, tables: bool = True) -> int:
    """Run the hub on its usual ports, and the pipeline behind it, until SIGINT or SIGTERM. Returns an exit code."""
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for each in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(each, stopped.set)
    journal, lake = folder / "journal", folder / "lake"
    # The hub ends last, so that the pipeline gets what it leaves behind. Ctrl-C is for us, who tell both in order.
    hub = await _started("serve", "--set", f"journal.path={journal}")
    processes = [hub]
    if tables:
        processes.insert(0, await _started("pipeline", "run", "--journal", str(journal), "--lake", str(lake)))
        say(f"the tables are in {lake}; Ctrl-C ends hub and pipeline")
    ends = [asyncio.ensure_future(process.wait()) for process in processes]
    waiting = asyncio.ensure_future(stopped.wait())
    await asyncio.wait([waiting, *ends], return_when=asyncio.FIRST_COMPLETED)
    asked = stopped.is_set()
    waiting.cancel()
    for process, end in zip(processes, ends, strict=True):
        if not end.done():
            process.send_signal(signal.SIGTERM)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(end), STOP_SECONDS)
        if not end.done():
            process.kill()
        await end
    return 0 if asked else 1


async def _started(*words: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(sys.executable, "-m", "polywire", *words, start_new_session=True)
