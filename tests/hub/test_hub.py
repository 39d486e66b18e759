"""The hub as sessions use it."""

from collections.abc import Callable

import pytest
from librt.strings import BytesWriter, write_i64_le

from polywire.hub.access import EVERYTHING, AccessRule, AccessRules, Identity
from polywire.hub.channels import ANY, from_stars
from polywire.hub.client import Client
from polywire.hub.demand import Watcher
from polywire.hub.hub import Hub
from polywire.hub.message import Message
from polywire.hub.peer import Refused
from polywire.hub.queues import DEAD_DELIVERIES, DEAD_QUEUE, DEAD_REASON, Policy
from polywire.hub.recorder import Runs
from polywire.hub.services import Call
from polywire.wire.frame import Run
from tests.hub.links import Clock, FakeLink, Loop, Recorder
from tests.hub.test_demand import Recorder as DemandRecorder
from tests.hub.test_queues import Worker
from tests.hub.test_services import Answering, Asking


class Pairs(Runs):
    """Runs of a protocol whose publications are two bytes: the topic, and the body."""

    def locate(self, data: bytes, start: int, end: int, base: int, places: BytesWriter) -> None:  # noqa: ARG002
        for pos in range(base + start, base + end, 2):
            write_i64_le(places, pos | (pos + 1) << 32)
            write_i64_le(places, (pos + 1) | (pos + 2) << 32)


class Site:
    """A hub with a hand-driven loop and clock."""

    def __init__(self) -> None:
        self.loop, self.time = Loop(), Clock()
        self.hub = Hub(
            self.loop.soon.append,
            self.time.later,
            self.time.nanoseconds,
            ["one", "other"],
            monotonic=self.time.nanoseconds,
        )

    def client(self, protocol: int = 0) -> Client:
        link = FakeLink(self.loop)
        client = self.hub.client(protocol, link.outbox)
        self.hub.join(client)
        return client

    def runs(self, client: Client) -> "Pairs":
        runs = Pairs(client)
        runs.now, runs.version = 7, self.hub.table.changes
        return runs

    def subscribe(self, client: Client, pattern: str, *, protocol: int = -1) -> Recorder:
        link = FakeLink(self.loop)
        recorder = Recorder(from_stars(pattern), link, client.number, protocol=protocol)
        if self.hub.subscribe(client, pattern, recorder) is None:
            self.hub.replay(client, recorder)
        return recorder


@pytest.fixture
def site() -> Site:
    return Site()


def bodies(recorder: Recorder) -> list[bytes]:
    return [message.body for message in recorder.got]


def test_a_message_reaches_all_subscribers_its_publisher_included(site: Site) -> None:
    publisher, other = site.client(), site.client()
    own, far = site.subscribe(publisher, "a/*"), site.subscribe(other, "a/b")
    deaf = site.subscribe(other, "b")
    assert site.hub.publish(Message("a/b", b"x"), publisher) is None
    assert (bodies(own), bodies(far), bodies(deaf)) == ([b"x"], [b"x"], [])
    assert publisher.counters.messages_in == 1


def test_a_late_subscriber_gets_the_retained_message_first(site: Site) -> None:
    client = site.client()
    site.hub.publish(Message("a", b"old", retain=True), client)
    late = site.subscribe(client, "*")
    site.hub.publish(Message("a", b"new"), client)
    assert bodies(late) == [b"old", b"new"]


def test_nobody_publishes_to_service_channels(site: Site) -> None:
    client = site.client()
    watcher = site.subscribe(client, "$/info/clients")
    for channel in ("$", "$/info/clients"):
        assert site.hub.publish(Message(channel, b"x", retain=True), client) is Refused.SERVICE_CHANNEL
    assert (watcher.got, len(site.hub.retained)) == ([], 0)
    assert client.counters.dropped == {Refused.SERVICE_CHANNEL.label: 2}


def test_a_published_wildcard_reaches_what_it_meets_but_no_service_channel(site: Site) -> None:
    client = site.client()
    topic, service = site.subscribe(client, "a/clients"), site.subscribe(client, "$/clients")
    site.hub.publish(Message(f"{ANY}/clients", b"x"), client)
    assert (bodies(topic), service.got) == ([b"x"], [])


def test_a_queue_is_reached_by_its_channel(site: Site) -> None:
    client, worker = site.client(), Worker(10)
    assert site.hub.publish(Message("queue/jobs", b"1"), client) is None
    topic = site.subscribe(client, "queue/*")
    site.hub.queue("jobs").attach(worker)
    assert (worker.bodies(), topic.got) == ([b"1"], [])


