"""``POST /publish``: parts of batches, each applied once, whoever is killed in between."""

import base64
import contextlib
import http.client
import json
import signal
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any, Literal

import pyarrow as pa
import pytest

from faults.nursery import Hubs
from polywire import journal
from polywire.hub.client import Client, Counters
from polywire.hub.message import Message
from polywire.hub.outbox import Flusher, Nowhere, Outbox, Timer
from polywire.hub.recorder import Recorder
from polywire.journal.committer import BatchMaker
from polywire.journal.format import POSTED_SCHEMA
from polywire.journal.log import Log
from polywire.registry import HTTP_CODE, by_name
from polywire.server.http import Refused
from polywire.server.ingest import decode
from polywire.server.restoration import Part, note
from tests.faults.kept_session import KeptSession, Link
from tests.hub_process import HubProcess, running_hub
from tests.security.hashing import add_user
from tests.server.journal_server import Pages, serving

pytestmark = pytest.mark.timeout(120)


def stream(*rows: dict[str, Any], compression: Literal["lz4", "zstd"] | None = None, times: int = 1) -> bytes:
    table = pa.Table.from_pylist(
        [{"headers": None, "content_type": None, "retain": False, "queue": False} | row for row in rows], POSTED_SCHEMA
    )
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, POSTED_SCHEMA, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        for _ in range(times):
            writer.write_table(table)
    return sink.getvalue().to_pybytes()


def post(
    hub: HubProcess | Pages, body: bytes, *, query: str = "q", batch: str = "0", part: str = "0", **headers: str
) -> tuple[int, str]:
    port = hub.port if isinstance(hub, Pages) else hub.port("http")
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    names = {"polywire-query": query, "polywire-batch": batch, "polywire-part": part, **headers}
    try:
        connection.request("POST", "/publish", body, names)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def queued(hub: HubProcess, queue: str) -> float:
    return hub.metric(f'polywire_deepest_queue_messages{{queue="{queue}"}}')


def test_a_part_is_applied_once_also_by_a_hub_that_was_killed(tmp_path: Path) -> None:
    jobs = stream({"channel": "jobs", "body": b"1", "queue": True}, {"channel": "queue/jobs", "body": b"2"})
    with running_hub(journal=tmp_path) as hub:
        assert post(hub, jobs) == (200, '{"applied": true}\n')
        assert post(hub, jobs) == (200, '{"applied": false}\n')
        assert post(hub, jobs, part="1") == (200, '{"applied": true}\n')
        assert post(hub, jobs, query="other") == (200, '{"applied": true}\n')
        assert queued(hub, "jobs") == 6
        hub.stop(signal.SIGKILL)
    with running_hub(journal=tmp_path) as hub:
        assert queued(hub, "jobs") == 6
        for part in ("0", "1"):
            assert post(hub, jobs, part=part) == (200, '{"applied": false}\n')
        assert post(hub, jobs, batch="1") == (200, '{"applied": true}\n')
        assert queued(hub, "jobs") == 8


def test_messages_keep_what_they_have(tmp_path: Path) -> None:
    row = {"channel": "kept", "body": b"x", "retain": True, "content_type": "text/plain", "headers": '{"a":1}'}
    with running_hub(journal=tmp_path) as hub:
        assert post(hub, stream(row))[0] == 200
        assert hub.metric("polywire_retained_messages") == 2  # and the number of clients
        assert hub.metric('polywire_messages_total{direction="in",protocol="http"}') == 1


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"query": ""}, "polywire-query"),
        ({"batch": "-1"}, "polywire-batch"),
        ({"part": "x"}, "polywire-part"),
    ],
)
def test_a_part_without_a_name_is_refused(tmp_path: Path, change: dict[str, str], words: str) -> None:
    with running_hub(journal=tmp_path) as hub:
        status, answer = post(hub, stream(), **change)
        assert status == 400
        assert words in answer


