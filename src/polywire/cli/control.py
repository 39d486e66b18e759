"""``polywire status``, ``reload`` and ``stop``: a hub on this machine, found by its configuration or runtime file."""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn
from urllib.parse import urlsplit

import typer

from polywire.cli.options import ConfigFile, Sets, config_errors_reported, examples, fail
from polywire.cli.output import print_json, progress

if TYPE_CHECKING:
    from polywire.server.runtime import Runtime

NOT_RUNNING: Final = 3
"""The exit code where there is no hub, as that of ``systemctl status``."""

STEP: Final = 0.05
MARGIN: Final = 10.0
"""Seconds that ``stop`` waits beyond the hub's own time for draining."""

PidFile = Annotated[
    Path | None,
    typer.Option("--pid", metavar="FILE", help="The hub's runtime file, where serve was given --pid."),
]

status_epilog = examples(
    "polywire status",
    "polywire status --config /etc/polywire/polywire.toml",
    "polywire status --json | jq -r .listeners.mqtt",
    "polywire status > /dev/null || polywire serve",
)
reload_epilog = examples(
    "polywire reload",
    "polywire reload --config /etc/polywire/polywire.toml",
    "polywire reload --pid /run/polywire/hub.json",
)
stop_epilog = examples(
    "polywire stop",
    "polywire stop --config /etc/polywire/polywire.toml --timeout 60",
    "polywire stop --pid /run/polywire/hub.json",
)


