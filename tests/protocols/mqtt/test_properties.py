"""What holds for all packets, and for all bytes."""

import pytest
from fuzz.contract import check_stream
from fuzz.targets import mqtt as target
from hypothesis import example, given, settings
from hypothesis import strategies as st

from polywire.protocols.mqtt import Connack, Connect, Decoder, encode
from polywire.protocols.mqtt.frames import MAX_PACKET
from polywire.wire.frame import Frame
from tests.protocols.mqtt.strategies import connects, from_client, from_server, packets
from tests.protocols.mqtt.wire import decoded

PROMISES = settings(max_examples=60)


@pytest.mark.rule("MQTT-007")
@given(packets)
def test_a_packet_that_is_written_reads_the_same(frame: Frame) -> None:
    assert decoded(encode(frame)) == [frame]


@pytest.mark.rule("MQTT-168")
@PROMISES
@given(connects(), st.lists(from_client, max_size=6), st.lists(st.integers(0, 800), max_size=5))
def test_a_clients_stream_cut_anywhere_gives_the_same_packets(
    first: Connect, frames: list[Frame], cuts: list[int]
) -> None:
    stream = b"".join(map(encode, [first, *frames]))
    outcome = check_stream(Decoder, stream, cuts, held=MAX_PACKET)
    assert (outcome.frames, outcome.error) == ([first, *frames], None)


@pytest.mark.rule("MQTT-168")
@PROMISES
@given(st.lists(from_server, max_size=6), st.lists(st.integers(0, 800), max_size=5))
def test_a_servers_stream_cut_anywhere_gives_the_same_packets(frames: list[Frame], cuts: list[int]) -> None:
    stream = b"".join(map(encode, [Connack(session_present=False, return_code=0), *frames]))
    outcome = check_stream(lambda: Decoder(role="client"), stream, cuts, held=MAX_PACKET)
    assert (outcome.frames, outcome.error) == ([Connack(session_present=False, return_code=0), *frames], None)


@pytest.mark.rule("MQTT-165")
@PROMISES
@given(st.binary(max_size=300))
@example(b"")
def test_any_octets_hold_the_contract(data: bytes) -> None:
    target.run(data)


@pytest.mark.rule("MQTT-165")
@PROMISES
@given(st.sampled_from(target.seeds()), st.data())
def test_streams_with_wrong_octets_hold_the_contract(seed: bytes, data: st.DataObject) -> None:
    stream = bytearray(seed)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(stream) - 1))
        action = data.draw(st.sampled_from(["change", "remove", "insert"]))
        if action == "remove" and len(stream) > 1:
            del stream[at]
        elif action == "insert":
            stream.insert(at, data.draw(st.integers(0, 255)))
        else:
            stream[at] = data.draw(st.integers(0, 255))
    target.run(bytes(stream))


@pytest.mark.parametrize("seed", target.seeds(), ids=lambda seed: seed[:4].hex())
def test_the_fuzzers_seeds_hold_the_contract(seed: bytes) -> None:
    target.run(seed)
