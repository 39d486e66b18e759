"""Places in the journal."""

from datetime import UTC, datetime, timedelta

import pytest

from polywire.cli.positions import parse_position

NOW = datetime(2026, 11, 15, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("0", 0),
        ("1234", 1234),
        ("now", NOW),
        ("-1h", NOW - timedelta(hours=1)),
        ("-30min", NOW - timedelta(minutes=30)),
        ("-1.5 d", NOW - timedelta(hours=36)),
        ("2026-11-15", datetime(2026, 11, 15, tzinfo=UTC)),
        ("2026-11-15T10:30", datetime(2026, 11, 15, 10, 30, tzinfo=UTC)),
        ("2026-11-15 10:30:05.25", datetime(2026, 11, 15, 10, 30, 5, 250000, tzinfo=UTC)),
        ("2026-11-15T10:30:00Z", datetime(2026, 11, 15, 10, 30, tzinfo=UTC)),
        ("2026-11-15T10:30:00+01:00", datetime(2026, 11, 15, 9, 30, tzinfo=UTC)),
    ],
)
def test_offsets_and_times_are_read(text: str, position: int | datetime) -> None:
    assert parse_position(text, NOW) == position


@pytest.mark.parametrize("text", ["", "soon", "-", "-1", "-1x", "1h", "2026-13-01", "٣", "-99999999999999999d"])
def test_anything_else_is_told_what_is_allowed(text: str) -> None:
    with pytest.raises(ValueError, match=r"is no place in a journal.*allowed is an offset"):
        parse_position(text, NOW)
