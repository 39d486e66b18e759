"""Hypothesis strategies for every valid packet."""

from hypothesis import strategies as st

from polywire.protocols.mqtt import (
    Connack,
    Connect,
    Disconnect,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
    Will,
)
from polywire.wire.frame import Frame

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
names = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0+#"), min_size=1, max_size=12) | st.text(
    "ab/$ *", min_size=1, max_size=20
)
levels = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0+#/"), max_size=4) | st.just("+")
filters = st.tuples(st.lists(levels, max_size=5), st.booleans()).map(
    lambda parts: "/".join([*parts[0], "#"] if parts[1] or not any(parts[0]) else parts[0])
)
ids = st.integers(1, 65535)
qualities = st.integers(0, 2)
payloads = st.binary(max_size=200)


@st.composite
def publishes(draw: st.DrawFn) -> Publish:
    qos = draw(qualities)
    topic, payload, retain = draw(names), draw(payloads), draw(st.booleans())
    if qos == 0:
        return Publish(topic, payload, 0, retain)
    return Publish(topic, payload, qos, retain, draw(st.booleans()), draw(ids))


@st.composite
def connects(draw: st.DrawFn) -> Connect:
    client_id = draw(texts)
    clean = draw(st.booleans()) or not client_id
    will = draw(st.none() | st.builds(Will, names, payloads, qualities, st.booleans()))
    user = draw(st.none() | texts)
    password = draw(st.none() | payloads) if user is not None else None
    return Connect(client_id, clean, draw(st.integers(0, 65535)), will, user, password, draw(st.booleans()))


def many(strategy: st.SearchStrategy[object]) -> st.SearchStrategy[tuple[object, ...]]:
    return st.lists(strategy, min_size=1, max_size=5).map(tuple)


both_ways: list[st.SearchStrategy[Frame]] = [
    publishes(),
    st.builds(Puback, ids),
    st.builds(Pubrec, ids),
    st.builds(Pubrel, ids),
    st.builds(Pubcomp, ids),
]
from_client: st.SearchStrategy[Frame] = st.one_of(
    *both_ways,
    st.builds(Subscribe, ids, many(st.tuples(filters, qualities))),
    st.builds(Unsubscribe, ids, many(filters)),
    st.just(Pingreq()),
)
from_server: st.SearchStrategy[Frame] = st.one_of(
    *both_ways,
    st.builds(Suback, ids, many(st.sampled_from([0, 1, 2, 128]))),
    st.builds(Unsuback, ids),
    st.just(Pingresp()),
)
connacks = st.builds(Connack, st.booleans(), st.just(0)) | st.builds(Connack, st.just(value=False), st.integers(1, 5))
packets: st.SearchStrategy[Frame] = st.one_of(from_client, from_server, connects(), connacks, st.just(Disconnect()))
