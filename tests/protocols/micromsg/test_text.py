"""The texts in frames: URL encoding, lists of extensions, properties and JSON."""

import json
from datetime import UTC, datetime, timedelta, timezone

import pytest
from fuzz.targets.micromsg import check_json
from hypothesis import given
from hypothesis import strategies as st

from polywire.protocols.micromsg.errors import LocalProtocolError, MalformedError
from polywire.protocols.micromsg.text import (
    KNOWN,
    LARGEST_COUNT,
    NamedExtension,
    Value,
    batch_ack,
    json_problem,
    properties_problem,
    read_extensions,
    read_properties,
    read_value,
    shown,
    url_decoded,
    url_encoded,
    write_extensions,
    write_properties,
    write_value,
)
from tests.protocols.micromsg import strategies


@pytest.mark.rule("MICROMSG-19", "MICROMSG-60", "MICROMSG-80")
def test_the_documents_examples_are_read_and_written() -> None:
    assert url_decoded("Hello%20%25%20mother%20fucker!") == "Hello % mother fucker!"
    assert url_encoded('Hello "world"') == "Hello%20%22world%22"
    assert url_decoded("Hello%20%22world%22") == 'Hello "world"'


@pytest.mark.rule("MICROMSG-162")
def test_a_plus_is_a_plus() -> None:
    assert url_decoded("1+1%2b1") == "1+1+1"


@pytest.mark.rule("MICROMSG-162")
@pytest.mark.parametrize(
    ("text", "at"), [("%", 0), ("a%", 1), ("a%4", 1), ("%4g", 0), ("%g4", 0), ("ok%20%", 5), ("%%20", 0)]
)
def test_a_percent_sign_without_two_digits_is_malformed(text: str, at: int) -> None:
    with pytest.raises(MalformedError) as caught:
        url_decoded(text)
    assert (caught.value.rule, caught.value.at) == ("MICROMSG-162", at)


@pytest.mark.rule("MICROMSG-162")
@pytest.mark.parametrize("text", ["%ff", "%c3", "%c3x", "%ed%a0%80", "%c0%80"])
def test_escapes_that_are_not_utf8_are_malformed(text: str) -> None:
    with pytest.raises(MalformedError) as caught:
        url_decoded(text, 7)
    assert (caught.value.rule, caught.value.at) == ("MICROMSG-162", 7)


@pytest.mark.rule("MICROMSG-162")
def test_what_utf8_can_not_say_is_not_written() -> None:
    with pytest.raises(LocalProtocolError) as caught:
        url_encoded("\ud800")
    assert caught.value.rule == "MICROMSG-162"


@given(strategies.texts)
def test_a_text_survives_its_escapes(text: str) -> None:
    assert url_decoded(url_encoded(text)) == text
    assert url_encoded(text).isascii()


def test_a_long_text_is_cut_in_messages() -> None:
    assert shown("a\n") == r"'a\n'"
    assert shown("x" * 1000) == "'" + "x" * 40 + "'… (1000 characters)"


def names(text: bytes) -> list[str]:
    return [extension.name for extension in read_extensions(text)]


@pytest.mark.rule("MICROMSG-07", "MICROMSG-111")
def test_the_example_with_count_is_read() -> None:
    assert read_extensions(b"batch-ack:count=10;json;dotnet") == (
        batch_ack(10),
        NamedExtension("json"),
        NamedExtension("dotnet"),
    )


@pytest.mark.rule("MICROMSG-19", "MICROMSG-20", "MICROMSG-22")
def test_the_example_with_two_properties_is_read() -> None:
    escaped = "Hello%20%25%20mother%20fucker!"
    text = f"extension-name1:prop-name1=propValue2,prop-name2={escaped};"
    assert read_extensions(text.encode()) == (
        NamedExtension("extension-name1", (("prop-name1", "propValue2"), ("prop-name2", "Hello % mother fucker!"))),
    )


@pytest.mark.rule("MICROMSG-22", "MICROMSG-189")
def test_the_example_with_upper_case_letters_is_read_and_never_written() -> None:
    (named,) = read_extensions(b"extensionName1:propName1=propValue2,propName2=Hello%20%25%20mother%20fucker!;")
    assert named.name == "extensionName1"
    assert named.properties == (("propName1", "propValue2"), ("propName2", "Hello % mother fucker!"))
    with pytest.raises(LocalProtocolError):
        write_extensions((named,))


