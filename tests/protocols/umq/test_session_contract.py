"""Whatever two peers say to the hub: it answers or hangs up, in whole messages, and nothing is left behind."""

from hypothesis import given
from hypothesis import strategies as st

from polywire.hub.peer import Limits
from polywire.protocols.umq import Decoder
from tests.protocols.umq.peers import UmqPeer
from tests.sessions import Site

small = st.integers(0, 3)
bodies = st.sampled_from(['""', '"x"', '"é"', "null", '{"a": 1}', "[", '"\\ud800"'])
channels = st.sampled_from(["a", "b", "a/*", "**", "queue/q", "queue/*", "$/x", "", "**/a"])
options = st.sampled_from(
    [
        "",
        ",{}",
        ",null",
        ',{"envelope":true}',
        ',{"retain":true}',
        ',{"headers":{"N":123456789012345678901234567890}}',
        ',{"stream":1}',
        ',{"timeout":1}',
    ]
)
methods = st.one_of(
    st.builds('["subscribe","{}",{}{}]'.format, channels, small, options),
    st.builds('["unsubscribe",{}]'.format, small),
    st.builds('["publish","{}",{}{}]'.format, channels, bodies, options),
    st.builds('["call","{}","m",{}{}]'.format, channels, bodies, options),
    st.builds('["serve","{}",{}]'.format, channels, small),
    st.builds('["unserve","{}"]'.format, channels),
    st.sampled_from(['["whoami"]', "[]", "{}", "", '["fly"]', "\ud800"]),
)
attached = st.sampled_from(["", "", "", "A0:", "A1:", "A2:"])
messages = st.one_of(
    st.builds("{}C{}:{}".format, attached, st.integers(0, 30), methods),
    st.builds("{}{}{}:{}".format, attached, st.sampled_from("RTB"), small, st.sampled_from(["", "x", "1:x"])),
    st.builds("{}{}:{}".format, st.sampled_from("EDU"), small, st.sampled_from(["", "x"])),
    st.builds("{}S:{}".format, attached, st.sampled_from(["a=b", "=", "a="])),
    st.sampled_from(["X:a", "-:failed", "H1:", "W1:", "F0:1 x", "", "c"]),
    st.sampled_from([b"", b"text", b"\xff" * 30]),
    st.sampled_from([b"", b"text", b"\xff" * 30]),
)
steps = st.lists(st.tuples(st.booleans(), messages), max_size=40)


@given(steps, st.booleans())
def test_whatever_is_said_the_hub_holds(steps: list[tuple[bool, str | bytes]], drain: bool) -> None:
    site = Site()
    limits = Limits(message_size=200, in_flight=4, subscriptions=3, unfinished=4)
    peers = [UmqPeer(site, limits=limits), UmqPeer(site, limits=limits)]
    decoders = [Decoder(), Decoder()]
    for first, message in steps:
        peers[first].wire.feed(message)
        site.clock.advance(0.001)
        for peer, decoder in zip(peers, decoders, strict=True):
            for answer in peer.hears():
                decoder.feed(answer)
    for peer in peers:
        assert peer.session._unfinished.held() <= limits.message_size
        assert peer.session._unfinished.held() >= 0
        if drain:
            peer.session.drain()
            peer.session.goodbye()
    for peer in peers:
        peer.wire.lose()
    assert (len(site.hub.table), site.hub.clients, site.hub.services.names()) == (0, {}, [])
    assert site.hub.services.under_way() == 0
    assert all(queue.consumers() == 0 for queue in site.hub.queues.values())
    assert site.hub.demand.count("a") == 0
