"""Fuzz the codecs, and with --sessions whole sessions of every listener on a hub.

Runs one process per target, as many at once as there are cores, on the interpreted sources (the only ones whose
branches the fuzzer can see). An input that breaks the contract of a codec is kept in fuzz/crashes; one that breaks a
hub is printed with the command that repeats it. Either makes the exit code 1.

examples:
  python -m fuzz                                     every codec, 100 s each
  python -m fuzz --seconds 20 sabc                   one codec
  python -m fuzz --sessions --seconds 60             a hub under mutated sessions, one listener after the other
  python -m fuzz --sessions --seed 7 --inputs 120 umq        one input again
  python -m fuzz --sessions --seed 7 --inputs 80..119 umq    several inputs on one hub again
"""

import argparse
import os
import re
import secrets
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from polywire.registry import built_in

HERE = Path(__file__).parent
GRACE = 120
CODECS = (*(each.name for each in built_in()), "fabric")
LISTENERS = (*(listener.key for each in built_in() for listener in each.listeners), "http")


def run(target: str, command: list[str], seconds: int, started: float) -> tuple[str, bool, str]:
    """Run one worker. Returns the target's name, whether all was well, and what to print about it."""
    sources = os.pathsep.join([str(HERE.parent / "src"), str(HERE.parent)])  # not whatever is installed
    environment = {**os.environ, "POLYWIRE_PURE": "1", "PYTHONPATH": sources}
    done = subprocess.run(
        [sys.executable, "-m", *command],
        env=environment,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
        timeout=seconds + GRACE,
    )
    output = done.stdout + done.stderr
    tries = re.search(r"number_of_executed_units:\s*(\d+)", output)
    inputs = f"{int(tries[1]):,} inputs" if tries else "no statistics"
    if done.returncode == 0 and tries:
        return target, True, f"{inputs} in {time.monotonic() - started:.0f} s, nothing found"
    return target, False, f"FAILED after {inputs}, exit code {done.returncode}\n{output[-6000:]}"


def fuzz(target: str, seconds: int) -> tuple[str, bool, str]:
    """Fuzz one codec."""
    crashes = HERE / "crashes"
    crashes.mkdir(exist_ok=True)
    places = [str(HERE / "corpus" / target), str(crashes / f"{target}-")]
    return run(target, ["fuzz.worker", target, str(seconds), *places], seconds, time.monotonic())


def fuzz_sessions(target: str, seconds: int, seed: int, first: int, last: int | None) -> tuple[str, bool, str]:
    """Fuzz one listener of a hub."""
    notes = HERE / "crashes" / f"sessions-{target}.inputs"
    notes.parent.mkdir(exist_ok=True)
    words = [target, str(seconds), str(seed), str(first), "" if last is None else str(last), str(notes)]
    name, fine, said = run(target, ["fuzz.sessions", *words], seconds, time.monotonic())
    if not fine and "to repeat it" not in said:  # it crashed
        inputs = notes.read_text(encoding="ascii") if notes.exists() else "0"
        said += f"\nto repeat it: python -m fuzz --sessions --seed {seed} --inputs {inputs} {target}"
    notes.unlink(missing_ok=True)
    return name, fine, said


def main() -> int:
    words = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__, formatter_class=words)
    parser.add_argument("--seconds", type=int, default=100, help="how long to fuzz each target (default: 100)")
    parser.add_argument("--sessions", action="store_true", help="fuzz whole sessions on a hub instead of codecs")
    parser.add_argument("--seed", type=int, help="of the sessions (default: random)")
    parser.add_argument("--inputs", default="0..", metavar="FIRST[..LAST]", help="only these inputs of the seed")
    listed = f"codecs: {', '.join(CODECS)}; listeners: {', '.join(LISTENERS)} (default: all)"
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=listed)
    options = parser.parse_args()
    known = LISTENERS if options.sessions else CODECS
    targets = options.targets or list(known)
    for target in targets:
        if target not in known:
            parser.error(f"no target {target!r}; there are {', '.join(known)}")
    work = partial(fuzz, seconds=options.seconds)
    print(f"fuzzing {len(targets)} targets, {options.seconds} s each", flush=True)
    if options.sessions:
        seed = secrets.randbits(31) if options.seed is None else options.seed
        first, dots, end = options.inputs.partition("..")
        last = int(end) if end else None if dots else int(first)
        work = partial(fuzz_sessions, seconds=options.seconds, seed=seed, first=int(first), last=last)
        print(f"seed {seed}", flush=True)
    failed = False
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for target, fine, said in pool.map(work, targets):
            print(f"{target:<10} {said}", flush=True)
            failed |= not fine
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
