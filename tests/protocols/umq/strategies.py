"""Hypothesis strategies for UMQ's frames and conversations."""

from typing import Any

from hypothesis import strategies as st

from polywire.protocols.umq import (
    Attachment,
    AttachmentError,
    Call,
    Callback,
    CallException,
    Fatal,
    Hello,
    Result,
    SetAttribute,
    TopicClose,
    TopicUpdate,
    UnsetAttribute,
    Unsubscribe,
    Welcome,
)
from polywire.protocols.umq.frames import MAX_NUMBER
from polywire.wire.frame import Frame

ids = st.one_of(st.integers(0, 40), st.integers(0, MAX_NUMBER), st.sampled_from([36**12 - 1, 36**12, MAX_NUMBER]))
texts = st.text(st.characters(codec="utf-8"), max_size=20)
names = st.text(st.characters(codec="utf-8", exclude_characters="="), min_size=1, max_size=8)

messages: st.SearchStrategy[Frame] = st.one_of(
    st.builds(Fatal, st.integers(0, 999_999_999), texts),
    st.builds(CallException, ids, texts),
    st.builds(TopicClose, ids),
    st.builds(Unsubscribe, ids),
    st.builds(UnsetAttribute, texts.filter(bool)),
)


def attached(count: int, ordinal: int) -> st.SearchStrategy[Frame]:
    """A message that has this many attachments, as the decoder would number it."""
    extra: tuple[Any, ...] = (st.just(count), st.just(ordinal if count else 0))
    return st.one_of(
        st.builds(Hello, ids, texts, *extra),
        st.builds(Welcome, ids, texts, *extra),
        st.builds(Call, ids, texts, *extra),
        st.builds(Result, ids, texts, *extra),
        st.builds(Callback, ids, ids, texts, *extra),
        st.builds(TopicUpdate, ids, texts, *extra),
        st.builds(SetAttribute, names, texts, *extra),
    )


@st.composite
def conversations(draw: st.DrawFn) -> list[Frame]:
    """Frames in an order a peer may send them in: attachments behind what announces them, mixed with the rest."""
    frames: list[Frame] = []
    due: list[tuple[int, int]] = []
    ordinal = 0
    for _ in range(draw(st.integers(0, 12))):
        kind = draw(st.integers(0, 3))
        if kind == 0:
            frames.append(draw(messages))
        elif kind == 1 or not due:
            count = draw(st.integers(0, 3))
            ordinal += count > 0
            frames.append(draw(attached(count, ordinal)))
            due += [(ordinal, index) for index in range(count)]
        else:
            owner, index = due.pop(0)
            content = draw(st.one_of(st.binary(max_size=20), texts))
            made = Attachment if isinstance(content, bytes) else AttachmentError
            frames.append(made(content, owner, index))  # type: ignore[arg-type]  # each with its own content
    return frames
