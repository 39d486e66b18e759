"""Calls between clients of different nodes."""

from polywire.hub.message import FailedAttachment, Message
from polywire.hub.recorder import Recorder
from polywire.hub.services import END, Call, Provider, service_error
from polywire.journal.kinds import REPLY, REQUEST
from tests.fabric.nodes import Engine, Site, site_with
from tests.hub.test_services import Answering, Asking


def serve(site: Site, service: str = "s") -> Answering:
    client = site.client()
    provider = Answering()
    provider.connection = client
    assert site.hub.serve(client, service, provider) is None
    site.engine.turn()
    return provider


def call(site: Site, service: str = "s", *, streamed: bool = False, last: bool = True) -> tuple[Asking, Call]:
    client = site.client()
    caller = Asking()
    caller.connection = client
    made = Call(caller, service, "m", streamed=streamed)
    assert site.hub.call(client, made, Message("s/m", b"?"), last=last) is None
    site.engine.turn()
    return caller, made


def test_a_call_goes_to_a_provider_on_another_node_and_its_reply_comes_back() -> None:
    engine, (a, b) = site_with("a", "b")
    provider = serve(b)
    caller, _ = call(a)
    assert provider.asked == [("m", b"?", True)]
    b.hub.services.reply(provider.calls[0], Message("", b"!", headers=(("n", 1),)))
    engine.turn()
    assert caller.heard == [(b"!", True)]
    assert a.hub.services.under_way() == b.hub.services.under_way() == 0


def test_providers_here_come_first_and_other_nodes_take_turns() -> None:
    _, (a, b, c) = site_with("a", "b", "c")
    here, there, far = serve(a), serve(b), serve(c)
    call(a)
    call(a)
    assert [len(each.asked) for each in (here, there, far)] == [2, 0, 0]
    a.hub.unserve(next(each for each in a.hub.clients.values() if a.hub.services.offers(each, "s")), "s")
    for _ in range(4):
        call(a)
    assert [len(each.asked) for each in (here, there, far)] == [2, 2, 2]


def test_a_stream_of_requests_and_replies_crosses() -> None:
    engine, (a, b) = site_with("a", "b")
    provider = serve(b)
    caller, made = call(a, streamed=True, last=False)
    a.hub.services.more(made, Message("", b"more"), last=True)
    engine.turn()
    assert [asked for asked in provider.asked if isinstance(asked, tuple)] == [("m", b"?", False), ("m", b"more", True)]
    b.hub.services.reply(provider.calls[0], Message("", b"1"), last=False)
    b.hub.services.reply(provider.calls[0], END, last=True)
    engine.turn()
    assert caller.heard == [(b"1", False), (b"", True)]


def test_errors_of_the_service_come_back_as_they_are() -> None:
    engine, (a, b) = site_with("a", "b")
    provider = serve(b)
    caller, _ = call(a)
    b.hub.services.fail(provider.calls[0], service_error(418, "teapot", "I am one", 7))
    engine.turn()
    assert caller.heard == [418]


def test_a_body_that_failed_is_told_to_the_caller() -> None:
    engine, (a, b) = site_with("a", "b")
    provider = serve(b)
    caller, _ = call(a)
    failed = Message("", b"", attachments=(FailedAttachment("gone"),), body_failed=True)
    b.hub.services.reply(provider.calls[0], failed)
    engine.turn()
    assert caller.heard == [502]


def test_a_call_that_is_cancelled_is_cancelled_on_the_other_node() -> None:
    engine, (a, b) = site_with("a", "b")
    provider = serve(b)
    caller, _ = call(a)
    assert caller.connection is not None
    a.hub.leave(caller.connection)
    engine.turn()
    assert provider.asked[-1] == "caller-gone"


def test_a_provider_that_leaves_fails_the_calls_of_other_nodes() -> None:
    engine, (a, b) = site_with("a", "b")
    provider = serve(b)
    caller, _ = call(a)
    assert provider.connection is not None
    b.hub.leave(provider.connection)
    engine.turn()
    assert caller.heard == [503]
    again, _ = call(a)
    assert again.heard == [404]


def test_when_a_node_is_lost_its_open_calls_fail_at_once() -> None:
    engine, (a, b) = site_with("a", "b")
    provider = serve(b)
    caller, _ = call(a)
    there, _ = call(b)
    b.member.vanish("it was killed")
    assert caller.heard == [503]
    assert a.hub.services.under_way() == 0
    assert there.heard == []
    b.fabric.left("a", "it is out of reach")
    engine.turn()
    assert "caller-gone" in provider.asked


def test_a_call_has_rows_on_its_callers_node_only() -> None:
    engine, (a, b) = site_with("a", "b")
    recorders = []
    for site in (a, b):
        site.hub.recorder = site.hub.services.recorder = Recorder(0, site.hub.clock, lambda: None)
        recorders.append(site.hub.recorder)
    provider = serve(b)
    call(a)
    b.hub.services.reply(provider.calls[0], Message("", b"!"))
    engine.turn()
    kinds = [[kind for columns in each.take() for kind in columns.kinds.getvalue()] for each in recorders]
    assert [kind for kind in kinds[0] if kind in {REQUEST, REPLY}] == [REQUEST, REPLY]
    assert not {REQUEST, REPLY} & set(kinds[1])


def test_a_node_that_joins_learns_what_is_offered() -> None:
    engine = Engine()
    b = Site(engine, "b").start()
    provider = serve(b)
    a = Site(engine, "a").start()
    engine.pass_time(1)
    call(a)
    assert len(provider.asked) == 1


def test_subscribers_of_a_services_topic_are_called_where_nobody_offers_it_otherwise() -> None:
    engine, (a, b) = site_with("a", "b")
    asked: list[str] = []
    topical = Answering()

    def elsewhere(service: str) -> Provider:
        asked.append(service)
        return topical

    b.hub.services.elsewhere = elsewhere
    b.subscribe("/s")
    call(a)
    assert (asked, len(topical.asked)) == (["s"], 1)
    native = serve(b)
    call(a)
    assert (len(topical.asked), len(native.asked)) == (1, 1)
    engine.turn()
    assert a.hub.services.offered("s")
