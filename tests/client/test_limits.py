"""What goes past a limit, against a running hub: messages that are too large, subscriptions that nobody reads."""

import asyncio
import time
from collections.abc import Iterator

import pytest

import polywire
from polywire.backoff import Backoff
from polywire.client import inbox
from polywire.client.bus import Stream
from polywire.client.errors import ConnectionLost
from polywire.client.transport import Opening
from polywire.protocols import fmqp, micromsg, mqtt, sabc, umq
from tests.client.loops import run, until
from tests.faults.proxy import Proxy
from tests.hub_process import HubProcess, running_hub

OVER = ("umq", "micromsg", "fmqp", "mqtt", "sabc")
QUICK = Backoff(first=0.01, most=0.05)
LIMIT = 100 * 1024
TOO_MUCH = b"x" * (2 * LIMIT)


@pytest.fixture(scope="module")
def hub() -> Iterator[HubProcess]:
    with running_hub(f"limits.message_size={LIMIT}") as process:
        yield process


def opened(hub: HubProcess, protocol: str, port: int | None = None, **options: object) -> Opening[polywire.Bus]:
    url = hub.addresses[protocol]
    if port is not None:
        url = url.replace(f":{hub.port(protocol)}", f":{port}")
    return polywire.connect(url, protocol=protocol, backoff=QUICK, **options)  # type: ignore[arg-type] # as they come


async def _awaited(receipt: polywire.Receipt) -> polywire.Promise | Exception:
    try:
        return await receipt
    except polywire.ClientError as error:
        return error


@pytest.mark.parametrize("body", [TOO_MUCH, TOO_MUCH.decode()], ids=["bytes", "text"])
@pytest.mark.parametrize("protocol", ["umq", "micromsg", "mqtt"])
def test_a_message_over_the_hubs_limit_fails_once_and_holds_up_nothing(
    hub: HubProcess, protocol: str, body: bytes | str
) -> None:
    async def main() -> None:
        async with opened(hub, protocol) as bus, bus.subscribe(f"large/{protocol}") as messages:
            with pytest.raises(polywire.Refused, match=f"{len(TOO_MUCH)} bytes") as refused:
                await bus.publish(f"large/{protocol}", body)
            if protocol == "micromsg":
                assert isinstance(refused.value, polywire.TooLarge)
                assert (refused.value.size, refused.value.limit) == (len(TOO_MUCH), LIMIT)
            assert await bus.publish(f"large/{protocol}", "small", timeout=10) is polywire.Promise.ACKNOWLEDGED
            assert (await anext(messages)).text == "small"

    run(main)


@pytest.mark.parametrize("protocol", ["umq", "micromsg", "mqtt"])
def test_only_the_message_that_is_too_large_fails_of_all_in_flight(hub: HubProcess, protocol: str) -> None:
    async def main() -> None:
        async with opened(hub, protocol) as bus:
            bodies = [b"small"] * 30 + [TOO_MUCH] + [b"small"] * 30
            receipts = [bus.publish(f"among/{protocol}", body) for body in bodies]
            outcomes = [await _awaited(receipt) for receipt in receipts]
            assert isinstance(outcomes.pop(30), polywire.Refused)
            assert outcomes == [polywire.Promise.ACKNOWLEDGED] * 60

    run(main)


@pytest.mark.parametrize("qos", [1, 2])
def test_over_mqtt_it_fails_in_a_kept_session_too(hub: HubProcess, qos: int) -> None:
    async def main() -> None:
        async with mqtt.connect(
            hub.addresses["mqtt"].replace("tcp", "mqtt"), client_id=f"kept-{qos}", clean_session=False, backoff=QUICK
        ) as client:
            with pytest.raises(polywire.Refused, match="closed the connection each time"):
                await client.publish("large/kept", TOO_MUCH, qos=qos)
            receipts = [client.publish("large/kept", str(number), qos=qos) for number in range(20)]
            assert [await each for each in receipts] == [polywire.Promise.ACKNOWLEDGED] * 20

    run(main)


def test_a_small_message_fails_too_where_the_server_closes_each_time() -> None:
    async def main() -> None:
        with running_hub("limits.message_size=1000") as hub:
            async with opened(hub, "mqtt") as bus:
                receipts = [bus.publish("tiny", body) for body in ("a", "x" * 2000, "b")]
                outcomes = [await _awaited(receipt) for receipt in receipts]
                assert outcomes[0] is outcomes[2] is polywire.Promise.ACKNOWLEDGED
                assert isinstance(outcomes[1], polywire.Refused)
                assert "2000 bytes" in str(outcomes[1])

    run(main)


@pytest.mark.parametrize("protocol", OVER)
def test_a_known_limit_refuses_before_anything_is_sent(hub: HubProcess, protocol: str) -> None:
    async def main() -> None:
        async with opened(hub, protocol, max_size=10) as bus:
            for act in (lambda: bus.publish("a", "x" * 11), lambda: bus.queue("a").put(b"x" * 11)):
                with pytest.raises(polywire.TooLarge, match="11 bytes, more than the 10 allowed") as refused:
                    act()  # type: ignore[no-untyped-call]
                assert (refused.value.size, refused.value.limit) == (11, 10)
            if protocol in {"umq", "sabc"}:
                with pytest.raises(polywire.TooLarge):
                    await bus.call("a", "b", "x" * 11)
                await bus.serve(f"chatty-{protocol}", lambda _: "x" * 11)
                with pytest.raises(polywire.CallFailed):
                    await bus.call(f"chatty-{protocol}", "b")
            await bus.publish("a", "x" * 10)

    run(main)