def test_a_full_queue_refuses(site: Site) -> None:
    client = site.client()
    site.hub.queue_messages = 1
    assert site.hub.publish(Message("queue/jobs", b"1"), client) is None
    assert site.hub.publish(Message("queue/jobs", b"2"), client) is Refused.QUEUE_FULL


def test_all_queues_together_take_no_more_memory_than_allowed(site: Site) -> None:
    client, worker = site.client(), Worker(10)
    site.hub.queue_totals.most = 3000
    assert site.hub.publish(Message("queue/a", bytes(1000)), client) is None
    assert site.hub.publish(Message("queue/b", bytes(1000)), client) is Refused.QUEUES_FULL
    assert site.hub.publish(Message("queue/b", bytes(500)), client) is None
    site.hub.queue("a").attach(worker)
    worker.got[0].ack()
    assert site.hub.publish(Message("queue/b", bytes(1000)), client) is None
    assert client.counters.dropped == {"queues-full": 1}


def test_names_and_headers_of_queued_messages_are_memory_too(site: Site) -> None:
    client = site.client()
    site.hub.queue_totals.most = 3000
    assert site.hub.publish(Message("queue/" + "n" * 3000, b""), client) is Refused.QUEUES_FULL
    assert site.hub.publish(Message("queue/a", b"", headers=(("k", "v" * 3000),)), client) is Refused.QUEUES_FULL
    assert site.hub.publish(Message("queue/a", b"", "t" * 3000), client) is Refused.QUEUES_FULL


def test_a_message_that_is_given_up_moves_to_its_dead_letter_queue_with_words_about_it(site: Site) -> None:
    client, worker, reader = site.client(), Worker(1), Worker(1)
    site.hub.set_policies((Policy(("jobs",), 2, "dead"),))
    site.hub.publish(Message("queue/jobs", b"1", "text/plain", (("k", "v"), (DEAD_REASON, "forged"))), client)
    site.hub.queue("jobs").attach(worker)
    worker.got[0].nack()
    worker.got[1].nack(reason="no such pump")
    site.hub.queue("dead").attach(reader)
    letter = reader.got[0].message
    assert (letter.channel, letter.body, letter.content_type, letter.time) == (
        "queue/dead",
        b"1",
        "text/plain",
        site.hub.clock(),
    )
    assert dict(letter.headers) == {"k": "v", DEAD_QUEUE: "jobs", DEAD_REASON: "no such pump", DEAD_DELIVERIES: 2}
    assert (len(site.hub.queue("jobs")), site.hub.queue_totals.dead_lettered) == (0, 1)


def test_a_dead_letter_that_can_not_be_placed_stays_in_its_queue(site: Site) -> None:
    client, worker = site.client(), Worker(1)
    warned: list[str] = []
    site.hub.on_warning = lambda kind, _: warned.append(kind)
    site.hub.set_policies((Policy(("jobs",), 1, "dead"),))
    site.hub.publish(Message("queue/jobs", b"1"), client)
    site.hub.queue("jobs").attach(worker)
    site.hub.most_queues = 1
    worker.got[0].nack()
    site.hub.most_queues = 10
    site.hub.queue("dead").max_messages = 0
    worker.got[1].nack()
    site.hub.queue("dead").max_messages = 10
    site.hub.queue_totals.most = 600
    worker.got[2].nack()
    assert warned == ["dead letter too-many-queues", "dead letter queue-full", "dead letter queues-full"]
    site.hub.queue_totals.most = 10_000
    worker.got[3].nack()
    assert (len(site.hub.queue("jobs")), len(site.hub.queue("dead"))) == (0, 1)


def test_the_first_policy_that_matches_counts_and_a_reload_changes_it(site: Site) -> None:
    policies = (Policy(("dead",)), Policy((from_stars("**"),), 3, "dead"))
    assert site.hub.queue("a/b").policy.max_deliveries == 0
    site.hub.set_policies(policies)
    assert site.hub.queue("a/b").policy is policies[1]
    assert site.hub.queue("dead").policy is policies[0]
    assert site.hub.queue("$odd").policy is policies[1]


def test_a_deserted_empty_queue_is_forgotten(site: Site) -> None:
    worker = Worker()
    client = site.client()
    assert site.hub.consume(client, "jobs", worker) is None
    assert worker.queue is site.hub.queues["jobs"]
    site.hub.stop_consuming(client, worker)
    assert site.hub.queues == {}


def test_what_can_not_be_retained_is_refused_before_anything_is_done_with_it(site: Site) -> None:
    client = site.client()
    site.hub.retained.limit = 0
    listener = site.subscribe(client, "a")
    assert site.hub.publish(Message("a", b"x", retain=True), client) is Refused.RETAINED_FULL
    assert bodies(listener) == []


