"""However a network cuts and delays what goes through it, every protocol's conversation has the same result."""

import contextlib
from collections.abc import Iterator

import pytest

from tests.faults.friends import FRIENDS, HungUpError, friend
from tests.faults.proxy import Cut, octets, proxied, random_cuts, whole
from tests.hub_process import HubProcess, running_hub

BODIES = [b"21.5", b"x", "grüße".encode(), b"y" * 700, b"last"]


@pytest.fixture(scope="module")
def hub() -> Iterator[HubProcess]:
    with running_hub() as process:
        yield process


@pytest.mark.rule("MQTT-168", "UMQ-73", "SABC-72")
@pytest.mark.parametrize("key", FRIENDS)
@pytest.mark.parametrize(
    ("cut", "delay"),
    [(whole, 0.0), (octets, 0.0), (random_cuts(1), 0.0), (random_cuts(2), 0.001), (whole, 0.05)],
    ids=["whole", "octets", "cuts", "slow-cuts", "slow"],
)
def test_a_conversation_has_the_same_result_however_it_is_cut(
    hub: HubProcess, key: str, cut: Cut, delay: float
) -> None:
    topic = f"cut/{key}"
    with proxied(hub.port(key), cut, delay=delay) as port, contextlib.ExitStack() as stack:
        subscriber = friend(hub, key, port=port)
        stack.callback(subscriber.close)
        publisher = friend(hub, key, port=port)
        stack.callback(publisher.close)
        subscriber.subscribe(topic)
        for body in BODIES:
            publisher.publish(topic, body)
        assert [subscriber.hear() for _ in BODIES] == BODIES


@pytest.mark.parametrize("key", FRIENDS)
def test_a_connection_cut_anywhere_leaves_nothing_behind(hub: HubProcess, key: str) -> None:
    with contextlib.ExitStack() as stack:
        subscriber = friend(hub, key)
        stack.callback(subscriber.close)
        subscriber.subscribe("done")
        for most in (1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 233, 377):
            with proxied(hub.port(key), octets, most=most) as port, contextlib.suppress(HungUpError, OSError):
                cut_off = friend(hub, key, port=port)
                stack.callback(cut_off.close)
                for _ in range(20):
                    cut_off.publish("cut", b"x")
        publisher = friend(hub, key)
        stack.callback(publisher.close)
        publisher.publish("done", b"whole")
        assert subscriber.hear() == b"whole"
        protocol = key.removesuffix("_ws")
        fault = f'polywire_faults_total{{protocol="{protocol}",reason="internal-error"}}'
        assert fault not in hub.get("/metrics")[1]
    assert not any("Traceback" in each for each in hub.errors)
