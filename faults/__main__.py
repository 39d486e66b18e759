"""Break a hub and its pipeline on purpose, and check that they keep their promises.

examples:
  python -m faults kills                           1,000 kills, any fault between them
  python -m faults kills --kills 50 --seed 7       rounds of 20 kills with the seeds 7, 8 and 9
  python -m faults kills --only power,torn         kills and these faults
  python -m faults kills --only none               kills alone
  python -m faults cluster --rounds 3              workers that fail, with clients of all protocols on others
  python -m faults attacks                         every attack by itself, beside well-behaved clients
  python -m faults pipeline --kills 50 --seed 26   the pipeline's parts, both hubs included, 50 times
  python -m faults soak --minutes 5                churn on all protocols, memory sampled each 10 s
"""

import argparse
import secrets
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from faults import cluster, pipeline, soak
from faults.attacks import MEMORY, P99, attacked
from faults.kills import FAULTS, LIVES, FailureError, campaign
from tests.faults.attackers import ATTACKS

KEPT = Path("build/faults")


def say(words: str) -> None:
    """Print at once."""
    print(words, flush=True)


def fault_names(text: str) -> frozenset[str]:
    """The faults that are listed, separated by commas."""
    return _chosen(text, FAULTS)


def cluster_faults(text: str) -> frozenset[str]:
    """Those of a cluster."""
    return _chosen(text, cluster.FAULTS)


def _chosen(text: str, faults: Mapping[str, str]) -> frozenset[str]:
    names = frozenset(name for name in text.split(",") if name != "none")
    unknown = names - faults.keys()
    if unknown:
        raise argparse.ArgumentTypeError(f"no fault {', '.join(unknown)}; there are {', '.join(faults)}")
    return names


def run_kills(options: argparse.Namespace) -> int:
    """Kill the hub, and report."""
    seed = secrets.randbits(31) if options.seed is None else options.seed
    say(f"{options.kills} kills, seed {seed}, faults: {', '.join(sorted(options.only)) or 'none'}")
    started = time.monotonic()
    try:
        tally = campaign(
            seed, options.kills, only=options.only, minutes=options.minutes, say=say, keep=options.keep.absolute()
        )
    except FailureError as error:
        say(f"\nFAILED in the round with seed {error.seed}, after kill {error.life}: {error.reason}")
        say(f"the hub's log ends with:\n{error.log}\nits journal is in {error.kept}")
        only = "" if options.only == frozenset(FAULTS) else f" --only {','.join(sorted(options.only)) or 'none'}"
        say(f"to repeat it: python -m faults kills --seed {error.seed} --kills {LIVES}{only}")
        return 1
    say(
        "\n".join([f"\nnothing acknowledged was lost, in {(time.monotonic() - started) / 60:.1f} min:", *tally.lines()])
    )
    return 0


def run_cluster(options: argparse.Namespace) -> int:
    """Let nodes fail, and report."""
    seed = secrets.randbits(31) if options.seed is None else options.seed
    say(f"{options.rounds} rounds, seed {seed}, faults: {', '.join(sorted(options.only))}")
    started = time.monotonic()
    try:
        tally = cluster.campaign(seed, options.rounds, only=options.only, say=say, keep=options.keep.absolute())
    except FailureError as error:
        say(f"\nFAILED in the round with seed {error.seed}: {error.reason}")
        say(f"the hub's log ends with:\n{error.log}\nits journals are in {error.kept}")
        only = ",".join(sorted(options.only))
        say(f"to repeat it: python -m faults cluster --seed {error.seed} --rounds 1 --only {only}")
        return 1
    minutes = (time.monotonic() - started) / 60
    say("\n".join([f"\nnothing acknowledged was lost, in {minutes:.1f} min:", *tally.lines()]))
    return 0


def run_pipeline(options: argparse.Namespace) -> int:
    """Kill the pipeline's parts, and report."""
    seed = secrets.randbits(31) if options.seed is None else options.seed
    say(f"{options.kills} kills, seed {seed}")
    started = time.monotonic()
    try:
        tally = pipeline.campaign(seed, options.kills, minutes=options.minutes, say=say, keep=options.keep.absolute())
    except pipeline.FailureError as error:
        say(f"\nFAILED: {error.reason}\njournals, lake and the drivers' log are in {error.kept}")
        say(f"to repeat it: python -m faults pipeline --seed {seed} --kills {options.kills}")
        return 1
    say(f"\nevery row is there once, after {(time.monotonic() - started) / 60:.1f} min:")
    say("\n".join(f"  {what:<48} {count:>9,}" for what, count in tally.items()))
    return 0