@pytest.mark.rule("MICROMSG-17", "MICROMSG-90", "MICROMSG-189")
@pytest.mark.parametrize("name", ["a_b", "a.b", "a b", "\N{KELVIN SIGN}".encode().decode("latin-1")])
def test_other_characters_are_not_a_name(name: str) -> None:
    with pytest.raises(MalformedError) as caught:
        read_extensions(name.encode("latin-1"))
    assert caught.value.rule == "MICROMSG-17"


@pytest.mark.rule("MICROMSG-20", "MICROMSG-21", "MICROMSG-22", "MICROMSG-109")
def test_the_examples_of_names_are_read() -> None:
    assert names(b"json;xml;protobuf") == ["json", "xml", "protobuf"]
    assert names(b"json;xml;protobuf;") == ["json", "xml", "protobuf"]
    assert names(b"") == []
    assert all(not extension.properties for extension in read_extensions(b"json;xml;protobuf"))


@pytest.mark.rule("MICROMSG-22", "MICROMSG-110", "MICROMSG-66", "MICROMSG-65")
@pytest.mark.parametrize(
    ("text", "count"),
    [
        (b"batch-ack:max-count=10;json;microauth", 10),
        (b"batch-ack:max-count:100;", 100),
        (b"batch-ack:count:7", 7),
        (b"batch-ack:max-count=007", 7),
        (b"batch-ack:max-count=65534", 65534),
        (b"batch-ack:max-count=65535", LARGEST_COUNT),
        (b"batch-ack:max-count=" + b"9" * 5000, LARGEST_COUNT),
        (b"batch-ack:other=1,max-count=3", 3),
    ],
)
def test_a_count_is_read_in_every_spelling(text: bytes, count: int) -> None:
    first = read_extensions(text)[0]
    assert first == batch_ack(count)
    assert first.max_count == count


@pytest.mark.rule("MICROMSG-65", "MICROMSG-66")
@pytest.mark.parametrize("text", [b"batch-ack;", b"batch-ack", b"batch-ack:;", b"batch-ack:other=1"])
def test_without_a_count_it_is_10_and_the_reader_can_tell(text: bytes) -> None:
    assert read_extensions(text) == (NamedExtension("batch-ack"),)
    assert NamedExtension("batch-ack").max_count == 10


@pytest.mark.rule("MICROMSG-112")
@pytest.mark.parametrize(
    "extension",
    [
        NamedExtension("batch-ack", (("max-count", "12"),)),
        NamedExtension("batch-ack", (("count", "12"),)),
        NamedExtension("batch-ack", (("other", "x"), ("count", "012"))),
    ],
)
def test_batch_ack_is_written_in_one_form(extension: NamedExtension) -> None:
    assert write_extensions((extension,)) == b"batch-ack:max-count=12"
    assert write_extensions((NamedExtension("batch-ack"),)) == b"batch-ack:max-count=10"


@pytest.mark.rule("MICROMSG-113")
@pytest.mark.parametrize("count", [0, -1, 65535])
def test_a_count_out_of_range_is_not_made(count: int) -> None:
    with pytest.raises(LocalProtocolError) as caught:
        batch_ack(count)
    assert caught.value.rule == "MICROMSG-113"


@pytest.mark.rule("MICROMSG-17", "MICROMSG-18", "MICROMSG-113", "MICROMSG-164")
@pytest.mark.parametrize(
    ("listed", "rule"),
    [
        ((NamedExtension("JSON"),), "MICROMSG-17"),
        ((NamedExtension(""),), "MICROMSG-17"),
        ((NamedExtension("json"), NamedExtension("json")), "MICROMSG-164"),
        ((NamedExtension("x-a", (("B", "c"),)),), "MICROMSG-18"),
        ((NamedExtension("x-a", (("b", "1"), ("b", "2"))),), "MICROMSG-164"),
        ((NamedExtension("batch-ack", (("max-count", "0"),)),), "MICROMSG-113"),
    ],
)
def test_a_list_that_is_not_allowed_is_not_written(listed: tuple[NamedExtension, ...], rule: str) -> None:
    with pytest.raises(LocalProtocolError) as caught:
        write_extensions(listed)
    assert caught.value.rule == rule