def test_where_the_publisher_can_not_be_told_it_goes_out_unretained(site: Site) -> None:
    client = site.client()
    site.hub.retained.limit = 0
    listener = site.subscribe(client, "a")
    assert site.hub.publish(Message("a", b"x", retain=True), client, must_retain=False) is None
    assert (bodies(listener), listener.got[0].retain, len(site.hub.retained)) == ([b"x"], False, 0)
    assert client.counters.dropped == {Refused.RETAINED_FULL.label: 1}


OWN = AccessRules([AccessRule(["publish"], ["own/**"])]).grants(Identity("me"), "one")


def test_what_is_forbidden_goes_nowhere_on_either_path(site: Site) -> None:
    client = site.client()
    listener = site.subscribe(client, "**")
    client.grants = OWN
    assert site.hub.publish(Message("a", b"x"), client) is Refused.FORBIDDEN
    view = site.hub.view(client)
    assert view.resolve(b"a") is None
    assert view.resolve(b"own/a") is not None
    assert listener.got == []


def test_clients_with_the_same_rights_share_a_view(site: Site) -> None:
    one, other, less = site.client(), site.client(), site.client()
    less.grants = OWN
    assert site.hub.view(one) is site.hub.view(other)
    assert site.hub.view(one) is not site.hub.view(less)
    assert site.hub.view(one) is not site.hub.view(site.client(protocol=1))


def test_queues_and_service_topics_are_never_cut_through(site: Site) -> None:
    view = site.hub.view(site.client())
    assert [view.resolve(topic) for topic in (b"queue/jobs", b"/echo")] == [None, None]
    assert view.resolve(b"/a/b") is not None


def test_a_run_is_written_to_those_who_take_it_as_it_is(site: Site) -> None:
    publisher = site.client()
    raw, cooked = site.subscribe(site.client(), "a", protocol=0), site.subscribe(site.client(), "a")
    assert site.hub.forward(Run(site.hub.table.route("a"), b"--axayaz--", 2, 8, 3), site.runs(publisher))
    site.loop.turn()
    assert (raw.outbox.written, raw.got) == (6, [])
    assert [(message.channel, message.body) for message in cooked.got] == [("a", b"x"), ("a", b"y"), ("a", b"z")]
    assert {(message.time, message.origin, message.qos) for message in cooked.got} == {(7, publisher.number, 0)}
    assert (publisher.counters.messages_in, publisher.counters.messages_out) == (3, 3)


def test_each_subscriber_gets_the_messages_of_an_acknowledged_run(site: Site) -> None:
    publisher = site.client()
    same, other = site.subscribe(site.client(), "a", protocol=0), site.subscribe(site.client(), "a")
    assert site.hub.forward(Run(site.hub.table.route("a"), b"axay", 0, 4, 2, 1), site.runs(publisher))
    assert bodies(same) == bodies(other) == [b"x", b"y"]
    assert {message.qos for message in same.got} == {1}
    site.loop.turn()
    assert (same.outbox.written, publisher.counters.messages_in, publisher.counters.messages_out) == (0, 2, 0)


def test_the_messages_of_a_run_may_have_a_qos_of_their_own(site: Site) -> None:
    other = site.subscribe(site.client(), "a")
    runs = Pairs(site.client(), 2)
    runs.version = site.hub.table.changes
    assert site.hub.forward(Run(site.hub.table.route("a"), b"ax", 0, 2, 1), runs)
    assert [message.qos for message in other.got] == [2]


def test_a_run_for_a_slow_reader_is_dropped_and_counted(site: Site) -> None:
    publisher = site.client()
    slow, other = site.subscribe(site.client(), "*", protocol=0), site.subscribe(site.client(), "*")
    slow.outbox.close()
    assert site.hub.forward(Run(site.hub.table.route("a"), b"axbyaz", 0, 6, 3), site.runs(publisher))
    assert (slow.outbox.dropped, slow.outbox.dropped_by_channel) == (3, {"a": 2, "b": 1})
    assert publisher.counters.dropped == {"slow-reader": 3}
    assert publisher.counters.messages_out == 0
    assert bodies(other) == [b"x", b"y", b"z"]


def test_a_run_is_not_forwarded_on_a_route_that_may_have_changed(site: Site) -> None:
    publisher = site.client()
    runs = site.runs(publisher)
    route = site.hub.table.route("a")
    late = site.subscribe(site.client(), "a")
    assert not site.hub.forward(Run(route, b"ax", 0, 2, 1), runs)
    assert (late.got, publisher.counters.messages_in) == ([], 0)


