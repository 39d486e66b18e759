"""The blocking twin, against a running hub."""

import contextlib
import gc
import queue
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import polywire
from polywire import sync
from tests.faults.proxy import Proxy
from tests.hub_process import HubProcess, running_hub

OVER = ("umq", "micromsg", "fmqp", "mqtt", "sabc")
CALLS = ("umq", "sabc")


@pytest.fixture(scope="module")
def hub() -> Iterator[HubProcess]:
    with running_hub() as process:
        yield process


def threads() -> int:
    """How many threads buses have."""
    return sum(thread.name == "polywire" for thread in threading.enumerate())


@contextlib.contextmanager
def opened(hub: HubProcess, protocol: str, *, others: int = 0) -> Iterator[sync.Bus]:
    with sync.connect(hub.addresses[protocol], protocol=protocol) as bus:
        assert threads() == others + 1
        yield bus
    assert threads() == others


@pytest.mark.parametrize("protocol", OVER)
def test_what_is_published_is_heard(hub: HubProcess, protocol: str) -> None:
    with opened(hub, protocol) as bus, bus.subscribe(f"sync/{protocol}/*") as messages:
        promise = bus.publish(f"sync/{protocol}/a", "1", timeout=10)
        assert promise is (polywire.Promise.SENT if protocol == "fmqp" else polywire.Promise.ACKNOWLEDGED)
        assert messages.get(timeout=10).text == "1"
        assert bus.publish_all(f"sync/{protocol}/b", [str(number) for number in range(3000)], timeout=20) == 3000
        for number, message in zip(range(3000), messages, strict=False):
            assert message.text == str(number)
        assert bus.protocol == protocol
        assert bus.connected
        assert "connected" in repr(bus)
        bus.ping(timeout=10)


@pytest.mark.parametrize("protocol", OVER)
def test_a_queue_is_put_into_and_taken_from(hub: HubProcess, protocol: str) -> None:
    with opened(hub, protocol) as bus:
        jobs = bus.queue(f"sync-{protocol}")
        jobs.put("1")
        jobs.put("2", timeout=10)
        with jobs:
            assert jobs.name == f"sync-{protocol}"
            assert [next(jobs).text, jobs.get(10).text] == ["1", "2"]


@pytest.mark.parametrize("caller", CALLS)
@pytest.mark.parametrize("server", CALLS)
def test_a_service_is_offered_and_called(hub: HubProcess, server: str, caller: str) -> None:
    name = f"sync-{server}-{caller}"

    def handle(request: polywire.Request) -> str:
        if request.method == "refuse":
            raise polywire.CallFailed(403, "forbidden", "not you")
        assert threading.current_thread() is not threading.main_thread()
        return f"{request.method} {request.text}"

    async def handle_later(request: polywire.Request) -> str:
        return request.text.upper()

    with sync.connect(hub.addresses[server], protocol=server) as offering, opened(hub, caller, others=1) as bus:
        with offering.serve(name, handle):
            assert bus.call(name, "greet", "Anna", timeout=10).text == "greet Anna"
            with pytest.raises(polywire.CallFailed):
                bus.call(name, "refuse", timeout=10)
        with offering.serve(name, handle_later):
            assert bus.call(name, "greet", "Anna", timeout=10).text == "ANNA"
        with pytest.raises(polywire.CallFailed) as caught:
            bus.call(name, "greet", timeout=10)
        assert caught.value.code in {404, 503}


@pytest.mark.parametrize("protocol", OVER)
def test_bodies_are_checked_here_too(hub: HubProcess, protocol: str) -> None:
    with opened(hub, protocol) as bus, bus.subscribe(f"checked/{protocol}") as messages:
        wrong: Any = 5
        put = bus.queue("checked").put
        for act in (lambda: bus.publish("a", wrong), lambda: bus.publish_all("a", [wrong]), lambda: put(wrong)):
            with pytest.raises(TypeError, match="body must be str or bytes-like, not int"):
                act()
        bus.publish(f"checked/{protocol}", polywire.json([1]))
        assert messages.get(timeout=10).json() == [1]
        with pytest.raises(polywire.PatternError):
            bus.subscribe("a/#")


