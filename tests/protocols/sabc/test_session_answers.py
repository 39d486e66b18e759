"""Acknowledgements come in the order of the messages, when the journal says so."""

from collections.abc import Callable

from polywire.protocols.sabc.delivery import Line
from polywire.protocols.sabc.frames import Whole
from polywire.protocols.sabc.session import KEPT, Answers
from tests.protocols.sabc.clients import Speaker
from tests.sessions import Site


def test_answers_are_written_one_by_one_in_order() -> None:
    site = Site()
    client = Speaker(site)
    told: list[int] = []
    line = Line(client.wire.client, client.session, messages=False)
    answers = Answers(site.hub, line, lambda: told.append(len(answers)))
    safe: Callable[[], None] = answers._safe
    safe()
    total = 2 * KEPT + 10
    answers._due.extend((str(number), line.ok(str(number), truncated=False)) for number in range(total))
    for _ in range(total + 5):
        safe()
    assert [message.ref_msg_id for message in client.messages()] == [str(number) for number in range(total)]
    assert told == list(range(total - 1, -1, -1))


def test_a_message_that_wants_no_answer_gets_none() -> None:
    site = Site()
    client = Speaker(site)
    answers = Answers(site.hub, Line(client.wire.client, client.session, messages=False), lambda: None)
    answers.accept(Whole(client.session, "1", send_only=True))
    answers.accept(Whole(client.session, None, ref_msg_id="1"))
    assert len(answers) == 0
    assert client.got() == []
