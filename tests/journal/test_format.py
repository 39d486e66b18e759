"""The bytes of a segment: messages, their CRCs, and a head that is found again after damage."""

import contextlib
import mmap
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from polywire.journal.damage import Survey, survey
from polywire.journal.format import (
    BLANK_CRC,
    END_OF_STREAM,
    BadMessage,
    Entry,
    blank_head,
    check_batch,
    check_known,
    crc_of,
    find_head,
    index_octets,
    make_head,
    pack_entry,
    parse_message,
    read_head,
    read_index,
    unpack_entries,
)
from polywire.journal.kinds import EARLIER_KINDS
from polywire.journal.log import Log
from tests.journal.rows import NODE, rows
from tests.journal.test_recovery import ARROW, entries_of


@pytest.fixture(scope="module")
def segment(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, list[Entry]]:
    folder = tmp_path_factory.mktemp("journal")
    with Log(folder, node=NODE) as log:
        log.append(rows(0, 3), state=False)
        log.append(rows(3, 2), state=True)
    return (folder / ARROW).read_bytes(), entries_of(folder)


def test_a_batch_is_cut_out_and_checked(segment: tuple[bytes, list[Entry]]) -> None:
    octets, entries = segment
    for entry in entries:
        found = check_batch(memoryview(octets), entry.position, len(octets))
        assert (found.length, found.rows, found.first_offset, found.crc) == (
            entry.length,
            entry.rows,
            entry.first_offset,
            entry.crc,
        )
        message = memoryview(octets)[found.position : found.end]
        assert crc_of(message, found.header_length) == entry.crc
        check_known(message, entry.crc)
        with pytest.raises(BadMessage, match="CRC"):
            check_known(message, entry.crc ^ 1)


@given(st.binary(max_size=200), st.integers(0, 100))
@example(END_OF_STREAM + bytes(8), 0)
@example(b"\xff\xff\xff\xff\x08\0\0\0" + b"\xff" * 8, 0)
def test_any_octets_are_a_message_or_a_bad_one(octets: bytes, position: int) -> None:
    for check in (parse_message, check_batch):
        with pytest.raises(BadMessage):
            check(memoryview(octets), position, len(octets))
    with pytest.raises(BadMessage):
        check_known(memoryview(octets), 0)
    with pytest.raises(BadMessage):
        read_head(memoryview(octets))


@given(st.data())
def test_a_header_changed_in_any_way_raises_nothing_else(
    segment: tuple[bytes, list[Entry]], data: st.DataObject
) -> None:
    octets, entries = segment
    changed = bytearray(octets)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(entries[0].position, entries[0].position + 1200))
        changed[at] = data.draw(st.integers(0, 255))
    with contextlib.suppress(BadMessage):
        parse_message(memoryview(changed), entries[0].position, len(changed))
    if changed != octets:
        with pytest.raises(BadMessage):
            check_batch(memoryview(changed), entries[0].position, len(changed))


@given(st.data())
def test_a_survey_of_anything_accounts_for_every_octet(segment: tuple[bytes, list[Entry]], data: st.DataObject) -> None:
    octets, entries = segment
    changed = bytearray(
        octets + data.draw(st.sampled_from([b"", END_OF_STREAM, bytes(16), b"\xff" * 24, octets[-500:]]))
    )
    for _ in range(data.draw(st.integers(0, 3))):
        at = data.draw(st.integers(0, len(changed) - 1))
        changed[at : at + data.draw(st.integers(0, 16))] = data.draw(st.binary(max_size=16))
    known = data.draw(st.sampled_from([[], entries, entries[:1], entries[1:]]))
    start = entries[0].position
    found = survey(bytes(changed), start, known)
    parts = sorted(
        [(batch.position, batch.end) for batch in found.batches] + [(h.position, h.end) for h in found.holes]
    )
    position = start
    for begin, end in parts:
        assert begin == position < end
        position = end
    assert position == len(changed) - (len(END_OF_STREAM) if found.ended else 0)
    for batch in found.batches:
        assert octets[start:].find(changed[batch.position : batch.end]) >= 0