def test_a_message_for_a_slow_reader_is_dropped_and_counted(site: Site) -> None:
    client = site.client()
    assert client.deliver(b"1", "a")
    assert client.deliver_pair(b"2", b"3", "a")
    assert client.deliver_all([b"4", b"5"], "a")
    assert client.reply([b"6"], "a")
    client.push(b"7")
    site.loop.turn()
    assert (client.outbox.written, client.counters.messages_out) == (7, 5)
    client.outbox.close()
    assert not client.deliver(b"1", "a")
    assert not client.deliver_pair(b"2", b"3", "b")
    assert not client.deliver_all([b"4", b"5"], "b")
    assert (client.counters.messages_out, client.counters.dropped) == (5, {"slow-reader": 3})
    assert client.outbox.dropped_by_channel == {"a": 1, "b": 2}


def test_what_the_hub_announces_is_retained_and_not_counted(site: Site) -> None:
    client = site.client()
    heard = site.subscribe(client, "$/info/clients")
    site.hub.announce(Message("$/info/clients", b"1", retain=True))
    site.hub.announce(Message("$/info/messages/second", b"5"))
    assert bodies(heard) == [b"1"]
    assert bodies(site.subscribe(client, "$/info/**")) == [b"1"]
    assert site.hub.retained.get("$/info/messages/second") is None
    assert client.counters.messages_in == 0


def test_a_long_run_arrives_whole(site: Site) -> None:
    publisher = site.client()
    raw = site.subscribe(site.client(), "a", protocol=0)
    data = bytes(20000)
    assert site.hub.forward(Run(site.hub.table.route("a"), data, 5, 20000, 1), site.runs(publisher))
    site.loop.turn()
    assert raw.outbox.written == 19995


def test_leaving_ends_subscriptions_and_publishes_the_wills(site: Site) -> None:
    client, other = site.client(), site.client()
    listener, own = site.subscribe(other, "**"), site.subscribe(client, "**")
    client.wills.add(Message("w", b"will", retain=True), 5)
    site.hub.leave(client)
    assert (bodies(listener), own.got) == ([b"will"], [])
    assert site.hub.retained.get("w") is not None
    assert len(site.hub.table) == 1
    site.hub.leave(client)
    assert bodies(listener) == [b"will"]


def test_demand_counts_a_client_once_however_often_it_subscribes(site: Site) -> None:
    client, watcher = site.client(), DemandRecorder("a")
    site.hub.demand.watch(watcher)
    for key in ("first", "second", "first"):
        site.hub.subscribe(client, key, Recorder("a", FakeLink(site.loop), client.number))
    assert watcher.heard == [("a", 1)] * 3
    site.hub.unsubscribe(client, "first")
    assert watcher.heard == [("a", 1)] * 4
    site.hub.leave(client)
    assert watcher.heard == [("a", 1)] * 4 + [("a", 0)]
    assert isinstance(watcher, Watcher)


def test_unsubscribing_twice_is_told(site: Site) -> None:
    client = site.client()
    site.subscribe(client, "a")
    assert site.hub.unsubscribe(client, "a")
    assert not site.hub.unsubscribe(client, "a")


def test_presence_is_told_when_clients_come_and_go(site: Site) -> None:
    told: list[int] = []
    site.hub.on_presence.append(told.append)
    client = site.client()
    site.client()
    site.hub.leave(client)
    assert told == [1, 2, 1]
    assert site.hub.counters[0].connected == 1


def test_what_is_published_on_service_topics_is_told_after_it_was_delivered(site: Site) -> None:
    client = site.client()
    recorder = site.subscribe(client, "**")
    told: list[tuple[str, int]] = []
    site.hub.on_service_topic = lambda message, who: told.append((message.channel, len(recorder.got) * 10 + who.number))
    for channel in ["/svc", "svc", "/a/b", "/", "queue/a", "$/x", "/other"]:
        site.hub.publish(Message(channel, b"x"), client)
    assert told == [("/svc", 10 + client.number), ("/other", 50 + client.number)]
    client.grants = AccessRules([AccessRule(["subscribe"], ["**"])]).grants(Identity(), "one")
    site.hub.publish(Message("/svc", b"x"), client)
    assert len(told) == 2


def test_a_number_is_given_once_to_a_client_or_a_group(site: Site) -> None:
    numbers = [site.client().number, site.hub.next_number(), site.client().number, site.hub.next_number()]
    assert len(set(numbers)) == 4


