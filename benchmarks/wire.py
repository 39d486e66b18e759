"""``make bench-wire``: ns per frame of each codec, compiled and interpreted, side by side.

Each protocol's cases run in two fresh processes, one with ``POLYWIRE_PURE=1``; the best of several rounds counts. At
the end, one large body arriving in 64 KiB chunks at growing sizes: linear cost means the same ns per byte.
"""

import argparse
import importlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator

from benchmarks.wire_timing import best
from polywire.process import tune_allocator
from polywire.registry import built_in

PROTOCOLS = [each.name for each in built_in()]
ROUND_SECONDS = 0.05
CHUNK = 64 * 1024
STREAM_SIZES = (16 << 20, 32 << 20, 64 << 20)


def measure(protocol: str) -> list[dict[str, object]]:
    """All cases of a protocol, in this process."""
    module = importlib.import_module(f"benchmarks.wire_cases.{protocol}")
    rows: list[dict[str, object]] = [
        {"what": case.what, "size": case.size, "ns": best(case, ROUND_SECONDS), "goal": case.goal, "most": case.most}
        for case in module.cases()
    ]
    if hasattr(module, "streaming"):
        for size in STREAM_SIZES:
            case = module.streaming(size, CHUNK)
            rows.append({"what": case.what, "size": case.size, "ns": best(case, ROUND_SECONDS), "octets": size})
    return rows


def in_process(protocol: str, *, pure: bool) -> list[dict[str, object]]:
    """The same in a fresh process."""
    environment = {**os.environ, "POLYWIRE_PURE": "1" if pure else "0"}
    command = [sys.executable, "-m", "benchmarks.wire", "--measure", protocol]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
    rows: list[dict[str, object]] = json.loads(done.stdout)
    return rows


def table(protocol: str) -> Iterator[tuple[str, bool]]:
    """The protocol's lines, and whether each met its goal."""
    fast, slow = in_process(protocol, pure=False), in_process(protocol, pure=True)
    for row, other in zip(fast, slow, strict=True):
        ns, pure_ns = float(str(row["ns"])), float(str(other["ns"]))
        line = f"{protocol:<9} {row['what']!s:<19} {row['size']!s:>8} "
        if "octets" in row:
            octets = int(str(row["octets"]))
            yield line + f"{ns / 1e6:>9.1f} ms {pure_ns / 1e6:>9.1f} ms   {ns / octets:.3f} ns an octet", True
            continue
        fine = True
        note = ""
        if row["goal"] is not None:
            fine = pure_ns / ns >= float(str(row["goal"]))
            note = f"goal {row['goal']} x"
        if row["most"] is not None:
            fine = ns <= float(str(row["most"]))
            note = f"goal {row['most']} ns"
        mark = "" if not note else "met" if fine else "MISSED"
        yield line + f"{ns:>9.1f} ns {pure_ns:>9.1f} ns {pure_ns / ns:>6.1f} x  {note} {mark}".rstrip(), fine


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.wire", description=__doc__)
    parser.add_argument("protocols", nargs="*", metavar="PROTOCOL", help=f"default: {', '.join(PROTOCOLS)}")
    parser.add_argument("--measure", metavar="PROTOCOL", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        tune_allocator()  # as the hub does
        json.dump(measure(options.measure), sys.stdout)
        return 0
    print(f"{'protocol':<9} {'what':<19} {'body':>8} {'compiled':>12} {'interpreted':>12} {'ratio':>8}")
    missed = 0
    for protocol in options.protocols or PROTOCOLS:
        for line, fine in table(protocol):
            print(line, flush=True)
            missed += not fine
    print("all goals met" if not missed else f"{missed} goals missed")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
