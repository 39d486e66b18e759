"""A second of fuzzing for each codec, and for whole sessions on each listener of a hub; ``make fuzz`` takes longer."""

import importlib
import logging
import socket
import subprocess
import sys

import pytest
from fuzz.__main__ import CODECS, LISTENERS
from fuzz.scripts import Input, scripts
from fuzz.sessions import FindingError, inner_hub, send

from polywire.protocols import fmqp
from tests.hub_process import LISTEN

SECONDS = 1


@pytest.mark.parametrize("codec", CODECS)
def test_every_seed_holds_the_contract(codec: str) -> None:
    target = importlib.import_module(f"fuzz.targets.{codec}")
    seeds = target.seeds()
    assert seeds
    for seed in seeds:
        target.run(seed)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("codec", CODECS)
def test_a_second_of_fuzzing_finds_nothing(codec: str) -> None:
    command = [sys.executable, "-m", "fuzz", "--seconds", str(SECONDS), codec]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - our own module
    assert done.returncode == 0, done.stdout + done.stderr
    assert "nothing found" in done.stdout


def test_there_is_a_script_for_every_listener() -> None:
    assert tuple(scripts()) == LISTENERS == tuple(sorted(LISTEN, key=LISTENERS.index))


@pytest.mark.timeout(240)
@pytest.mark.parametrize("listener", LISTENERS)
def test_a_second_of_mutated_sessions_finds_nothing(listener: str) -> None:
    command = [sys.executable, "-m", "fuzz", "--sessions", "--seconds", str(SECONDS), listener]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - our own module
    assert done.returncode == 0, done.stdout + done.stderr
    assert "nothing found" in done.stdout


def test_scripts_that_are_not_mutated_do_what_they_say() -> None:
    with inner_hub() as hub:
        for script in scripts().values():
            send(hub.hub, Input(script.listener, logs_in=True, pieces=(), resets=False))
        hub.check()


def test_an_error_in_the_log_and_a_task_that_is_left_are_findings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fuzz.sessions.SETTLE_SECONDS", 0.2)
    with inner_hub() as hub:
        hub.check()
        held = socket.create_connection(("127.0.0.1", hub.hub.port("fmqp")))
        held.sendall(fmqp.encode(fmqp.Subscription("x")))
        with held:
            hub.wait_for_clients(1)
            with pytest.raises(FindingError, match="left behind"):
                hub.check()
        monkeypatch.setattr("fuzz.sessions.SETTLE_SECONDS", 20)
        hub.check()
        logging.getLogger("polywire.server").error("something broke")
        with pytest.raises(FindingError, match="something broke"):
            hub.check()