def test_what_is_no_part_is_refused_and_nothing_of_it_is_taken(tmp_path: Path) -> None:
    with running_hub(journal=tmp_path) as hub:
        assert post(hub, b"nonsense")[0] == 400
        assert post(hub, stream({"channel": "queue/q", "body": b"1"}, {"channel": "", "body": b"2"}))[0] == 400
        assert post(hub, stream({"channel": "queue/q", "body": b"1"}, {"channel": "$/x", "body": b"2"}))[0] == 400
        assert post(hub, stream({"channel": "a", "body": b"", "headers": "[]"}))[0] == 400
        for wrong in ("[" * 100_000, '{"a": ' + "[" * 50_000, '{"a": null}', '{"a": {"date": "x"}}', "nonsense"):
            assert post(hub, stream({"channel": "a", "body": b"", "headers": wrong}))[0] in {400, 413}
        assert hub.metric("polywire_queues") == 0
        assert not any("Traceback" in line for line in hub.errors)
        assert post(hub, stream({"channel": "queue/q", "body": b"1"})) == (200, '{"applied": true}\n')


def test_a_part_that_is_too_large_is_refused(tmp_path: Path) -> None:
    with running_hub("limits.message_size=1 MiB", journal=tmp_path) as hub:
        try:
            status = post(hub, bytes(12 << 20))[0]
        except (BrokenPipeError, ConnectionResetError):
            status = 413
        assert status == 413


def test_without_a_journal_there_is_nothing_to_post_to() -> None:
    with running_hub() as hub:
        assert post(hub, stream())[0] == 404


def test_who_publishes_logs_in_and_may_do_what_rules_allow(tmp_path: Path) -> None:
    users = tmp_path / "users"
    add_user(users, "ann", "secret")
    config = tmp_path / "polywire.toml"
    config.write_text(
        f"""
[auth]
users = {json.dumps(str(users))}

[[access]]
user = "ann"
actions = ["publish"]
channels = ["queue/mine", "mine/**"]

[listen]
http = "http://127.0.0.1:0"
umq = "off"
mqtt_ws = "off"
sabc_ws = "off"
micromsg = "off"
fmqp = "off"
mqtt = "off"
sabc = "off"
"""
    )
    login = {"authorization": "Basic YW5uOnNlY3JldA=="}
    with running_hub(config=config, journal=tmp_path / "journal") as hub:
        mine, others = {"channel": "queue/mine", "body": b"1"}, {"channel": "other", "body": b"2"}
        assert post(hub, stream(mine))[0] == 401
        assert post(hub, stream(mine, others), **login) == (403, "other: forbidden\n")
        assert post(hub, stream(mine), **login) == (200, '{"applied": true}\n')
        hub.login = "ann:secret"
        assert queued(hub, "mine") == 1


def test_a_part_that_grows_when_it_is_decompressed_is_refused_before_it_does(tmp_path: Path) -> None:
    bomb = stream({"channel": "a", "body": bytes(200 << 20)}, compression="zstd")
    assert len(bomb) < 100_000
    with running_hub(journal=tmp_path) as hub:
        before = memory(hub)
        status, answer = post(hub, bomb)
        assert (status, "uncompressed" in answer) == (413, True)
        assert memory(hub) - before < 50_000
        assert hub.metric('polywire_faults_total{protocol="http",reason="part-size"}') == 1
        small = stream({"channel": "queue/q", "body": bytes(1 << 20)}, compression="lz4")
        assert post(hub, small) == (200, '{"applied": true}\n')


def memory(hub: HubProcess) -> int:
    """The most resident memory the hub ever had, in KiB."""
    return int(Path(f"/proc/{hub.process.pid}/status").read_text(encoding="utf-8").split("VmHWM:")[1].split()[0])


def test_rows_batches_and_messages_of_a_part_are_bounded(tmp_path: Path) -> None:
    row = {"channel": "a", "body": b""}
    with running_hub("limits.message_size=1 MiB", "limits.header_size=1000", journal=tmp_path) as hub:
        assert "rows" in post(hub, stream(*[row] * 1000, compression="zstd", times=101))[1]
        assert "record batches" in post(hub, stream(row, compression="zstd", times=1001))[1]
        status, answer = post(hub, stream({"channel": "a", "body": bytes(2 << 20)}))
        assert (status, "too large" in answer) == (413, True)
        status, answer = post(hub, stream(row | {"headers": json.dumps({"a": "x" * 1000})}))
        assert (status, "headers" in answer) == (413, True)


