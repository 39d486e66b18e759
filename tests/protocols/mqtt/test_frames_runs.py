"""The scanner: runs of plain publications as slices, everything else as frames, in order."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from librt.strings import BytesWriter

from polywire.protocols.mqtt import Connect, Decoder, Pingreq, Puback, Publish, RemoteProtocolError, encode
from polywire.protocols.mqtt.frames import acknowledge, publications_in
from polywire.wire.frame import Frame, Run
from tests.protocols.mqtt.strategies import from_client
from tests.protocols.mqtt.wire import connected, decoded, octets

NO_ROUTES: dict[bytes, object] = {}
Shape = list[tuple[object, int] | Frame]


def scan(data: bytes, routes: dict[bytes, object], decoder: Decoder | None = None) -> Shape:
    """Runs as (route, count), frames as they are."""
    items = (decoder or connected()).feed_runs(data, routes, routes.get)
    for item in items:
        if isinstance(item, Run):
            assert len(decoded(item.octets())) == item.count
            assert publications_in(item.data, item.start, item.end) == decoded(item.octets())
    return [(item.route, item.count) if isinstance(item, Run) else item for item in items]


def publications(*topics: str) -> bytes:
    return b"".join(encode(Publish(topic, b"x" * 64)) for topic in topics)


@pytest.mark.rule("MQTT-194")
def test_publications_to_one_route_are_one_run_though_their_topics_differ() -> None:
    routes: dict[bytes, object] = {b"a": 1, b"b": 1, b"c": 2, b"longer/topic/name": 2}
    data = publications("a", "a", "b", "a", "c", "longer/topic/name", "longer/topic/name", "a")
    assert scan(data, routes) == [(1, 4), (2, 3), (1, 1)]


@pytest.mark.rule("MQTT-194")
def test_a_run_is_the_slice_it_came_in() -> None:
    data = publications("a", "a")
    (item,) = connected().feed_runs(data, {b"a": "route"}, NO_ROUTES.get)
    assert isinstance(item, Run)
    assert (item.route, item.start, item.end, item.count) == ("route", 0, len(data), 2)
    assert item.octets() == data


@pytest.mark.rule("MQTT-194")
def test_anything_but_a_plain_publication_comes_as_a_frame_in_its_place() -> None:
    others: list[Frame] = [
        Publish("a", b"", 0, retain=True),
        Publish("a", b"", 1, packet_id=1),
        Publish("a", b"", 2, packet_id=1),
        Pingreq(),
    ]
    for other in others:
        assert scan(publications("a") + encode(other) + publications("a"), {b"a": 1}) == [(1, 1), other, (1, 1)]


@pytest.mark.rule("MQTT-194")
def test_publications_with_qos_1_are_runs_of_their_own_where_that_is_wanted() -> None:
    confirmed = [Publish("a", b"x", 1, packet_id=1), Publish("b", b"", 1, packet_id=65535)]
    data = publications("a") + b"".join(map(encode, confirmed)) + publications("b")
    items = connected().feed_runs(data, {b"a": 1, b"b": 1}, NO_ROUTES.get, 1)
    assert [(item.qos, item.count) for item in items if isinstance(item, Run)] == [(0, 1), (1, 2), (0, 1)]
    run = items[1]
    assert isinstance(run, Run)
    assert publications_in(run.data, run.start, run.end) == confirmed
    acks = BytesWriter()
    acknowledge(run.data, run.start, run.end, acks)
    assert acks.getvalue() == encode(Puback(1)) + encode(Puback(65535))


@pytest.mark.rule("MQTT-194")
def test_what_is_not_a_plain_publication_with_qos_1_is_no_part_of_its_runs() -> None:
    others: list[Frame] = [
        Publish("a", b"", 1, retain=True, packet_id=1),
        Publish("a", b"", 1, dup=True, packet_id=1),
        Publish("a", b"", 2, packet_id=1),
        Publish("elsewhere", b"", 1, packet_id=1),
    ]
    for other in others:
        assert connected().feed_runs(encode(other), {b"a": 1}, NO_ROUTES.get, 1) == [other]
    for bad, rule in (("32 05 00 01 'a' 00 00", "MQTT-017"), ("32 04 00 01 'a' 00", "MQTT-178")):
        with pytest.raises(RemoteProtocolError) as caught:
            connected().feed_runs(octets(bad), {b"a": 1}, NO_ROUTES.get, 1)
        assert caught.value.rule == rule


@pytest.mark.rule("MQTT-194")
def test_a_topic_without_a_route_comes_as_a_frame() -> None:
    assert scan(publications("a", "b", "b"), {b"a": 1}) == [(1, 1), Publish("b", b"x" * 64), Publish("b", b"x" * 64)]


@pytest.mark.rule("MQTT-194", "MQTT-177")
@pytest.mark.parametrize("length", ["84 00", "84 80 00", "84 80 80 00"])
def test_a_longer_header_than_needed_is_not_forwarded(length: str) -> None:
    data = b"\x30" + bytes.fromhex(length) + octets("00 01 'a' 'x'")
    assert scan(data, {b"a": 1}) == [Publish("a", b"x")]
    assert decoded(data) == [Publish("a", b"x")]


@pytest.mark.rule("MQTT-194")
@pytest.mark.parametrize("size", [0, 100, 124, 125, 200, 16380, 16381, 2097148, 2097149])
def test_payloads_of_any_size_are_part_of_runs(size: int) -> None:
    data = encode(Publish("a", bytes(size))) * 2
    assert scan(data, {b"a": 1}) == [(1, 2)]


@pytest.mark.rule("MQTT-194")
def test_a_topic_is_resolved_once_it_is_known_to_be_valid_and_not_reserved() -> None:
    asked: list[bytes] = []

    def resolve(topic: bytes) -> object:
        asked.append(topic)
        return "route"

    data = publications("a", "a", "$SYS/a", "\u00e9", "b")
    items = connected().feed_runs(data, {}, resolve)
    assert asked == [b"a", "\u00e9".encode(), b"b"]
    assert [item.count if isinstance(item, Run) else item for item in items] == [2, Publish("$SYS/a", b"x" * 64), 2]
    for bad in ("30 03 00 01 '+'", "30 06 00 04 '+abc'", "30 06 00 04 'abc#'", "30 03 00 01 FF"):
        with pytest.raises(RemoteProtocolError):
            connected().feed_runs(octets(bad), {}, resolve)
    assert asked[3:] == []


@pytest.mark.rule("MQTT-194", "MQTT-165")
@pytest.mark.parametrize(
    ("bad", "rule"),
    [("FF", "MQTT-009"), ("30 03 00 01 '#'", "MQTT-099"), ("30 02 00 01", "MQTT-178"), ("30 01 00", "MQTT-178")],
)
def test_a_run_before_a_violation_counts(bad: str, rule: str) -> None:
    data = publications("a", "a")
    decoder = connected()
    with pytest.raises(RemoteProtocolError) as caught:
        decoder.feed_runs(data + octets(bad), {b"a": 1}, NO_ROUTES.get)
    (run,) = caught.value.frames
    assert isinstance(run, Run)
    assert (run.route, run.count, run.octets()) == (1, 2, data)
    assert caught.value.rule == rule
    with pytest.raises(RemoteProtocolError) as again:
        decoder.feed_runs(b"", {}, NO_ROUTES.get)
    assert (again.value.rule, again.value.frames) == (rule, [])


@pytest.mark.rule("MQTT-194", "MQTT-165")
def test_a_topic_length_beyond_its_packet_is_not_compared_with_what_follows() -> None:
    data = octets("30 04 00 02 'aa'") + octets("30 03 00 02 'a'") + b"a"
    decoder = connected()
    with pytest.raises(RemoteProtocolError) as caught:
        decoder.feed_runs(data, {b"aa": 1}, NO_ROUTES.get)
    assert caught.value.rule == "MQTT-178"
    assert len(caught.value.frames) == 1


@pytest.mark.rule("MQTT-027", "MQTT-028", "MQTT-179")
def test_the_scanner_knows_order_and_limits_too() -> None:
    for data, decoder, rule in [
        (publications("a"), Decoder(), "MQTT-027"),
        (encode(Connect("me")), connected(), "MQTT-028"),
        (publications("a"), connected(max_packet=68), "MQTT-179"),
    ]:
        with pytest.raises(RemoteProtocolError) as caught:
            decoder.feed_runs(data, {b"a": 1}, NO_ROUTES.get)
        assert caught.value.rule == rule
    assert scan(encode(Connect("me")) + publications("a"), {b"a": 1}, Decoder()) == [Connect("me"), (1, 1)]


@pytest.mark.rule("MQTT-194", "MQTT-168")
@given(
    st.lists(
        from_client | st.sampled_from([Publish("a", b"1"), Publish("b", b"2"), Publish("a", b"3", 1, packet_id=7)]),
        max_size=12,
    ),
    st.integers(0, 1),
    st.data(),
)
def test_the_scanner_finds_what_the_decoder_does_however_it_is_cut(
    frames: list[Frame], max_qos: int, data: st.DataObject
) -> None:
    stream = b"".join(map(encode, frames))
    cut = data.draw(st.integers(0, len(stream)))
    routes: dict[bytes, object] = {}
    decoder = connected()
    got: list[Frame] = []
    for chunk in (stream[:cut], stream[cut:]):
        for item in decoder.feed_runs(chunk, routes, lambda topic: routes.setdefault(topic, len(topic)), max_qos):
            if isinstance(item, Run):
                assert item.qos <= max_qos
                assert publications_in(item.data, item.start, item.end) == decoded(item.octets())
                got += decoded(item.octets())
            else:
                got.append(item)
    assert got == frames
    assert decoder.pending() == 0


@pytest.mark.rule("MQTT-194", "MQTT-168")
def test_the_scanner_gives_each_packet_with_its_last_octet() -> None:
    frames: list[Frame] = [Publish("a", bytes(200)), Pingreq(), Publish("b", b"")]
    decoder = connected()
    for frame in frames:
        data = encode(frame)
        for at in range(len(data) - 1):
            assert decoder.feed_runs(data[at : at + 1], NO_ROUTES, NO_ROUTES.get) == []
            assert decoder.pending() == at + 1
        assert decoder.feed_runs(data[-1:], NO_ROUTES, NO_ROUTES.get) == [frame]


@pytest.mark.rule("MQTT-184")
def test_the_rest_of_a_large_packet_is_only_collected_until_it_is_whole() -> None:
    data = encode(Publish("bulk", bytes(1 << 20)))
    for scanning in (False, True):
        decoder = connected()
        for at in range(0, len(data) - 1000, 1000):
            chunk = data[at : at + 1000]
            items = decoder.feed_runs(chunk, NO_ROUTES, NO_ROUTES.get) if scanning else decoder.feed(chunk)
            assert items == []
            assert decoder._assembler._want == len(data)  # what is held is not looked at before that


@pytest.mark.parametrize("size", [0, 1, 122, 123, 16_000, 17_000, 2_097_200])
def test_a_run_is_read_whatever_the_length_of_its_headers(size: int) -> None:
    frames = [Publish("a/b", b"x" * size), Publish("a/b", b""), Publish("ä", b"y" * size, 1, packet_id=300)]
    data = b"".join(map(encode, frames))
    assert publications_in(b"before" + data + b"behind", 6, 6 + len(data)) == frames
