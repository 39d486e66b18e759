"""The hub benchmark's scenarios run, with tiny numbers; how fast they run is not a test's business."""

import shutil
import sys
from pathlib import Path

import pytest
from benchmarks.goals import Line, in_turns
from benchmarks.hub import SCENARIOS, Sizes
from benchmarks.hub_load import BLOCK_ROUNDS, TOPICS
from benchmarks.hub_peers import BODY, peer

TINY = Sizes(rounds=1, messages=2048, in_flight=200, few=20, many=200, idle=20, octets=3_000_000)
AGAINST_NATS = {"speed", "delay"}


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_scenario_measures_something(name: str) -> None:
    beside = str(Path(sys.executable).parent)
    if name in AGAINST_NATS and not (shutil.which("nats-server", path=beside) or shutil.which("nats-server")):
        pytest.skip("nats-server is not installed")
    lines = list(SCENARIOS[name](TINY))
    assert lines
    for line in lines:
        assert line.value >= 0  # so little memory may be none
        assert line.goal() in str(line)


def test_a_goal_is_met_at_its_bound_and_missed_beyond_it() -> None:
    assert Line("", "", 1.5, least=1.5).met()
    assert not Line("", "", 1.49, least=1.5).met()
    assert Line("", "", 120, most=120, unit="MB").met()
    assert str(Line("", "", 121, most=120, unit="MB")).endswith("MISSED")


def test_measurements_take_turns_and_give_their_medians() -> None:
    order: list[str] = []
    values = {"a": iter((1.0, 9.0, 2.0)), "b": iter((5.0, 4.0, 6.0))}

    def run(name: str) -> float:
        order.append(name)
        return next(values[name])

    assert in_turns({"a": lambda: run("a"), "b": lambda: run("b")}, 3) == {"a": 2.0, "b": 5.0}
    assert order == ["a", "b"] * 3


def test_packet_ids_of_a_publisher_go_through_all_blocks_without_repeating() -> None:
    clients = peer("mqtt_qos1")
    blocks = clients.blocks(TOPICS, BODY, BLOCK_ROUNDS, 1000)
    size, at = len(clients.frame(TOPICS[0], BODY)), clients.number_at
    octets = b"".join(blocks)
    found = [int.from_bytes(octets[pos + at : pos + at + 2], "big") for pos in range(0, len(octets), size)]
    assert found == list(range(1, len(found) + 1))
    assert len(found) <= 0xFFFF
