"""What ``polywire journal cat`` and ``tail`` do: rows of a journal, in the form that is wanted."""

import sys
from typing import Any

from polywire.cli.journal_options import Selection, fail
from polywire.cli.row_options import Form, OnCorrupt
from polywire.cli.rows import HUMAN_COLUMNS, RowWriter, make_writer
from polywire.cli.scanning import arguments, last_rows, limited, open_place, scan
from polywire.journal.schema import PLAIN_SCHEMA


class RowPrinter:
    """Prints the rows of a selection. Options that don't go together end the command."""

    def __init__(self, selection: Selection, form: Form, columns: str | None, on_corrupt: OnCorrupt) -> None:
        self._selection = selection
        wanted = _columns(columns, form)
        reaction = "raise" if on_corrupt is OnCorrupt.fail else on_corrupt.value
        self._how: dict[str, Any] = {"columns": wanted, "on_corrupt": reaction}
        self._form = form

    def print_rows(self, place: str, token: str | None, limit: int | None) -> None:
        """The rows of a journal from the oldest on, as many as the limit allows."""
        found = open_place(place, token)
        writer = self._writer()
        for batch in limited(scan(found, self._selection, **self._how), limit):
            writer.write(batch)
        writer.close()

    def print_last(self, place: str, token: str | None, lines: int, *, follow: bool) -> None:
        """The last rows, and then those that come, if they are to be followed."""
        found = open_place(place, token)
        end = found.end_offset
        writer = self._writer()
        for batch in last_rows(found, self._selection, lines, **self._how):
            writer.write(batch)
        if follow:
            for batch in found.follow(from_offset=end, **arguments(self._selection), **self._how):
                writer.write(batch)
        writer.close()

    def _writer(self) -> RowWriter:
        return make_writer(self._form.value, self._how["columns"])


def _columns(text: str | None, form: Form) -> list[str] | None:
    if form is Form.human:
        if text is not None:
            fail("--columns: lines for people have their own columns; use --format json or arrow", code=2)
        return list(HUMAN_COLUMNS)
    if form is Form.arrow and sys.stdout.isatty():
        fail("--format arrow: standard output is a terminal; send it into a file or another program", code=2)
    if text is None:
        return None
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in PLAIN_SCHEMA.names:
            fail(f"--columns: {name!r} is none of {', '.join(PLAIN_SCHEMA.names)}", code=2)
    return names
