import pytest

from polywire.protocols.umq import LocalProtocolError
from polywire.protocols.umq.base36 import MAX_NUMBER
from polywire.protocols.umq.ids import IdSequence, check_id


def test_ids_count_upwards_and_skip_those_in_use() -> None:
    ids = IdSequence()
    assert [ids.choose({2, 3}) for _ in range(3)] == [1, 4, 5]


def test_the_largest_id_is_followed_by_the_smallest() -> None:
    ids = IdSequence()
    ids._next = MAX_NUMBER
    assert [ids.choose({1}) for _ in range(2)] == [MAX_NUMBER, 2]


@pytest.mark.rule("UMQ-84")
def test_an_id_has_64_bits() -> None:
    check_id(0)
    check_id(MAX_NUMBER)
    for number in (-1, MAX_NUMBER + 1):
        with pytest.raises(LocalProtocolError):
            check_id(number)
