"""Whatever a client sends, its session raises nothing, harms no other, and leaves nothing behind."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polywire.hub.peer import Limits
from polywire.wire.frame import Discarded
from tests.protocols.sabc.clients import Speaker, messages, stream
from tests.sessions import Site

STARTS = ["MESSAGE\nsession-id::@@\n", "MESSAGE\nsession-id::other\n", "ERROR\nsession-id::@@\n"]
COMMANDS = [
    "CONNECT\nclient-id::me\n\n",
    "DISCONNECT\nsession-id::@@\n\n",
    "DISCONNECTING\nsession-id::@@\n\n",
    "JUNK\n",
]
IDS = ["msg-id::1\n", "msg-id::2\n", "ref-msg-id::1\n", "ref-msg-id::2\n", "msg-more::yes\n", "send-only::yes\n"]
OPS = [f"op::{op}\n" for op in ("publish", "subscribe", "unsubscribe", "call", "serve", "unserve", "dance")]
NAMES = ["destination::a\n", "destination::*\n", "destination::queue/q\n", "service::s\n", "method::m\n", "k::v\n"]
ENDS = ["\n\n^@", "\nbody\n\n^@", "\n\0", "\n", "content-encoding::base64\n\n/w==\n\n^@", "x" * 300]
FRAMES = st.tuples(
    st.sampled_from(STARTS),
    st.lists(st.sampled_from(IDS), min_size=1, max_size=2),
    st.lists(st.sampled_from([*OPS, *NAMES]), max_size=4),
    st.sampled_from(ENDS),
).map(lambda parts: parts[0] + "".join(parts[1]) + "".join(parts[2]) + parts[3])
SENT = st.lists(st.one_of(FRAMES, FRAMES, FRAMES, st.sampled_from([*COMMANDS, *ENDS])), max_size=30)


@pytest.mark.parametrize("make", [stream, messages])
@settings(max_examples=150)
@given(sent=SENT)
def test_any_frames_are_answered_or_end_the_connection(make: object, sent: list[str]) -> None:
    site = Site()
    limits = Limits(message_size=700, unfinished=3, subscriptions=3, in_flight=3)
    client = Speaker(site, connect=False, make=make, limits=limits)  # type: ignore[arg-type]
    witness = Speaker(site)
    witness.ask("msg-id::s", "op::serve", "service::w")
    client.raw("CONNECT\nclient-id::me\n\n^@")
    client.session = client.sabc._line.session_id
    for text in sent:
        client.raw(text)
    written = client.wire.taken()
    if make is stream:
        assert not [frame for frame in client.decoder.feed(written) if isinstance(frame, Discarded)]
    assert len(client.sabc._connection._assembly) <= 3
    site.clock.advance(100)
    client.wire.lose()
    assert list(site.hub.clients) == [witness.wire.client.number]
    assert site.hub.services.names() == ["w"]
    assert site.hub.services.under_way() == 0
    assert len(site.hub.table) == 0
    assert [queue.consumers() for queue in site.hub.queues.values() if queue.consumers()] == []


@settings(max_examples=100)
@given(st.lists(st.binary(max_size=200), max_size=5))
def test_any_octets_are_survived(chunks: list[bytes]) -> None:
    client = Speaker(Site())
    client.wire.feed(*chunks)
    client.wire.lose()
    assert not client.site.hub.clients
