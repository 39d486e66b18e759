"""Work in slices: fair, in order, and over when a job fails."""

import pytest

from polywire.hub.work import BUDGET, DONE, FIRST_STEPS, MORE, WAIT, Job, Work
from tests.hub.links import Loop


class Counting(Job):
    """Takes so many steps, of a quarter of a slice each; notes each of them."""

    def __init__(self, site: "Site", name: str, steps: int) -> None:
        self.site, self.name, self.left = site, name, steps
        self.waits = False

    def step(self) -> int:
        if self.waits:
            return WAIT
        self.site.now += BUDGET // 4
        self.site.notes.append(self.name)
        self.left -= 1
        return MORE if self.left else DONE


class Failing(Job):
    def step(self) -> int:
        raise ValueError("on purpose")


class Site:
    def __init__(self) -> None:
        self.now = 0
        self.loop = Loop()
        self.notes: list[str] = []
        self.idle: list[object] = []
        self.work = Work(self.loop.soon.append, lambda: self.now)
        self.work.on_idle = self.idle.append

    def turns(self) -> int:
        """Let the loop run until nothing is left to do; how many turns that took."""
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
    site.work.start(1, Counting(site, "a", FIRST_STEPS + 40))
    assert len(site.notes) == FIRST_STEPS
    assert site.work.busy(1)
    assert site.turns() == 10
    assert not site.work.busy(1)
    assert len(site.notes) == FIRST_STEPS + 40
    assert site.work.longest == BUDGET


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
