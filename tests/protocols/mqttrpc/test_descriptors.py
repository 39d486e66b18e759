"""Services read from a module that protoc generated."""

from types import ModuleType

import pytest

from polywire.protocols.mqttrpc import envelope_pb2
from polywire.protocols.mqttrpc.descriptors import services
from polywire.protocols.mqttrpc.frames import Decoder, Request, Response, encode
from polywire.protocols.mqttrpc.state import Shape
from polywire.protocols.mqttrpc.streams import ClientCalls, Outcome, ServerCalls


@pytest.mark.rule("MQTTRPC-51", "MQTTRPC-74")
def test_the_shape_of_each_method_comes_from_the_descriptor(my_cool_service: ModuleType) -> None:
    found = services(my_cool_service)
    assert list(found) == ["MyCoolService"]
    service = found["MyCoolService"]
    assert service.full_name == "examples.MyCoolService"
    assert service.shapes() == {
        "SayHello": Shape.UNARY,
        "GreetAll": Shape.CLIENT_STREAMING,
        "GreetOften": Shape.SERVER_STREAMING,
        "Chat": Shape.BIDIRECTIONAL,
    }


@pytest.mark.rule("MQTTRPC-74")
def test_a_method_has_the_classes_of_its_messages(my_cool_service: ModuleType) -> None:
    method = services(my_cool_service)["MyCoolService"].methods["SayHello"]
    assert method.request is my_cool_service.HelloRequest
    assert method.response is my_cool_service.HelloResponse
    assert (method.name, method.full_name) == ("SayHello", "examples.MyCoolService.SayHello")


@pytest.mark.rule("MQTTRPC-74")
def test_a_module_without_services_has_none() -> None:
    assert services(envelope_pb2) == {}
    with pytest.raises(TypeError, match="not a module that protoc generated"):
        services(ModuleType("ordinary"))


@pytest.mark.rule("MQTTRPC-07", "MQTTRPC-25", "MQTTRPC-74")
def test_the_worked_example_goes_there_and_back(my_cool_service: ModuleType) -> None:
    service = services(my_cool_service)["MyCoolService"]
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
