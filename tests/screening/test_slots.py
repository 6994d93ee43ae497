"""A slot is a unit's place in the corpus, and goes back to the chunk, the record and the unit that it stands for."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from confide.errors import BadInput
from confide.screening.slots import Later, flat_digests, slots

places = st.tuples(st.integers(0, 2**21 - 1), st.integers(0, 2**22 - 1), st.integers(0, 2**20 - 1))


def slot(chunk, record, unit):
    return int(slots(chunk, np.array([record]), np.array([unit]))[0])


@given(st.lists(places, min_size=1, max_size=12, unique=True))
def test_slots_are_in_the_order_of_the_corpus_and_lead_back_to_it(found):
    ordered = sorted(slot(*place) for place in found)
    assert ordered == [slot(*place) for place in sorted(found)]
    later = Later(iter(ordered))
    for chunk in sorted({place[0] for place in found}):
        expected = {}
        for _, record, unit in (place for place in found if place[0] == chunk):
            expected.setdefault(record, set()).add(unit)
        assert later.of(chunk) == expected
    assert later.of(0) == {}


def test_a_chunk_without_slots_takes_none_of_the_others():
    later = Later(iter([slot(2, 5, 1), slot(2, 5, 3), slot(3, 0, 0)]))
    assert [later.of(chunk) for chunk in range(5)] == [{}, {}, {5: {1, 3}}, {0: {0}}, {}]
    assert Later(iter(())).of(0) == {}


@pytest.mark.parametrize("place", [(2**21, 0, 0), (0, 2**22, 0), (0, 0, 2**20)])
def test_more_than_a_slot_can_hold_is_refused(place):
    with pytest.raises(BadInput, match="too many records for dedup in one go"):
        slot(*place)
    assert slot(2**21 - 1, 2**22 - 1, 2**20 - 1) == 2**63 - 1


def test_digests_are_laid_flat_with_their_slots():
    digests = [[bytes([1]) * 16, bytes([2]) * 16], [], [bytes([3]) * 16]]
    flat, where = flat_digests(digests, 7)
    assert flat.tolist() == [[n] * 16 for n in (1, 2, 3)]
    assert where.tolist() == [slot(7, 0, 0), slot(7, 0, 1), slot(7, 2, 0)]
    assert [part.shape for part in flat_digests([], 7)] == [(0, 16), (0,)]
