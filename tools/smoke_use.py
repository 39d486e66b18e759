"""Use an installed polywire as its users do, in an empty folder.

``python -I smoke_use.py compiled|interpreted [--pipeline]``: how the hot modules must run, and whether Spark is there.
Run by ``smoke_package.py`` with the Python of a fresh environment; it imports nothing but polywire and what Python has.
"""

import importlib.metadata
import json
import signal
import subprocess
import sys
import sysconfig
import threading
from pathlib import Path

import polywire
import polywire.sync

COMMAND = str(Path(sysconfig.get_path("scripts"), "polywire"))
LISTENERS = {
    "http": "http://127.0.0.1:0",
    "umq": "ws://127.0.0.1:0/umq",
    "micromsg": "tcp://127.0.0.1:0",
    "fmqp": "tcp://127.0.0.1:0",
    "mqtt": "tcp://127.0.0.1:0",
    "mqtt_ws": "off",
    "sabc": "tcp://127.0.0.1:0",
    "sabc_ws": "off",
}
CHANNEL = "smoke/kitchen/temperature"
SECONDS = 60


def told(*arguments: str, seconds: float = SECONDS) -> str:
    """What ``polywire`` prints, if it leaves with 0."""
    done = subprocess.run([COMMAND, *arguments], capture_output=True, text=True, timeout=seconds, check=False)
    if done.returncode != 0:
        sys.exit(f"polywire {' '.join(arguments)} left with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def must(good: object, what: str) -> None:
    """Go on if it is good, and say what was tried."""
    if not good:
        sys.exit(f"  ✗ {what}")
    print(f"  ✓ {what}", flush=True)


def try_installation(modules: str) -> None:
    """Version, place, and whether the hot modules are what they should be."""
    version = importlib.metadata.version("polywire")
    must(told("--version") == f"polywire {version}\n" == f"polywire {polywire.__version__}\n", f"version {version}")
    must(Path(polywire.__file__).is_relative_to(sys.prefix), "imported from the environment")
    loaded = list(polywire.compiled().values())
    must(set(loaded) == {modules == "compiled"}, f"{len(loaded)} hot modules {modules}")
    must("Usage: polywire demo" in told("demo", "--help"), "polywire demo --help")


def try_hub(journal: Path) -> None:
    """A hub on ports of its own choice, a message from MQTT to FMQP, a call from sABC to UMQ, and a clean end."""
    settings = [f"journal.path={journal}", *(f"listen.{name}={address}" for name, address in LISTENERS.items())]
    command = [COMMAND, "serve", *(word for setting in settings for word in ("--set", setting))]
    log = Path("hub.log")
    with log.open("w") as errors, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as hub:
        killer = threading.Timer(SECONDS, hub.kill)
        killer.start()
        try:
            assert hub.stdout is not None
            line = hub.stdout.readline()
            if not line.startswith("ready "):
                sys.exit(f"polywire serve said {line!r} instead of ready:\n{log.read_text()}")
            must(hub.poll() is None, "polywire serve")
            ports = {name: url.split(":")[2].split("/")[0] for name, url in json.loads(line[6:]).items()}
            talk({name: f"{name}://127.0.0.1:{port}" for name, port in ports.items()})
            hub.send_signal(signal.SIGTERM)
            must(hub.wait() == 0, "SIGTERM drains it")
        finally:
            killer.cancel()
            hub.kill()


def talk(urls: dict[str, str]) -> None:
    """A message and a call, each from one protocol to another."""
    with polywire.sync.connect(urls["fmqp"]) as bus, bus.subscribe("smoke/*/temperature") as messages:
        told("pub", CHANNEL, "21.5", "--url", urls["mqtt"])
        must(messages.get(timeout=SECONDS).text == "21.5", "published over MQTT, received over FMQP")
    with polywire.sync.connect(urls["umq"]) as bus, bus.serve("greeter", lambda request: f"Hello {request.text}"):
        must(told("call", "greeter", "greet", "Anna", "--url", urls["sabc"]) == "Hello Anna\n", "sABC calls UMQ")


def try_journal(journal: Path) -> None:
    """What was published is there."""
    rows = told("journal", "cat", str(journal), "--kind", "publish", "--channel", "smoke/**", "-o", "json")
    must([json.loads(row)["channel"] for row in rows.splitlines()] == [CHANNEL], "polywire journal cat")


def try_pipeline(journal: Path) -> None:
    """The journal into tables, and a question to them."""
    told("pipeline", "run", "--once", "--journal", str(journal), "--lake", "lake", seconds=600)
    must(Path("lake").is_dir(), "polywire pipeline run --once")
    asked = "SELECT protocol, count(*) AS n FROM messages WHERE channel LIKE 'smoke/%' GROUP BY protocol"
    answer = told("pipeline", "query", asked, "--lake", "lake", "-o", "json", seconds=300)
    must([json.loads(row) for row in answer.splitlines()] == [{"protocol": "mqtt", "n": 1}], "polywire pipeline query")


def main() -> None:
    """Try all there is in this installation."""
    modules, *more = sys.argv[1:]
    journal = Path("journal").resolve()
    try_installation(modules)
    try_hub(journal)
    try_journal(journal)
    if more == ["--pipeline"]:
        try_pipeline(journal)


if __name__ == "__main__":
    main()
