"""Polywire: a message hub that speaks five protocols on one routing core.

>>> import polywire
>>> sorted(polywire.compiled())[0]
'polywire.protocols.assembler'
"""

from pathlib import Path

from polywire.compilation import compiled, load_sources_only, pure_wanted
from polywire.errors import (
    LocalProtocolError,
    PolywireError,
    ProtocolError,
    RemoteProtocolError,
)

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
]