def test_service_topics_are_told_to_the_bridge_unless_they_are_refused(site: Site) -> None:
    told: list[tuple[str, Client]] = []
    site.hub.on_service_topic = lambda message, client: told.append((message.channel, client))
    client = site.client()
    for channel in ("/greeter", "/greeter/x", "greeter", "/", f"/{ANY}{ANY}"):
        site.hub.publish(Message(channel, b"x"), client)
    client.grants = AccessRules([AccessRule(["publish"], ["open"])]).grants(Identity(), "one")
    assert site.hub.publish(Message("/greeter", b"x"), client) is Refused.FORBIDDEN
    assert told == [("/greeter", client)]


def test_a_channel_with_too_many_levels_is_refused_and_never_runs(site: Site) -> None:
    client = site.client()
    deep = "/".join(["a"] * 201)
    assert site.hub.publish(Message(deep, b"x", retain=True), client) is Refused.TOO_DEEP
    assert len(site.hub.retained) == 0
    assert site.hub.view(client).resolve(deep.encode()) is None
    assert site.hub.publish(Message(deep[2:], b"x"), client) is None


def test_there_are_so_many_queues_at_once_only(site: Site) -> None:
    client, worker = site.client(), Worker(1)
    site.hub.most_queues = 1
    assert site.hub.publish(Message("queue/a", b"x"), client) is None
    assert site.hub.publish(Message("queue/b", b"x"), client) is Refused.TOO_MANY_QUEUES
    assert site.hub.publish(Message("queue/a", b"y"), client) is None
    assert (site.hub.takes_queue("queue/a"), site.hub.takes_queue("queue/b")) == (True, False)
    assert site.hub.consume(client, "b", Worker()) is Refused.TOO_MANY_QUEUES
    assert site.hub.consume(client, "a", worker) is None
    for _ in range(2):
        worker.got.pop().ack()
    site.hub.stop_consuming(client, worker)
    assert site.hub.publish(Message("queue/b", b"x"), client) is None


def test_no_queue_hands_out_anything_once_work_has_stopped(site: Site) -> None:
    client, worker = site.client(), Worker(1)
    for body in (b"1", b"2"):
        site.hub.publish(Message("queue/a", body), client)
    site.hub.queue("a").attach(worker)
    site.hub.stop_work()
    worker.got[0].ack()
    assert worker.bodies() == [b"1"]


def test_what_is_accepted_is_safe_at_once_or_when_the_journal_says_so(site: Site) -> None:
    done: list[int] = []
    site.hub.safe(lambda: done.append(1), lambda: done.append(-1))
    assert done == [1]
    waiting: list[Callable[[], None]] = []
    site.hub.when_safe = lambda safe, _failed: waiting.append(safe)
    site.hub.safe(lambda: done.append(2), lambda: done.append(-2))
    assert done == [1]
    waiting[0]()
    assert done == [1, 2]


MANY = 2000


def turns(site: Site) -> int:
    """Let the loop run until nothing is left to do; how many turns that took."""
    count = 0
    while site.loop.soon:
        site.loop.turn()
        count += 1
    return count


def test_a_client_with_many_subscriptions_leaves_in_steps_and_its_wills_come_last(site: Site) -> None:
    client, other = site.client(), site.client()
    for number in range(MANY):
        site.subscribe(client, f"a/{number}")
    heard = site.subscribe(other, "will")
    site.hub.leave_will(client, Message("will", b"x"), 10)
    site.hub.leave(client)
    assert len(site.hub.table) > 1
    assert heard.got == []
    turns(site)
    assert (len(site.hub.table), bodies(heard), site.hub.names_size) == (1, [b"x"], other.names_size)
    assert client.number not in site.hub.clients


def test_many_last_wills_are_published_in_steps_and_in_order(site: Site) -> None:
    client, other = site.client(), site.client()
    heard = site.subscribe(other, "*")
    for number in range(MANY):
        assert site.hub.leave_will(client, Message("will", b"%d" % number), 10) is None
    assert site.hub.wills_size == 10 * MANY
    site.hub.leave(client)
    assert 0 < len(heard.got) < MANY
    turns(site)
    assert bodies(heard) == [b"%d" % number for number in range(MANY)]
    assert site.hub.wills_size == 0


def test_last_wills_of_all_clients_are_bounded_together(site: Site) -> None:
    site.hub.most_wills_size_together = 25
    one, other = site.client(), site.client()
    assert site.hub.leave_will(one, Message("w", b"1"), 10) is None
    assert site.hub.leave_will(other, Message("w", b"2"), 10) is None
    assert site.hub.leave_will(other, Message("w", b"3"), 10) is Refused.WILLS_SIZE
    assert other.counters.dropped == {"wills-size": 1}
    site.hub.withdraw_wills(one)
    assert site.hub.leave_will(other, Message("w", b"3"), 10) is None


