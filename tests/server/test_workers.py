"""``polywire serve --workers``: several processes that look like one hub, and are kept running."""

import asyncio
import contextlib
import json
import os
import re
import signal
import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import polywire
from polywire.journal import open as open_journal
from polywire.protocols.fmqp import Publication
from polywire.protocols.mqtt import Connect, encode
from polywire.server.front import merged
from tests.hub_process import LISTEN, HubProcess, StartError, running_hub
from tests.server.certificates import Authority
from tests.server.test_ingest import post, stream
from tests.wires import Fmqp, Plain, connected

ONLY_MQTT = [f"listen.{key}=off" for key in LISTEN if key not in {"mqtt", "http"}]
CONNECTIONS = 40
"""So many are shared out among two workers: that all go to one has a chance of 2 in 2 ** 40."""


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubProcess]:
    with running_hub(journal=tmp_path_factory.mktemp("workers") / "journal", workers=2) as found:
        yield found


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and nobody has waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until_ended(pids: "dict[str, int]", seconds: float = 20.0) -> None:
    """Wait until processes of others have ended, which nothing reports."""
    end = time.monotonic() + seconds
    while any(map(is_alive, pids.values())):
        assert time.monotonic() < end, f"still there: {pids}"
        time.sleep(0.02)


def restarted(hub: HubProcess, before: dict[str, int], seconds: float = 30.0) -> dict[str, int]:
    """The workers, once all of them run again and one has another process."""
    end = time.monotonic() + seconds
    while True:
        nodes = hub.cluster()["nodes"]
        now = {each["node"]: each["pid"] for each in nodes}
        if now != before and all(each["state"] == "running" and "problem" not in each for each in nodes):
            return now
        assert time.monotonic() < end, nodes
        time.sleep(0.05)


@contextlib.contextmanager
def clients(hub: HubProcess, count: int = CONNECTIONS) -> Iterator[None]:
    """So many MQTT clients."""
    with contextlib.ExitStack() as stack:
        for number in range(count):
            plain = Plain(stack.enter_context(connected(hub.addresses["mqtt"])))
            plain.send(encode(Connect(f"client-{number}")))
            assert plain.expect(4)[3] == 0
        yield


def rows_of(hub: HubProcess, node: str) -> list[dict[str, Any]]:
    """The rows of a node's journal, read over HTTP."""
    found = open_journal(f"{hub.addresses['http']}/journal/{node}/")
    return [row for batch in found.scan(["node", "kind", "body"]) for row in batch.to_pylist()]


def test_the_ready_line_names_every_listener_and_all_speak_their_protocol(hub: HubProcess) -> None:
    assert list(hub.addresses) == list(LISTEN)
    assert hub.port("umq") == hub.port("mqtt_ws") == hub.port("sabc_ws") != 0

    async def publish() -> None:
        for scheme in ("umq", "micromsg", "fmqp", "mqtt", "sabc"):
            async with polywire.connect(f"{scheme}://127.0.0.1:{hub.port(scheme)}", connect_time=20) as bus:
                await bus.publish("a/b", b"1")

    asyncio.run(publish())


def test_connections_are_shared_out_among_the_workers(hub: HubProcess) -> None:
    with clients(hub):
        counts = [each["clients"] for each in hub.cluster()["nodes"]]
        assert sum(counts) == CONNECTIONS
        assert min(counts) > 0


def test_the_pages_speak_for_all_workers(hub: HubProcess) -> None:
    assert hub.get("/healthz") == (200, "ok\n")
    assert hub.get("/readyz") == (200, "ready\n")
    names = list(hub.workers())
    assert [name[-2:] for name in names] == ["-1", "-2"]
    text = hub.get("/metrics")[1]
    for name in names:
        assert hub.metric(f'polywire_worker_ready{{node="{name}"}}') == 1
        assert f'{{node="{name}",direction="in",protocol="mqtt"}}' in text
    assert text.count("# HELP polywire_subscriptions ") == 1


