from polywire.backoff import Backoff


def test_pauses_grow_to_the_longest_and_are_never_the_same_for_all() -> None:
    backoff = Backoff(first=0.5, most=8.0)
    for attempt, longest in enumerate((0.5, 1.0, 2.0, 4.0, 8.0, 8.0)):
        pauses = {backoff.pause(attempt) for _ in range(50)}
        assert all(longest / 10 <= pause <= longest for pause in pauses)
        assert len(pauses) > 1
    assert backoff.pause(10_000) <= 8.0
