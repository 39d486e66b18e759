"""What can go wrong with a journal: one branch of the tree of errors, with fields to act on."""

from polywire.errors import PolywireError


class JournalError(PolywireError):
    """The journal can't be opened, read or written as asked."""


class NoJournal(JournalError):  # noqa: N818 - as below
    """The place is there, but it has no journal in it."""

    def __init__(self, path: str) -> None:
        super().__init__(
            f"{path}: no journal found, there is no file such as {0:020d}.arrow; "
            "name the directory that journal.path is set to"
        )
        self.path = path


class JournalLocked(JournalError):  # noqa: N818 - says what is the matter
    """Another process writes this journal; ``pid`` and ``node`` are what it said of itself, where it did."""

    def __init__(self, path: str, *, pid: int | None = None, node: str | None = None) -> None:
        holder = f" by process {pid}" if pid is not None else ""
        holder += f" (node {node})" if node is not None else ""
        super().__init__(f"{path}: the journal is being written{holder}; stop that hub, or use another directory")
        self.path = path
        self.pid = pid
        self.node = node


class JournalLoss(JournalError):  # noqa: N818 - as above
    """Rows that were on disk are missing, and the hub is configured not to start then (``journal.on_loss``)."""

    def __init__(self, path: str, lost: str) -> None:
        super().__init__(
            f"{path}: {lost}; restore the journal from a backup, or start once with journal.on_loss=continue "
            "to continue without these rows"
        )
        self.path = path
        self.lost = lost


class CorruptBatch(JournalError):  # noqa: N818 - as above
    """A batch can't be read: its bytes are not those that were written.

    ``segment`` is the file's name and ``position`` where the damage begins in it. ``first_offset`` and ``rows`` say
    which rows are lost, if known.
    """

    def __init__(
        self, segment: str, position: int, reason: str, *, first_offset: int | None = None, rows: int | None = None
    ) -> None:
        lost = ""
        if first_offset is not None:
            lost = (
                f"; lost are {rows} rows from offset {first_offset}" if rows else f"; lost from offset {first_offset}"
            )
        super().__init__(f"{segment} at {position}: {reason}{lost}")
        self.segment = segment
        self.position = position
        self.reason = reason
        self.first_offset = first_offset
        self.rows = rows

    def __reduce__(self) -> tuple[object, ...]:
        return _corrupt_batch, (self.segment, self.position, self.reason, self.first_offset, self.rows)


def _corrupt_batch(
    segment: str, position: int, reason: str, first_offset: int | None, rows: int | None
) -> CorruptBatch:
    """The same error on the other side of a pipe: Spark's workers send what they raise to the driver."""
    return CorruptBatch(segment, position, reason, first_offset=first_offset, rows=rows)