def test_retained_messages_are_sent_in_steps_and_none_after_the_one_that_replaced_it(site: Site) -> None:
    client = site.client()
    for number in range(MANY):
        site.hub.retained.keep(Message(f"a/{number}", b"old", retain=True))
    recorder = site.subscribe(client, "a/*")
    assert 0 < len(recorder.got) < MANY
    last = f"a/{MANY - 1}"
    site.hub.publish(Message(last, b"new", retain=True), client)
    turns(site)
    assert [message.body for message in recorder.got if message.channel == last] == [b"new"]
    assert len(recorder.got) == MANY


def test_retained_messages_wait_for_a_client_that_does_not_read(site: Site) -> None:
    link = FakeLink(site.loop)
    client = site.hub.client(0, link.outbox)
    site.hub.join(client)
    for number in range(MANY):
        site.hub.retained.keep(Message(f"a/{number}", b"old", retain=True))
    recorder = Recorder(f"a/{ANY}", link, client.number)
    link.outbox.stall()
    link.outbox.put(bytes(60))
    assert site.hub.subscribe(client, "a/*", recorder) is None
    site.hub.replay(client, recorder)
    turns(site)
    assert recorder.got == []
    assert not site.hub.busy(client)  # so what it sends is handled
    link.outbox.drain()
    turns(site)
    assert len(recorder.got) == MANY
    link.outbox.stall()
    link.outbox.put(bytes(60))
    site.hub.replay(client, recorder)
    site.hub.unsubscribe(client, "a/*")
    link.outbox.drain()
    turns(site)
    assert len(recorder.got) == MANY
    assert len(site.hub.work) == 0


def test_many_watchers_are_told_in_steps_and_of_the_last_change_only(site: Site) -> None:
    site.hub.most_watchers = MANY
    watching, client = site.client(), site.client()
    watchers = [DemandRecorder("a/*") for _ in range(MANY)]
    for number, watcher in enumerate(watchers):
        assert site.hub.watch(watching, number, watcher) is None
    site.subscribe(client, "a/1")
    site.subscribe(client, "a/2")
    assert sum(len(watcher.heard) for watcher in watchers) < 2 * MANY
    assert site.hub.busy(client)
    assert not site.hub.busy(watching)
    site.hub.unsubscribe(client, "a/2")
    gone = watchers[-1]
    site.hub.unwatch(watching, MANY - 1)
    turns(site)
    assert not site.hub.busy(client)
    for watcher in watchers[:-1]:
        assert sorted(set(watcher.heard)) in ([("a/1", 1), ("a/2", 0)], [("a/1", 1), ("a/2", 0), ("a/2", 1)])
        assert watcher.heard[-1] == ("a/2", 0)
    assert len(gone.heard) <= 1


def test_watchers_are_bounded_for_each_client_and_together(site: Site) -> None:
    site.hub.most_watchers, site.hub.most_watchers_together = 2, 3
    one, other = site.client(), site.client()
    assert [site.hub.watch(one, key, DemandRecorder("a")) for key in range(3)] == [None, None, Refused.WATCHERS]
    assert [site.hub.watch(other, key, DemandRecorder("a")) for key in range(2)] == [None, Refused.WATCHERS]
    assert one.counters.dropped == {"watchers": 2}  # they share the counters
    assert site.hub.unwatch(one, 0)
    assert site.hub.watch(other, 1, DemandRecorder("a")) is None


def test_names_are_bounded_for_each_client_and_together(site: Site) -> None:
    warnings: list[str] = []
    site.hub.on_warning = lambda _, text: warnings.append(text)
    site.hub.most_names_size = 100_000
    client = site.client()
    for number in range(10):
        recorder = Recorder(f"{number}/" + "x" * 20_000, FakeLink(site.loop), client.number)
        refused = site.hub.subscribe(client, number, recorder)
        assert refused == (None if number < 2 else Refused.NAMES_SIZE)
    assert site.hub.subscribe(client, 0, Recorder("0/" + "x" * 20_000, FakeLink(site.loop), client.number)) is None
    assert site.hub.watch(client, "w", DemandRecorder("x" * 20_000)) is Refused.NAMES_SIZE
    assert site.hub.serve(client, "x" * 20_000, Answering(client)) is Refused.NAMES_SIZE
    assert "limits.names_size is reached" in warnings[0]
    site.hub.most_names_size_together = site.hub.names_total() + 30_000
    other = site.client()
    wide = Recorder("/".join("abcdefgh" * 20), FakeLink(site.loop), client.number)
    assert site.hub.subscribe(other, 0, wide) is None
    deep = Recorder("y" * 20_000, FakeLink(site.loop), client.number)
    assert site.hub.subscribe(other, 1, deep) is Refused.NAMES_SIZE
    assert "limits.names_size_total is reached" in warnings[-1]
    site.hub.unsubscribe(other, 0)
    site.hub.unsubscribe(client, 0)
    assert site.hub.subscribe(other, 1, deep) is None
    site.hub.leave(client)
    site.hub.leave(other)
    assert (site.hub.names_size, site.hub.names_total()) == (0, 0)


