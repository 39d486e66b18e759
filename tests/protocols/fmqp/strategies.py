"""Hypothesis strategies for FMQP's packets."""

from hypothesis import strategies as st

from polywire.protocols.fmqp.frames import Publication, Subscription, Unsubscription

levels = st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), max_size=6)
topics = (
    st.lists(levels | st.just("*") | st.just("$"), min_size=1, max_size=5)
    .map("/".join)
    .map(lambda topic: topic.strip("/"))
    .filter(bool)
)
publications = st.builds(Publication, topics, st.binary(max_size=40), st.sampled_from([0, 0, 0, 0x04, 0x0C, 0x7C]))
frames = st.one_of(
    publications,
    st.builds(Subscription, topics, st.sampled_from([0, 0x20, 0x10, 0x3C])),
    st.builds(Unsubscription, topics, st.sampled_from([0, 0x20])),
)
