"""``polywire status``, ``reload`` and ``stop``, on hubs that run."""

import errno
import fcntl
import json
import shutil
import signal
import socket
import stat
import time
from pathlib import Path

import pytest

import polywire
from polywire.protocols.fmqp import Publication, Subscription
from polywire.server import runtime
from polywire.server.config import load
from tests.cli.commands import going_on, run
from tests.hub_process import LISTEN, HubProcess, running_hub
from tests.wires import Fmqp, connected


def config_file(folder: Path, more: str = "") -> Path:
    """A configuration with a journal below the folder, and FMQP and HTTP listeners."""
    path = folder / "polywire.toml"
    listen = "".join(f'{key} = "off"\n' for key in LISTEN if key not in {"fmqp", "http"})
    path.write_text(
        f'[journal]\npath = "{folder}/journal"\n{more}\n[listen]\n{listen}'
        'http = "http://127.0.0.1:0"\nfmqp = "tcp://127.0.0.1:0"\n',
        encoding="utf-8",
    )
    return path


def json_of(*words: str) -> dict[str, object]:
    result = run("status", "--json", *words)
    assert result.exit_code == 0, result.output
    found: dict[str, object] = json.loads(result.stdout)
    return found


def test_status_shows_process_listeners_and_health_and_3_means_not_running(tmp_path: Path) -> None:
    config = config_file(tmp_path)
    with running_hub(config=config, journal=tmp_path / "journal") as hub:
        found = json_of("--config", str(config))
        assert found["running"] is True
        assert (found["pid"], found["version"]) == (hub.process.pid, polywire.__version__)
        assert found["config"] == str(config)
        assert found["listeners"] == hub.addresses
        assert (found["health"], found["ready"], found["state"]) == ("ok", "ready", "running")
        table = run("status", "--config", str(config))
        assert table.exit_code == 0
        rows = dict(line.split(maxsplit=1) for line in table.stdout.splitlines())
        assert (rows["pid"], rows["ready"], rows["listen.fmqp"]) == (
            str(hub.process.pid),
            "ready",
            hub.addresses["fmqp"],
        )
        file = tmp_path / "journal" / runtime.NAME
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert hub.stop() == 0
        assert not file.exists()
    result = run("status", "--config", str(config))
    assert result.exit_code == 3
    assert result.stderr.startswith("polywire status: no hub is running with this configuration")
    result = run("status", "--json", "--config", str(config))
    assert (result.exit_code, json.loads(result.stdout)) == (3, {"running": False})


def test_a_file_of_a_killed_hub_or_in_a_copy_is_no_running_hub(tmp_path: Path) -> None:
    config = config_file(tmp_path)
    with running_hub(config=config, journal=tmp_path / "journal") as hub:
        shutil.copytree(tmp_path / "journal", tmp_path / "copy")
        assert run("status", "--set", f"journal.path={tmp_path}/copy").exit_code == 3
        hub.stop(signal.SIGKILL)
    assert (tmp_path / "journal" / runtime.NAME).exists()
    for command in ("status", "reload", "stop"):
        assert run(command, "--config", str(config)).exit_code == 3
    with running_hub(config=config, journal=tmp_path / "journal") as hub:
        assert json_of("--config", str(config))["pid"] == hub.process.pid


def test_hubs_without_a_journal_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    config = config_file(tmp_path)
    words = ("--config", str(config), "--set", "journal.enabled=false")
    with running_hub(config=config) as one:
        assert json_of(*words)["pid"] == one.process.pid
        with running_hub(config=config) as other:
            several = run("status", *words)
            assert several.exit_code == 1
            for hub in (one, other):
                (file,) = (tmp_path / "polywire").glob(f"*-{hub.process.pid}.json")
                assert f"pid {hub.process.pid}: --pid {file}" in several.stderr
                assert json_of("--pid", str(file))["listeners"] == hub.addresses
            other.stop(signal.SIGKILL)
        assert json_of(*words)["pid"] == one.process.pid


def test_a_directory_of_somebody_else_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    (tmp_path / "polywire").mkdir()
    (tmp_path / "polywire").chmod(0o777)
    with running_hub() as hub:
        hub.wait_for_log("polywire status, reload and stop will not find this hub")
        assert list((tmp_path / "polywire").iterdir()) == []


def test_a_runtime_file_can_be_named_and_belongs_to_one_hub(tmp_path: Path) -> None:
    file = tmp_path / "hub.json"
    with running_hub(arguments=("--pid", str(file))) as hub:
        assert json_of("--pid", str(file))["pid"] == hub.process.pid
        with pytest.raises(RuntimeError, match="belongs to a running hub"), running_hub(arguments=("--pid", str(file))):
            pass
        assert run("stop", "--pid", str(file)).exit_code == 0
        assert hub.process.wait(20) == 0
    result = run("stop", "--pid", str(file))
    assert (result.exit_code, result.stderr) == (
        3,
        f"polywire stop: no running hub has the runtime file {file}\n",
    )