def test_the_names_of_queues_count(site: Site) -> None:
    before = site.hub.names_total()
    site.hub.queue("x" * 1000)
    assert site.hub.names_total() > before + 1000
    site.hub.most_names_size_together = 1000
    assert not site.hub.takes_queue("queue/another")
    assert site.hub.takes_queue("queue/" + "x" * 1000)
    site.hub.forget_queue("x" * 1000)
    assert site.hub.names_total() == before


def test_a_client_with_many_subscriptions_is_regranted_in_steps(site: Site) -> None:
    client, publisher = site.client(), site.client()
    recorders = [site.subscribe(client, f"a/{number}") for number in range(MANY)]
    rules = AccessRules([AccessRule(["subscribe"], ["b"])])
    left: list[int] = []
    site.hub.on_regranted = lambda: left.append(len(site.hub.table))
    site.hub.regrant(client, rules.grants(Identity(), "one"))
    assert site.hub.busy(client)
    assert len(site.hub.table) > 0
    assert left == []
    turns(site)
    assert len(site.hub.table) == 0
    assert left == [0]
    site.hub.regrant(client, EVERYTHING)
    turns(site)
    site.hub.publish(Message("a/7", b"x"), publisher)
    assert [len(recorder.got) for recorder in recorders[6:9]] == [0, 1, 0]


def test_every_reason_for_a_refusal_has_a_label_and_a_message() -> None:
    assert len({reason.label for reason in Refused}) == len(Refused)
    for reason in Refused:
        assert reason.label == reason.label.lower()
        assert reason.message
    assert {reason for reason in Refused if reason.temporary} == {
        Refused.TOO_MANY_QUEUES,
        Refused.QUEUE_FULL,
        Refused.QUEUES_FULL,
        Refused.DRAINING,
        Refused.UNAVAILABLE,
    }


ONLY_B = AccessRules([AccessRule(["publish", "subscribe", "call", "serve"], ["b"])]).grants(Identity(), "one")


def test_whatever_a_client_asks_for_its_rights_are_checked_counted_and_logged(site: Site) -> None:
    hub, client = site.hub, site.client()
    logged: list[tuple[str, str, Refused]] = []
    hub.on_refused = lambda _, action, channel, reason: logged.append((action, channel, reason))
    client.grants = ONLY_B
    provider = Answering(client)
    refused = [
        hub.publish(Message("a", b""), client),
        hub.clear(Message("a", b"", retain=True), client),
        hub.will_refusal(client, Message("a", b"")),
        hub.subscribe(client, 1, Recorder("a", FakeLink(site.loop), client.number)),
        hub.watch(client, 1, DemandRecorder("a")),
        hub.consume(client, "a", Worker()),
        hub.serve(client, "a", provider),
        hub.call(client, Call(Asking(client), "a", "Say"), Message("", b"")),
        hub.forbids(client, "call", "a"),
    ]
    assert refused == [Refused.FORBIDDEN] * 9
    assert client.counters.dropped == {"forbidden": 9}
    assert client.counters.denied == {"publish": 3, "subscribe": 3, "serve": 1, "call": 2}
    assert [action for action, _, _ in logged] == [*["publish"] * 3, *["subscribe"] * 3, "serve", "call", "call"]
    assert (hub.names_size, len(hub.table), len(hub.demand), hub.queues, hub.services.names()) == (0, 0, 0, {}, [])
    assert hub.serve(client, "b", provider) is None
    assert hub.call(client, Call(Asking(client), "b", "Say"), Message("", b"")) is None


def test_what_a_client_has_is_bounded_all_together(site: Site) -> None:
    hub, client, provider, worker = site.hub, site.client(), Answering(), Worker()
    provider.connection = client
    client.most_subscriptions = 4
    recorder = Recorder("a", FakeLink(site.loop), client.number)
    for _ in range(2):  # the second time nothing is added
        assert hub.subscribe(client, "a", recorder) is None
        assert hub.consume(client, "a", worker) is None
        assert hub.serve(client, "a", provider) is None
    assert hub.watch(client, "a", DemandRecorder("a")) is None
    assert hub.subscribe(client, "b", Recorder("b", FakeLink(site.loop), client.number)) is Refused.LIMIT
    assert hub.consume(client, "b", Worker()) is Refused.LIMIT
    assert hub.serve(client, "b", provider) is Refused.LIMIT
    assert hub.watch(client, "b", DemandRecorder("b")) is Refused.LIMIT
    assert hub.consume(client, "b", Worker(), replacing=worker) is None
    hub.stop_consuming(client, worker)
    assert hub.unserve(client, "a")
    assert not hub.unserve(client, "a")
    assert hub.subscribe(client, "b", Recorder("b", FakeLink(site.loop), client.number)) is None


