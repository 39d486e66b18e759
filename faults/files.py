"""What happens to the journal's files while no hub runs: a power cut, torn tails, a disk that loses what was safe."""

import random
from pathlib import Path

from polywire.journal.compaction import PART_SUFFIX
from polywire.journal.format import Entry, read_index
from polywire.journal.snapshots import UNFINISHED
from polywire.journal.storage import ARROW, INDEX, STATE, choose_segments, segment_name


def housekeeping_in(folder: Path) -> str:
    """What housekeeping was doing here when it was killed, as far as the files show that; else nothing."""
    names = [path.name for path in folder.iterdir()]
    if any(name.endswith(UNFINISHED) for name in names):
        return "snapshot"
    both = {Path(name).stem for name in names if name.endswith(".parquet")}
    if any(name.endswith(PART_SUFFIX) or (name.endswith(f".{ARROW}") and Path(name).stem in both) for name in names):
        return "compaction"
    return ""


def first_segment(folder: Path) -> int:
    """The first offset that is left: it grows when retention deletes."""
    segments = choose_segments([path.name for path in folder.iterdir()])
    return segments[0].first_offset if segments else 0


def newest(folder: Path) -> tuple[Path, list[Entry]] | None:
    """The segment that is written to, with the batches its index lists; None where there is none."""
    segments = choose_segments([path.name for path in folder.iterdir()])
    if not segments or segments[-1].format != ARROW:
        return None
    index = folder / segment_name(segments[-1].first_offset, INDEX)
    entries = read_index(index.read_bytes()) if index.exists() else None
    return folder / segments[-1].name, entries or []


def cut_power(folder: Path, synced: dict[int, int], chance: random.Random) -> int:
    """Take away, or replace by zeros, some of what no ``fsync`` has made safe. Returns how many bytes that were."""
    gone = 0
    for path in sorted(folder.glob(f"*.{ARROW}")):
        about = path.stat()
        safe = synced.get(about.st_ino, about.st_size)
        if about.st_size > safe:
            left = chance.randint(safe, about.st_size)
            gone += about.st_size - left
            with path.open("r+b") as file:
                file.truncate(left)
                if chance.random() < 0.3:
                    file.truncate(about.st_size)  # which makes zeros of it
    for path in sorted(folder.iterdir()):
        unfinished = path.name.endswith((PART_SUFFIX, UNFINISHED))
        if unfinished or (path.name.endswith(f".{INDEX}") and chance.random() < 0.3):
            with path.open("r+b") as file:
                file.truncate(chance.randint(0, path.stat().st_size))
    return gone


def tear(folder: Path, chance: random.Random) -> bool:
    """Leave the beginning of a batch, or garbage, behind what is safe. Returns whether there was a file for it."""
    found = newest(folder)
    if found is None:
        return False
    path, entries = found
    kind = chance.choice(["garbage", "zeros", "batch"])
    if kind == "batch" and entries:
        data = path.read_bytes()[entries[-1].position : entries[-1].end]
        torn = data[: chance.randint(1, len(data) - 1)]
    else:
        torn = (chance.randbytes if kind == "garbage" else bytes)(chance.randint(1, 5000))
    with path.open("ab") as file:
        file.write(torn)
    return True


def lose(folder: Path, chance: random.Random) -> tuple[Path, bytes] | None:
    """Cut off rows that were safe. Returns the file and what it was; None where there is nothing to lose."""
    found = newest(folder)
    if found is None or not found[1]:
        return None
    path, entries = found
    before = path.read_bytes()
    with path.open("r+b") as file:
        file.truncate(chance.randrange(entries[-1].end))
    return path, before


def snapshots(folder: Path) -> int:
    """How many snapshots of the hub's state there are."""
    return len(list(folder.glob(f"*.{STATE}")))