def test_reload_says_whether_the_configuration_was_taken_or_why_not(tmp_path: Path) -> None:
    config = config_file(tmp_path)
    words = ("--config", str(config))
    with running_hub(config=config, journal=tmp_path / "journal") as hub:
        result = run("reload", *words)
        assert (result.exit_code, result.stdout, result.stderr) == (0, f"reloaded (pid {hub.process.pid})\n", "")
        config_file(tmp_path, "[limits]\nconections = 3\n")
        for _ in range(2):
            result = run("reload", *words)
            assert (result.exit_code, result.stdout) == (1, "")
            assert "polywire reload: not reloaded, nothing has changed:" in result.stderr
            assert "limits.conections: no such key; did you mean limits.connections?" in result.stderr
        table = run("status", *words)
        assert table.exit_code == 0
        assert "failed: " in table.stdout
        config_file(tmp_path)
        assert run("reload", *words).exit_code == 0


def test_a_changed_listener_needs_a_restart_until_the_change_is_taken_back(tmp_path: Path) -> None:
    config = config_file(tmp_path)
    text = config.read_text(encoding="utf-8")
    told = "[listen] has changed, which takes effect at the next start\n"
    with running_hub(config=config, journal=tmp_path / "journal") as hub:
        config.write_text(text.replace("tcp://127.0.0.1:0", "tcp://127.0.0.1:1"), encoding="utf-8")
        assert [run("reload", "--config", str(config)).stderr for _ in range(2)] == [told, told]
        config.write_text(text, encoding="utf-8")
        assert run("reload", "--config", str(config)).stderr == ""
        assert sum("[listen] has changed" in line for line in hub.errors) == 2


def busy(hub: HubProcess, wire: socket.socket) -> None:
    """Keep a hub from ending: somebody who reads nothing is sent more than fits anywhere."""
    client = Fmqp(wire)
    client.say(Subscription("a"))
    client.settled()
    client.say(*[Publication("a", bytes(1 << 20))] * 20)
    while hub.metric('polywire_messages_total{direction="in",protocol="fmqp"}') < 20:
        time.sleep(0.02)


def test_stop_waits_for_the_end(tmp_path: Path) -> None:
    config = config_file(tmp_path)
    with running_hub(config=config, journal=tmp_path / "journal") as hub:
        result = run("stop", "--config", str(config))
        assert (result.exit_code, result.stdout) == (0, f"stopped (pid {hub.process.pid})\n")
        assert hub.process.wait(20) == 0
    assert run("stop", "--config", str(config)).exit_code == 3


def test_a_hub_that_does_not_end_in_time_is_code_1_and_status_says_draining(tmp_path: Path) -> None:
    config = config_file(tmp_path, "[limits]\ndrain_time = 600\n")
    with (
        running_hub(config=config, journal=tmp_path / "journal") as hub,
        connected(hub.addresses["fmqp"]) as wire,
    ):
        busy(hub, wire)
        result = run("stop", "--config", str(config), "--timeout", "0.5")
        assert result.exit_code == 1
        assert f"the hub (pid {hub.process.pid}) still runs after 0.5 s" in result.stderr
        assert json_of("--config", str(config))["state"] == "draining"
        assert run("stop", "--config", str(config)).exit_code == 0  # the second signal ends it at once


def test_a_terminal_sees_that_it_is_waited(tmp_path: Path) -> None:
    config = config_file(tmp_path, "[limits]\ndrain_time = 2\n")
    with (
        running_hub(config=config, journal=tmp_path / "journal") as hub,
        connected(hub.addresses["fmqp"]) as wire,
    ):
        busy(hub, wire)
        with going_on("stop", "--config", str(config), terminal=True) as command:
            command.wait_for("draining")
            assert command.end() == 0
            assert f"stopped (pid {hub.process.pid})" in command.text


def test_a_broken_configuration_does_not_keep_a_hub_from_being_found_and_stopped(tmp_path: Path) -> None:
    config = config_file(tmp_path)
    with running_hub(config=config, journal=tmp_path / "journal"):
        config_file(tmp_path, "[limits]\nconections = 3\n[nothing]\nx = 1\n")
        assert json_of("--config", str(config))["running"] is True
        assert run("stop", "--config", str(config)).exit_code == 0


def test_another_user_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "open", refused)
    result = run("stop", "--pid", str(tmp_path / "hub.json"))
    assert result.exit_code == 1
    assert "Permission denied; run this as the user of the hub, or as root" in result.stderr


def test_what_is_no_runtime_file_is_said_so(tmp_path: Path) -> None:
    file = tmp_path / "x"
    file.write_text("1234\n")
    assert run("status", "--pid", str(file)).exit_code == 3
    with file.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        result = run("status", "--pid", str(file))
    assert result.exit_code == 1
    assert f"{file}: this is not the runtime file of a hub" in result.stderr


def test_a_change_is_a_whole_new_file_that_is_never_without_its_lock(tmp_path: Path) -> None:
    file = runtime.RuntimeFile(tmp_path / "hub.json", runtime.describe(load(), {}))
    for number in range(1, 50):
        file.update(reload=runtime.Reload(number, 0.0, "", ("listen",)))
        found = runtime.read(file.path)
        assert found is not None
        assert found.reload == runtime.Reload(number, 0.0, "", ("listen",))
    assert [path.name for path in tmp_path.iterdir()] == ["hub.json"]
    file.remove()
    assert list(tmp_path.iterdir()) == []
