"""One client that publishes: ``python -m benchmarks.client_loads.publishing NAME PORT MESSAGES``.

It prints messages a second. Each publish is awaited, as a program would write it; aiomqtt's are so in ``TASKS`` tasks
beside each other, which makes it several times faster. The time runs until the server has answered something asked
behind the last message, so what is merely in a buffer does not count.
"""

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable

from benchmarks.client_loads import BODY, TOPIC

WARM_UP = 10
TASKS = 64


async def fmqp(port: int, messages: int) -> float:
    from polywire.protocols import fmqp as protocol

    async with protocol.connect(f"fmqp://127.0.0.1:{port}") as client:

        async def publish(count: int) -> None:
            for _ in range(count):
                await client.publish(TOPIC, BODY)
            await client.settled()

        return await timed(publish, messages)


async def mqtt(port: int, messages: int) -> float:
    from polywire.protocols import mqtt as protocol

    async with protocol.connect(f"mqtt://127.0.0.1:{port}") as client:

        async def publish(count: int) -> None:
            for _ in range(count):
                await client.publish(TOPIC, BODY)
            await client.ping()

        return await timed(publish, messages)


async def bus(port: int, messages: int) -> float:
    import polywire

    async with polywire.connect(f"fmqp://127.0.0.1:{port}") as connected:

        async def publish(count: int) -> None:
            for _ in range(count):
                await connected.publish(TOPIC, BODY)
            await connected.ping()

        return await timed(publish, messages)


async def aiomqtt(port: int, messages: int) -> float:
    from aiomqtt import Client

    async with Client("127.0.0.1", port) as client:
        # It warns of what waits beyond ten messages, though nothing is lost.
        client.pending_calls_threshold = messages

        async def publish_some(count: int) -> None:
            for _ in range(count):
                await client.publish(TOPIC, BODY)

        async def publish(count: int) -> None:
            await asyncio.gather(*[publish_some(count // TASKS) for _ in range(TASKS)])
            await client.subscribe("nothing/of/interest")

        return await timed(publish, messages)


async def nats(port: int, messages: int) -> float:
    import nats as protocol

    client = await protocol.connect(f"nats://127.0.0.1:{port}")
    subject = TOPIC.replace("/", ".")

    async def publish(count: int) -> None:
        for _ in range(count):
            await client.publish(subject, BODY)
        await client.flush(timeout=60)

    try:
        return await timed(publish, messages)
    finally:
        await client.close()


async def timed(publish: Callable[[int], Awaitable[None]], messages: int) -> float:
    """Messages a second, after a few to warm up."""
    await publish(messages // WARM_UP)
    begun = time.perf_counter()
    await publish(messages)
    return messages / (time.perf_counter() - begun)


CLIENTS = {"fmqp": fmqp, "mqtt": mqtt, "bus": bus, "aiomqtt": aiomqtt, "nats": nats}

if __name__ == "__main__":
    print(asyncio.run(CLIENTS[sys.argv[1]](int(sys.argv[2]), int(sys.argv[3]))))
