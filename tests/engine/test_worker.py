"""Short calls on a thread of their own: in order, with their errors, nothing for who is gone."""

import asyncio
import contextlib
import threading

import pytest
from waiting import until

from engine import EngineError
from engine.worker import Worker


@pytest.fixture
def worker():
    found = Worker("tested")
    yield found
    found.stop()


async def test_calls_run_in_order_on_one_other_thread(worker):
    order = []

    def call(number):
        order.append(number)
        return threading.current_thread().name, number

    answers = await asyncio.gather(*(worker.run(lambda n=n: call(n)) for n in range(5)))
    assert answers == [("tested", number) for number in range(5)]
    assert order == list(range(5))


async def test_an_error_comes_back_and_the_thread_goes_on(worker):
    with pytest.raises(ZeroDivisionError):
        await worker.run(lambda: 1 // 0)
    assert await worker.run(lambda: 7) == 7


async def test_what_is_cancelled_before_its_turn_is_left_out(worker):
    held, ran = threading.Event(), []
    first = asyncio.ensure_future(worker.run(held.wait))
    second = asyncio.ensure_future(worker.run(lambda: ran.append(2)))
    await asyncio.sleep(0)
    second.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await second
    held.set()
    assert await first
    assert await worker.run(lambda: 3) == 3
    assert ran == []


async def test_what_is_cancelled_in_its_turn_is_not_told(worker):
    begun, held = threading.Event(), threading.Event()

    def call():
        begun.set()
        held.wait()
        raise ValueError("nobody hears of this")

    task = asyncio.ensure_future(worker.run(call))
    await until(begun.is_set)
    task.cancel()
    held.set()
    assert await worker.run(lambda: 1) == 1
    assert task.cancelled()


async def test_it_ends_behind_what_it_was_asked(worker):
    answer = asyncio.ensure_future(worker.run(lambda: 1))
    await asyncio.sleep(0)
    worker.stop()
    worker.stop()
    assert await answer == 1
    await until(lambda: not any(one.name == "tested" for one in threading.enumerate()))


async def test_who_asks_after_the_end_is_told(worker):
    await worker.run(lambda: None)
    worker.stop()
    with pytest.raises(EngineError, match="tested"):
        await asyncio.wait_for(worker.run(lambda: 1), 5)