def test_calls_in_flight_are_bounded(site: Site) -> None:
    client, provider, caller = site.client(), Answering(), Asking()
    caller.connection = client
    client.most_calls = 1
    site.hub.services.serve("echo", provider)
    assert site.hub.call(client, Call(caller, "echo", "Say"), Message("", b"")) is None
    late = Call(caller, "echo", "Say")
    assert site.hub.call(client, late, Message("", b"")) is Refused.LIMIT
    assert late.ended
    site.hub.services.reply(provider.calls[0], Message("", b"!"))
    assert site.hub.call(client, Call(caller, "echo", "Say"), Message("", b"")) is None


def test_a_consumer_gets_nothing_before_it_begins(site: Site) -> None:
    client, worker = site.client(), Worker(10)
    site.hub.publish(Message("queue/jobs", b"1"), client)
    assert site.hub.consume(client, "jobs", worker, begin=False) is None
    site.hub.publish(Message("queue/jobs", b"2"), client)
    assert worker.bodies() == []
    site.hub.begin_consuming(client, worker)
    site.hub.begin_consuming(client, worker)
    assert worker.bodies() == [b"1", b"2"]


def test_a_service_is_suspended_while_its_client_may_not_offer_it(site: Site) -> None:
    client, provider, caller = site.client(), Answering(), Asking()
    provider.connection = client
    hub = site.hub
    assert hub.serve(client, "a", provider) is None
    assert hub.serve(client, "b", provider) is None
    hub.services.start(Call(caller, "a", "First"), Message("", b""))
    hub.regrant(client, ONLY_B)
    assert (hub.services.offered("a"), hub.services.offered("b")) == (False, True)
    hub.services.start(Call(caller, "a", "Second"), Message("", b""))
    assert caller.heard == [404]
    assert hub.services.reply(provider.calls[0], Message("", b"!"))
    hub.regrant(client, EVERYTHING)
    hub.regrant(client, EVERYTHING)
    hub.services.start(Call(caller, "a", "Third"), Message("", b""))
    assert [call.method for call in provider.calls] == ["First", "Third"]
    hub.regrant(client, ONLY_B)
    assert hub.unserve(client, "a")
    hub.regrant(client, EVERYTHING)
    assert not hub.services.offered("a")
    assert client.revoked == set()


def test_a_client_with_many_services_and_calls_leaves_in_steps_and_is_asked_nothing_meanwhile(site: Site) -> None:
    client, other, provider, caller = site.client(), site.client(), Answering(), Asking()
    provider.connection = client
    own, far = Asking(), Answering()
    own.connection = client
    hub = site.hub
    hub.services.serve("far", far)
    for number in range(MANY):
        assert hub.serve(client, f"{number}", provider) is None
        assert hub.call(other, Call(caller, f"{number}", "Say"), Message("", b"")) is None
        assert hub.call(client, Call(own, "far", "Say"), Message("", b"")) is None
    hub.leave(client)
    assert len(hub.services.names()) > 1
    last = hub.services.names()[-1]
    assert not hub.services.offered(last)
    assert hub.call(other, Call(caller, last, "Late"), Message("", b"")) is None
    assert caller.heard == [404]
    turns(site)
    assert (hub.services.names(), hub.services.under_way(), hub.names_size) == (["far"], 0, 0)
    assert caller.heard == [404, *[503] * MANY]
    assert far.asked[MANY:] == ["caller-gone"] * MANY
    assert own.heard == []


def test_a_silenced_client_serves_nothing_but_may_wait_for_its_calls(site: Site) -> None:
    client, provider, own, far = site.client(), Answering(), Asking(), Answering()
    provider.connection = own.connection = client
    hub = site.hub
    hub.services.serve("far", far)
    assert hub.serve(client, "near", provider) is None
    recorder = site.subscribe(client, "a")
    assert hub.call(client, Call(own, "far", "Say"), Message("", b"")) is None
    hub.silence(client, topics=False, calls=False)
    assert hub.services.names() == ["far"]
    hub.services.reply(far.calls[0], Message("", b"!"))
    hub.publish(Message("a", b"x"), client)
    assert (own.heard, bodies(recorder)) == ([(b"!", True)], [b"x"])
