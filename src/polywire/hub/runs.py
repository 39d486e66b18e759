"""Runs of publications on their way into the journal: those that follow each other are recorded as one.

Every publication forwarded as it came passes here, so it costs next to nothing: a run that begins where the last one
ended makes that one longer, and the positions of topics and bodies are looked up once for all of them.
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
    """One connection's runs. A session derives its own, and says how its protocol's frames are read."""

    def __init__(self, client: Client) -> None:
        self._client: Final = client
        self._data = b""
        self._start: i64 = 0
        self._end: i64 = 0
        self._count: i64 = 0
        self._flags: i64 = 0

    def locate(self, data: bytes, start: i64, end: i64, base: i64, places: BytesWriter) -> None:
        """Write where the topics and bodies of the frames stand, counted from ``base``."""
        raise NotImplementedError

    def add(self, run: Run, recorder: Recorder, now: i64) -> None:
        """One more run of the chunk at hand."""
        flags: i64 = run.qos << QOS_SHIFT
        if len(cast("Route", run.route).subscriptions) == 0:
            flags |= UNHEARD_FLAG
        if run.start == self._end and flags == self._flags and run.data is self._data:
            self._end = run.end
            self._count += run.count
            return
        self.record(recorder, now)
        self._data = run.data
        self._start = run.start
        self._end = run.end
        self._count = run.count
        self._flags = flags

    def record(self, recorder: Recorder, now: i64) -> i64:
        """Something else follows, or nothing: record what there is. Returns the offset behind it, -1 for none."""
        count = self._count
        if count == 0:
            return -1
        data = self._data
        base = recorder.begin_run(data, count, self._client, now, self._flags)
        self._data = b""
        self._count = 0
        if base < 0:
            return -1
        columns = recorder.columns
        self.locate(data, self._start, self._end, base, columns.places)
        columns.rows += count
        return columns.first + columns.rows
