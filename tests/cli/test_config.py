"""polywire config check and show."""

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from polywire.cli.config import value_text
from polywire.cli.main import app
from polywire.server.config.schema import root

COMMAND = Path(sys.executable).with_name("polywire")
BAD = "[limits]\noutbox = 1\nmesage_size = 2\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def invoke(*words: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["config", *words])
    return result.exit_code, result.stdout, result.stderr


def run(folder: Path, *words: str) -> tuple[int, str, str]:
    done = subprocess.run([COMMAND, "config", *words], cwd=folder, capture_output=True, text=True, check=False)  # noqa: S603 - ours
    return done.returncode, done.stdout, done.stderr


def test_a_good_file_has_no_problems(folder: Path) -> None:
    (folder / "hub.toml").write_text("[limits]\nconnections = 7\n")
    assert run(folder, "check", "hub.toml") == (0, "hub.toml: no problems\n", "")


def test_every_problem_of_a_file_has_its_line(folder: Path) -> None:
    (folder / "hub.toml").write_text(BAD)
    code, out, err = run(folder, "check", "hub.toml")
    assert (code, out) == (1, "")
    assert [line.removeprefix("polywire: ") for line in err.splitlines()] == [
        'hub.toml:2: limits.outbox: found 1, allowed is bytes, from 4 KiB to 2 GiB, such as 65536 or "64 KiB"',
        "hub.toml:3: limits.mesage_size: no such key; did you mean limits.message_size?",
    ]


def test_what_does_not_go_together_is_a_problem_too(folder: Path) -> None:
    (folder / "hub.toml").write_text("[listen]\nmqtt = 'tls://0.0.0.0:0'\n")
    code, out, err = invoke("check", "hub.toml")
    assert (code, out, err.count("hub.toml:2: listen.mqtt:")) == (1, "", 2)
    code, out, err = invoke("check", "hub.toml", "--insecure")
    assert (code, out, err.count("hub.toml:2: listen.mqtt:")) == (1, "", 1)
    assert invoke("check", "hub.toml", "--set", "listen.mqtt=off")[0] == 0


def test_a_file_that_is_not_there_is_a_problem(folder: Path) -> None:
    assert invoke("check", str(folder / "x.toml")) == (1, "", f"polywire: {folder}/x.toml: there is no such file\n")
    assert invoke("show", "--config", "x.toml") == (1, "", "polywire: x.toml: there is no such file\n")


@pytest.mark.usefixtures("folder")
def test_a_file_to_check_has_to_be_named() -> None:
    assert invoke("check")[0] == 2


def test_in_a_pipe_values_stand_in_aligned_lines(folder: Path) -> None:
    (folder / "polywire.toml").write_text("[limits]\nconnections = 7\n")
    code, out, err = run(folder, "show", "--set", "listen.fmqp=off")
    assert (code, err) == (0, "")
    lines = dict(line.split(maxsplit=1) for line in out.splitlines())
    assert lines["limits.connections"].split() == ["7", "polywire.toml:2"]
    assert lines["listen.fmqp"].split() == ['"off"', "--set"]
    assert lines["limits.message_size"].split() == ['"16', 'MiB"', "default"]
    ends = {line.rindex("  ") for line in out.splitlines()}
    assert len(ends) == 1


@pytest.mark.usefixtures("folder")
def test_programs_get_json_with_plain_numbers() -> None:
    code, out, _ = invoke("show", "--json", "--set", "limits.outbox=8 MiB", "--set", "auth={}")
    shown = json.loads(out)
    assert code == 0
    assert shown["limits.outbox"] == {"value": 8388608, "from": "--set"}
    assert shown["limits.call_time"] == {"value": 30.0, "from": "default"}
    assert shown["listen.umq"] == {"value": "ws://127.0.0.1:7101/umq", "from": "default"}
    assert shown["auth.groups"] == {"value": {}, "from": "default"}
    there = {".".join((*table.path, key)) for table in root().walk() for key in table.keys if not table.many}
    assert set(shown) == {name for name in there if not name.startswith(("tls.", "auth.jwt."))}


def test_on_a_terminal_it_is_a_table(folder: Path) -> None:
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120", "NO_COLOR": "1"}
    command = [
        str(COMMAND),
        "config",
        "show",
        "--set",
        "auth.jwt.algorithms=HS256",
        "--set",
        "auth.jwt.issuer=[bold]x[/]",
    ]
    with subprocess.Popen(command, stdout=theirs, cwd=folder, env=environment) as process:  # noqa: S603 - ours
        os.close(theirs)
        out = b""
        try:
            while chunk := os.read(ours, 65536):
                out += chunk
        except OSError:  # how Linux says that the other end is closed
            pass
    os.close(ours)
    assert process.returncode == 0
    lines = [line.strip() for line in out.decode().splitlines()]
    assert any("key" in line and "value" in line and "from" in line for line in lines)
    assert any("auth.jwt.issuer" in line and '"[bold]x[/]"' in line and "--set" in line for line in lines)


def test_values_are_shown_the_way_toml_writes_them() -> None:
    assert value_text(None) == "-"
    assert value_text({}) == "{}"
    assert value_text({"a": ["b"], "c d": []}) == '{ a = ["b"], "c d" = [] }'
    assert value_text(value=True) == "true"
    assert value_text("é") == '"é"'