def test_every_node_has_its_journal_below_its_name(hub: HubProcess) -> None:
    names = list(hub.workers())
    assert json.loads(hub.get("/journal/")[1]) == {"nodes": names}
    for name in names:
        assert {row["node"] for row in rows_of(hub, name)} == {name}
    assert hub.get("/journal/nobody/")[0] == 404
    assert hub.get("/journal/nobody")[0] == 404


def test_a_part_is_published_once_whoever_is_started_again_in_between(hub: HubProcess) -> None:
    jobs = [stream({"channel": "queue/jobs", "body": bytes([number])}) for number in range(4)]
    for number, each in enumerate(jobs):
        assert post(hub, each, query=f"query-{number}") == (200, '{"applied": true}\n')
    before = hub.workers()
    for pid in before.values():
        os.kill(pid, signal.SIGKILL)
    restarted(hub, before)
    for number, each in enumerate(jobs):
        assert post(hub, each, query=f"query-{number}") == (200, '{"applied": false}\n')
    bodies = {row["body"] for name in before for row in rows_of(hub, name) if row["kind"] == "enqueue"}
    assert bodies == {bytes([number]) for number in range(4)}


def test_a_part_that_is_refused_is_refused_with_the_same_words(hub: HubProcess) -> None:
    assert post(hub, b"nonsense", query="bad")[0] == 400
    assert post(hub, b"", query="")[0] == 400


def test_a_killed_worker_is_started_again_and_its_journal_is_recovered(hub: HubProcess) -> None:
    before = hub.workers()
    victim = next(iter(before))
    os.kill(before[victim], signal.SIGKILL)
    after = restarted(hub, before)
    assert {name for name in before if before[name] != after[name]} == {victim}
    assert "SIGKILL" in hub.wait_for_log(f"{victim} was ended by")
    assert hub.metric(f'polywire_worker_restarts_total{{node="{victim}"}}') >= 1
    with clients(hub):
        assert hub.cluster()["nodes"][0]["clients"] > 0


@pytest.mark.timeout(90)
def test_a_worker_that_hangs_is_killed_and_started_again(hub: HubProcess) -> None:
    before = hub.workers()
    victim = list(before)[1]
    os.kill(before[victim], signal.SIGSTOP)
    hub.wait_for_log(f"{victim} has not answered for", 40)
    assert restarted(hub, before)[victim] != before[victim]