@pytest.mark.rule("MICROMSG-114")
def test_six_extensions_are_known() -> None:
    assert set(KNOWN) == {"ack", "batch-ack", "json", "dotnet", "pub-sub", "x-auth"}


@pytest.mark.rule("MICROMSG-115", "MICROMSG-19")
def test_credentials_are_escaped() -> None:
    auth = NamedExtension("x-auth", (("user", "a;b"), ("password", "p=,:%é")))
    octets = write_extensions((auth, NamedExtension("json")))
    assert octets == b"x-auth:user=a%3Bb,password=p%3D%2C%3A%25%C3%A9;json"
    assert read_extensions(octets)[0] == auth
    assert auth.value("user") == "a;b"
    assert auth.value("token") is None


@given(strategies.lists)
def test_a_list_survives_the_wire(listed: tuple[NamedExtension, ...]) -> None:
    assert read_extensions(write_extensions(listed)) == listed


@pytest.mark.rule("MICROMSG-53", "MICROMSG-142", "MICROMSG-143")
def test_the_documents_example_is_read() -> None:
    assert read_properties("first_name:jonas;twitter:jgauffin;") == {"first_name": "jonas", "twitter": "jgauffin"}


@pytest.mark.rule("MICROMSG-77", "MICROMSG-78", "MICROMSG-79", "MICROMSG-80")
def test_the_documents_values_are_read_and_written() -> None:
    date = datetime(2014, 10, 13, 12, 0, tzinfo=timezone(timedelta(hours=1)))
    examples: dict[str, Value] = {"N1": 1, "D1413198000.0": date, "THello%20%22world%22": 'Hello "world"'}
    for text, value in examples.items():
        assert write_value(value) == text
        assert read_value(text) == value


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
    found = read_value(text)
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
    assert read_value(text) is None
    assert read_properties(f"k:{text};") == {"k": text}


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
    assert read_value(text) == expected
    assert read_value(write_value(expected)) == expected


@pytest.mark.rule("MICROMSG-141")
def test_properties_are_written_with_types() -> None:
    date = datetime(2014, 10, 13, 11, 0, 0, 250_000, tzinfo=UTC)
    found: dict[str, Value] = {"room": 12, "name": "a;b", "heat": 21.5, "when": date}
    assert write_properties(found) == "room:N12;name:Ta%3Bb;heat:N21.5;when:D1413198000.25;"
    assert write_properties({}) == ""
    assert write_value(datetime(1970, 1, 1, tzinfo=UTC)) == "D0.0"
    assert write_value(datetime(1969, 12, 31, 23, 59, 58, 500_000, tzinfo=UTC)) == "D-1.5"
    assert write_value(1e-7) == "N0.0000001"


@pytest.mark.rule("MICROMSG-52", "MICROMSG-143")
@pytest.mark.parametrize("key", ["", "A", "a b", "a:b", "é"])
def test_a_key_that_is_no_field_is_not_written(key: str) -> None:
    with pytest.raises(LocalProtocolError) as caught:
        write_properties({key: 1})
    assert caught.value.rule == "MICROMSG-52"
    assert write_properties({"a_b-9": 1}) == "a_b-9:N1;"


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
        write_value(value)
    assert caught.value.rule == rule


@pytest.mark.rule("MICROMSG-161")
def test_the_last_semicolon_may_be_missing_and_the_last_of_two_keys_counts() -> None:
    assert read_properties("a:N1;b:Tx:y") == {"a": 1, "b": "x:y"}
    assert read_properties("a:N1;a:N2;") == {"a": 2}
    assert read_properties("") == {}
    for text in (";", "a", "a:N1;;", "A:N1;", "a:Té;", "a:T\ud800;"):
        with pytest.raises(MalformedError) as caught:
            read_properties(text)
        assert caught.value.rule == "MICROMSG-161"


@given(strategies.property_sets)
@pytest.mark.rule("MICROMSG-52", "MICROMSG-141")
def test_properties_survive_the_wire(found: dict[str, Value]) -> None:
    text = write_properties(found)
    octets = text.encode("ascii")
    assert properties_problem(octets, 0, len(octets)) is None
    assert read_properties(text) == found


