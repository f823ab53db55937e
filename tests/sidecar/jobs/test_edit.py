import asyncio

import pytest
from scripted_edits import asked_code, fenced
from waiting import until

from engine import EngineClient, Priority, RequestError
from engine.testing import FakeEngine
from sidecar.config import EditConfig
from sidecar.edits.hunks import apply_hunks
from sidecar.edits.writable_root import Refused
from sidecar.jobs.edit import EditRequest, edit, region_of, shared_prefix

CLASS = "class A:\r\n    def f(self):\r\n        return 1\r\n\r\nx = A()"


@pytest.fixture
async def start():
    clients = []

    async def started(reply, **options):
        backend = FakeEngine(reply, **{"context": 1 << 16, **options})
        client = EngineClient(backend)
        client.start()
        await client.ready()
        clients.append(client)
        return client, backend

    yield started
    for client in clients:
        await client.stop()


def request(text=CLASS, **more):
    return EditRequest(text=text, instruction="Return 2.", language="python", **more)


def returning(old, new):
    def reply(asked):
        _, fence, code = asked_code(asked)
        return fenced(code.replace(old, new), fence)

    return reply


async def test_a_region_is_rewritten_and_nothing_else_changes(start):
    client, backend = await start(returning("1", "2"))
    made = await edit(client, EditConfig(), request(first=1, last=4))
    assert made.text == CLASS.replace("1", "2")
    (hunk,) = made.hunks
    assert apply_hunks(CLASS, hunk.hunks) == made.text
    assert (hunk.first, hunk.old) == (2, "        return 1\r\n")
    assert (made.first, made.last, made.form) == (1, 3, "rewrite")
    # The model saw the method alone, at the left edge and with plain line ends.
    instruction, _, code = asked_code(backend.seen[0])
    assert (instruction, code) == ("Return 2.", "def f(self):\n    return 1")
    assert backend.seen[0].priority is Priority.INTERACTIVE
    assert backend.seen[0].sampling.greedy
    # What the copy drafter expects, from the first token on.
    assert bytes(backend.seen[0].prediction).decode() == f"```python\n{code}\n```"


async def test_a_long_region_is_changed_by_blocks(start):
    text = "".join(f"a{n} = {n}\n" for n in range(40))
    reply = "<<<<<<< SEARCH\na7 = 7\n=======\na7 = 8\n>>>>>>> REPLACE\n"
    client, backend = await start(reply)
    made = await edit(client, EditConfig(rewrite_lines=20), request(text))
    assert made.form == "blocks"
    assert made.text == text.replace("a7 = 7", "a7 = 8")
    assert backend.seen[0].prediction == ()
    asked = bytes(t for t in backend.seen[0].prompt if t < 256).decode()
    assert "<<<<<<< SEARCH\nlines of the code\n=======" in asked


async def test_code_with_fences_gets_longer_ones(start):
    text = '"""\n```\nx\n```\n"""\ny = 1\n'
    client, backend = await start(returning("1", "2"))
    made = await edit(client, EditConfig(), request(text))
    assert made.text == text.replace("1", "2")
    assert asked_code(backend.seen[0])[1] == "````"


async def test_an_answer_that_is_cut_off_is_refused(start):
    client, _ = await start(lambda asked: "```\n" + "a" * 5000)
    with pytest.raises(Refused, match=r"does not end within \d+ tokens"):
        await edit(client, EditConfig(), request())


async def test_code_that_does_not_fit_the_model_is_refused(start):
    client, _ = await start("x", context=200)
    long = "".join(f"a{n} = {n}\n" for n in range(200))
    with pytest.raises(Refused, match="is too long: its prompt has"):
        await edit(client, EditConfig(), request(long))
    with pytest.raises(Refused, match="merge conflict"):
        await edit(client, EditConfig(), request(long + "=======\n"))


@pytest.mark.parametrize(
    ("text", "more", "field"),
    [("\n\n", {}, "range"), ("a\n\n\n", {"first": 1}, "range"), ("a", {"first": 9}, "range")],
)
async def test_lines_without_code(start, text, more, field):
    client, backend = await start("x")
    with pytest.raises(RequestError) as raised:
        await edit(client, EditConfig(), request(text, **more))
    assert raised.value.field == field
    assert backend.seen == []


async def test_an_empty_instruction(start):
    client, _ = await start("x")
    with pytest.raises(RequestError, match="instruction is empty"):
        await edit(client, EditConfig(), EditRequest(text="a", instruction=" "))


async def test_cancelling_stops_the_engine(start):
    client, backend = await start("```\n" + "a" * 9000 + "\n```", round_seconds=0.002)
    task = asyncio.create_task(edit(client, EditConfig(), request()))
    await until(lambda: backend.steps)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: backend.endings)
    (ending,) = backend.endings.values()
    assert ending.finish_reason == "cancelled"


async def test_prompts_of_one_instruction_begin_alike(start):
    client, backend = await start(returning("1", "2"))
    shared = await shared_prefix(client, "Return 2.", "python")
    for text in ("a = 1\n", "(b) == 1\n"):
        await edit(client, EditConfig(), request(text, shared=shared))
    one, other = backend.seen
    assert one.prompt[:shared] == other.prompt[:shared]
    assert bytes(t for t in one.prompt[:shared] if t < 256).decode().endswith("```python\n")
    assert one.boundaries[0] == other.boundaries[0] == shared


def test_a_region_has_no_blank_lines_at_its_ends():
    region = region_of("\n\n  a\n\n  b\n\n", 0, None)
    assert (region.first, region.last) == (2, 5)
    assert (region.margin, region.code) == ("  ", "a\n\nb")
    assert region.with_code("c") == "\n\n  c\n\n"
