"""Calls over service topics as a hub records them: each once in ``calls``, whichever way it took."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from polywire.hub.access import AccessRule, AccessRules
from polywire.hub.message import Message
from polywire.hub.services import Call, CallError
from polywire.pipeline.rpc import RPC
from polywire.pipeline.tables import TABLES
from polywire.pipeline.tables.calls import COLUMNS, PART_KINDS, USUAL, parts
from polywire.pipeline.tables.matches import CLOCK, STORED, match, nothing
from polywire.protocols.mqttrpc.frames import ErrorData, Request, Response
from tests.journal.recording import Recording
from tests.pipeline.tables.made_traffic import made
from tests.pipeline.tables.reference import tables
from tests.pipeline.tables.rows import START, Row, arrow, batched, collected, numbered, ordered, row
from tests.pipeline.tables.test_batch_and_streaming import to_the_end
from tests.pipeline.traffic import write_journal
from tests.protocols.mqttrpc.parties import BridgedSite, MqttClient, SessionCaller, SessionProvider

pytestmark = pytest.mark.timeout(900)


def answered(request: Request) -> list[Any]:
    """What a service on MQTT answers."""
    number = request.correlation_id
    if request.type_url == "Fail":
        return [Response(number, "", None, ErrorData(409, "taken", "Taken."), eos=True)]
    if request.type_url == "List":
        return [Response(number, "", b"one"), Response(number, "", b"two", eos=True)]
    return [Response(number, "", b"answer", eos=request.type_url != "Plain")]


def recorded() -> list[dict[str, Any]]:
    """A hub's rows: calls between MQTT clients, from MQTT to UMQ, from UMQ to MQTT, and refused ones."""
    everybody = AccessRule(["publish", "subscribe", "serve"], ["**"])
    site = BridgedSite(rules=AccessRules([everybody, AccessRule(["call"], ["**"], user="ann")]))
    recording = Recording()
    site.hub.recorder = site.hub.services.recorder = recording.recorder
    asking, serving = MqttClient(site, "/meter", user="ann"), MqttClient(site, "/meter", serving=answered, user="ann")
    asking.client.name, serving.client.name = "asking", "serving"
    for number, method in enumerate(("Read", "Fail", "List", "Plain"), 1):
        asking.publish("/meter", Request(number, method, b"?", eos=True))
    asking.publish("/meter", Request(1, "Read", b"?", eos=True))  # repeated
    SessionProvider(site, "billing", lambda method, _: CallError(500, "failed", "no") if method == "Fail" else b"paid")
    silent = SessionProvider(site, "silent")
    for number, method in enumerate(("Pay", "Fail"), 1):
        asking.publish("/billing", Request(number, method, b"5 EUR", eos=True))
    asking.publish("/silent", Request(9, "Pay", b"?", eos=True))
    assert len(silent.calls) == 1  # and the hub is killed
    stranger = MqttClient(site)
    stranger.publish("/billing", Request(77, "Pay", b"5 EUR", eos=True))
    caller = site.connect("umq", lambda *_: None).client
    call = Call(SessionCaller(site), "meter", "Read")
    site.hub.call(caller, call, Message("", b"??"))
    assert call.ended
    return recording.rows()


def spaced(rows: list[dict[str, Any]]) -> Iterator[Row]:
    """The rows, each some milliseconds behind the one before it, and one long after all of them."""
    for number, one in enumerate(rows):
        yield one | {"ts": START + timedelta(milliseconds=10 * number), "node": "n1"}
    yield rows[0] | {"ts": START + timedelta(hours=1), "node": "n1", "offset": len(rows), "channel": "a", "body": b""}