@pytest.mark.parametrize("seed", range(8))
def test_broken_metadata_is_refused(seed: int) -> None:
    """Any byte of a stream may be wrong: it is refused, or it is other data, and nothing else happens."""
    good = stream({"channel": "a", "body": b"x", "headers": "{}"}, compression="zstd")
    random = Random(seed)  # noqa: S311 - no secret
    for _ in range(400):
        data = bytearray(good)
        for _ in range(random.randint(1, 4)):
            data[random.randrange(len(data))] = random.choice((0, 1, 0x7F, 0x80, 0xFF, random.randrange(256)))
        with contextlib.suppress(Refused):
            decode(bytes(data), 1 << 20, 1 << 20, 1000, 0, 0)


def test_a_large_part_is_published_whole_and_holds_up_nobody(tmp_path: Path) -> None:
    rows = [{"channel": f"many/{number % 100}", "body": b"%d" % number} for number in range(100_000)]
    part = stream(*rows)
    with running_hub(journal=tmp_path) as hub:
        slowest = 0.0
        with ThreadPoolExecutor(1) as pool:
            posted = pool.submit(post, hub, part)
            while not posted.done():
                started = time.monotonic()
                assert hub.get("/healthz")[0] == 200
                slowest = max(slowest, time.monotonic() - started)
            assert posted.result() == (200, '{"applied": true}\n')
        assert slowest < 0.5
        hub.stop(signal.SIGKILL)
    found = [batch for batch in journal.open(tmp_path).scan(["offset", "body"], kinds="publish") if batch.num_rows > 99]
    assert [batch.num_rows for batch in found] == [100_000]  # one batch, so all of it or nothing is safe
    assert found[0].column("body").to_pylist() == [b"%d" % number for number in range(100_000)]


def subscribed(hub: HubProcess, *sessions: KeptSession) -> None:
    for session in sessions:
        link = Link(hub.addresses["mqtt"], session)
        link.subscribe("kept/#", 1)
        link.leave()


@pytest.mark.parametrize("attempt", range(3))
def test_sessions_that_are_kept_lose_nothing_of_a_part_that_was_answered(tmp_path: Path, attempt: int) -> None:
    """The hub is killed right after its answer. One client is away, another is connected and acknowledges nothing."""
    away, there = KeptSession("away"), KeptSession("there")
    bodies = [b"%d" % number for number in range(20 + attempt)]
    part = stream(*({"channel": "kept/a", "body": body} for body in bodies))
    with running_hub(journal=tmp_path) as hub:
        subscribed(hub, away, there)
        link = Link(hub.addresses["mqtt"], there)
        assert post(hub, part) == (200, '{"applied": true}\n')
        hub.process.kill()
        hub.process.wait(20)
        link.close()
    with running_hub(journal=tmp_path) as hub:
        assert post(hub, part) == (200, '{"applied": false}\n')
        for session in (away, there):
            link = Link(hub.addresses["mqtt"], session)
            link.wait_for(len(bodies))
            link.publish("elsewhere", b"", 1)  # what came after it would have come by now
            link.leave()
            assert session.got == bodies


