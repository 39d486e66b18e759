"""Every example, as two real processes: each way across topics, queues and calls, and the pairs that need no hub."""

import ast
import contextlib
from collections.abc import Iterator

import pytest

from tests.examples.programs import EXAMPLES, Program, programs, url
from tests.hub_process import HubProcess, running_hub

PUBLISHING = ("umq", "micromsg", "fmqp", "mqtt", "sabc")
CALLING = ("umq", "sabc", "mqttrpc")
ALONE = {
    "umq": ["HELLO", "3", "2", "1"],
    "sabc": ["hello, Anna", "hola, Anna", "404: I don't speak fr"],
    "micromsg": ["topic/rooms/kitchen: 21 degrees"],
}
SCRIPTS = sorted(EXAMPLES.glob("*/*.py"))


@pytest.fixture(scope="module")
def hub() -> Iterator[HubProcess]:
    with running_hub() as process:
        yield process


def publisher(hub: HubProcess, protocol: str, topic: str, body: str) -> tuple[str, ...]:
    """The command of a publisher."""
    place = ("--topic", topic)
    if protocol == "micromsg":
        place = ("--destination", topic.removeprefix("queue/") if topic.startswith("queue/") else f"topic/{topic}")
    return (f"{protocol}/publisher.py", "--url", url(hub, protocol), *place, body)


@pytest.fixture(scope="module")
def heard(hub: HubProcess) -> dict[str, list[str]]:
    """What the subscriber of each protocol prints when the publishers of all have published."""
    count = str(len(PUBLISHING))
    with contextlib.ExitStack() as stack:
        subscribers = {
            protocol: stack.enter_context(
                Program(f"{protocol}/subscriber.py", "--url", url(hub, protocol), "--count", count)
            )
            for protocol in PUBLISHING
        }
        for subscriber in subscribers.values():
            assert subscriber.line().startswith("listening to ")
        commands = [publisher(hub, each, f"garden/{each}/temperature", f"from {each}") for each in PUBLISHING]
        with programs(*commands) as publishers:
            for each in publishers:
                assert len(each.output()) == 1
        return {protocol: subscriber.output() for protocol, subscriber in subscribers.items()}


@pytest.mark.parametrize("listening", PUBLISHING)
@pytest.mark.parametrize("publishing", PUBLISHING)
def test_a_subscriber_hears_a_publisher(heard: dict[str, list[str]], publishing: str, listening: str) -> None:
    prefix = "topic/" if listening == "micromsg" else ""
    assert heard[listening].count(f"{prefix}garden/{publishing}/temperature: from {publishing}") == 1
    assert len(heard[listening]) == len(PUBLISHING)


@pytest.mark.parametrize("working", PUBLISHING)
def test_a_worker_does_the_jobs_of_all_publishers(hub: HubProcess, working: str) -> None:
    count = str(len(PUBLISHING))
    jobs = [publisher(hub, each, f"queue/jobs-{working}", f"a job from {each}") for each in PUBLISHING]
    worker = (f"{working}/worker.py", "--url", url(hub, working), "--queue", f"jobs-{working}", "--count", count)
    with programs(worker, *jobs) as (consumer, *publishers):
        for each in publishers:
            assert len(each.output()) == 1
        assert sorted(consumer.output()) == sorted(f"done: a job from {each}" for each in PUBLISHING)


@pytest.mark.parametrize("serving", CALLING)
def test_a_service_is_called_by_every_caller(hub: HubProcess, serving: str) -> None:
    with Program(f"{serving}/service.py", "--url", url(hub, serving)) as service:
        assert service.line() == "serving irrigation"
        calls = [(f"{each}/caller.py", "--url", url(hub, each), f"bed of {each}", "20") for each in CALLING]
        with programs(*calls) as callers:
            for each, caller in zip(CALLING, callers, strict=True):
                assert caller.output() == [f"20 litres for bed of {each}"]
        assert sorted(service.line() for _ in CALLING) == sorted(f"watering bed of {each}" for each in CALLING)
        refusals = [(f"{each}/caller.py", "--url", url(hub, each), "everything", "200") for each in CALLING]
        with programs(*refusals) as callers:
            for caller in callers:
                assert caller.failure().startswith("refused: ")
        assert service.interrupt() == []


@pytest.mark.parametrize("protocol", ALONE)
def test_two_programs_talk_without_a_hub(protocol: str) -> None:
    with Program(f"{protocol}/server.py", "--port", "0") as server:
        where = server.line().removeprefix("serving at ")
        with Program(f"{protocol}/client.py", "--url", where) as client:
            assert client.output() == ALONE[protocol]
        server.interrupt()


def test_every_example_is_listed_and_says_how_to_run_it() -> None:
    page = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    for script in SCRIPTS:
        name = f"{script.parent.name}/{script.name}"
        assert f"({name})" in page, f"examples/README.md does not list {name}"
        assert f"python examples/{name}" in (ast.get_docstring(ast.parse(script.read_text(encoding="utf-8"))) or "")