@given(st.text("ab_:;%4c3 NDT1.-", max_size=20))
@pytest.mark.rule("MICROMSG-161", "MICROMSG-162")
def test_what_the_decoder_lets_through_can_be_read_and_nothing_else(text: str) -> None:
    octets = b"##" + text.encode() + b"##"
    wrong = properties_problem(octets, 2, len(octets) - 2)
    if wrong is None:
        read_properties(text)
    else:
        with pytest.raises(MalformedError):
            read_properties(text)


VALUES: st.SearchStrategy[object] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@pytest.mark.rule("MICROMSG-150")
@given(VALUES, st.booleans(), st.sampled_from([None, 1, "\t"]))
def test_json_is_accepted(value: object, escaped: bool, indent: int | str | None) -> None:
    text = json.dumps(value, ensure_ascii=escaped, indent=indent)
    assert json_problem(text.encode("utf-8", "surrogatepass")) is None


@pytest.mark.rule("MICROMSG-150")
@pytest.mark.parametrize(
    "payload",
    [b"0", b"-0", b"-1.5e+10", b"1E5", b" [ ] ", b"{}", b'""', b'"\\u00e9\\n\\/"', '"é"'.encode(), b"\r\n\ttrue\n"],
)
def test_small_json_is_accepted(payload: bytes) -> None:
    assert json_problem(payload) is None


@pytest.mark.rule("MICROMSG-150")
@pytest.mark.parametrize(
    ("payload", "words"),
    [
        (b"", "ends unfinished at byte 0"),
        (b"  ", "ends unfinished at byte 2"),
        (b"{", "ends unfinished at byte 1"),
        (b"[1,", "ends unfinished at byte 3"),
        (b'"abc', "ends unfinished at byte 4"),
        (b'"\\', "ends unfinished at byte 2"),
        (b'"\\u12', "ends unfinished at byte 5"),
        (b'{"a"', "ends unfinished at byte 4"),
        (b"-", "ends unfinished at byte 1"),
        (b"1.", "ends unfinished at byte 2"),
        (b"1e", "ends unfinished at byte 2"),
        (b"1e+", "ends unfinished at byte 3"),
        (b"[1,]", "not JSON at byte 3"),
        (b"[1 2]", "not JSON at byte 3"),
        (b"[1}", "not JSON at byte 2"),
        (b'{"a" 1}', "not JSON at byte 5"),
        (b"{[", "not JSON at byte 1"),
        (b'{"a":1,}', "not JSON at byte 7"),
        (b"{1:2}", "not JSON at byte 1"),
        (b"01", "not JSON at byte 1"),
        (b"+1", "not JSON at byte 0"),
        (b".5", "not JSON at byte 0"),
        (b"1 1", "not JSON at byte 2"),
        (b"tru", "not JSON at byte 0"),
        (b"falsy", "not JSON at byte 0"),
        (b"nul", "not JSON at byte 0"),
        (b"NaN", "not JSON at byte 0"),
        (b"'a'", "not JSON at byte 0"),
        (b'{"\n":1}', "not JSON at byte 2"),
        (b'"a\nb"', "not JSON at byte 2"),
        (b'"\\x"', "not JSON at byte 2"),
        (b'"\\u12g4"', "not JSON at byte 5"),
        (b'"\xff"', "not UTF-8 at byte 1"),
        (b"\xef\xbb\xbf1", "not JSON at byte 0"),
    ],
)
def test_what_is_not_json_is_reported_with_its_position(payload: bytes, words: str) -> None:
    assert words in (json_problem(payload) or "")


@pytest.mark.rule("MICROMSG-171", "MICROMSG-150")
@pytest.mark.parametrize(("opening", "closing"), [(b"[", b"]"), (b'{"a":', b"}")])
def test_deep_nesting_is_refused_and_costs_no_stack(opening: bytes, closing: bytes) -> None:
    assert json_problem(opening * 512 + b"1" + closing * 512) is None
    for payload in (opening * 513 + b"1" + closing * 513, opening * 200_000):
        assert f"deeper than 512 levels at byte {512 * len(opening)}" in (json_problem(payload) or "")
    assert json_problem(b"[[1]]", 2) is None
    assert json_problem(b"[[[1]]]", 2) is not None


@pytest.mark.rule("MICROMSG-150")
@given(st.text('[]{}",:\\ 0123.eE+-untrfalsx', max_size=12).map(str.encode) | st.binary(max_size=12))
def test_the_walk_and_the_standard_library_agree(payload: bytes) -> None:
    check_json(payload)
