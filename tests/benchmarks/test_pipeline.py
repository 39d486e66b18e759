from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from benchmarks.pipeline_traffic import BATCH, MIX, write_traffic

from polywire import journal
from polywire.journal.format import values


def test_the_traffic_to_measure_with_is_what_it_says(tmp_path: Path) -> None:
    rows = BATCH + 2 * len(MIX)
    write_traffic(tmp_path, rows)
    table = pa.Table.from_batches(journal.open(tmp_path).scan())
    assert table.num_rows == rows
    assert table.column("offset").to_pylist() == list(range(rows))
    counts = Counter(table.column("kind").to_pylist())
    assert counts["publish"] / rows > 0.5
    assert abs(counts["request"] - counts["reply"]) <= 1
    calls = table.filter(pc.is_in(table.column("kind"), pa.array(["request", "reply"])))
    assert set(Counter(calls.column("correlation").to_pylist()).values()) <= {1, 2}
    assert {len(body) for body in values(table.column("body"))} == {64}
