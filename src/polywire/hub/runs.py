"""Runs of publications, as scanners find them: what the hub has to know to forward and record them.

Runs that follow each other are recorded as one. Every publication forwarded as it came passes here, so it costs next to
nothing: a run that begins where the last one ended makes that one longer, and the positions of topics and bodies are
looked up once for all of them.
"""

from typing import Final, cast

from librt.strings import BytesWriter
from mypy_extensions import i64, mypyc_attr

from polywire.hub.client import Client
from polywire.hub.recorder import Recorder
from polywire.hub.routes import Route
from polywire.journal.kinds import QOS_SHIFT, UNHEARD_FLAG
from polywire.wire.frame import Run


@mypyc_attr(allow_interpreted_subclasses=True)
class Runs:
    """One connection's runs. A session derives its own, and says how its protocol's frames are read.

    ``qos`` is that of the messages they hold, -1 for the run's own. ``now`` is when the chunk at hand came, ``version``
    what ``RouteTable.changes`` was when it was scanned: its runs have the routes of that moment.
    """

    def __init__(self, client: Client, qos: int = -1) -> None:
        self.client: Final = client
        self.qos: Final = qos
        self.now: i64 = 0
        self.version: i64 = -1
        self._data = b""
        self._start: i64 = 0
        self._end: i64 = 0
        self._count: i64 = 0
        self._flags: i64 = 0

    def locate(self, data: bytes, start: i64, end: i64, base: i64, places: BytesWriter) -> None:
        """Write where the topics and bodies of the frames are, counted from ``base``.

        Each takes 64 bits: where it begins and, 32 bits up, ends.
        """
        raise NotImplementedError

    def add(self, run: Run, recorder: Recorder) -> None:
        """One more run of the chunk at hand."""
        flags: i64 = run.qos << QOS_SHIFT
        if len(cast("Route", run.route).subscriptions) == 0:
            flags |= UNHEARD_FLAG
        if run.start == self._end and flags == self._flags and run.data is self._data:
            self._end = run.end
            self._count += run.count
            return
        self.record(recorder)
        self._data = run.data
        self._start = run.start
        self._end = run.end
        self._count = run.count
        self._flags = flags

    def record(self, recorder: Recorder) -> i64:
        """Something else follows, or nothing: record what there is. Returns the offset behind it, -1 for none."""
        count = self._count
        if count == 0:
            return -1
        data = self._data
        base = recorder.begin_run(data, count, self.client, self.now, self._flags)
        self._data = b""
        self._count = 0
        if base < 0:
            return -1
        columns = recorder.columns
        self.locate(data, self._start, self._end, base, columns.places)
        columns.rows += count
        return columns.first + columns.rows
