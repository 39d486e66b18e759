"""A service's topics, its methods' names in all their forms, and what is read from a protoc-generated module."""

from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polywire.protocols.mqttrpc import envelope_pb2
from polywire.protocols.mqttrpc.connection import ClientCalls, Outcome, ServerCalls
from polywire.protocols.mqttrpc.errors import LocalProtocolError
from polywire.protocols.mqttrpc.frames import Decoder, Request, Response, encode
from polywire.protocols.mqttrpc.service import (
    ClientTopic,
    MethodName,
    Shape,
    answer_topic,
    client_topic_of,
    parse_type_url,
    read_service,
    request_filter,
    request_topic,
    response_topic,
    service_of,
    service_topic,
    services,
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
    with pytest.raises(LocalProtocolError, match="65537 bytes"):
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


@pytest.mark.rule("MQTTRPC-50", "MQTTRPC-06")
@pytest.mark.parametrize(
    ("type_url", "name"),
    [
        ("SayHello", MethodName(None, "SayHello")),
        ("/SayHello", MethodName(None, "SayHello")),
        ("package.Service/SayHello", MethodName("package.Service", "SayHello")),
        ("Service/SayHello", MethodName("Service", "SayHello")),
        ("/package.Service/SayHello", MethodName("package.Service", "SayHello")),
        ("say_hello2", MethodName(None, "say_hello2")),
    ],
)
def test_every_form_names_the_method(type_url: str, name: MethodName) -> None:
    assert parse_type_url(type_url) == name


@pytest.mark.rule("MQTTRPC-50")
@pytest.mark.parametrize(
    "type_url",
    ["", "/", "//SayHello", "SayHello/", "a.B/", "a..B/C", ".a/C", "a/b/C", "package.Method", "Say Hello", "1st", "Ä"],
)
def test_what_is_no_name_names_no_method(type_url: str) -> None:
    assert parse_type_url(type_url) is None


@given(st.text(max_size=30) | st.text("ab./_1", max_size=10))
@pytest.mark.rule("MQTTRPC-50")
def test_any_text_names_a_method_it_ends_with_or_none(type_url: str) -> None:
    name = parse_type_url(type_url)
    if name is not None:
        assert name.method.isidentifier()
        assert type_url.removeprefix("/") == (name.method if name.service is None else f"{name.service}/{name.method}")


@pytest.mark.rule("MQTTRPC-51", "MQTTRPC-74")
def test_the_shape_of_each_method_comes_from_the_descriptor(my_cool_service: ModuleType) -> None:
    service = read_service(my_cool_service.DESCRIPTOR.services_by_name["MyCoolService"])
    assert service.full_name == "examples.MyCoolService"
    assert service.shapes() == {
        "SayHello": Shape.UNARY,
        "GreetAll": Shape.CLIENT_STREAMING,
        "GreetOften": Shape.SERVER_STREAMING,
        "Chat": Shape.BIDIRECTIONAL,
    }


@pytest.mark.rule("MQTTRPC-74")
def test_a_method_has_the_classes_of_its_messages(my_cool_service: ModuleType) -> None:
    method = read_service(my_cool_service.DESCRIPTOR.services_by_name["MyCoolService"]).methods["SayHello"]
    assert method.request is my_cool_service.HelloRequest
    assert method.response is my_cool_service.HelloResponse
    assert (method.name, method.full_name) == ("SayHello", "examples.MyCoolService.SayHello")


def test_the_services_of_a_module_are_those_of_its_descriptor(my_cool_service: ModuleType) -> None:
    assert services(my_cool_service) == {
        "MyCoolService": read_service(my_cool_service.DESCRIPTOR.services_by_name["MyCoolService"])
    }
    assert services(envelope_pb2) == {}
    with pytest.raises(TypeError, match="not a module that protoc generated"):
        services(ModuleType("ordinary"))


@pytest.mark.rule("MQTTRPC-07", "MQTTRPC-25", "MQTTRPC-74")
def test_the_worked_example_goes_there_and_back(my_cool_service: ModuleType) -> None:
    service = read_service(my_cool_service.DESCRIPTOR.services_by_name["MyCoolService"])
    method = service.methods["SayHello"]
    asking, serving, decoder = ClientCalls(), ServerCalls(), Decoder()
    request = Request(7, method.name, my_cool_service.HelloRequest(name="world").SerializeToString())
    asking.start(request, method.shape, 0.0)
    (arrived,) = decoder.feed(encode(request))
    assert isinstance(arrived, Request)
    assert serving.receive(arrived, service.shapes(), 0.0).item
    name = my_cool_service.HelloRequest.FromString(arrived.value).name
    answer = Response(7, "", my_cool_service.HelloResponse(greeting=f"Hello, {name}").SerializeToString())
    serving.answer(answer)
    (heard,) = decoder.feed(encode(answer))
    assert isinstance(heard, Response)
    assert asking.receive(heard, 1.0).outcome is Outcome.TAKEN
    assert my_cool_service.HelloResponse.FromString(heard.value).greeting == "Hello, world"
