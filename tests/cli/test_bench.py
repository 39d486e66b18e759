"""``polywire bench``: that it measures what it says; how fast anything is, is no matter here."""

import json
import signal
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polywire.cli.bench import Histogram
from tests.cli.commands import EVERY, SECONDS, going_on, good, run, url
from tests.hub_process import HubProcess


@pytest.mark.parametrize("protocol", EVERY)
def test_messages_are_counted_and_timed_whatever_the_protocol(hub: HubProcess, protocol: str) -> None:
    found = json.loads(good("bench", "--messages", "300", "-S", "2", "-c", "3", "--json", "-u", url(hub, protocol)))
    assert (found["kind"], found["sent"], found["received"], found["lost"]) == ("pubsub", 300, 600, 0)
    times = found["latency_us"]
    assert 0 < times["least"] <= times["p50"] <= times["p90"] <= times["p99"] <= times["p99.9"] <= times["most"]


def test_publishing_alone_is_timed_until_it_is_acknowledged(hub: HubProcess) -> None:
    found = json.loads(good("bench", "publish", "-n", "300", "-p", "2", "--json", "-u", url(hub, "mqtt")))
    assert (found["sent"], found["received"], found["publishers"]) == (300, 300, 2)
    assert found["latency_us"]["p50"] > 0


def test_what_is_not_acknowledged_has_no_latency(hub: HubProcess) -> None:
    found = json.loads(good("bench", "publish", "-n", "300", "--json", "-u", url(hub, "fmqp")))
    assert found["latency_us"] is None


@pytest.mark.parametrize("protocol", ["umq", "sabc"])
def test_calls_go_to_an_echo_of_its_own(hub: HubProcess, protocol: str) -> None:
    found = json.loads(good("bench", "call", "-n", "100", "-i", "8", "--json", "-u", url(hub, protocol)))
    assert (found["kind"], found["received"]) == ("call", 100)


def test_it_measures_from_one_protocol_to_another(hub: HubProcess) -> None:
    text = good("bench", "-n", "50", "-i", "1", "-u", url(hub, "fmqp"), "--sub-url", url(hub, "umq"))
    assert text.startswith(f"pubsub {url(hub, 'fmqp')} -> {url(hub, 'umq')}/umq\n  1 publishing, 1 subscribed")
    assert "0 lost" in text
    assert "p99.9" in text


def test_a_rate_is_kept(hub: HubProcess) -> None:
    found = json.loads(good("bench", "-n", "20", "--rate", "200", "--json", "-u", url(hub, "mqtt")))
    assert found["sent_per_second"] < 400


def test_a_terminal_sees_how_far_it_is(hub: HubProcess) -> None:
    with going_on("bench", "--for", "1", "-u", url(hub, "mqtt"), terminal=True) as command:
        command.wait_for("━")
        command.wait_for("p99.9")
        assert command.end() == 0
        assert "latency" in command.text


def test_ctrl_c_ends_it_with_130(hub: HubProcess) -> None:
    with going_on("bench", "--for", "600", "-u", url(hub, "mqtt"), terminal=True) as command:
        command.wait_for("p99.9")
        assert command.interrupt() == 130
        assert "Traceback" not in command.text


@pytest.mark.parametrize("what", ["pubsub", "publish", "call"])
def test_ctrl_c_prints_what_was_measured_so_far(hub: HubProcess, what: str) -> None:
    before = hub.metric('polywire_messages_total{direction="in",protocol="umq"}')
    words = [sys.executable, "-m", "polywire", "bench", what, "--for", "600", "--json", "-u", url(hub, "umq")]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:  # noqa: S603 - ours
        while what != "call" and hub.metric('polywire_messages_total{direction="in",protocol="umq"}') < before + 500:
            assert process.poll() is None
        while what == "call" and hub.metric('polywire_connections{protocol="umq"}') < 2:
            assert process.poll() is None
        if what == "call":
            good("bench", "call", "-n", "300", "-u", url(hub, "umq"))  # so long it has had time for some itself
        process.send_signal(signal.SIGINT)
        printed, complaints = process.communicate(timeout=SECONDS)
    assert (process.returncode, complaints) == (130, "")
    found = json.loads(printed)
    assert (found["kind"], found["complete"], found["lost"]) == (what, False, 0)
    assert 0 < found["received"] <= found["sent"]
    assert found["seconds"] > 0


def test_an_interrupted_measurement_says_so_in_words_too(hub: HubProcess) -> None:
    with going_on("bench", "--for", "600", "-u", url(hub, "mqtt"), terminal=True) as command:
        command.wait_for("p99.9")
        assert command.interrupt() == 130
        assert ", then interrupted" in command.text
        assert "latency" in command.text
    assert json.loads(good("bench", "-n", "10", "--json", "-u", url(hub, "mqtt")))["complete"] is True


def test_a_service_that_nobody_offers_is_code_6(hub: HubProcess) -> None:
    assert run("bench", "call", "--service", "nobody", "-n", "1", "-u", url(hub, "umq")).exit_code == 6


def test_a_service_is_for_calls_only(hub: HubProcess) -> None:
    assert run("bench", "publish", "--service", "x", "-u", url(hub, "umq")).exit_code == 2


times = st.lists(st.integers(0, 10**12), min_size=1, max_size=200)


@given(times, st.sampled_from([1.0, 50.0, 90.0, 99.0, 99.9, 100.0]))
def test_a_percentile_is_off_by_less_than_a_hundredth(found: list[int], part: float) -> None:
    histogram = Histogram()
    for each in found:
        histogram.add(each)
    rank = max(1, -(-len(found) * part // 100))
    exact = sorted(found)[int(rank) - 1]
    assert abs(histogram.percentile(part) - exact) <= exact / 100
    assert (histogram.least, histogram.most, histogram.count) == (min(found), max(found), len(found))


def test_without_times_all_is_zero() -> None:
    assert (Histogram().percentile(99), Histogram().mean) == (0, 0.0)
