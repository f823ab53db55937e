import asyncio
import contextlib
import threading

import pytest
from waiting import until

from engine import EngineClient, GenerateRequest, NotReady, Priority, RequestError
from engine.testing import FIM_MIDDLE, FIM_SUFFIX, FakeEngine
from sidecar.config import CompletionConfig
from sidecar.jobs.completion import CompletionRequest, complete, reach

CONFIG = CompletionConfig()


@contextlib.asynccontextmanager
async def running(*args, **kwargs):
    backend = FakeEngine(*args, **kwargs)
    engine = EngineClient(backend)
    engine.start()
    try:
        await engine.ready()
        yield engine, backend
    finally:
        await engine.stop()


def prompt_of(request: GenerateRequest) -> str:
    return bytes(t for t in request.prompt if t < 256).decode()


async def test_a_completion_is_a_greedy_interactive_fill_in_middle():
    async with running("1 + 2") as (engine, backend):
        request = CompletionRequest(prefix="x = ", suffix="\ny", path="a.py")
        completion = await complete(engine, CONFIG, request)
    assert (completion.text, completion.finish_reason) == ("1 + 2", "stop")
    assert completion.finished.tokens[-1] == 256
    (seen,) = backend.seen
    assert seen.priority is Priority.INTERACTIVE
    assert seen.sampling.greedy
    assert seen.max_tokens == CONFIG.max_tokens
    assert {FIM_SUFFIX, FIM_MIDDLE} < set(seen.prompt)
    assert prompt_of(seen) == "x = \ny"


async def test_the_engine_stops_as_soon_as_the_text_is_decided():
    reply = "1\n" + "y = 2\n" * 500
    async with running(reply, round_seconds=0.002) as (engine, backend):
        config = CompletionConfig(max_tokens=1000)
        for account in (True, False):
            request = CompletionRequest(prefix="x = ")
            completion = await complete(engine, config, request, account=account)
            assert completion.text == "1"
            assert completion.finish_reason == "stop"
            assert (completion.finished is not None) is account
        await until(lambda: not engine.open_requests)
    assert all(steps < 50 for steps in backend.steps.values())


async def test_running_out_of_tokens_is_reported():
    async with running("abcdef") as (engine, _):
        request = CompletionRequest(prefix="x = ", max_tokens=3)
        completion = await complete(engine, CONFIG, request)
    assert (completion.text, completion.finish_reason) == ("abc", "length")


async def test_carriage_returns_stay_out_of_the_prompt_and_come_back_in_the_text():
    async with running("a\n    b") as (engine, backend):
        request = CompletionRequest(prefix="def f():\r\n    ", suffix="\r\nz\r\n")
        completion = await complete(engine, CONFIG, request)
    assert completion.text == "a\r\n    b"
    assert prompt_of(backend.seen[0]) == "def f():\n    \nz\n"


async def test_a_huge_document_costs_no_more_than_the_budget():
    async with running("1") as (engine, backend):
        config = CompletionConfig(prompt_tokens=100)
        far = "far\n" * reach(config)
        request = CompletionRequest(prefix=far + "x = ", suffix="\ny\n" + far)
        await complete(engine, config, request)
    assert len(backend.seen[0].prompt) <= 103
    assert "x = \ny" in prompt_of(backend.seen[0])


async def test_a_key_on_a_line_that_is_known_needs_no_other_thread():
    async with running("1 + 2") as (engine, backend):
        inner, threads = backend.codec.fill_in_middle, []

        def fill_in_middle(*args, **kwargs):
            threads.append(threading.current_thread())
            return inner(*args, **kwargs)

        backend.codec.fill_in_middle = fill_in_middle
        for prefix in ("a\nx", "a\nx =", "a\nx = 1\n", "a\nx = 1\ny"):
            await complete(engine, CONFIG, CompletionRequest(prefix=prefix, suffix="\n"))
    here = threading.current_thread()
    assert [thread is here for thread in threads] == [False, True, False, True]
    assert [prompt_of(seen) for seen in backend.seen][1::2] == ["a\nx =\n", "a\nx = 1\ny\n"]


async def test_a_small_context_leaves_room_for_the_reply():
    async with running("1", context=64) as (engine, backend):
        for max_tokens in (8, 10_000):
            request = CompletionRequest(prefix="a" * 500, suffix="b" * 500, max_tokens=max_tokens)
            await complete(engine, CONFIG, request)
    roomy, greedy = (len(request.prompt) - 3 for request in backend.seen)
    assert roomy == 64 - 8
    assert greedy == 64 // 2


async def test_cancelling_the_task_stops_the_engine():
    async with running("a" * 1000, round_seconds=0.002) as (engine, backend):
        request = CompletionRequest(prefix="x = ", max_tokens=1000)
        task = asyncio.create_task(complete(engine, CONFIG, request))
        await until(lambda: any(backend.steps.values()))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        at_cancel = max(backend.steps.values())
        await until(lambda: not engine.open_requests)
    assert max(backend.steps.values()) <= at_cancel + 1


async def test_errors_are_the_engines():
    def refuse(_request):
        raise RequestError("seed: no", field="seed")

    async with running(refuse) as (engine, _):
        with pytest.raises(RequestError, match="seed: no"):
            await complete(engine, CONFIG, CompletionRequest(prefix="x"))
        with pytest.raises(RequestError, match="max_tokens"):
            await complete(engine, CONFIG, CompletionRequest(prefix="x", max_tokens=-1))
    loading = threading.Event()
    engine = EngineClient(FakeEngine(loading=loading))
    engine.start()
    with pytest.raises(NotReady, match="loading"):
        await complete(engine, CONFIG, CompletionRequest(prefix="x"))
    await engine.stop()


async def test_tokens_of_one_round_come_together():
    for tokens in (1, 4, 100):
        async with running("a = 1\nb = 2\n", round_tokens=tokens) as (engine, backend):
            completion = await complete(engine, CONFIG, CompletionRequest(prefix="    ", suffix=""))
            assert completion.text == "a = 1"
            assert sum(backend.steps.values()) <= 14


async def test_a_request_that_someone_waits_for_is_work_and_an_idle_one_is_not():
    async with running("abc", round_seconds=0.002) as (engine, backend):
        for priority in (Priority.INTERACTIVE, Priority.IDLE):
            news = engine.news()
            request = CompletionRequest(prefix="x = ", priority=priority)
            task = asyncio.ensure_future(complete(engine, CONFIG, request))
            await until(lambda: any(backend.steps.values()))
            assert engine.working is (priority is Priority.INTERACTIVE)
            assert news.is_set() is engine.working
            await task
            assert not engine.working
            backend.steps.clear()
