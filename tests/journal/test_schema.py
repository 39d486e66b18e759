"""The columns are what every other tool relies on."""

import subprocess
import sys

from polywire.journal import kinds
from polywire.journal.schema import CODED, PLAIN_SCHEMA, SCHEMA, protocol_values
from polywire.registry import built_in, built_in_names


def test_each_kind_has_its_place_as_its_code() -> None:
    assert [getattr(kinds, name.upper()) for name in kinds.KINDS] == list(range(len(kinds.KINDS)))


def test_the_stored_codes_of_protocols_never_change() -> None:
    assert built_in_names() == ("umq", "micromsg", "fmqp", "mqtt", "mqttrpc", "sabc", "http")
    assert protocol_values(built_in_names()).to_pylist() == list(built_in_names())
    assert all(built_in_names()[each.code] == each.name for each in built_in())


def test_no_two_flags_share_a_bit() -> None:
    bits = [value for name, value in vars(kinds).items() if name.endswith(("_FLAG", "_MASK"))]
    assert sum(bits) == 2047
    assert kinds.QOS_MASK == 3 << kinds.QOS_SHIFT


def test_readers_see_the_stored_columns_with_text_in_place_of_codes() -> None:
    assert PLAIN_SCHEMA.names == SCHEMA.names
    assert {name for name in SCHEMA.names if SCHEMA.field(name).type != PLAIN_SCHEMA.field(name).type} == set(CODED)
    assert SCHEMA.metadata == {b"polywire.journal": b"1"}


def test_the_constants_come_without_arrow() -> None:
    check = "import sys, polywire, polywire.journal.kinds; sys.exit('pyarrow' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", check], check=False)  # noqa: S603 - our own text
    assert done.returncode == 0
