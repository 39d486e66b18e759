"""Demand: counts by exact topic, told to whoever watches."""

import pytest

from polywire.hub.channels import from_stars
from polywire.hub.demand import MAX_DESERTED, Demand, Watcher
from polywire.hub.work import Work


class Recorder(Watcher):
    def __init__(self, pattern: str) -> None:
        super().__init__(from_stars(pattern))
        self.heard: list[tuple[str, int]] = []

    def demand(self, topic: str, subscribers: int) -> None:
        self.heard.append((topic, subscribers))


def test_a_watcher_hears_every_change_of_its_topic() -> None:
    demand, watcher = Demand(Work(print)), Recorder("a")
    demand.watch(watcher)
    demand.add("a")
    demand.add("a")
    demand.add("b")
    demand.remove("a")
    demand.remove("a")
    assert watcher.heard == [("a", 1), ("a", 2), ("a", 1), ("a", 0)]


def test_a_late_watcher_learns_todays_demand_and_what_was_deserted_at_once() -> None:
    demand, watcher = Demand(Work(print)), Recorder("*")
    demand.add("a")
    demand.add("b")
    demand.remove("b")
    demand.watch(watcher)
    assert sorted(watcher.heard) == [("a", 1), ("b", 0)]


def test_the_topics_deserted_longest_ago_are_forgotten_first() -> None:
    demand, watcher = Demand(Work(print), most_deserted=2), Recorder("*")
    for topic in ("a", "b", "a", "c", "d", "c"):  # "a" is deserted twice, the second time after "b"
        demand.add(topic)
        demand.remove(topic)
    demand.watch(watcher)
    assert sorted(watcher.heard) == [("c", 0), ("d", 0)]
    assert len(demand._names) == 2


def test_a_topic_that_is_wanted_again_is_not_forgotten() -> None:
    demand, watcher = Demand(Work(print), most_deserted=1), Recorder("*")
    demand.add("a")
    demand.remove("a")
    demand.add("a")
    for topic in ("b", "c"):
        demand.add(topic)
        demand.remove(topic)
    demand.watch(watcher)
    assert sorted(watcher.heard) == [("a", 1), ("c", 0)]


def test_forgetting_takes_the_same_time_however_many_are_remembered() -> None:
    # Deserting far more topics than are remembered is quick: a walk over forgotten ones would take minutes.
    demand = Demand(Work(print))
    for number in range(200_000):
        demand.add(str(number))
        demand.remove(str(number))
    assert len(demand._deserted) == len(demand._names) == MAX_DESERTED


@pytest.mark.parametrize("topic", ["$/info/clients", "$", "x" * 256])
def test_service_topics_and_names_too_long_for_fmqp_are_not_remembered(topic: str) -> None:
    demand, watcher = Demand(Work(print)), Recorder("**")
    demand.add(topic)
    demand.remove(topic)
    demand.watch(watcher)
    assert (watcher.heard, len(demand._names)) == ([], 0)


def test_the_demand_of_a_topic_can_be_told_again() -> None:
    demand, watcher = Demand(Work(print)), Recorder("a")
    demand.watch(watcher)
    demand.add("a")
    demand.repeat("a")
    assert watcher.heard == [("a", 1), ("a", 1)]


def test_a_watcher_with_a_wildcard_hears_each_topic_under_its_own_name() -> None:
    demand, watcher = Demand(Work(print)), Recorder("a/*")
    demand.watch(watcher)
    demand.add("a/b")
    demand.add(from_stars("a/*"))
    demand.add("b/b")
    assert watcher.heard == [("a/b", 1), (from_stars("a/*"), 1)]


def test_whoever_stopped_watching_hears_nothing() -> None:
    demand, watcher = Demand(Work(print)), Recorder("a")
    demand.watch(watcher)
    assert demand.unwatch(watcher)
    assert not demand.unwatch(watcher)
    demand.add("a")
    assert watcher.heard == []


def test_demand_never_falls_below_nothing() -> None:
    demand, watcher = Demand(Work(print)), Recorder("a")
    demand.watch(watcher)
    demand.remove("a")
    assert (watcher.heard, demand.count("a")) == ([], 0)
