"""A hub that runs out of file descriptors refuses new connections, keeps those it has, and recovers."""

import contextlib
from collections.abc import Iterator

import pytest

from tests.faults.friends import FRIENDS, Friend, HungUpError, friend
from tests.hub_process import HubProcess, running_hub

DESCRIPTORS = 128
MORE = 150
REFUSED = "polywire_connections_refused_total"


@pytest.fixture(scope="module")
def hub() -> Iterator[HubProcess]:
    with running_hub(descriptors=DESCRIPTORS) as process:
        yield process


def talk(one: Friend, other: Friend) -> None:
    other.publish("still", b"here")
    assert one.hear() == b"here"


@pytest.mark.rule("MQTT-188")
@pytest.mark.parametrize("key", FRIENDS)
def test_connections_beyond_the_descriptors_are_refused_and_the_others_go_on(hub: HubProcess, key: str) -> None:
    with contextlib.ExitStack() as stack:
        one, other = friend(hub, key), friend(hub, key)
        for each in (one, other):
            stack.callback(each.close)
        one.subscribe("still")
        crowd: list[Friend] = []
        refused = 0
        for _ in range(MORE):
            try:
                crowd.append(friend(hub, key))
            except (HungUpError, ConnectionError):
                refused += 1
                if refused == 3:
                    break
        for each in crowd:
            stack.callback(each.close)
        assert refused == 3
        assert len(crowd) > 10
        hub.wait_for_log("a connection was refused")
        assert hub.metric(REFUSED) >= 3
        talk(one, other)
        for each in crowd[:5]:
            each.close()
        wait_for_room(hub, key, stack)
        talk(one, other)
        assert not any("Traceback" in each for each in hub.errors)


def wait_for_room(hub: HubProcess, key: str, stack: contextlib.ExitStack) -> None:
    """The hub learns a little later that somebody has left."""
    for _ in range(100):
        with contextlib.suppress(HungUpError, ConnectionError):
            stack.callback(friend(hub, key).close)
            return
    raise AssertionError("nobody is let in any more")
