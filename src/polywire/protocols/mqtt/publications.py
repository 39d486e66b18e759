"""Publications in the octets they came in: the scanner in ``frames`` has checked them, so nothing is checked here.

They are walked where they stand, for what is wanted of them: messages, their places for the journal, acknowledgements.
"""

from typing import Final

from librt.strings import BytesWriter, write_i64_le
from mypy_extensions import i64

from polywire.protocols.mqtt.packets import PUBACK, Publish
from polywire.protocols.mqtt.writing import write_acknowledgement
from polywire.wire.buffers import Names, same_bytes

_names: Final = Names()


def publications_in(data: bytes, start: i64, end: i64) -> list[Publish]:
    """The publications of a run: ``data[start:end]`` is whole packets, as ``feed_runs`` found them."""
    found: list[Publish] = []
    topic = ""
    at: i64 = 0
    known: i64 = -1  # the length of the name at `at`, which is `topic`
    pos: i64 = start
    while pos < end:
        qos = qos_of(data[pos])
        pos += 1
        octet: i64 = data[pos]
        length: i64 = octet & 127
        shift: i64 = 7
        while octet >= 128:
            pos += 1
            octet = data[pos]
            length |= (octet & 127) << shift
            shift += 7
        name: i64 = pos + 3
        name_length: i64 = (i64(data[pos + 1]) << 8) | i64(data[pos + 2])
        payload: i64 = name + name_length
        pos += 1 + length
        if name_length != known or not same_bytes(data, at, name, name_length):
            topic = _names.text(data[name:payload])
            at = name
            known = name_length
        if qos == 0:
            found.append(Publish(topic, data[payload:pos], 0, False, False, None))
        else:
            packet_id = _packet_id(data, payload)
            found.append(Publish(topic, data[payload + 2 : pos], 1, False, False, packet_id))
    return found


def locate(data: bytes, start: i64, end: i64, base: i64, places: BytesWriter) -> None:
    """Where the topics and payloads of a run stand, counted from ``base``: where each begins and, 32 bits up, ends."""
    pos: i64 = start
    while pos < end:
        between: i64 = qos_of(data[pos]) * 2
        pos += 1
        octet: i64 = data[pos]
        length: i64 = octet & 127
        shift: i64 = 7
        while octet >= 128:
            pos += 1
            octet = data[pos]
            length |= (octet & 127) << shift
            shift += 7
        name: i64 = pos + 3
        middle: i64 = base + name + ((i64(data[pos + 1]) << 8) | i64(data[pos + 2]))
        pos += 1 + length
        write_i64_le(places, (base + name) | (middle << 32))
        write_i64_le(places, (middle + between) | ((base + pos) << 32))


def acknowledge(data: bytes, start: i64, end: i64, out: BytesWriter) -> None:
    """Append the PUBACKs of a run with QoS 1."""
    pos: i64 = start
    while pos < end:
        pos += 1
        octet: i64 = data[pos]
        length: i64 = octet & 127
        shift: i64 = 7
        while octet >= 128:
            pos += 1
            octet = data[pos]
            length |= (octet & 127) << shift
            shift += 7
        name_length: i64 = (i64(data[pos + 1]) << 8) | i64(data[pos + 2])
        write_acknowledgement(out, PUBACK, _packet_id(data, pos + 3 + name_length))
        pos += 1 + length


def qos_of(first: i64) -> i64:
    """The QoS in the first octet of a publication."""
    return (first >> 1) & 3


def _packet_id(data: bytes, pos: i64) -> i64:
    return (i64(data[pos]) << 8) | i64(data[pos + 1])


def has_packet_id(data: bytes, pos: i64, end: i64) -> bool:
    """Whether a packet id stands at ``pos``, within the packet that ends at ``end``; 0 is none."""
    return pos + 2 <= end and _packet_id(data, pos) != 0
