"""The seven tables, by name. Each file has one: its schema, its function, and the ``TABLE`` listed here."""

from typing import Final

from polywire.pipeline.table import Table
from polywire.pipeline.tables import calls, demand, faults, latency, messages, sessions, traffic

TABLES: Final[dict[str, Table]] = {
    module.TABLE.name: module.TABLE for module in (messages, calls, sessions, faults, traffic, latency, demand)
}