@pytest.mark.parametrize("protocol", OVER)
def test_a_subscription_that_nobody_reads_does_not_keep_its_program_from_publishing(
    hub: HubProcess, protocol: str
) -> None:
    async def main() -> None:
        async with (
            opened(hub, protocol) as bus,
            opened(hub, protocol) as other,
            bus.subscribe(f"flood/{protocol}", limit=10) as messages,
        ):
            for number in range(100):
                await other.publish(f"flood/{protocol}", str(number))
            await other.ping()
            for _ in range(3):
                await bus.publish("elsewhere", "x", timeout=10)
                await bus.ping()
            assert [int((await anext(messages)).text) for _ in range(100)] == list(range(100))

    run(main)


async def _read(messages: Stream[polywire.Message], into: list[int]) -> None:
    async for message in messages:
        into.append(int(message.text))  # noqa: PERF401 - others look at it meanwhile


@pytest.mark.parametrize("protocol", OVER)
def test_where_far_too_much_is_unread_the_subscription_ends_and_publishing_goes_on(
    hub: HubProcess, protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inbox, "STALL_TIME", 0.2)

    async def main() -> None:
        async with opened(hub, protocol) as bus, opened(hub, protocol) as other:
            async with bus.subscribe(f"overrun/{protocol}", limit=10) as messages:
                for number in range(400):
                    await other.publish(f"overrun/{protocol}", str(number))
                await other.ping()
                for _ in range(3):
                    await bus.publish("elsewhere", "x", timeout=10)
                    await bus.ping()
                got: list[int] = []
                with pytest.raises(polywire.Overrun) as overrun:
                    await _read(messages, got)
                assert got == list(range(len(got)))
                assert 10 * inbox.BEYOND <= overrun.value.waiting == len(got) <= 400
            async with bus.subscribe(f"overrun/{protocol}") as again:
                await bus.publish(f"overrun/{protocol}", "more")
                assert (await anext(again)).text == "more"

    run(main)


@pytest.mark.parametrize("protocol", OVER)
def test_a_program_hears_of_lost_connections_and_new_ones(hub: HubProcess, protocol: str) -> None:
    async def main() -> None:
        lost: list[ConnectionLost] = []
        back: asyncio.Queue[str] = asyncio.Queue()

        async def returned() -> None:
            await asyncio.sleep(0)
            back.put_nowait("back")

        def broken(reason: ConnectionLost) -> None:
            lost.append(reason)
            raise ValueError("a callback's own mistake is logged, and nothing else")

        proxy = Proxy(hub.port(protocol))
        try:
            async with (
                opened(hub, protocol, proxy.port, on_disconnect=broken, on_reconnect=returned) as bus,
                bus.queue(f"told-{protocol}"),
            ):
                for number in range(2):
                    proxy.cut()
                    assert await back.get() == "back"
                    assert len(lost) == number + 1
                    assert isinstance(lost[-1], ConnectionLost)
                    assert lost[-1].reason
                    await bus.ping()
            assert len(lost) == 2
        finally:
            proxy.close()

    run(main)


@pytest.mark.parametrize("protocol", OVER)
def test_the_protocols_own_clients_hear_of_a_lost_connection(hub: HubProcess, protocol: str) -> None:
    connect = {"umq": umq, "micromsg": micromsg, "fmqp": fmqp, "mqtt": mqtt, "sabc": sabc}[protocol].connect

    async def main() -> None:
        lost: asyncio.Queue[ConnectionLost] = asyncio.Queue()
        proxy = Proxy(hub.port(protocol))
        scheme = hub.addresses[protocol].partition(":")[0]
        url = hub.addresses[protocol].replace(f":{hub.port(protocol)}", f":{proxy.port}").replace(scheme, protocol)
        try:
            async with connect(url, on_disconnect=lost.put):
                proxy.cut()
                assert (await lost.get()).reason
            async with connect(url, on_disconnect=lost.put_nowait):
                pass
            assert lost.empty()
        finally:
            proxy.close()

    run(main)


@pytest.mark.parametrize("protocol", OVER)
def test_what_is_not_sent_in_time_is_not_sent(hub: HubProcess, protocol: str) -> None:
    async def main() -> None:
        proxy = Proxy(hub.port(protocol))
        try:
            async with (
                opened(hub, protocol) as reader,
                opened(hub, protocol, proxy.port) as bus,
                reader.subscribe(f"late/{protocol}") as messages,
            ):
                proxy.retarget(1)  # nobody is there
                proxy.cut()
                await until(lambda: not bus.connected)
                started = time.monotonic()
                for receipt in (
                    bus.publish(f"late/{protocol}", "late", timeout=0.05),
                    bus.queue(f"late-{protocol}").put("late", timeout=0.05),
                ):
                    with pytest.raises(polywire.Timeout) as late:
                        await receipt
                    assert (late.value.sent, late.value.seconds) == (False, 0.05)
                assert time.monotonic() - started < 5
                proxy.retarget(hub.port(protocol))
                await bus.publish(f"late/{protocol}", "in time", timeout=20)
                assert (await anext(messages)).text == "in time"
        finally:
            proxy.close()

    run(main)