def status(
    config: ConfigFile = None,
    sets: Sets = None,
    pid: PidFile = None,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show whether the hub of a configuration runs, since when, where it listens, and whether it is healthy.

    Exits with 0 when it runs, and with 3 when it does not.
    """
    with _errors_reported("status"):
        found = _find(config, sets, pid)
        if found is None:
            if as_json:
                print_json({"running": False})
            _not_running("status", config, pid)
        path, runtime = found
        about = _about(path, runtime)
        if as_json:
            print_json(about)
        else:
            _print_table(about)


def reload(
    config: ConfigFile = None,
    sets: Sets = None,
    pid: PidFile = None,
    *,
    timeout: Annotated[
        float, typer.Option("--timeout", metavar="SECONDS", min=0.1, help="How long to wait for the outcome.")
    ] = 30.0,
) -> None:
    """Make a running hub reload its configuration, users and certificates, and report the outcome.

    Exits with 0 if the configuration was applied, with 1 if not (the hub keeps the old one), and with 3 if no hub
    is running.
    """
    with _errors_reported("reload"):
        path, runtime = _find(config, sets, pid) or _not_running("reload", config, pid)
        before = runtime.reload.number
        _send(runtime, signal.SIGHUP)
        after = _wait(path, lambda now: now is None or now.reload.number > before, timeout)
        if isinstance(after, str):
            fail("reload", f"the hub (pid {runtime.pid}) did not answer within {timeout:g} s; its log may say why")
        if after is None:
            fail("reload", f"the hub (pid {runtime.pid}) has ended", code=NOT_RUNNING)
        outcome = after.reload
        if outcome.error:
            fail("reload", f"not reloaded, nothing has changed:\n{outcome.error}")
        typer.echo(f"reloaded (pid {runtime.pid})")
        for section in outcome.restart:
            typer.echo(f"[{section}] has changed, which takes effect at the next start", err=True)


def stop(
    config: ConfigFile = None,
    sets: Sets = None,
    pid: PidFile = None,
    *,
    timeout: Annotated[
        float | None,
        typer.Option(
            "--timeout",
            metavar="SECONDS",
            min=0.1,
            help=f"How long to wait for it to exit. [default: limits.drain_time + {MARGIN:g}]",
        ),
    ] = None,
) -> None:
    """Stop a running hub: it finishes what it has accepted, and ends. Waits for that.

    Exits with 0 when the hub has ended, with 1 when it still runs after --timeout, and with 3 when no hub runs.
    """
    with _errors_reported("stop"):
        path, runtime = _find(config, sets, pid) or _not_running("stop", config, pid)
        seconds = runtime.drain_time + MARGIN if timeout is None else timeout
        _send(runtime, signal.SIGTERM)
        begun = time.monotonic()
        with progress("stopping", round(seconds * 1000)) as advance:

            def ended(now: "Runtime | None") -> bool:
                advance(round((time.monotonic() - begun) * 1000), "draining" if now and now.draining else "")
                return (now is None or now.pid != runtime.pid) and not _is_alive(runtime.pid)

            after = _wait(path, ended, seconds)
        if isinstance(after, str):
            hint = f"'kill -KILL {runtime.pid}' ends it at once"
            fail("stop", f"the hub (pid {runtime.pid}) still runs after {seconds:g} s; {hint}")
        typer.echo(f"stopped (pid {runtime.pid})")


def _find(config: Path | None, sets: list[str] | None, pid: Path | None) -> "tuple[Path, Runtime] | None":
    """The selected hub and its runtime file, or None."""
    from polywire.server import runtime  # noqa: PLC0415 - slow to import, and not every command needs it
    from polywire.server.config import load  # noqa: PLC0415 - as above

    if pid is not None:
        try:
            found = runtime.read(pid)
        except FileNotFoundError:
            return None
        return None if found is None else (pid, found)
    with config_errors_reported():
        # Only what identifies a hub: a mistake elsewhere must not keep a hub from being stopped.
        loaded = load(config, sets or (), sections=("listen", "journal"))
    running = runtime.find(loaded)
    if len(running) > 1:
        hubs = "\n".join(f"  pid {each.pid}: --pid {path}" for path, each in running)
        raise runtime.RuntimeFileError(
            f"several hubs run with this configuration; name the runtime file of one:\n{hubs}"
        )
    return running[0] if running else None


def http_address(command: str, config: Path | None, sets: list[str] | None) -> str:
    """Where the HTTP listener of the hub is that runs with a configuration. Ends the command where there is none."""
    _, runtime = _find(config, sets, None) or _not_running(command, config, None)
    if "http" not in runtime.listeners:
        fail(command, "the hub has no HTTP listener (listen.http is off)")
    return _local(runtime.listeners["http"])


def _not_running(command: str, config: Path | None, pid: Path | None) -> NoReturn:
    if pid is not None:
        words = f"no running hub has the runtime file {pid}"
    else:
        words = "no hub is running with this configuration; give the --config and --set that it was started with"
        if config is None and not Path("polywire.toml").exists():
            words += ", or change to its working directory"
    fail(command, words, code=NOT_RUNNING)


def _send(runtime: "Runtime", number: signal.Signals) -> None:
    try:
        os.kill(runtime.pid, number)
    except PermissionError:
        raise OSError(f"may not signal the hub (pid {runtime.pid}); run this as its user, or as root") from None


def _is_alive(pid: int) -> bool:
    """Whether a process is there, and not just waiting for its parent to notice that it has ended."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] != b"Z"
    except ProcessLookupError:
        return False
    except OSError:  # no /proc here, or the process has ended between the two
        return not Path("/proc/self").exists()


def _wait(path: Path, enough: "Callable[[Runtime | None], bool]", seconds: float) -> "Runtime | str | None":
    """What the runtime file says once that is enough; None where the hub has ended; "late" where it takes too long."""
    from polywire.server import runtime  # noqa: PLC0415 - as above

    end = time.monotonic() + seconds
    while True:
        try:
            now = runtime.read(path)
        except FileNotFoundError:
            now = None
        if enough(now):
            return now
        if time.monotonic() >= end:
            return "late"
        time.sleep(STEP)


def _about(path: Path, runtime: "Runtime") -> dict[str, Any]:
    """What ``status`` shows."""
    about: dict[str, Any] = {
        "running": True,
        "state": "draining" if runtime.draining else "running",
        "pid": runtime.pid,
        "uptime": round(max(0.0, time.time() - runtime.started), 1),
        "version": runtime.version,
        "config": runtime.config,
        "journal": runtime.journal,
        "runtime_file": str(path),
        "listeners": runtime.listeners,
    }
    if "http" in runtime.listeners:
        about["health"] = _page(runtime.listeners["http"], "/healthz")
        about["ready"] = _page(runtime.listeners["http"], "/readyz")
    if runtime.reload.number:
        about["last_reload"] = {
            "number": runtime.reload.number,
            "time": runtime.reload.time,
            "error": runtime.reload.error or None,
            "restart_needed": list(runtime.reload.restart),
        }
    return about


def _page(address: str, path: str) -> str:
    """What a page of the HTTP listener says, on one line."""
    from polywire.http import HttpClient, NoAnswer  # noqa: PLC0415 - not for help and completion

    try:
        answer = HttpClient(_local(address), timeout=5).request("GET", path)
    except NoAnswer as error:
        return str(error)
    words = " ".join(answer.text(1000).split())
    return words if answer.status == HTTPStatus.OK else f"{answer.status}: {words}"


def _local(address: str) -> str:
    """A listener's address as this machine can reach it."""
    url = urlsplit(address)
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(url.hostname or "", url.hostname or "")  # noqa: S104 - not bound
    host = f"[{host}]" if ":" in host else host
    return f"{url.scheme}://{host}:{url.port}"


def _print_table(about: dict[str, Any]) -> None:
    """Two columns; on a terminal with a little colour."""
    rows = [
        ("state", str(about["state"])),
        ("pid", str(about["pid"])),
        ("uptime", str(timedelta(seconds=int(about["uptime"])))),
        ("version", str(about["version"])),
        ("config", about["config"] or "none, all defaults and --set"),
        ("journal", about["journal"] or "off"),
        *((name, str(about[name])) for name in ("health", "ready") if name in about),
    ]
    last = about.get("last_reload")
    if last is not None:
        ago = timedelta(seconds=int(max(0.0, time.time() - last["time"])))
        outcome = "failed: " + " ".join(last["error"].split()) if last["error"] else "taken"
        needed = "; restart needed for " + ", ".join(last["restart_needed"]) if last["restart_needed"] else ""
        rows.append(("reload", f"{outcome}, {ago} ago{needed}"))
    rows += [(f"listen.{name}", address) for name, address in about["listeners"].items()]
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        shown = typer.style(f"{name:<{width}}", bold=True) if sys.stdout.isatty() else f"{name:<{width}}"
        typer.echo(f"{shown}  {value}")


@contextmanager
def _errors_reported(command: str) -> Iterator[None]:
    from polywire.errors import PolywireError  # noqa: PLC0415 - as above

    try:
        yield
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    except ProcessLookupError:
        fail(command, "the hub has just ended", code=NOT_RUNNING)
    except (PolywireError, OSError) as error:
        fail(command, str(error))
