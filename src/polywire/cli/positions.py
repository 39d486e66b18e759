"""Places in the journal the way people name them: an offset, a time, or how long ago."""

from datetime import UTC, datetime, timedelta
from typing import Final

from polywire.server.quantity import TIME_UNITS, parse_seconds

ALLOWED: Final = (
    "an offset (1234), a time in UTC (2026-11-15, 2026-11-15T10:30, 2026-11-15T10:30:00+01:00), "
    f"how long ago (-1h, -30min; units are {', '.join(TIME_UNITS)}), or now"
)


def parse_position(text: str, now: datetime) -> int | datetime:
    """The offset or time that ``text`` names. A ``ValueError`` says what is allowed."""
    words = text.strip()
    if words.isascii() and words.isdigit():
        return int(words)
    try:
        if words == "now":
            return now
        if words.startswith("-"):
            return now - timedelta(seconds=parse_seconds(words[1:]))
        found = datetime.fromisoformat(words)
    except (ValueError, OverflowError) as error:
        why = f" ({error})" if words.startswith("-") else ""
        raise ValueError(f"{text!r} is no place in a journal{why}; allowed is {ALLOWED}") from None
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
