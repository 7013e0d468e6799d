"""The collector of cycles in a worker's process: what was loaded is left alone, what is made later is not."""

import gc
import weakref

from holdfast.system.garbage import YOUNG_MAX, settled


class Knot:
    def __init__(self) -> None:
        self.itself = self


def test_what_is_made_later_is_collected_and_the_collector_is_given_back_as_it_was() -> None:
    before, frozen_before = gc.get_threshold(), gc.get_freeze_count()
    with settled():
        assert gc.get_freeze_count() > frozen_before
        assert gc.get_threshold() == (YOUNG_MAX, *before[1:])
        knot = weakref.ref(Knot())
        gc.collect()
        assert knot() is None
    assert gc.get_threshold() == before
    assert gc.get_freeze_count() == 0
