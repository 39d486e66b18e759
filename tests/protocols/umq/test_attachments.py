import pytest
from hypothesis import given
from hypothesis import strategies as st

from polywire.protocols.umq.attachments import AttachmentQueue


@pytest.mark.rule("UMQ-89")
def test_nothing_is_taken_that_was_not_announced() -> None:
    queue = AttachmentQueue()
    assert not queue.take()
    queue.announce(1)
    assert queue.take()
    assert not queue.take()
    assert queue.due == 0


@pytest.mark.rule("UMQ-87")
@given(st.lists(st.one_of(st.integers(1, 4), st.none()), max_size=40))
def test_attachments_are_matched_first_in_first_out(steps: list[int | None]) -> None:
    """A number announces that many, None is one that arrives."""
    queue = AttachmentQueue()
    due: list[tuple[int, int]] = []
    announced = 0
    for step in steps:
        if step is not None:
            announced += 1
            assert queue.announce(step) == announced
            due += [(announced, index) for index in range(step)]
        elif due:
            assert queue.take()
            assert (queue.owner, queue.index) == due.pop(0)
        else:
            assert not queue.take()
        assert queue.due == len(due)
