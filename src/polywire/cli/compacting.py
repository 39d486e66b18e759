"""``polywire journal compact``: closed segments become Parquet, with a bar."""

from pathlib import Path

import typer

from polywire.cli.progress import progress
from polywire.journal.compaction import compact, compactable
from polywire.journal.errors import CorruptBatch, NoJournal
from polywire.journal.housekeeping import clear_leftovers, housekeeping_lock
from polywire.journal.reader import open_journal

MIB = 1 << 20


def compact_folder(folder: Path) -> bool:
    """Compact what can be. Returns whether all of it could."""
    if not folder.is_dir():
        raise FileNotFoundError(2, "there is no such folder", str(folder))
    if not open_journal(folder).exists:
        raise NoJournal(str(folder))
    whole = True
    with housekeeping_lock(folder):
        clear_leftovers(folder)
        paths = compactable(folder)
        if not paths:
            typer.echo(f"{folder}: nothing to compact; the newest segment is left as it is")
        for number, path in enumerate(paths, 1):
            try:
                with progress(f"{path.name} ({number} of {len(paths)})", None) as advance:
                    done = compact(path, told=lambda rows: advance(rows, f"{rows} rows"))
            except CorruptBatch as error:
                typer.echo(f"polywire journal: {error}; this segment stays as it is", err=True)
                whole = False
                continue
            typer.echo(
                f"{path.name}: {done.rows} rows, {done.octets_before / MIB:.1f} MiB became {done.octets / MIB:.1f}, "
                f"{done.rows / max(done.seconds, 1e-9):.0f} rows a second"
            )
    return whole
