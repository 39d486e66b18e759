"""The seven tables, by name."""

from typing import Final

from polywire.pipeline.table import Table
from polywire.pipeline.tables import calls, demand, messages, sessions, traffic

TABLES: Final[dict[str, Table]] = {
    table.name: table
    for table in (
        messages.TABLE,
        calls.TABLE,
        sessions.TABLE,
        messages.FAULTS_TABLE,
        traffic.TABLE,
        calls.LATENCY_TABLE,
        demand.TABLE,
    )
}
