"""What is done about the garbage collector, and undone."""

import asyncio
import gc

from worker.collector import YOUNG_OBJECTS, Collector


async def test_it_looks_at_new_objects_less_often_while_it_is_in_charge() -> None:
    before = gc.get_threshold()
    collector = Collector(asyncio.get_running_loop())
    assert gc.get_threshold() == (YOUNG_OBJECTS, *before[1:])
    collector.close()
    assert gc.get_threshold() == before
