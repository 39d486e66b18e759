"""What can go wrong in the pipeline, with fields to act on."""

from polywire.errors import PolywireError


class PipelineError(PolywireError):
    """Anything the pipeline itself reports."""


class PackageMissingError(PipelineError):
    """A package of the extra ``pipeline`` is not installed. ``package`` names it."""

    def __init__(self, package: str) -> None:
        super().__init__(
            f"the pipeline needs {package}, which is not installed; install it into this environment with "
            "pip install 'polywire[pipeline]'"
        )
        self.package = package


class JavaMissingError(PipelineError):
    """No Java that Spark can run on. ``found`` is what was looked at, each with why it won't do."""

    def __init__(self, least: int, found: tuple[str, ...]) -> None:
        seen = "; ".join(found) if found else "none was found"
        super().__init__(
            f"Spark needs Java {least} or newer ({seen}): install one, set JAVA_HOME to it, "
            "or install one into this environment with pip install 'polywire[pipeline,java]'"
        )
        self.least = least
        self.found = found


class MemoryMissingError(PipelineError):
    """The machine has not enough free memory for Spark. Both figures are in bytes."""

    def __init__(self, wanted: int, available: int) -> None:
        super().__init__(
            f"Spark would get {wanted >> 20} MiB, but only {available >> 20} MiB are available: "
            "free some memory, or give Spark less with memory='…m' (--memory)"
        )
        self.wanted = wanted
        self.available = available


class SparkStartError(PipelineError):
    """Spark's process ended while it started. ``words`` are the last lines it wrote."""

    def __init__(self, words: str) -> None:
        super().__init__(f"Spark did not start; its last output: {words or '(none)'}")
        self.words = words


class SparkLostError(PipelineError):
    """Spark's process ended while it was needed: it was killed, or ran out of memory."""

    def __init__(self) -> None:
        super().__init__(
            "Spark's Java process has ended unexpectedly (killed, or out of memory: see --memory); run the command "
            "again, it continues where it stopped"
        )


class OptionError(PipelineError):
    """An option of the format ``polywire`` that can't be used. ``option`` is its name."""

    def __init__(self, option: str, reason: str) -> None:
        super().__init__(f"option {option!r}: {reason}")
        self.option = option
        self.reason = reason


class DataLossError(PipelineError):
    """Rows that a query still needed are no longer in the journal.

    ``journal`` is where they were, ``wanted`` the offset the query would read next, ``first`` the first still there.
    """

    def __init__(self, journal: str, wanted: int, first: int) -> None:
        super().__init__(
            f"{journal}: this query has not read offsets {wanted} to {first - 1}, and they are gone: "
            f"the journal starts at {first}; to continue without them, set the option failOnDataLoss to false"
        )
        self.journal = journal
        self.wanted = wanted
        self.first = first

    def __reduce__(self) -> tuple[object, ...]:
        return DataLossError, (self.journal, self.wanted, self.first)


class JournalReplacedError(PipelineError):
    """A journal ends before the place a query has reached in it. ``end`` is where it ends, ``reached`` that place."""

    def __init__(self, journal: str, reached: int, end: int) -> None:
        super().__init__(
            f"{journal}: this query has read up to offset {reached}, but the journal ends at {end}: it is another "
            "journal or an older copy; use the right one, or give the query a new checkpoint (the pipeline: a new lake)"
        )
        self.journal = journal
        self.reached = reached
        self.end = end

    def __reduce__(self) -> tuple[object, ...]:
        return JournalReplacedError, (self.journal, self.reached, self.end)


class SinkError(PipelineError):
    """Rows that could not be published. ``status`` is the hub's answer, or None where there was none."""

    def __init__(self, reason: str, *, status: int | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.status = status


class LakeError(PipelineError):
    """The lake can't do what it was asked. ``table`` is the table it was about."""

    def __init__(self, table: str, reason: str) -> None:
        super().__init__(f"table {table!r}: {reason}")
        self.table = table
        self.reason = reason
