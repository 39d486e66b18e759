"""``polywire demand``: who is listened to."""

import json

from polywire.protocols.fmqp import Subscription, Unsubscription
from tests.cli.commands import going_on, run, url
from tests.hub_process import HubProcess
from tests.wires import Fmqp, connected


def test_each_change_of_demand_is_a_line(hub: HubProcess) -> None:
    with going_on("demand", "camera/*", "-u", url(hub, "fmqp")) as watcher:
        with going_on("sub", "camera/door", "-u", url(hub, "mqtt")):
            watcher.wait_for("camera/door\t1\n")
        watcher.wait_for("camera/door\t0\n")
        assert watcher.interrupt() == 0


def test_a_deserted_topic_shows_at_once(hub: HubProcess) -> None:
    with connected(hub.addresses["fmqp"]) as wire:
        client = Fmqp(wire)
        client.say(Subscription("deserted/a"), Unsubscription("deserted/a"))
        client.settled()
    with going_on("demand", "deserted/*", "-n", "1", "-u", url(hub, "fmqp")) as watcher:
        assert watcher.end() == 0
        assert watcher.text == "deserted/a\t0\n"


def test_demand_as_json_ends_after_a_number_of_changes(hub: HubProcess) -> None:
    with going_on("demand", "lamp/*", "--json", "-n", "1", "-u", url(hub, "fmqp")) as watcher:
        with going_on("sub", "lamp/hall", "-u", url(hub, "umq")):
            assert watcher.end() == 0
        assert json.loads(watcher.text) == {"channel": "lamp/hall", "subscribers": 1}


def test_only_fmqp_tells_demand(hub: HubProcess) -> None:
    result = run("demand", "a", "-u", url(hub, "umq"))
    assert (result.exit_code, result.stderr) == (2, "polywire demand: watch_demand: not with umq, but with fmqp\n")
