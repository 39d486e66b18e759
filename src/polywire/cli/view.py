"""The live view of ``polywire sub``: rates, channels and the latest messages."""

import asyncio
import collections
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TYPE_CHECKING, Final

from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.live import Live
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from polywire.cli.lifecycle import cancelled
from polywire.cli.output import Rate, short, shown, shown_body

if TYPE_CHECKING:
    from polywire.client.bus import Bus
    from polywire.client.message import Message


CHANNELS: Final = 5000
"""Channels that are counted separately; later ones are counted together."""

OTHERS: Final = "(others)"
REFRESH: Final = 0.25
LAST: Final = 100
FRAME: Final = 6
"""Lines of the view beside its two lists: the headings, and one that stays free."""


class Channel:
    """What was received from one channel."""

    __slots__ = ("count", "last", "name", "octets")

    def __init__(self, name: str) -> None:
        self.name = name
        self.count = 0
        self.octets = 0
        self.last = 0.0


class View:
    """What was received, and how it is shown. ``connected`` returns whether there is a connection."""

    def __init__(
        self,
        title: str,
        connected: Callable[[], bool] = lambda: True,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._title = title
        self._connected = connected
        self._clock = clock
        self._wall = wall
        self._channels: dict[str, Channel] = {}
        self._last: collections.deque[tuple[float, Message]] = collections.deque(maxlen=LAST)
        self._rate = Rate(clock=clock)
        self.messages = 0
        self.octets = 0

    def put(self, message: "Message") -> None:
        """Count and show one message."""
        size = len(message.body)
        self.messages += 1
        self.octets += size
        channel = self._channels.get(message.channel)
        if channel is None:
            name = message.channel if len(self._channels) < CHANNELS else OTHERS
            channel = self._channels.setdefault(name, Channel(name))
        channel.count += 1
        channel.octets += size
        channel.last = self._clock()
        self._last.append((self._wall(), message))

    def sample(self) -> None:
        """Update the rate."""
        self._rate.sample(self.messages)

    def summary(self) -> str:
        """A summary in one line."""
        channels = f"{len(self._channels)} {'channel' if len(self._channels) == 1 else 'channels'}"
        return (
            f"{self.messages} messages, {short(self.octets, 'B')} from {channels} "
            f"in {self._rate.seconds:.1f} s, {short(self._rate.mean)}/s"
        )

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        height = (options.height or console.height) - FRAME
        busiest = sorted(self._channels.values(), key=lambda each: (-each.count, each.name))
        rows = min(len(busiest), max(3, height // 2))
        yield Group(
            self._head(),
            Rule(f"channels ({len(busiest)})", style="dim", align="left"),
            self._table(busiest[:rows]),
            Rule("last messages", style="dim", align="left"),
            self._messages(max(3, height - rows)),
        )

    def _head(self) -> Text:
        line = Text(no_wrap=True, overflow="ellipsis")
        line.append("● " if self._connected() else "○ ", style="green" if self._connected() else "bold red")
        line.append(shown(self._title), style="bold")
        if not self._connected():
            line.append("  disconnected, reconnecting", style="red")
        line.append(f"\n  {self.messages} messages  {short(self._rate.now)}/s  {short(self.octets, 'B')}  ")
        line.append(self._rate.bars(), style="cyan")
        return line

    def _table(self, channels: Sequence[Channel]) -> Table:
        table = Table(box=None, pad_edge=False, expand=True, show_header=False)
        table.add_column(ratio=1, no_wrap=True, overflow="ellipsis")
        for _ in range(3):
            table.add_column(justify="right", no_wrap=True)
        now = self._clock()
        for each in channels:
            age = now - each.last
            row = (f"{each.count}", short(each.octets, "B"), "now" if age < 1 else f"{age:.0f} s ago")
            table.add_row(Text(shown(each.name)), *row, style="" if age < 1 else "dim")
        return table

    def _messages(self, rows: int) -> Table:
        table = Table(box=None, pad_edge=False, expand=True, show_header=False)
        table.add_column(no_wrap=True, style="dim")
        table.add_column(no_wrap=True, style="cyan", overflow="ellipsis", max_width=32)
        table.add_column(ratio=1, no_wrap=True, overflow="ellipsis")
        for at, message in list(self._last)[-rows:]:
            clock = time.strftime("%H:%M:%S", time.localtime(at))
            # Not all of a long one is looked at just to be cut off.
            table.add_row(clock, Text(shown(message.channel)), Text(shown_body(message.body, 400)))
        return table


@contextlib.asynccontextmanager
async def live_view(bus: "Bus", patterns: Sequence[str]) -> AsyncIterator["Callable[[Message], None]"]:
    """A view on the terminal while the block runs; it stays there at the end, with a line that sums it up."""
    view = View(f"{' '.join(patterns)} at {bus.address}", lambda: bus.connected)
    console = Console(markup=False, highlight=False)
    live = Live(view, console=console, auto_refresh=False, vertical_overflow="crop")

    async def refresh() -> None:
        while True:
            view.sample()
            live.refresh()
            await asyncio.sleep(REFRESH)

    live.start()
    task = asyncio.create_task(refresh())
    try:
        yield view.put
    finally:
        await cancelled(task)
        view.sample()
        live.stop()
        console.print(view.summary())
