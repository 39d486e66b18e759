"""One fuzzing process: ``python -m fuzz.worker TARGET SECONDS CORPUS CRASH_PREFIX``. Started by ``fuzz.__main__``."""

import importlib
import sys
from pathlib import Path

import atheris


def main() -> None:
    name, seconds, corpus, prefix = sys.argv[1:]
    with atheris.instrument_imports(include=["polywire.protocols", "polywire.fabric", "polywire.errors"]):
        target = importlib.import_module(f"fuzz.targets.{name}")
    folder = Path(corpus)
    folder.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(target.seeds()):
        (folder / f"seed-{number:03}").write_bytes(seed)
    options = [f"-max_total_time={seconds}", f"-artifact_prefix={prefix}", "-max_len=2048", "-timeout=20"]
    atheris.Setup([sys.argv[0], *options, "-rss_limit_mb=1024", "-print_final_stats=1", corpus], target.run)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