def test_sigterm_drains_all_and_leaves_nothing_behind(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with running_hub(*ONLY_MQTT, "listen.mqtt=unix:" + str(path), workers=3) as hub:
        pids = hub.workers()
        assert len(pids) == 3
        assert hub.stop() == 0
        wait_until_ended(pids)
        assert not path.exists()
        assert not [line for line in hub.errors if "ERROR" in line]


def test_workers_end_when_their_supervisor_is_killed() -> None:
    with running_hub(*ONLY_MQTT, workers=2) as hub:
        pids = hub.workers()
        hub.process.kill()
        wait_until_ended(pids)


def test_a_unix_socket_is_shared(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with running_hub(*ONLY_MQTT, f"listen.mqtt=unix:{path}", workers=2) as hub:
        with contextlib.ExitStack() as stack:
            for number in range(10):
                wire = stack.enter_context(socket.socket(socket.AF_UNIX))
                wire.connect(str(path))
                wire.sendall(encode(Connect(f"client-{number}")))
                assert wire.recv(4)[3] == 0
            assert sum(each["clients"] for each in hub.cluster()["nodes"]) == 10
        before = hub.workers()
        os.kill(next(iter(before.values())), signal.SIGTERM)
        restarted(hub, before)
        assert path.exists()


def test_encrypted_listeners_are_shared(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    sets = [*ONLY_MQTT, "listen.mqtt=tls://127.0.0.1:0", f"tls.certificate={authority.issue('localhost')}"]
    trust = ssl.create_default_context(cafile=str(authority.root))
    with running_hub(*sets, workers=2) as hub:
        for number in range(6):
            with connected(hub.addresses["mqtt"], trust=trust) as wire:
                plain = Plain(wire)
                plain.send(encode(Connect(f"client-{number}")))
                assert plain.expect(4)[3] == 0


def test_a_reload_reaches_every_worker_and_a_bad_file_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "polywire.toml"
    listen = 'http = "http://127.0.0.1:0"\nmqtt = "tcp://127.0.0.1:0"\n'
    listen += "".join(f'{key} = "off"\n' for key in LISTEN if key not in {"mqtt", "http"})
    path.write_text(f"[listen]\n{listen}", encoding="utf-8")
    with running_hub(config=path, workers=2) as hub:
        path.write_text(f'[listen]\n{listen}[[access]]\nactions = ["publish"]\nchannels = ["a"]\n', encoding="utf-8")
        hub.process.send_signal(signal.SIGHUP)
        hub.wait_for_log("configuration reloaded")
        with clients(hub, 1):
            pass
        path.write_text("nonsense", encoding="utf-8")
        hub.process.send_signal(signal.SIGHUP)
        hub.wait_for_log("reload failed, nothing has changed")
        before = hub.workers()
        os.kill(next(iter(before.values())), signal.SIGKILL)
        restarted(hub, before)  # with the configuration that was good


def test_a_clients_signal_ends_all_workers() -> None:
    sets = [f"listen.{key}=off" for key in LISTEN if key not in {"fmqp", "http"}]
    with running_hub(*sets, workers=2) as hub:
        pids = hub.workers()

        with connected(hub.addresses["fmqp"]) as wire:
            Fmqp(wire).say(Publication("$/signals/stop", b"now"))
        assert hub.process.wait(20) == 0
        wait_until_ended(pids)


def test_what_keeps_a_worker_from_starting_is_said_once(tmp_path: Path) -> None:
    (tmp_path / "worker-2").write_text("", encoding="ascii")
    with pytest.raises(StartError) as caught, running_hub(*ONLY_MQTT, journal=tmp_path, workers=2):
        pass
    assert caught.value.code == 1
    assert "Traceback" not in caught.value.said
    assert len(re.findall("can't open the journal", caught.value.said)) == 1


def test_a_port_in_use_is_told_and_nothing_starts() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        with (
            pytest.raises(StartError, match=f"can't listen on {address}: Address already in use; another program"),
            running_hub(*ONLY_MQTT, f"listen.mqtt={address}", workers=2),
        ):
            pass


def test_another_hub_with_workers_can_not_share_the_ports(hub: HubProcess) -> None:
    with (
        pytest.raises(StartError, match="Address already in use"),
        running_hub(*ONLY_MQTT, f"listen.mqtt={hub.addresses['mqtt']}", workers=2),
    ):
        pass


@pytest.mark.parametrize(
    ("left", "told"),
    [
        ("worker-3", "start with --workers 3, or move them away"),
        ("00000000000000000000.arrow", "is the journal of a hub without workers"),
    ],
)
def test_journals_of_another_number_of_workers_are_not_left_aside(left: str, told: str, tmp_path: Path) -> None:
    for name in ("worker-1", "worker-2"):
        (tmp_path / name).mkdir()
    (tmp_path / left).mkdir()
    with pytest.raises(StartError, match=told), running_hub(*ONLY_MQTT, journal=tmp_path, workers=2):
        pass


def test_workers_need_something_to_listen_to() -> None:
    only_http = [f"listen.{key}=off" for key in LISTEN if key != "http"]
    with pytest.raises(StartError, match="workers need a listener besides http"), running_hub(*only_http, workers=2):
        pass


def test_metrics_of_several_nodes_become_one_page() -> None:
    page = '# HELP a Words.\n# TYPE a gauge\na 1.0\na{b="{ }"} 2.0\n# HELP c More.\n# TYPE c counter\nc_total 3.0\n'
    assert merged({"x": page, "y": page}) == (
        '# HELP a Words.\n# TYPE a gauge\na{node="x"} 1.0\na{node="x",b="{ }"} 2.0\n'
        'a{node="y"} 1.0\na{node="y",b="{ }"} 2.0\n'
        '# HELP c More.\n# TYPE c counter\nc_total{node="x"} 3.0\nc_total{node="y"} 3.0\n'
    )
