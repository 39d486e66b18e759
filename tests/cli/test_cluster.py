"""``polywire cluster``: the nodes of a running cluster, who owns what, and draining one."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from polywire.fabric.membership import SHARDS, shard_of
from tests.cli.commands import going_on, run
from tests.hub_process import LISTEN, HubProcess, running_hub
from tests.security.hashing import add_user

OFF = [f"listen.{key}=off" for key in LISTEN if key not in {"mqtt", "http"}]


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubProcess]:
    with running_hub(*OFF, journal=tmp_path_factory.mktemp("cluster") / "journal", workers=2) as found:
        yield found


def status(hub: HubProcess, *words: str) -> dict[str, Any]:
    result = run("cluster", "status", "--url", hub.addresses["http"], "--json", *words)
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_status_shows_nodes_links_and_owners(workers: HubProcess) -> None:
    names = list(workers.workers())
    found = status(workers, "--queue", "jobs")
    assert found["kind"] == "workers"
    assert list(found["nodes"]) == names
    assert {node["state"] for node in found["nodes"].values()} == {"running"}
    for name, other in (names, names[::-1]):
        link = found["nodes"][name]["links"][other]
        assert link["up"]
        assert link["credit"] > 0
    assert sorted(map(int, found["owners"])) == list(range(SHARDS))
    assert set(found["owners"].values()) == set(names)
    assert found["unreachable"] == {}
    owner = found["owners"][str(shard_of("jobs"))]
    assert found["queue"] == {"name": "jobs", "shard": shard_of("jobs"), "owner": owner}
    shown = run("cluster", "status", "--url", workers.addresses["http"], "--queue", "jobs")
    assert shown.exit_code == 0
    assert f"{names[0]} -> {names[1]}" in shown.stdout
    assert f"queue jobs: shard {shard_of('jobs')}, owned by {owner}" in shown.stdout


def test_status_finds_the_hub_that_runs_with_a_configuration(tmp_path: Path) -> None:
    sets = [*OFF, *(f"listen.{key}={LISTEN[key]}" for key in ("mqtt", "http"))]
    words = [word for each in (*sets, f"journal.path={tmp_path}") for word in ("--set", each)]
    with running_hub(*sets, journal=tmp_path, workers=2) as hub:
        result = run("cluster", "status", "--json", *words)
        assert result.exit_code == 0, result.output
        assert list(json.loads(result.stdout)["nodes"]) == list(hub.workers())
    assert run("cluster", "status", *words).exit_code == 3


def test_a_single_hub_is_a_cluster_of_one() -> None:
    with running_hub(*OFF) as hub:
        found = status(hub)
        assert found["kind"] == "none"
        assert len(found["nodes"]) == 1


def test_a_drained_worker_hands_over_and_is_started_again(workers: HubProcess) -> None:
    before = workers.workers()
    name = list(before)[1]
    done = run("cluster", "drain", name, "--url", workers.addresses["http"])
    assert done.exit_code == 0, done.output
    assert done.stdout == f"{name} is drained, and was started again\n"
    after = workers.workers()
    assert after[name] != before[name]
    assert {**after, name: before[name]} == before
    assert run("cluster", "status", "--url", workers.addresses["http"]).exit_code == 0


def test_a_drained_hub_ends() -> None:
    with running_hub(*OFF, "journal.node=alone") as hub:
        done = run("cluster", "drain", "alone", "--url", hub.addresses["http"])
        assert (done.exit_code, done.stdout) == (0, "alone is drained\n")
        assert hub.process.wait(20) == 0


def test_a_node_that_does_not_exist_is_named_with_those_that_do(workers: HubProcess) -> None:
    done = run("cluster", "drain", "nobody", "--url", workers.addresses["http"])
    assert done.exit_code == 2
    assert f"no such node; there is {', '.join(workers.workers())}" in done.output


def test_nobody_may_drain_a_node_without_the_right_to_signal(tmp_path: Path) -> None:
    users = tmp_path / "users"
    add_user(users, "reader", "secret")
    add_user(users, "operator", "secret")
    config = tmp_path / "polywire.toml"
    listen = "".join(f'{key} = "{LISTEN[key] if key in {"mqtt", "http"} else "off"}"\n' for key in LISTEN)
    config.write_text(
        f'[listen]\n{listen}[auth]\nusers = "{users}"\n'
        '[[access]]\nactions = ["subscribe"]\nchannels = ["**"]\n'
        '[[access]]\nuser = "operator"\nactions = ["signal"]\nchannels = ["$/signals/stop"]\n',
        encoding="utf-8",
    )
    with running_hub("journal.node=alone", config=config) as hub:
        address = hub.addresses["http"].removeprefix("http://")
        assert run("cluster", "status", "--url", hub.addresses["http"]).exit_code == 5
        assert run("cluster", "status", "--url", f"http://reader:secret@{address}").exit_code == 0
        done = run("cluster", "drain", "alone", "--url", f"http://reader:secret@{address}")
        assert done.exit_code == 5
        assert "403 draining a node requires the right to signal $/signals/stop" in done.output
        assert "secret" not in done.output
        done = run("cluster", "drain", "alone", "--no-wait", "--url", f"http://operator:secret@{address}")
        assert (done.exit_code, done.stdout) == (0, "alone is draining\n")
        assert hub.process.wait(20) == 0


def test_where_nobody_answers_is_said_and_3() -> None:
    done = run("cluster", "status", "--url", "http://127.0.0.1:9")
    assert done.exit_code == 3
    assert done.output.startswith("polywire cluster status: no node answers: http://127.0.0.1:9: ")
    assert run("cluster", "status", "--url", "nonsense").exit_code == 2


@pytest.mark.timeout(180)
def test_up_runs_a_cluster_until_ctrl_c_and_starts_again_what_ends(tmp_path: Path) -> None:
    folder = ("--folder", str(tmp_path))
    with going_on("cluster", "up", "--nodes", "2", *folder) as trial:
        trial.wait_for("Ctrl-C stops everything.")
        found = json.loads(run("cluster", "status", "--json", *folder).stdout)
        assert list(found["nodes"]) == ["hub-1", "hub-2"]
        assert found["kind"] == "nats"
        assert not found["unreachable"]
        before = found["nodes"]["hub-2"]["pid"]
        assert run("cluster", "drain", "hub-2", *folder).exit_code == 0
        trial.wait_for("hub-2 has ended with exit code 0; it is started again")
        end = time.monotonic() + 60
        while (again := run("cluster", "status", "--json", *folder)).exit_code:
            assert time.monotonic() < end, again.output
            time.sleep(0.1)
        assert json.loads(again.stdout)["nodes"]["hub-2"]["pid"] != before
        pids = [node["pid"] for node in json.loads(again.stdout)["nodes"].values()]
        assert trial.interrupt() == 0
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]
    assert run("cluster", "status", *folder, "--set", f"journal.path={tmp_path}/none").exit_code == 3
