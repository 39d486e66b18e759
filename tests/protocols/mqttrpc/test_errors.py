"""The table of failures, the error a caller gets, and when a call may be retried."""

import pickle

import pytest
from google.protobuf import any_pb2, duration_pb2

from polywire.errors import PolywireError
from polywire.protocols.mqttrpc import errors
from polywire.protocols.mqttrpc.errors import FAILURES, RpcError, retry_at


@pytest.mark.parametrize(
    ("code", "tag", "retries"),
    [
        pytest.param(400, "bad-request", False, marks=pytest.mark.rule("MQTTRPC-60")),
        pytest.param(401, "unauthorized", False, marks=pytest.mark.rule("MQTTRPC-61")),
        pytest.param(403, "forbidden", False, marks=pytest.mark.rule("MQTTRPC-61")),
        pytest.param(404, "no-service", False, marks=pytest.mark.rule("MQTTRPC-62")),
        pytest.param(404, "no-method", False, marks=pytest.mark.rule("MQTTRPC-62")),
        pytest.param(408, "stream-idle", False, marks=pytest.mark.rule("MQTTRPC-63")),
        pytest.param(413, "too-large", False, marks=pytest.mark.rule("MQTTRPC-64")),
        pytest.param(429, "overloaded", True, marks=pytest.mark.rule("MQTTRPC-65")),
        pytest.param(500, "handler-failed", False, marks=pytest.mark.rule("MQTTRPC-66")),
        pytest.param(503, "draining", True, marks=pytest.mark.rule("MQTTRPC-67")),
        pytest.param(504, "timeout", False, marks=pytest.mark.rule("MQTTRPC-68")),
    ],
)
def test_each_failure_has_its_code_and_tag(code: int, tag: str, retries: bool) -> None:
    (failure,) = [failure for failure in FAILURES if failure.tag == tag]
    assert failure.code == code
    assert (failure.retry_after > 0) == retries
    assert failure.user_message


@pytest.mark.rule("MQTTRPC-28", "MQTTRPC-29")
def test_codes_are_http_errors_and_tags_are_unique() -> None:
    assert len(FAILURES) == 11
    assert all(400 <= failure.code <= 599 for failure in FAILURES)
    assert len({failure.tag for failure in FAILURES}) == len(FAILURES)


@pytest.mark.rule("MQTTRPC-69", "MQTTRPC-31", "MQTTRPC-32")
def test_a_call_is_retried_only_when_asked_and_allowed_and_not_too_early() -> None:
    assert retry_at(10.0, 1500, asked=True) == 11.5
    assert retry_at(10.0, 1500, asked=False) is None
    assert retry_at(10.0, 0, asked=True) is None
    assert retry_at(10.0, 0, asked=False) is None


@pytest.mark.rule("MQTTRPC-30")
def test_the_error_says_what_a_person_is_to_be_told() -> None:
    error = RpcError(429, "overloaded", "Too busy.", 1500)
    assert isinstance(error, PolywireError)
    assert str(error) == "Too busy. (429 overloaded, retry after 1500 ms)"
    assert str(RpcError(500)) == "the call failed (500)"
    again = pickle.loads(pickle.dumps(error))  # noqa: S301 - pickled right here
    assert (again.code, again.tag, again.user_message, again.retry_after) == (429, "overloaded", "Too busy.", 1500)


@pytest.mark.rule("MQTTRPC-33", "MQTTRPC-107")
def test_an_error_carries_details() -> None:
    assert RpcError(409).details is None
    bare = any_pb2.Any(type_url="Detail", value=b"x")
    assert RpcError(409, details=bare).details == bare
    packed = RpcError(409, details=duration_pb2.Duration(seconds=5))
    assert packed.details is not None
    found = duration_pb2.Duration()
    assert packed.details.Unpack(found)
    assert found.seconds == 5
    again = pickle.loads(pickle.dumps(packed))  # noqa: S301 - pickled right here
    assert again.details == packed.details
    assert str(packed) == "the call failed (409)"


def test_the_tree_hangs_below_that_of_all_protocols() -> None:
    assert errors.LocalProtocolError.__mro__[1].__module__ == "polywire.errors"
    assert errors.RemoteProtocolError.__mro__[1].__module__ == "polywire.errors"
