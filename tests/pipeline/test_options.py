from datetime import UTC, datetime

import pytest

from polywire.pipeline.errors import OptionError
from polywire.pipeline.journals import COLUMNS, SourceOptions


def test_a_journal_is_all_that_is_needed() -> None:
    options = SourceOptions.read({"journal": "/j"})
    assert options.journals == ("/j",)
    assert options.columns == COLUMNS
    assert options.starting_offset == "earliest"
    assert options.fail_on_data_loss


def test_names_are_taken_in_any_case() -> None:
    assert SourceOptions.read({"JOURNAL": "/j", "failondataloss": "FALSE"}).fail_on_data_loss is False


def test_columns_keep_the_order_of_the_journal() -> None:
    assert SourceOptions.read({"journal": "/j", "columns": "flags, offset"}).columns == ("offset", "flags")


@pytest.mark.parametrize("text", ["2026-01-31T12:00:00Z", "2026-01-31 12:00", "2026-01-31T13:00:00+01:00"])
def test_a_start_may_be_a_time(text: str) -> None:
    options = SourceOptions.read({"journal": "/j", "startingOffset": text})
    assert options.starting_time == datetime(2026, 1, 31, 12, tzinfo=UTC)
    assert options.starting_offset == "earliest"


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("columns", "offset,chanel", "did you mean 'channel'"),
        ("kinds", "published", "did you mean 'publish'"),
        ("protocols", "amqp", "there is|did you mean"),
        ("startingOffset", "yesterday", "not a time"),
        ("failOnDataLoss", "maybe", "there is true, false"),
        ("maxRowsPerTrigger", "0", "positive whole number"),
        ("rowsPerPartition", "many", "positive whole number"),
        ("onCorrupt", "ignore", "gap"),
    ],
)
def test_a_value_that_can_not_be_is_told_with_what_can(option: str, value: str, words: str) -> None:
    with pytest.raises(OptionError, match=words) as caught:
        SourceOptions.read({"journal": "/j", option: value})
    assert caught.value.option == option


def test_without_a_journal_there_is_nothing_to_read() -> None:
    with pytest.raises(OptionError, match="journal"):
        SourceOptions.read({})
