"""Restarts all nodes of a cluster, one after the other. A subscriber counts what is published: it misses nothing.

polywire serve --workers 3
python examples/cluster/rolling_restart.py
"""

import argparse
import asyncio
import contextlib
import json
import time
import urllib.request
from typing import Any

import polywire

CHANNEL = "restart/numbers"


def ask(url: str, *, method: str = "GET") -> dict[str, Any]:
    """Ask the HTTP listener of a node."""
    request = urllib.request.Request(url, method=method)  # noqa: S310 - it is the reader's own hub
    with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310 - as above
        found: dict[str, Any] = json.load(answer)
        return found


def nodes(http: str) -> dict[str, int]:
    """The nodes that run, with their processes."""
    return {node["node"]: node["pid"] for node in ask(f"{http}/v1/cluster")["nodes"] if node["state"] == "running"}


def restart(http: str) -> None:
    """Drain node after node; each is started again by its supervisor."""
    for name, pid in nodes(http).items():
        ask(f"{http}/v1/nodes/{name}/drain", method="POST")
        while nodes(http).get(name, pid) == pid:
            time.sleep(0.1)
        print(f"{name} was restarted", flush=True)


async def publish(url: str, stop: asyncio.Event) -> int:
    """Publish numbers, each acknowledged, until the restart is over. Returns how many."""
    number = 0
    async with polywire.connect(url) as bus:
        while not stop.is_set():
            number += 1
            await bus.publish(CHANNEL, str(number))
            await asyncio.sleep(0.005)
        await bus.publish(CHANNEL, "end")
    return number


async def count(url: str, ready: asyncio.Event) -> tuple[int, int]:
    """Count the numbers that arrive until the end. Returns how many differ, and how many came again."""
    seen: set[int] = set()
    again = 0
    # With a client id the hub keeps the session, and its messages, while the client is away.
    async with polywire.connect(url, client_id="rolling-restart") as bus, bus.subscribe(CHANNEL) as messages:
        ready.set()
        async for message in messages:
            if message.text == "end":
                break
            again += int(message.text) in seen
            seen.add(int(message.text))
    return len(seen), again


async def main() -> None:
    """Publish, count and restart at the same time."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--url", default="mqtt://127.0.0.1:1883", help="where the clients connect")
    parser.add_argument("--http", default="http://127.0.0.1:7100", help="the HTTP listener")
    arguments = parser.parse_args()
    ready, stop = asyncio.Event(), asyncio.Event()
    counting = asyncio.create_task(count(arguments.url, ready))
    await ready.wait()
    publishing = asyncio.create_task(publish(arguments.url, stop))
    await asyncio.to_thread(restart, arguments.http)
    stop.set()
    sent = await publishing
    arrived, again = await counting
    print(f"{sent} published, {arrived} arrived, {sent - arrived} missing, {again} more than once")


with contextlib.suppress(KeyboardInterrupt):
    asyncio.run(main())
