import gc

from sidecar.collector import spare_what_is_loaded


def test_what_is_loaded_is_not_gone_through_again():
    before = gc.get_threshold()
    try:
        spare_what_is_loaded()
        assert gc.get_freeze_count() > 0
        assert gc.get_threshold()[0] > before[0]
        # What comes later is still collected.
        cycle = []
        cycle.append(cycle)
        del cycle
        assert gc.collect() >= 1
    finally:
        gc.unfreeze()
        gc.set_threshold(*before)
