"""``POST /publish``: parts of batches, each applied once, whoever is killed in between."""

import http.client
import json
import signal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from polywire.security.userfile import make_user, put_user
from polywire.server.ingest import SCHEMA
from tests.hub_process import HubProcess, running_hub

pytestmark = pytest.mark.timeout(120)


def stream(*rows: dict[str, Any]) -> bytes:
    table = pa.Table.from_pylist(
        [{"headers": None, "content_type": None, "retain": False, "queue": False} | row for row in rows], SCHEMA
    )
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, SCHEMA) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def post(
    hub: HubProcess, body: bytes, *, query: str = "q", batch: str = "0", part: str = "0", **headers: str
) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", hub.port("http"), timeout=30)
    names = {"polywire-query": query, "polywire-batch": batch, "polywire-part": part, **headers}
    try:
        connection.request("POST", "/publish", body, names)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def queued(hub: HubProcess, queue: str) -> float:
    return hub.metric(f'polywire_queue_messages{{queue="{queue}"}}')


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
        assert 'queue="q"' not in hub.get("/metrics")[1] or queued(hub, "q") == 0
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
    put_user(users, make_user("ann", "secret", ()))
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
        assert queued(hub, "mine") == 1