def test_a_call_is_in_the_table_once_whichever_way_it_took(spark: SparkSession, tmp_path: Path) -> None:
    rows = list(spaced(recorded()))
    table = TABLES["calls"]
    found = collected(table.build(batched(spark, tmp_path / "rows", [rows])))
    assert found == ordered(tables(rows)["calls"])
    names = ("service", "method", "protocol", "client", "outcome", "code", "request_size", "reply_size")
    assert {tuple(one[name] for name in names) for one in found} == {
        ("billing", "Fail", "mqtt", "asking", "error", 500, 5, 0),
        ("billing", "Pay", "mqtt", "asking", "ok", None, 5, 4),
        ("billing", "Pay", "mqtt", None, "error", 401, 5, 0),
        ("meter", "Fail", "mqtt", "asking", "error", 409, 1, 0),
        ("meter", "List", "mqtt", "asking", "ok", None, 1, 3),
        ("meter", "Plain", "mqtt", "asking", "ok", None, 1, 6),
        ("meter", "Read", "mqtt", "asking", "ok", None, 1, 6),
        ("meter", "Read", "umq", None, "ok", None, 2, 6),
        ("silent", "Pay", "mqtt", "asking", "timeout", None, 1, 0),
    }
    assert len(found) == 9

    # As the runner reads: the source decodes, and no body comes further than that.
    write_journal(tmp_path / "journal", rows, batch=7)
    options = {"columns": ",".join(COLUMNS), "kinds": ",".join(PART_KINDS), "ticks": "10"}
    again = spark.read.format("polywire").options(**options).load(str(tmp_path / "journal"))
    assert collected(table.rows_at_rest(again, 4e9)) == found
    options["maxRowsPerTrigger"] = "9"
    stream = spark.readStream.format("polywire").options(**options).load(str(tmp_path / "journal"))
    streamed: list[dict[str, Any]] = []

    def take(batch: DataFrame, _: int) -> None:
        streamed.extend(collected(batch))

    writer = table.build(stream).writeStream.foreachBatch(take)
    to_the_end(writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True))
    assert ordered(streamed) == found
    only = spark.read.format("polywire").option("kinds", RPC).load(str(tmp_path / "journal"))
    kinds = {one["kind"] for one in collected(only, "kind")}
    assert kinds == {"request", "reply", "error"}
    assert pa.array([one["body"] for one in collected(only.filter("kind = 'request'"), "body")]).null_count == 0


def test_at_rest_the_time_says_which_calls_have_timed_out(spark: SparkSession, tmp_path: Path) -> None:
    asked: dict[str, Any] = {"channel": "billing/charge", "flags": 16, "kind": "request"}
    rows = numbered([row(at=at, **asked, correlation=str(at)) for at in (0, 5)])
    at_rest = batched(spark, tmp_path / "rows", [rows])
    table, begun = TABLES["calls"], START.timestamp()
    assert collected(table.rows_at_rest(at_rest, begun + 69)) == []
    assert collected(table.rows_at_rest(at_rest, begun + 70), "correlation", "outcome") == [
        {"correlation": "0", "outcome": "timeout"}
    ]
    assert len(collected(table.rows_at_rest(at_rest, begun + 75))) == 2


@pytest.mark.parametrize("seed", [31, 34, 35])
def test_a_reply_that_a_service_on_mqtt_gave_through_the_hub_ends_its_call(seed: int) -> None:
    rows = made(seed, nodes=("n1",), steps=240)
    (batch,) = arrow(rows).combine_chunks().to_batches()
    own = pa.Table.from_batches([parts(batch)]).select(STORED.names)
    clock = {"role": CLOCK, "at": round((START + timedelta(days=1)).timestamp() * 1e6)}
    later = pa.Table.from_pylist([dict.fromkeys(STORED.names) | clock], STORED)
    pairs, waiting = match(nothing(), own, *USUAL.times)
    rest, _ = match(waiting, later, *USUAL.times)
    found = [(one["correlation"], one["offset"]) for one in (*pairs.to_pylist(), *rest.to_pylist())]
    wanted = tables(rows, START + timedelta(days=1))["calls"]
    assert sorted(found) == sorted((one["correlation"], one["offset"]) for one in wanted)
