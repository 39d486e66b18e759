"""Hypothesis strategies for everything MicroMsg2 puts on the wire."""

from datetime import UTC, datetime

from hypothesis import strategies as st

from polywire.protocols.micromsg.errors import ENDS_CONNECTION
from polywire.protocols.micromsg.filters import ORDER_OPERATORS, TEXT_OPERATORS, Clause, Filter
from polywire.protocols.micromsg.frames import Command, Error, Extension, Handshake, Message
from polywire.protocols.micromsg.text import KNOWN, NamedExtension, Value, batch_ack, write_properties

FIELD_CHARACTERS = "abcdefghijklmnopqrstuvwxyz0123456789-"
fields = st.text(FIELD_CHARACTERS, min_size=1, max_size=12)
keys = st.text(FIELD_CHARACTERS + "_", min_size=1, max_size=12)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
dates = st.datetimes(timezones=st.just(UTC), min_value=datetime(1900, 1, 1), max_value=datetime(2999, 1, 1))  # noqa: DTZ001 - the strategy adds the zone
numbers = st.integers(-(1 << 63), (1 << 63) - 1) | st.floats(allow_nan=False, allow_infinity=False)
values: st.SearchStrategy[Value] = numbers | texts | dates
property_sets = st.dictionaries(keys, values, max_size=4)
arguments = st.lists(st.tuples(fields, texts), max_size=4, unique_by=lambda pair: pair[0]).map(tuple)

sequences = st.integers(1, 65535)
messages = st.builds(
    Message, sequences, st.text(max_size=60), st.binary(max_size=400), property_sets.map(write_properties)
)
commands = st.builds(Command, fields, arguments)
acks = st.builds(Extension, st.integers(1, 255), st.binary(max_size=400))
errors = st.builds(Error, st.sampled_from(sorted(ENDS_CONNECTION)), arguments)
frames = messages | commands | acks | errors

named = st.builds(NamedExtension, fields.filter(lambda name: name != "batch-ack"), arguments) | st.builds(
    batch_ack, st.integers(1, 65534)
)
lists = st.lists(named, max_size=4, unique_by=lambda extension: extension.name).map(tuple)
identities = st.text(st.characters(max_codepoint=127), max_size=20)
octets = st.integers(0, 255)
handshakes = st.builds(Handshake, identities, lists, lists, st.just(1), octets, octets)

known_lists = st.lists(st.sampled_from(KNOWN), max_size=6, unique=True).map(
    lambda names: tuple(batch_ack(7) if name == "batch-ack" else NamedExtension(name) for name in names)
)

clauses = st.builds(Clause, keys, st.sampled_from(TEXT_OPERATORS), texts) | st.builds(
    Clause, keys, st.sampled_from(ORDER_OPERATORS), numbers | dates
)
conditions = st.builds(Filter, st.lists(clauses, max_size=5).map(tuple))
