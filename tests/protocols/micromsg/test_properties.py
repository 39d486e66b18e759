"""Properties: typed values, the document's examples, and what is read generously."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polywire.protocols.micromsg import properties
from polywire.protocols.micromsg.errors import LocalProtocolError, MalformedError
from polywire.protocols.micromsg.properties import Value
from tests.protocols.micromsg import strategies


@pytest.mark.rule("MICROMSG-53", "MICROMSG-142", "MICROMSG-143")
def test_the_documents_example_is_read() -> None:
    assert properties.read("first_name:jonas;twitter:jgauffin;") == {"first_name": "jonas", "twitter": "jgauffin"}


@pytest.mark.rule("MICROMSG-77", "MICROMSG-78", "MICROMSG-79", "MICROMSG-80")
def test_the_documents_values_are_read_and_written() -> None:
    date = datetime(2014, 10, 13, 12, 0, tzinfo=timezone(timedelta(hours=1)))
    examples: dict[str, Value] = {"N1": 1, "D1413198000.0": date, "THello%20%22world%22": 'Hello "world"'}
    for text, value in examples.items():
        assert properties.write_value(value) == text
        assert properties.read_value(text) == value


@pytest.mark.rule("MICROMSG-78")
@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("N0", 0),
        ("N-1", -1),
        ("N007", 7),
        ("N9223372036854775807", (1 << 63) - 1),
        ("N-9223372036854775808", -(1 << 63)),
        ("N1.5", 1.5),
        ("N-0.25", -0.25),
        ("N10000000000000000000000.0", 1e22),
    ],
)
def test_numbers_are_64_bit_integers_or_decimals(text: str, value: float) -> None:
    found = properties.read_value(text)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.rule("MICROMSG-142", "MICROMSG-77")
@pytest.mark.parametrize(
    "text",
    [
        "jonas",
        "",
        "N",
        "Name",
        "N1x",
        "N1.",
        "N.5",
        "N+1",
        "N1e5",
        "N9223372036854775808",
        "N" + "9" * 5000,
        "N" + "9" * 5000 + ".0",
        "D",
        "Dave",
        "D1.",
        "D.5",
        "D-",
        "D999999999999",
        "D" + "9" * 5000,
        "n1",
    ],
)
def test_a_value_without_a_valid_type_is_text(text: str) -> None:
    assert properties.read_value(text) is None
    assert properties.read(f"k:{text};") == {"k": text}


@pytest.mark.rule("MICROMSG-79")
@pytest.mark.parametrize(
    ("text", "microseconds"),
    [
        ("D0", 0),
        ("D0.0", 0),
        ("D0.5", 500_000),
        ("D1.000001", 1_000_001),
        ("D1.0000019", 1_000_001),
        ("D-1.5", -1_500_000),
        ("D-0.25", -250_000),
        ("D0001", 1_000_000),
        ("D100000000000", 100_000_000_000_000_000),
    ],
)
def test_dates_are_seconds_with_a_fraction(text: str, microseconds: int) -> None:
    expected = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=microseconds)
    assert properties.read_value(text) == expected
    assert properties.read_value(properties.write_value(expected)) == expected


@pytest.mark.rule("MICROMSG-141")
def test_properties_are_written_with_types() -> None:
    date = datetime(2014, 10, 13, 11, 0, 0, 250_000, tzinfo=UTC)
    found: dict[str, Value] = {"room": 12, "name": "a;b", "heat": 21.5, "when": date}
    assert properties.write(found) == "room:N12;name:Ta%3Bb;heat:N21.5;when:D1413198000.25;"
    assert properties.write({}) == ""
    assert properties.write_value(datetime(1970, 1, 1, tzinfo=UTC)) == "D0.0"
    assert properties.write_value(datetime(1969, 12, 31, 23, 59, 58, 500_000, tzinfo=UTC)) == "D-1.5"
    assert properties.write_value(1e-7) == "N0.0000001"


@pytest.mark.rule("MICROMSG-52", "MICROMSG-143")
@pytest.mark.parametrize("key", ["", "A", "a b", "a:b", "é"])
def test_a_key_that_is_no_field_is_not_written(key: str) -> None:
    with pytest.raises(LocalProtocolError) as caught:
        properties.write({key: 1})
    assert caught.value.rule == "MICROMSG-52"
    assert properties.write({"a_b-9": 1}) == "a_b-9:N1;"


@pytest.mark.rule("MICROMSG-77", "MICROMSG-78", "MICROMSG-79")
@pytest.mark.parametrize(
    ("value", "rule"),
    [
        (True, "MICROMSG-77"),
        (1 << 63, "MICROMSG-78"),
        (-(1 << 63) - 1, "MICROMSG-78"),
        (float("nan"), "MICROMSG-78"),
        (float("inf"), "MICROMSG-78"),
        (datetime(2020, 1, 1), "MICROMSG-79"),  # noqa: DTZ001 - the missing zone is the point
        ("\ud800", "MICROMSG-162"),
    ],
)
def test_what_the_types_can_not_say_is_not_written(value: Value, rule: str) -> None:
    with pytest.raises(LocalProtocolError) as caught:
        properties.write_value(value)
    assert caught.value.rule == rule


@pytest.mark.rule("MICROMSG-161")
def test_the_last_semicolon_may_be_missing_and_the_last_of_two_keys_counts() -> None:
    assert properties.read("a:N1;b:Tx:y") == {"a": 1, "b": "x:y"}
    assert properties.read("a:N1;a:N2;") == {"a": 2}
    assert properties.read("") == {}
    for text in (";", "a", "a:N1;;", "A:N1;", "a:Té;", "a:T\ud800;"):
        with pytest.raises(MalformedError) as caught:
            properties.read(text)
        assert caught.value.rule == "MICROMSG-161"


@given(strategies.property_sets)
@pytest.mark.rule("MICROMSG-52", "MICROMSG-141")
def test_properties_survive_the_wire(found: dict[str, Value]) -> None:
    text = properties.write(found)
    octets = text.encode("ascii")
    assert properties.problem(octets, 0, len(octets)) is None
    assert properties.read(text) == found


@given(st.text("ab_:;%4c3 NDT1.-", max_size=20))
@pytest.mark.rule("MICROMSG-161", "MICROMSG-162")
def test_what_the_decoder_lets_through_can_be_read_and_nothing_else(text: str) -> None:
    octets = b"##" + text.encode() + b"##"
    wrong = properties.problem(octets, 2, len(octets) - 2)
    if wrong is None:
        properties.read(text)
    else:
        with pytest.raises(MalformedError):
            properties.read(text)
