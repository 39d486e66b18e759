"""Fuzz the codecs: ``python -m fuzz [--seconds N] [TARGET ...]``.

Runs one process per target, as many at once as there are cores, on the interpreted sources (the only ones whose
branches the fuzzer can see). An input that breaks the contract is kept in fuzz/crashes and makes the exit code 1.
"""

import argparse
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from polywire.protocols import PROTOCOLS

HERE = Path(__file__).parent
GRACE = 60


def fuzz(target: str, seconds: int) -> tuple[str, bool, str]:
    """Fuzz one target. Returns its name, whether all was well, and what to say of it."""
    crashes = HERE / "crashes"
    crashes.mkdir(exist_ok=True)
    started = time.monotonic()
    command = [sys.executable, "-m", "fuzz.worker", target, str(seconds)]
    command += [str(HERE / "corpus" / target), str(crashes / f"{target}-")]
    sources = os.pathsep.join([str(HERE.parent / "src"), str(HERE.parent)])  # not whatever is installed
    environment = {**os.environ, "POLYWIRE_PURE": "1", "PYTHONPATH": sources}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, errors="replace", check=False, timeout=seconds + GRACE
    )
    output = done.stdout + done.stderr
    tries = re.search(r"number_of_executed_units:\s*(\d+)", output)
    inputs = f"{int(tries[1]):,} inputs" if tries else "no statistics"
    if done.returncode == 0 and tries:
        return target, True, f"{inputs} in {time.monotonic() - started:.0f} s, nothing found"
    return target, False, f"FAILED after {inputs}\n{output[-6000:]}"


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m fuzz", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--seconds", type=int, default=100, help="how long to fuzz each target (default: 100)")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"default: all of {', '.join(PROTOCOLS)}")
    options = parser.parse_args()
    targets = options.targets or list(PROTOCOLS)
    for target in targets:
        if target not in PROTOCOLS:
            parser.error(f"no target {target!r}; there are {', '.join(PROTOCOLS)}")
    print(f"fuzzing {len(targets)} targets, {options.seconds} s each", flush=True)
    failed = False
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for target, fine, words in pool.map(lambda target: fuzz(target, options.seconds), targets):
            print(f"{target:<10} {words}", flush=True)
            failed |= not fine
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
