"""The hub's numbers for Prometheus.

The hub counts in plain integers, which are read when the page is requested. Only the latency of calls and the delay of
the event loop are measured as they happen. What grows with the number of queues is added up in slices, and shown as
totals and a few of the deepest: a page has the same size however many queues there are.
"""

import asyncio
import heapq
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from polywire.hub.hub import Hub
from polywire.hub.services import Call
from polywire.server.gate import Gate

if TYPE_CHECKING:
    from polywire.server.journal import Journaling

LOOP_SAMPLE = 0.5
LATENCY_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
DELAY_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
DEEPEST = 10
"""Queues that are shown one by one."""

SLICE = 1000
"""Queues that are looked at before others get their turn."""

SHARE = 0.2
"""How much of the loop's time pages may take, however often they are asked for."""


@dataclass(frozen=True, slots=True)
class QueueTotals:
    """All queues together; ``deepest`` are the fullest ones, with their messages."""

    queues: int = 0
    messages: int = 0
    octets: int = 0
    deepest: tuple[tuple[str, int], ...] = ()


class Metrics:
    """Collects and writes the metrics of one hub."""

    def __init__(self, hub: Hub, gate: Gate, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._hub = hub
        self._registry = CollectorRegistry(auto_describe=False)
        self._collector = HubCollector(hub, gate)
        self._registry.register(self._collector)
        self._page_turn = asyncio.Lock()
        self._next_page = 0.0
        self._calls = Histogram(
            "polywire_call_seconds",
            "Time from a call to its end.",
            ["code"],
            buckets=LATENCY_BUCKETS,
            registry=self._registry,
        )
        self._delay = Histogram(
            "polywire_loop_delay_seconds",
            "How late the event loop runs what is due.",
            buckets=DELAY_BUCKETS,
            registry=self._registry,
        )
        hub.services.on_end = self._call_ended
        self._due = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Measure the event loop's delay from now on."""
        self._due = self._loop.time() + LOOP_SAMPLE
        self._timer = self._loop.call_at(self._due, self._sample)

    def stop(self) -> None:
        """Measure it no more."""
        if self._timer is not None:
            self._timer.cancel()

    async def page(self) -> bytes:
        """Everything, in the text format. Those who ask too often wait."""
        async with self._page_turn:
            await asyncio.sleep(max(0.0, self._next_page - time.monotonic()))
            self._collector.queues = await self._add_up()
            started = time.monotonic()
            text = generate_latest(self._registry)
            ended = time.monotonic()
            self._next_page = ended + (ended - started) * (1 / SHARE - 1)
            return text

    async def _add_up(self) -> QueueTotals:
        queues = list(self._hub.queues.values())
        messages = octets = 0
        deepest: list[tuple[int, str]] = []
        for start in range(0, len(queues), SLICE):
            some = [(len(queue), queue.name) for queue in queues[start : start + SLICE]]
            messages += sum(length for length, _ in some)
            octets += sum(queue.octets for queue in queues[start : start + SLICE])
            deepest = heapq.nlargest(DEEPEST, deepest + some)
            await asyncio.sleep(0)
        return QueueTotals(len(queues), messages, octets, tuple((name, length) for length, name in deepest if length))

    def _sample(self) -> None:
        self._delay.observe(max(0.0, self._loop.time() - self._due))
        self.start()

    def _call_ended(self, call: Call, code: int, nanoseconds: int) -> None:  # noqa: ARG002 - services are unbounded
        self._calls.labels(str(code)).observe(nanoseconds / 1e9)


class HubCollector(Collector):
    """Reads the hub's counters."""

    def __init__(self, hub: Hub, gate: Gate) -> None:
        self._hub = hub
        self._gate = gate
        self.queues = QueueTotals()

    def collect(self) -> Iterator[Metric]:
        """All families."""
        hub = self._hub
        connected = GaugeMetricFamily("polywire_connections", "Clients connected.", labels=["protocol"])
        connections = CounterMetricFamily("polywire_connections_opened", "Clients ever connected.", labels=["protocol"])
        messages = CounterMetricFamily("polywire_messages", "Messages.", labels=["protocol", "direction"])
        octets = CounterMetricFamily("polywire_octets", "Bytes read and written.", labels=["protocol", "direction"])
        drops = CounterMetricFamily("polywire_dropped", "Messages dropped, by reason.", labels=["protocol", "reason"])
        denied = CounterMetricFamily(
            "polywire_denied", "What the access rules did not allow, by action.", labels=["protocol", "action"]
        )
        oversized = CounterMetricFamily(
            "polywire_oversized", "Messages over limits.message_size, refused or cut.", labels=["protocol"]
        )
        faults = CounterMetricFamily(
            "polywire_faults",
            "Protocol violations and limits exceeded, by protocol and reason.",
            labels=["protocol", "reason"],
        )
        for counters in hub.counters:
            protocol = counters.protocol
            connected.add_metric([protocol], int(counters.connected))
            connections.add_metric([protocol], int(counters.connections))
            messages.add_metric([protocol, "in"], int(counters.messages_in))
            messages.add_metric([protocol, "out"], int(counters.messages_out))
            octets.add_metric([protocol, "in"], int(counters.octets_in))
            octets.add_metric([protocol, "out"], int(counters.octets_out))
            for reason, count in counters.dropped.items():
                drops.add_metric([protocol, reason], count)
            oversized.add_metric([protocol], int(counters.oversized))
            for action, count in counters.denied.items():
                denied.add_metric([protocol, action], count)
            for reason, count in counters.faults.items():
                faults.add_metric([protocol, reason], count)
        yield from (connected, connections, messages, octets, drops, denied, oversized, faults)
        yield CounterMetricFamily(
            "polywire_connections_refused", "Connections refused because of a limit.", self._gate.refused
        )
        words = "Bytes of messages of which only a part has arrived."
        yield GaugeMetricFamily("polywire_unfinished_bytes", words, self._gate.unfinished)
        words = "Bytes received from busy connections that wait to be handled."
        yield GaugeMetricFamily("polywire_backlog_bytes", words, self._gate.backlog.size)
        yield GaugeMetricFamily("polywire_subscriptions", "Subscriptions.", len(hub.table))
        yield GaugeMetricFamily("polywire_names_bytes", "Memory for the names that clients use.", hub.names_total())
        yield GaugeMetricFamily("polywire_watchers", "Watchers of the demand for topics.", len(hub.demand))
        yield GaugeMetricFamily("polywire_wills_bytes", "Memory for last wills.", hub.wills_size)
        yield GaugeMetricFamily("polywire_work_owners", "Clients whose large requests are in progress.", len(hub.work))
        yield CounterMetricFamily("polywire_work_slices", "Slices of large requests done.", int(hub.work.slices))
        longest = int(hub.work.longest) / 1e9
        yield GaugeMetricFamily("polywire_work_longest_slice_seconds", "The longest of them.", longest)
        yield GaugeMetricFamily("polywire_retained_messages", "Retained messages.", len(hub.retained))
        yield GaugeMetricFamily("polywire_retained_octets", "Their size.", hub.retained.size)
        yield GaugeMetricFamily("polywire_calls_under_way", "Calls that have not ended.", hub.services.under_way())
        queues = self.queues
        yield GaugeMetricFamily("polywire_queues", "Queues.", queues.queues)
        yield GaugeMetricFamily("polywire_queue_messages", "Messages in all queues.", queues.messages)
        yield GaugeMetricFamily("polywire_queue_octets", "Their size.", queues.octets)
        totals = hub.queue_totals
        yield GaugeMetricFamily("polywire_queues_memory", "Memory of all queued messages, in bytes.", int(totals.size))
        yield CounterMetricFamily("polywire_queue_nacked", "Messages rejected by their consumers.", int(totals.nacked))
        yield CounterMetricFamily(
            "polywire_queue_redelivered", "Messages handed out more than once.", int(totals.redelivered)
        )
        yield CounterMetricFamily(
            "polywire_queue_dead_lettered", "Messages moved to dead-letter queues.", int(totals.dead_lettered)
        )
        words = f"Messages in each of the {DEEPEST} deepest queues."
        depth = GaugeMetricFamily("polywire_deepest_queue_messages", words, labels=["queue"])
        for name, length in queues.deepest:
            depth.add_metric([name], length)
        yield depth
        if self._gate.journaling is not None:
            yield from _of_journal(self._gate.journaling)


def _of_journal(journaling: "Journaling") -> Iterator[Metric]:
    recorder = journaling.recorder
    yield CounterMetricFamily("polywire_journal_rows", "Rows written to the journal.", journaling.rows)
    yield CounterMetricFamily("polywire_journal_commits", "Groups of rows made safe together.", journaling.commits)
    yield CounterMetricFamily(
        "polywire_journal_unrecorded", "Rows lost to a journal that could not be written.", int(recorder.unrecorded)
    )
    yield GaugeMetricFamily("polywire_journal_next_offset", "The next row's offset.", journaling.journal.next_offset)
    yield GaugeMetricFamily("polywire_journal_pending_octets", "Bytes waiting to be written.", recorder.pending())
    lost = journaling.journal.recovery.lost_rows
    yield GaugeMetricFamily("polywire_journal_lost_rows", "Rows that this start found lost.", lost)
    yield GaugeMetricFamily("polywire_journal_failed", "1 while the journal can't be written.", int(recorder.failed))