def test_a_part_that_was_recorded_and_not_delivered_is_delivered_at_the_next_start(tmp_path: Path) -> None:
    """What a crash between the two steps leaves: all messages and the first note, and some of the deliveries."""
    sessions = [KeptSession("one"), KeptSession("two")]
    with running_hub(journal=tmp_path) as hub:
        subscribed(hub, *sessions)
        assert hub.stop() == 0
    with Log(tmp_path, node=socket.gethostname()) as log:
        recorder = Recorder(log.next_offset, time.time_ns, lambda: None)
        client = Client(1, HTTP_CODE, Outbox(Nowhere(), Flusher(lambda _: None, no_timer)), Counters("http"))
        messages = [Message("kept/a", b"%d" % number, time=time.time_ns()) for number in range(5)]
        for message in messages:
            message.offset = recorder.published(message, client, 0, heard=True)
        note(recorder, Part("q", 3, 0), "", rows=5)
        for message in messages[:2]:
            recorder.stored(by_name("mqtt").code, "one", "kept/a", message.offset, b"", 1, 0, retain=False)
        for columns in recorder.take():
            log.append(BatchMaker(log.node).make(columns), state=True)
    for _ in range(2):  # the second start has nothing left to do
        with running_hub(journal=tmp_path) as hub:
            assert post(hub, stream(), batch="3") == (200, '{"applied": false}\n')
            hub.stop(signal.SIGKILL)
    with running_hub(journal=tmp_path) as hub:
        for session in sessions:
            link = Link(hub.addresses["mqtt"], session)
            link.wait_for(5)
            link.publish("elsewhere", b"", 1)
            link.leave()
            assert session.got == [b"%d" % number for number in range(5)]


def no_timer(_: float, __: Callable[[], None]) -> Timer:
    raise AssertionError("nothing is written here")


def users_of(folder: Path) -> str:
    users = folder / "users"
    for name in ("ann", "bob"):
        add_user(users, name, "secret")
    return f"auth.users={users}"


def basic(user: str) -> dict[str, str]:
    return {"authorization": "Basic " + base64.b64encode(f"{user}:secret".encode()).decode()}


def test_a_query_belongs_to_the_user_who_first_used_it(tmp_path: Path) -> None:
    users, ann, bob = users_of(tmp_path), basic("ann"), basic("bob")
    folder = tmp_path / "journal"
    part = stream({"channel": "queue/q", "body": b"1"})
    with running_hub(users, journal=folder) as hub:
        assert post(hub, part, **ann) == (200, '{"applied": true}\n')
        status, answer = post(hub, stream(), batch="999999999", **bob)
        assert (status, "belongs to another user" in answer) == (403, True)
        assert post(hub, part, **bob)[0] == 403
        assert post(hub, part, batch="1", **ann) == (200, '{"applied": true}\n')
        assert post(hub, part, query="other", **bob) == (200, '{"applied": true}\n')
        hub.stop(signal.SIGKILL)
    with running_hub(users, journal=folder) as hub:
        assert post(hub, stream(), batch="999999999", **bob)[0] == 403
        assert post(hub, part, batch="1", **ann) == (200, '{"applied": false}\n')
        assert post(hub, part, batch="2", **ann) == (200, '{"applied": true}\n')
        assert post(hub, part, query="other", **ann)[0] == 403


def test_a_query_of_a_journal_that_knew_no_owners_is_claimed(tmp_path: Path) -> None:
    users, folder = users_of(tmp_path), tmp_path / "journal"
    with Log(folder, node="here") as log:
        recorder = Recorder(0, time.time_ns, lambda: None)
        recorder.applied("sink:q", "4:0")
        for columns in recorder.take():
            log.append(BatchMaker(log.node).make(columns), state=True)
    with running_hub(users, journal=folder) as hub:
        assert post(hub, stream(), batch="4", **basic("bob")) == (200, '{"applied": false}\n')
        assert post(hub, stream(), batch="5", **basic("ann")) == (200, '{"applied": true}\n')
        assert post(hub, stream(), batch="6", **basic("bob"))[0] == 403


