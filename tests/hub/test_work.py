"""Work in slices: fair, in order, and over when a job fails."""

import pytest

from polywire.hub.work import (
    ALONE,
    BUDGET,
    DONE,
    FIRST_BUDGET,
    FIRST_STEPS,
    MORE,
    QUIET,
    TURN,
    WAIT,
    Job,
    Turns,
    Work,
)
from tests.hub.links import Loop


class Counting(Job):
    """Takes so many steps, each of which takes what the site says; notes each of them."""

    def __init__(self, site: "Site", name: str, steps: int) -> None:
        self.site, self.name, self.left = site, name, steps
        self.waits = False

    def step(self) -> int:
        if self.waits:
            return WAIT
        self.site.now += self.site.cost
        self.site.notes.append(self.name)
        self.left -= 1
        return MORE if self.left else DONE


class Failing(Job):
    def step(self) -> int:
        raise ValueError("on purpose")


class Site:
    def __init__(self) -> None:
        self.now = 0
        self.cost = 0
        self.loop = Loop()
        self.notes: list[str] = []
        self.idle: list[object] = []
        self.work = Work(self.loop.soon.append, lambda: self.now)
        self.work.on_idle = self.idle.append

    def turns(self) -> int:
        """Let the loop run until nothing is left to do; how many turns that took."""
        self.cost = BUDGET // 4
        count = 0
        while self.loop.soon:
            self.loop.turn()
            count += 1
        return count


@pytest.fixture
def site() -> Site:
    return Site()


def test_a_small_job_is_done_at_once(site: Site) -> None:
    site.work.start(1, Counting(site, "a", FIRST_STEPS))
    assert (len(site.notes), len(site.work), site.turns()) == (FIRST_STEPS, 0, 0)
    assert site.idle == [1]


def test_a_large_job_is_done_in_slices(site: Site) -> None:
    site.work.light.at = 0
    site.work.start(1, Counting(site, "a", FIRST_STEPS + 40))
    assert len(site.notes) == FIRST_STEPS
    assert site.work.busy(1)
    assert site.turns() == 10
    assert not site.work.busy(1)
    assert len(site.notes) == FIRST_STEPS + 40
    assert site.work.longest == BUDGET


def test_slices_are_longer_while_no_light_client_is_there(site: Site) -> None:
    site.work.light.at = 0
    site.now = QUIET
    site.work.start(1, Counting(site, "a", FIRST_STEPS + 8 * ALONE // BUDGET))
    assert site.turns() == 2
    assert site.work.longest == ALONE


def test_owners_take_turns_and_the_jobs_of_one_are_done_in_order(site: Site) -> None:
    site.work.start(1, Counting(site, "a", FIRST_STEPS + 2))
    site.work.start(1, Counting(site, "b", 2))
    site.work.start(2, Counting(site, "c", FIRST_STEPS + 3))
    site.notes.clear()
    site.turns()
    assert site.notes == ["a", "c", "a", "c", "b", "c", "b"]


def test_a_job_that_waits_goes_on_when_it_is_woken(site: Site) -> None:
    job = Counting(site, "a", 1)
    job.waits = True
    site.work.start(1, job)
    site.work.start(1, Counting(site, "b", 1))
    assert (site.turns(), site.notes, site.work.busy(1)) == (0, [], True)
    site.work.wake(2)  # somebody else
    job.waits = False
    site.work.wake(1)
    site.work.wake(1)
    site.turns()
    assert site.notes == ["a", "b"]


def test_a_job_that_fails_is_over_and_the_others_go_on(site: Site) -> None:
    site.work.start(1, Counting(site, "a", FIRST_STEPS + 1))
    site.work.start(1, Failing())
    site.work.start(1, Counting(site, "b", 1))
    site.work.start(2, Counting(site, "c", FIRST_STEPS + 9))
    site.notes.clear()
    with pytest.raises(ValueError, match="on purpose"):
        site.turns()
    site.turns()
    assert sorted(site.notes) == ["a", "b", *["c"] * 9]
    with pytest.raises(ValueError, match="on purpose"):
        site.work.start(3, Failing())
    assert len(site.work) == 0


def test_a_job_whose_first_steps_take_long_is_not_begun_with_more_of_them(site: Site) -> None:
    site.cost = FIRST_BUDGET // 2
    site.work.start(1, Counting(site, "a", FIRST_STEPS))
    assert site.notes == ["a"] * 3
    site.turns()
    assert len(site.notes) == FIRST_STEPS


def test_jobs_that_give_way_take_turns_within_their_owner(site: Site) -> None:
    left = {"a": 2, "b": 2}

    def step(name: str) -> int:
        site.now += BUDGET // 4
        site.notes.append(name)
        left[name] -= 1
        return TURN if left[name] else DONE

    site.work = Work(site.loop.soon.append, lambda: site.now, eager=False)
    site.work.start(1, Turns(lambda: step("a")))
    site.work.start(1, Turns(lambda: step("b")))
    assert site.notes == []
    assert site.turns() == 1
    assert site.notes == ["a", "b", "a", "b"]


def test_paused_work_goes_on_when_it_is_resumed(site: Site) -> None:
    site.work = Work(site.loop.soon.append, lambda: site.now, eager=False)
    site.work.start(1, Counting(site, "a", 5))
    site.work.pause()
    site.work.start(2, Counting(site, "b", 1))
    site.turns()
    assert site.notes == []
    site.work.resume()
    site.turns()
    assert site.notes == ["a", "b", "a", "a", "a", "a"]


def test_there_is_time_for_what_needs_no_job_unless_jobs_wait_or_it_is_used_up(site: Site) -> None:
    site.work = Work(site.loop.soon.append, lambda: site.now, eager=False)
    site.work.charge(ALONE - 1)
    assert site.work.has_time()
    site.work.light.at = site.now
    assert not site.work.has_time()
    site.now += QUIET
    site.work.charge(1)
    assert not site.work.has_time()
    site.turns()
    assert site.work.has_time()
    site.work.start(1, Counting(site, "a", 1))
    assert not site.work.has_time()
    site.turns()
    assert site.work.has_time()
