"""A bar on standard error that shows how far a long command is; nothing where that is no terminal."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Advance = Callable[[int, str], None]
"""Called with what is done so far, and a few words about it."""


@contextmanager
def progress(what: str, total: int | None) -> Iterator[Advance]:
    """A bar from 0 to ``total`` (None: nobody knows), while the block runs."""
    if not sys.stderr.isatty():
        yield lambda _done, _words: None
        return
    from rich import progress as bars  # noqa: PLC0415 - slow to import, and only a terminal needs it
    from rich.console import Console  # noqa: PLC0415 - as above

    columns = (
        bars.SpinnerColumn(),
        bars.TextColumn(what, markup=False),
        bars.BarColumn(),
        bars.TaskProgressColumn(),
        bars.TextColumn("{task.fields[words]}", markup=False),
        bars.TimeRemainingColumn(),
    )
    with bars.Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total, words="")

        def advance(done: int, words: str) -> None:
            bar.update(task, completed=done, words=words)

        yield advance
