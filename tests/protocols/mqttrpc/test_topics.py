"""The topics of a service: one for both directions, or two for each client."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polywire.protocols.mqttrpc.errors import LocalProtocolError
from polywire.protocols.mqttrpc.topics import (
    ClientTopic,
    answer_topic,
    client_topic_of,
    request_filter,
    request_topic,
    response_topic,
    service_of,
    service_topic,
)

BAD_LEVELS = ["", "a/b", "/", "+", "#", "a+b", "a#", "a\0b", "\ud800"]


@pytest.mark.rule("MQTTRPC-41", "MQTTRPC-03", "MQTTRPC-43")
def test_a_service_has_the_topic_of_its_name() -> None:
    assert service_topic("my-cool-service") == "/my-cool-service"
    assert service_of("/my-cool-service") == "my-cool-service"


@pytest.mark.rule("MQTTRPC-02")
def test_the_answer_goes_where_the_request_came() -> None:
    assert answer_topic("/my-cool-service") == "/my-cool-service"


@pytest.mark.rule("MQTTRPC-42")
def test_with_topics_per_client_requests_and_responses_part() -> None:
    assert request_topic("client-1", "greeter") == "client-1/greeter/rq"
    assert response_topic("client-1", "greeter") == "client-1/greeter/rsp"
    assert request_filter("greeter") == "+/greeter/rq"
    assert client_topic_of("client-1/greeter/rsp") == ClientTopic("client-1", "greeter", "rsp")
    assert answer_topic("client-1/greeter/rq") == "client-1/greeter/rsp"


@pytest.mark.rule("MQTTRPC-43")
@pytest.mark.parametrize("topic", ["", "/", "name", "/a/b", "//a", "/a/", "a/b", "/+", "/#", "/a\0"])
def test_other_topics_are_no_service_topics(topic: str) -> None:
    assert service_of(topic) is None
    assert answer_topic(topic) is None


@pytest.mark.rule("MQTTRPC-42")
@pytest.mark.parametrize(
    "topic", ["a/b", "a/b/c", "a/b/rq/d", "/b/rq", "a//rq", "$SYS/b/rq", "+/b/rq", "a/#/rq", "x/a/b/rq", "a/b/RQ"]
)
def test_other_topics_are_no_client_topics(topic: str) -> None:
    assert client_topic_of(topic) is None
    assert answer_topic(topic) is None


@pytest.mark.rule("MQTTRPC-02", "MQTTRPC-42")
def test_a_response_topic_is_not_answered() -> None:
    assert answer_topic("a/b/rsp") is None


@pytest.mark.rule("MQTTRPC-42", "MQTTRPC-43")
@pytest.mark.parametrize("name", BAD_LEVELS)
def test_a_name_that_is_no_level_is_a_local_error(name: str) -> None:
    with pytest.raises(LocalProtocolError):
        service_topic(name)
    with pytest.raises(LocalProtocolError):
        request_topic(name, "greeter")
    with pytest.raises(LocalProtocolError):
        response_topic("client-1", name)
    with pytest.raises(LocalProtocolError):
        request_filter(name)


@pytest.mark.rule("MQTTRPC-42", "MQTTRPC-43")
def test_a_topic_mqtt_can_not_carry_is_a_local_error() -> None:
    assert len(service_topic("ä" * 32767)) == 32768
    with pytest.raises(LocalProtocolError, match="65537 octets"):
        service_topic("ä" * 32768)
    with pytest.raises(LocalProtocolError, match="starts with"):
        request_topic("$SYS", "greeter")


@given(st.text(max_size=20) | st.text("/a+#$", max_size=6))
@pytest.mark.rule("MQTTRPC-43")
def test_a_service_topic_is_the_topic_of_its_service(topic: str) -> None:
    service = service_of(topic)
    if service is not None:
        assert service_topic(service) == topic
    else:
        assert topic[:1] != "/" or any(c in "/+#\0" for c in topic[1:]) or topic == "/"