def test_a_part_that_waited_for_a_failing_disk_is_published_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rows are written when the disk works again, though the client was told 503 and sends it again."""
    failing = threading.Event()
    write = Log.write

    def fails(self: Log, *arguments: Any, **named: Any) -> None:
        if failing.is_set():
            raise OSError(28, "no space left")
        write(self, *arguments, **named)

    monkeypatch.setattr(Log, "write", fails)
    part = stream({"channel": "queue/jobs", "body": b"1"}, {"channel": "jobs", "body": b"2"})
    with serving(tmp_path, journaled=True) as pages:
        assert post(pages, stream(), query="other")[0] == 200  # nothing of the start waits for the disk
        failing.set()
        assert post(pages, part)[0] == 503
        assert post(pages, part)[0] == 503
        failing.clear()
        answer = post(pages, part)
        end = time.monotonic() + 20
        while answer[0] == 503 and time.monotonic() < end:
            answer = post(pages, part)
        assert answer == (200, '{"applied": false}\n')
        assert post(pages, part, part="1") == (200, '{"applied": true}\n')
    rows = [row for batch in journal.open(tmp_path).scan(kinds=["publish", "enqueue"]) for row in batch.to_pylist()]
    assert [row["body"] for row in rows] == [b"1", b"2"] * 2


def test_a_queue_takes_no_more_of_a_part_than_it_has_room_for(tmp_path: Path) -> None:
    jobs = stream(*[{"channel": "queue/q", "body": b"1"}] * 6)
    with running_hub("limits.queue_messages=10", journal=tmp_path) as hub:
        assert post(hub, jobs) == (200, '{"applied": true}\n')
        assert post(hub, jobs, part="1") == (503, "queue/q: queue-full\n")
        assert queued(hub, "q") == 6


def test_a_client_that_hangs_up_in_the_middle_of_a_body_is_no_error_of_the_hub(tmp_path: Path) -> None:
    head = "POST /publish HTTP/1.1\r\nHost: localhost\r\npolywire-query: q\r\npolywire-batch: 0\r\npolywire-part: 0\r\n"
    counted = 'polywire_faults_total{protocol="http",reason="bad-request"}'
    with running_hub(journal=tmp_path) as hub:
        for number, how in enumerate(("Content-Length: 100", "Transfer-Encoding: chunked"), 1):
            with socket.create_connection(("127.0.0.1", hub.port("http")), timeout=20) as connection:
                connection.sendall(f"{head}{how}\r\nExpect: 100-continue\r\n\r\n".encode())
                assert connection.recv(100).startswith(b"HTTP/1.1 100")  # the body is waited for
                connection.sendall(b"5\r\nhello\r\n")
            end = time.monotonic() + 20
            while f"{counted} {number}.0" not in hub.get("/metrics")[1]:
                assert time.monotonic() < end, hub.errors
        assert not [line for line in hub.errors if "Traceback" in line or " ERROR " in line]


@pytest.mark.parametrize("page", ["/publish", "/nowhere"])
def test_a_header_that_is_no_utf_8_is_refused(tmp_path: Path, page: str) -> None:
    with running_hub(journal=tmp_path) as hub:
        with socket.create_connection(("127.0.0.1", hub.port("http")), timeout=20) as connection:
            connection.sendall(f"POST {page} HTTP/1.1\r\nHost: localhost\r\nExpect: ".encode() + b"\xd9\r\n\r\n")
            assert connection.recv(100).startswith(b"HTTP/1.1 400 ")
        assert not [line for line in hub.errors if "Traceback" in line or " ERROR " in line]


def test_a_part_that_is_delivered_while_the_journal_is_kept_small_reaches_sessions_whole(tmp_path: Path) -> None:
    """Deliveries stand for messages that are far before them, and must not be deleted in between."""
    small = ("journal.segment_size=16 KiB", "journal.keep_size=64 KiB", "limits.offline_messages=1000000")
    session, count = KeptSession("me"), 30_000
    with Hubs(tmp_path) as hubs:
        hub = hubs.start(tmp_path / "journal", *small)
        link = Link(hub.addresses["mqtt"], session)
        link.subscribe("away/#", 1)
        link.leave()
        hubs.slow_down(0.05)  # housekeeping has time for snapshots while the part is delivered
        assert post(hub, stream(*({"channel": "away/x", "body": b"%d" % number} for number in range(count))))[0] == 200
        hubs.slow_down(0)
        hub.stop(signal.SIGKILL)
        hub = hubs.start(tmp_path / "journal", *small)
        assert post(hub, stream({"channel": "away/x", "body": b"end"}), batch="1")[0] == 200
        link = Link(hub.addresses["mqtt"], session)
        while b"end" not in session.got[-1:]:
            link.take()
        link.close()
        assert session.got == [*(b"%d" % number for number in range(count)), b"end"]
        assert hub.stop() == 0