def test_a_survey_takes_a_file_that_is_mapped(tmp_path: Path) -> None:
    with Log(tmp_path, node=NODE) as log:
        log.append(rows(0, 3), state=False)
    (entry,) = entries_of(tmp_path)
    with (tmp_path / ARROW).open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        assert [batch.end for batch in survey(mapped, entry.position).batches] == [entry.end]
        assert survey(mapped, len(mapped)) == Survey()


def test_a_head_carries_its_node_and_its_crc() -> None:
    head = make_head("nœud")
    assert head.node == "nœud"
    assert BLANK_CRC not in head.octets
    assert BLANK_CRC in blank_head("nœud")
    assert len(head) == len(blank_head("nœud"))
    assert read_head(memoryview(head.octets + b"more")) == head


def test_a_head_of_another_version_is_refused() -> None:
    octets = bytearray(make_head(NODE).octets)
    with pytest.raises(BadMessage, match="CRC"):
        read_head(memoryview(octets.replace(b"polywire.journal", b"polywire.jpurnal")))


ENTRIES = st.builds(
    Entry,
    st.integers(0, 2**40),
    st.integers(1, 2**31),
    st.integers(0, 1),
    st.integers(0, 2**40),
    st.integers(0, 2**40),
    st.integers(-(2**60), 2**60),
    st.integers(-(2**60), 2**60),
    st.integers(0, 2**32 - 1),
)


@given(ENTRIES)
def test_an_entry_comes_back_as_it_was(entry: Entry) -> None:
    packed = pack_entry(entry)
    assert len(packed) == 64
    assert unpack_entries(packed) == [entry]
    assert read_index(index_octets([entry])) == [entry]


@given(st.binary(max_size=300))
def test_an_index_of_anything_is_none_or_has_no_entries(octets: bytes) -> None:
    assert not read_index(octets)
    assert unpack_entries(octets) == []


@pytest.mark.parametrize("node", ["hub-1", "nœud", "h", "a-rather-long-name.of-a-host.example.org"])
def test_a_head_with_any_one_octet_wrong_is_made_again(node: str) -> None:
    head = make_head(node)
    name = head.octets.find(node.encode())
    for position in [*range(0, len(head), 41), *range(90, 110), *range(name - 8, name + 8)]:
        octets = bytearray(head.octets + b"batches")
        octets[position] ^= 1 << position % 8
        found = find_head(memoryview(octets))
        assert (found.octets, found.node) == (head.octets, node)
        assert found.damage


def test_the_head_of_a_segment_from_before_there_was_a_kind_is_made_again() -> None:
    for kinds in EARLIER_KINDS:
        head = make_head("hub-1", kinds=kinds)
        assert head.octets != make_head("hub-1").octets
        octets = bytearray(head.octets + b"batches")
        octets[len(head) - 5] ^= 1
        assert find_head(memoryview(octets)).octets == head.octets


def test_a_head_that_is_right_says_so() -> None:
    head = make_head("hub")
    assert find_head(memoryview(head.octets + b"batches")) == head
    assert not head.damage


@given(st.data())
def test_what_is_made_again_is_what_was_there_or_nothing(data: st.DataObject) -> None:
    head = make_head("hub-1")
    octets = bytearray(head.octets)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(octets)))
        octets[at : at + data.draw(st.integers(0, 16))] = data.draw(st.binary(max_size=16))
    try:
        found = find_head(memoryview(bytes(octets)))
    except BadMessage:
        return
    assert found.octets == head.octets


@pytest.mark.parametrize("octets", [b"", b"\xff" * 8, bytes(4000), make_head("hub").octets[:-1]])
def test_too_little_is_no_head(octets: bytes) -> None:
    with pytest.raises(BadMessage):
        find_head(memoryview(octets))
