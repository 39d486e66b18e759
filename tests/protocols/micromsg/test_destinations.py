"""Topics and queues by their destination."""

import pytest

from polywire.protocols.micromsg import destinations
from polywire.protocols.micromsg.destinations import Queue, Topic


@pytest.mark.rule("MICROMSG-138", "MICROMSG-48")
@pytest.mark.parametrize(
    ("destination", "channel"),
    [
        ("topic/domain-events", Topic("domain-events")),
        ("topic/a/b", Topic("a/b")),
        ("topic//a", Topic("/a")),
        ("topic/a/*", Topic("a/*")),
        ("topic/$SYS", Topic("$SYS")),
        ("commands", Queue("commands")),
        ("topic", Queue("topic")),
        ("topics/a", Queue("topics/a")),
        ("Topic/a", Queue("Topic/a")),
        ("/topic/a", Queue("/topic/a")),
    ],
)
def test_what_begins_with_topic_is_a_topic_and_the_rest_are_queues(destination: str, channel: Topic | Queue) -> None:
    assert destinations.read(destination) == channel
    assert destinations.write(channel) == destination


@pytest.mark.rule("MICROMSG-135", "MICROMSG-174")
@pytest.mark.parametrize("destination", ["", "topic/", "$", "$/x", "topic/$", "topic/$/info"])
def test_nothing_can_be_at_an_empty_name_or_under_the_service_level(destination: str) -> None:
    assert destinations.read(destination) is None