def test_callbacks_run_in_threads_and_may_use_the_bus(hub: HubProcess) -> None:
    proxy = Proxy(hub.port("mqtt"))
    heard: queue.Queue[object] = queue.Queue()
    try:
        with sync.connect(
            f"mqtt://127.0.0.1:{proxy.port}",
            max_size=10,
            on_disconnect=heard.put,
            on_reconnect=lambda: heard.put(bus.publish("back", "x", timeout=10)),
        ) as bus:
            proxy.cut()
            assert isinstance(heard.get(timeout=10), polywire.ConnectionLost)
            assert heard.get(timeout=10) is polywire.Promise.ACKNOWLEDGED
            with pytest.raises(polywire.TooLarge):
                bus.publish("a", "x" * 11)
    finally:
        proxy.close()


def test_the_demand_is_watched(hub: HubProcess) -> None:
    with opened(hub, "fmqp") as bus, bus.watch_demand("sync-demand/*") as demand:
        with bus.subscribe("sync-demand/a"):
            assert demand.get(10) == polywire.Demand("sync-demand/a", 1)
        assert demand.get(10) == polywire.Demand("sync-demand/a", 0)


def test_waiting_ends_when_its_time_is_over(hub: HubProcess) -> None:
    with opened(hub, "mqtt") as bus, bus.subscribe("silence") as messages:
        with pytest.raises(polywire.Timeout, match="the next message took longer"):
            messages.get(timeout=0.05)
        bus.publish("silence", "broken")
        assert messages.get(timeout=10).text == "broken"


def test_ctrl_c_interrupts_a_wait_and_nothing_else(hub: HubProcess) -> None:
    with opened(hub, "mqtt") as bus, bus.subscribe("interrupted") as messages:
        main = threading.main_thread().ident
        assert main == threading.get_ident()
        key = threading.Timer(0.1, signal.pthread_kill, (main, signal.SIGINT))
        key.start()
        with pytest.raises(KeyboardInterrupt):
            messages.get()
        key.join()
        bus.publish("interrupted", "still there")
        assert messages.get(timeout=10).text == "still there"


def test_what_a_protocol_can_not_do_raises_here_too(hub: HubProcess) -> None:
    with opened(hub, "fmqp") as bus:
        with pytest.raises(polywire.Unsupported):
            bus.call("adder", "add")
        with pytest.raises(polywire.Unsupported):
            bus.serve("adder", lambda request: request.body)
        with pytest.raises(polywire.Unsupported):
            bus.publish("a", "b", headers={"x": "y"})


def test_a_closed_bus_takes_nothing_more_and_ends_its_readers(hub: HubProcess) -> None:
    bus = sync.connect(hub.addresses["mqtt"], protocol="mqtt")
    messages = bus.subscribe("closed")
    got: list[str] = []
    reader = threading.Thread(target=lambda: got.extend(message.text for message in messages))
    reader.start()
    bus.publish("closed", "maybe")
    bus.close()
    bus.close()
    reader.join(10)
    assert not reader.is_alive()
    with pytest.raises(polywire.Closed):
        bus.publish("closed", "never")
    with pytest.raises(polywire.Closed):
        messages.get(1)


def test_several_threads_share_a_bus(hub: HubProcess) -> None:
    with opened(hub, "mqtt") as bus, bus.subscribe("shared/*") as messages:
        publishing = [
            threading.Thread(target=bus.publish_all, args=(f"shared/{number}", ["x"] * 100)) for number in range(4)
        ]
        for thread in publishing:
            thread.start()
        for _ in range(400):
            messages.get(10)
        for thread in publishing:
            thread.join(10)


def test_a_bus_nobody_holds_leaves_no_thread(hub: HubProcess) -> None:
    sync.connect(hub.addresses["fmqp"], protocol="fmqp")
    gc.collect()
    assert threads() == 0


def test_a_connection_that_fails_leaves_no_thread() -> None:
    with pytest.raises(polywire.ConnectFailed):
        sync.connect("fmqp://127.0.0.1:1")
    assert threads() == 0
