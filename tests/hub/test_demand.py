"""Demand: counts by exact topic, told to whoever watches."""

from polywire.hub.channels import from_stars
from polywire.hub.demand import Demand, Watcher


class Recorder(Watcher):
    def __init__(self, pattern: str) -> None:
        super().__init__(from_stars(pattern))
        self.heard: list[tuple[str, int]] = []

    def demand(self, topic: str, subscribers: int) -> None:
        self.heard.append((topic, subscribers))


def test_a_watcher_hears_every_change_of_its_topic() -> None:
    demand, watcher = Demand(), Recorder("a")
    demand.watch(watcher)
    demand.add("a")
    demand.add("a")
    demand.add("b")
    demand.remove("a")
    demand.remove("a")
    assert watcher.heard == [("a", 1), ("a", 2), ("a", 1), ("a", 0)]


def test_a_late_watcher_learns_todays_demand_at_once() -> None:
    demand, watcher = Demand(), Recorder("*")
    demand.add("a")
    demand.add("b")
    demand.remove("b")
    demand.watch(watcher)
    assert watcher.heard == [("a", 1)]


def test_a_watcher_with_a_wildcard_hears_each_topic_under_its_own_name() -> None:
    demand, watcher = Demand(), Recorder("a/*")
    demand.watch(watcher)
    demand.add("a/b")
    demand.add(from_stars("a/*"))
    demand.add("b/b")
    assert watcher.heard == [("a/b", 1), (from_stars("a/*"), 1)]


def test_whoever_stopped_watching_hears_nothing() -> None:
    demand, watcher = Demand(), Recorder("a")
    demand.watch(watcher)
    assert demand.unwatch(watcher)
    assert not demand.unwatch(watcher)
    demand.add("a")
    assert watcher.heard == []


def test_demand_never_falls_below_nothing() -> None:
    demand, watcher = Demand(), Recorder("a")
    demand.watch(watcher)
    demand.remove("a")
    assert (watcher.heard, demand.count("a")) == ([], 0)
