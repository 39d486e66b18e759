"""What the hub logs, to standard error: from which level on, and as text or as JSON.

A record may carry fields beside its words: ``log.warning("…", extra={"client": …, "user": …})``. As JSON they are keys
of their own; the text of a line has to say what matters by itself.
"""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Final

from polywire.server.config import Log

FIELDS: Final = ("client", "user", "address", "protocol", "action", "channel", "reason")
"""The fields a record may carry."""

TEXT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class JsonFormatter(logging.Formatter):
    """One JSON object on a line for each record."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as a line."""
        found: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        found.update((name, getattr(record, name)) for name in FIELDS if getattr(record, name, None))
        if record.exc_info:
            found["exception"] = self.formatException(record.exc_info)
        return json.dumps(found, ensure_ascii=False, default=str)


def set_up(wanted: Log) -> None:
    """Log as configured, from now on. May be called again."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if wanted.format == "json" else logging.Formatter(TEXT))
    level = getattr(logging, wanted.level.upper())
    logging.basicConfig(handlers=[handler], level=level, force=True)