def run_soak(options: argparse.Namespace) -> int:
    """Churn, and report."""
    seed = secrets.randbits(31) if options.seed is None else options.seed
    say(f"{options.minutes} min of churn, seed {seed}")
    wrong = soak.soak(seed, options.minutes, say)
    if wrong:
        say("\n".join(["\nFAILED:", *wrong[:20]]))
        say(f"to repeat it: python -m faults soak --seed {seed} --minutes {options.minutes}")
        return 1
    say("\nthe memory stayed flat, and nothing was left behind")
    return 0


def run_attacks(options: argparse.Namespace) -> int:
    """Attack the hub, and report."""
    names = [attack.__name__ for attack in ATTACKS]
    wanted = options.only.split(",") if options.only else names
    unknown = [name for name in wanted if name not in names]
    if unknown:
        say(f"no attack {', '.join(unknown)}; there are {', '.join(names)}")
        return 2
    say(f"{'attack':<22} {'p99, ms':>8} {'trips':>7} {'hub, MiB':>9}   ({P99 * 1000:.0f} ms and {MEMORY} MiB at most)")
    failed = []
    for name in wanted:
        with tempfile.TemporaryDirectory(prefix="polywire-attack-") as folder:
            outcome = attacked(name, Path(folder), options.seconds)
        slow = outcome.p99 > P99
        say(
            f"{name:<22} {outcome.p99 * 1000:>8.0f} {outcome.trips:>7} {outcome.memory:>9}"
            f"{'   too slow' if slow else ''}{''.join(f'{chr(10)}    {problem}' for problem in outcome.problems)}"
        )
        if slow or outcome.problems:
            failed.append(name)
    if failed:
        say(f"\nFAILED: {', '.join(failed)}\nto repeat it: python -m faults attacks --only {','.join(failed)}")
    return 1 if failed else 0


def main() -> int:
    """The command."""
    words = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="python -m faults", description=__doc__, formatter_class=words)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    listed = "\n".join(f"  {name:<14} {what}" for name, what in FAULTS.items())
    kills = commands.add_parser(
        "kills", help="kill the hub while clients work on it", epilog=f"faults:\n{listed}", formatter_class=words
    )
    kills.add_argument("--kills", type=int, default=1000, help="how many in all (default: 1000)")
    kills.add_argument("--seed", type=int, help="of the first round; each round adds one (default: random)")
    kills.add_argument("--minutes", type=float, help="begin no round after so many minutes")
    kills.add_argument("--only", type=fault_names, default=frozenset(FAULTS), metavar="FAULT,...", help="see below")
    kills.add_argument("--keep", type=Path, default=KEPT, help="where the journal of a failure is kept")
    kills.set_defaults(run=run_kills)
    listed = "\n".join(f"  {name:<14} {what}" for name, what in cluster.FAULTS.items())
    nodes = commands.add_parser(
        "cluster", help="let the nodes of a cluster fail", epilog=f"faults:\n{listed}", formatter_class=words
    )
    nodes.add_argument("--rounds", type=int, default=10, help="how many clusters (default: 10)")
    nodes.add_argument("--seed", type=int, help="of the first round; each round adds one (default: random)")
    nodes.add_argument(
        "--only", type=cluster_faults, default=frozenset(cluster.FAULTS), metavar="FAULT,...", help="see below"
    )
    nodes.add_argument("--keep", type=Path, default=KEPT, help="where the journals of a failure are kept")
    nodes.set_defaults(run=run_cluster)
    attacks = commands.add_parser("attacks", help="attack the hub beside well-behaved clients, and measure these")
    attacks.add_argument("--seconds", type=float, default=6.0, help="of each attack (default: 6)")
    attacks.add_argument("--only", metavar="ATTACK,...", help="only these (default: all)")
    attacks.set_defaults(run=run_attacks)
    spark = commands.add_parser("pipeline", help="kill the pipeline's parts and its hubs while traffic runs")
    spark.add_argument("--kills", type=int, default=50, help="how many (default: 50)")
    spark.add_argument("--seed", type=int, help="of what is killed and when (default: random)")
    spark.add_argument("--minutes", type=float, default=40.0, help="kill nothing more after so many (default: 40)")
    spark.add_argument("--keep", type=Path, default=KEPT, help="where everything is kept after a failure")
    spark.set_defaults(run=run_pipeline)
    churn = commands.add_parser("soak", help="churn on all protocols; memory has to stay flat")
    churn.add_argument("--minutes", type=float, default=20.0, help="how long (default: 20)")
    churn.add_argument("--seed", type=int, help="of what the clients do (default: random)")
    churn.set_defaults(run=run_soak)
    options = parser.parse_args()
    code: int = options.run(options)
    return code


if __name__ == "__main__":
    sys.exit(main())
