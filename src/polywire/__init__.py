"""Polywire: a message hub that speaks five protocols on one routing core.

>>> import polywire
>>> sorted(polywire.compiled())[0]
'polywire.protocols.assembler'
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from polywire.compilation import compiled, load_sources_only, pure_wanted
from polywire.errors import (
    LocalProtocolError,
    PolywireError,
    ProtocolError,
    RemoteProtocolError,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

if pure_wanted():
    load_sources_only(Path(__file__).parent)

__version__ = "0.1.0"

__all__ = [
    "LocalProtocolError",
    "PolywireError",
    "ProtocolError",
    "RemoteProtocolError",
    "__version__",
    "compiled",
    "spark_session",
]


def spark_session(
    *,
    app: str = "polywire",
    master: str | None = None,
    memory: str | None = None,
    conf: Mapping[str, str] | None = None,
) -> "SparkSession":
    """A Spark session that knows the format ``polywire``; needs the extra ``pipeline``. See ``docs/pipeline.md``."""
    from polywire.pipeline.spark import spark_session as start  # noqa: PLC0415 - only who uses Spark loads it

    return start(app=app, master=master, memory=memory, conf=conf)
