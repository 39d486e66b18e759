import pytest

from polywire.protocols.sabc import Error, Operation, Whole, operation
from polywire.wire.frame import Discarded
from tests.protocols.sabc.wire import SESSION


def read(*headers: tuple[str, str]) -> Operation | Discarded:
    return operation(Whole(SESSION, "7", b"body", headers))


@pytest.mark.rule("SABC-112")
def test_without_op_a_message_is_published() -> None:
    assert read(("destination", "a/b")) == Operation("publish", "a/b")


@pytest.mark.rule("SABC-112", "SABC-113", "SABC-117")
@pytest.mark.parametrize("op", ["publish", "subscribe", "unsubscribe"])
def test_what_goes_to_a_channel_needs_a_destination(op: str) -> None:
    assert read(("op", op), ("destination", "a/b")) == Operation(op, "a/b")
    for headers in ([("service", "x")], [("destination", "")]):
        refused = read(("op", op), *headers)
        assert isinstance(refused, Discarded)
        assert refused.rule == "SABC-113"
        assert refused.reply == Error("400", refused.reason.encode(), SESSION, "7")


@pytest.mark.rule("SABC-112", "SABC-113")
@pytest.mark.parametrize("op", ["serve", "unserve"])
def test_offering_a_service_needs_its_name(op: str) -> None:
    assert read(("op", op), ("service", "s")) == Operation(op, None, "s")
    assert isinstance(read(("op", op), ("destination", "a")), Discarded)


@pytest.mark.rule("SABC-112", "SABC-113")
def test_a_call_needs_service_and_method() -> None:
    assert read(("op", "call"), ("service", "s"), ("method", "m")) == Operation("call", None, "s", "m")
    assert isinstance(read(("op", "call"), ("service", "s")), Discarded)
    assert isinstance(read(("op", "call"), ("method", "m")), Discarded)


@pytest.mark.rule("SABC-112")
@pytest.mark.parametrize("op", ["", "PUBLISH", "delete", "x" * 5000])
def test_another_op_is_malformed(op: str) -> None:
    refused = read(("op", op), ("destination", "a"))
    assert isinstance(refused, Discarded)
    assert refused.rule == "SABC-112"
    assert len(refused.reason) < 200


@pytest.mark.rule("SABC-118")
def test_other_headers_travel() -> None:
    found = read(("unit", "C"), ("op", "publish"), ("truncated", "yes"), ("destination", "a"), ("unit", "F"))
    assert found == Operation("publish", "a", headers=(("unit", "C"), ("truncated", "yes"), ("unit", "F")))


@pytest.mark.rule("SABC-121")
@pytest.mark.parametrize("key", ["op", "destination", "service", "method"])
def test_the_hubs_headers_stand_once(key: str) -> None:
    refused = read(("destination", "a"), (key, "publish"), (key, "publish"))
    assert isinstance(refused, Discarded)
    assert refused.rule == "SABC-121"
