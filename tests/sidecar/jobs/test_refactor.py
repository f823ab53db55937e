import asyncio
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted_edits import ACCEPTED, ANSWERS, asked_code, kind_of, scripted
from waiting import until

from engine import EngineClient, EngineError, Priority, RequestError
from engine.testing import FakeEngine
from sidecar.config import EditConfig
from sidecar.edits.crash_trials import fingerprint
from sidecar.edits.installed_repository import make_repository
from sidecar.edits.journal import Journal
from sidecar.edits.search import Skipped
from sidecar.edits.text_file import TextFile, with_newlines
from sidecar.edits.writable_root import WritableRoot
from sidecar.jobs.edit import region_of
from sidecar.jobs.refactor import Refactor, RefactorRequest, changes_of, plan
from sidecar.jobs.refactor_result import changed_file, wire

CONFIG = EditConfig(region_lines=20)
WORD = re.compile(r"(?<!\w)self(?!\w)")


def right(code):
    return WORD.sub("this", code)


async def results(made, reply, **options):
    """The refactor's results, and the engine that made them."""
    backend = FakeEngine(reply, context=1 << 20, **options)
    client = EngineClient(backend)
    client.start()
    await client.ready()
    try:
        return await Refactor(made, client, CONFIG).run(), backend
    finally:
        await client.stop()


def make(folder, files):
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def kinds(task):
    """The answer that each region of a file gets, the model's view of the file's regions."""
    found = []
    for first, last in task.regions:
        region = region_of(with_newlines(task.found.file.text), first, last)
        found.append(kind_of(region.code))
    return found


async def refactor_everything(folder, files):
    root = folder / "w"
    root.mkdir()
    make_repository(root, files, b"self")
    before = fingerprint(root)
    made = plan(root, RefactorRequest(instruction="Call `self` this."), CONFIG)
    assert len(made.tasks) == files
    assert made.skipped == ()
    found, backend = await results(made, scripted(right))
    assert all(request.priority is Priority.AGENT for request in backend.seen)
    for task, result in zip(made.tasks, found, strict=True):
        wrong = [kind for kind in kinds(task) if kind not in ACCEPTED]
        if wrong:
            assert result.state == "refused", (task.path, wrong)
            assert re.match(
                r"lines \d+ to \d+: the answer|the result does not parse", result.reason
            )
        else:
            assert (result.state, result.reason) == ("changed", "")
            assert result.text == WORD.sub("this", task.found.file.text)
    return root, before, made, found


async def test_right_answers_are_applied_and_wrong_ones_refused(tmp_path):
    root, before, made, found = await refactor_everything(tmp_path, 30)
    states = [one.state for one in found]
    assert {"changed", "refused"} == set(states)
    with WritableRoot(root) as workspace:
        journal = Journal(tmp_path / "state", workspace)
        journal.apply("x", changes_of(made, found))
        after = fingerprint(root)
        changed = {path for path in before if before[path] != after[path]}
        assert changed == {one.path for one in found if one.state == "changed"}
        assert all(before[path][0] == after[path][0] for path in before)
        journal.undo()
    assert fingerprint(root) == before


@pytest.mark.slow
async def test_three_hundred_files(tmp_path):
    root, before, made, found = await refactor_everything(tmp_path, 300)
    assert {kind for task in made.tasks for kind in kinds(task)} == set(ANSWERS)
    with WritableRoot(root) as workspace:
        journal = Journal(tmp_path / "state", workspace)
        entry = journal.apply("x", changes_of(made, found))
        assert len(entry.written) == sum(one.state == "changed" for one in found)
        journal.undo()
    assert fingerprint(root) == before


@pytest.mark.parametrize("kind", sorted(set(ANSWERS) - set(ACCEPTED)))
async def test_each_wrong_answer_has_its_reason(tmp_path, kind):
    code = "".join(f"def f{n}(self):\n    return self.x{n}\n" for n in range(5))
    root = make(tmp_path, {"a.py": code})
    made = plan(root, RefactorRequest(instruction="Call `self` this."), CONFIG)
    (result,), _ = await results(made, scripted(right, lambda _code: kind))
    assert result.state == "refused"
    assert result.reason
    assert result.text == ""


async def test_several_files_are_in_flight_and_begin_alike(tmp_path):
    root = make(tmp_path, {f"{n}.py": f"x = self.a{n}\n" for n in range(6)})
    made = plan(root, RefactorRequest(instruction="Call `self` this."), CONFIG)
    at_once, most = set(), []
    backend = FakeEngine(scripted(right, lambda _code: "right"))
    client = EngineClient(backend)
    client.start()
    await client.ready()

    def started(path):
        at_once.add(path)
        most.append(len(at_once))

    await Refactor(
        made, client, EditConfig(in_flight=3), started, lambda result: at_once.remove(result.path)
    ).run()
    await client.stop()
    assert max(most) == 3
    (shared,) = {request.boundaries[0] for request in backend.seen}
    assert len({request.prompt[:shared] for request in backend.seen}) == 1


async def test_an_engine_that_dies_ends_it(tmp_path):
    root = make(tmp_path, {"a.py": "self.x = 1\n"})
    made = plan(root, RefactorRequest(instruction="Call `self` this."), CONFIG)
    with pytest.raises(EngineError, match="the engine died"):
        await results(made, scripted(right), dies_after=1)


async def test_cancelling_stops_every_file(tmp_path):
    root = make(tmp_path, {f"{n}.py": f"x = self.a{n}\n" for n in range(4)})
    made = plan(root, RefactorRequest(instruction="Call `self` this."), CONFIG)
    backend = FakeEngine("```\n" + "a" * 9000, round_seconds=0.002, context=1 << 20)
    client = EngineClient(backend)
    client.start()
    await client.ready()
    task = asyncio.create_task(Refactor(made, client, CONFIG).run())
    await until(lambda: backend.steps)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await client.stop()
    assert all(ending.finish_reason == "cancelled" for ending in backend.endings.values())


async def test_a_rename_asks_only_where_syntax_does_not_decide(tmp_path):
    root = make(
        tmp_path, {"m.py": "def old(): pass\n", "n.py": "from m import old\n# old\nold()\n"}
    )
    made = plan(root, RefactorRequest(symbol="old", rename="fresh"), CONFIG)
    assert [(task.path, task.decided, len(task.regions)) for task in made.tasks] == [
        ("m.py", 1, 0),
        ("n.py", 2, 1),
    ]
    found, backend = await results(
        made, scripted(lambda code: code.replace("# old", "# fresh"), lambda _code: "right")
    )
    assert [one.text for one in found] == [
        "def fresh(): pass\n",
        "from m import fresh\n# fresh\nfresh()\n",
    ]
    assert len(backend.seen) == 1
    assert asked_code(backend.seen[0])[0] == "Rename `old` to `fresh` in this code:"


async def test_a_rename_keeps_what_is_decided_where_the_model_is_wrong(tmp_path):
    root = make(tmp_path, {"m.py": "def old(): pass\n# old\n"})
    made = plan(root, RefactorRequest(symbol="old", rename="fresh"), CONFIG)
    for reply in (
        scripted(lambda code: code.replace("pass", "return 1"), lambda _code: "right"),
        "no idea",
    ):
        (result,), _ = await results(made, reply)
        assert (result.state, result.text) == ("changed", "def fresh(): pass\n# old\n")
        assert len(result.notes) == 1
    (result,) = await Refactor(made, None, CONFIG).run()
    assert result.notes == ("line 2 may mean it, too: no model was asked",)


def test_what_is_not_edited_is_in_the_plan(tmp_path):
    root = make(tmp_path, {"a.py": "self.x = 1\n"})
    (root / "binary.py").write_bytes(b"self\0")
    with (root / "large.py").open("wb") as file:
        file.truncate(50 << 20)
    made = plan(root, RefactorRequest(instruction="Call `self` this."), EditConfig())
    assert [task.path for task in made.tasks] == ["a.py"]
    assert made.skipped == (
        Skipped("binary.py", "is binary"),
        Skipped("large.py", "has 52428800 bytes; at most 1048576 are edited"),
    )


NAMES = ["..", ".", "a.py", "b", "out", "up", "outside", "link.py", "*", "**", "!a.py", "/", "~"]


@given(globs=st.lists(st.lists(st.sampled_from(NAMES), max_size=4).map("/".join), max_size=3))
@settings(max_examples=20)
def test_whatever_a_client_names_nothing_outside_changes(tmp_path_factory, globs):
    """No glob leads out of the project, and what a plan does is done to plain files in it alone."""
    base = tmp_path_factory.mktemp("property")
    code = "def old(): pass\n"
    root = make(base / "w", {"a.py": code, "b/a.py": code})
    make(base, {"outside/a.py": code, "a.py": code})
    (root / "out").symlink_to("../outside")
    (root / "b" / "up").symlink_to(base)
    (root / "link.py").symlink_to("../a.py")
    before = fingerprint(base)
    request = RefactorRequest(symbol="old", rename="fresh", globs=tuple(globs))
    try:
        made = plan(root, request, CONFIG)
    except RequestError:
        return
    found = asyncio.run(Refactor(made, None, CONFIG).run())
    with WritableRoot(root) as workspace:
        Journal(base.parent / f"{base.name}-state", workspace).apply("x", changes_of(made, found))
    after = fingerprint(base)
    changed = {path for path in before if before[path] != after[path]}
    assert before.keys() == after.keys()
    assert changed <= {"w/a.py", "w/b/a.py"}
    assert changed == {f"w/{task.path}" for task in made.tasks}


def test_an_example_diff_says_where(tmp_path):
    root = make(tmp_path, {"a.py": "fetch(1)\n", "b.py": "load(2)\n"})
    request = RefactorRequest(diff="-fetch(0)\n+load(0)\n")
    assert [task.path for task in plan(root, request, CONFIG).tasks] == ["a.py"]


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({}, "instruction"),
        ({"rename": "x"}, "rename"),
        ({"instruction": "do it"}, "globs"),
        ({"instruction": "do it", "globs": ("none.py~*",)}, "globs"),
        ({"symbol": "no_such_name", "rename": "x"}, "globs"),
    ],
)
def test_what_cannot_be_planned_names_its_field(tmp_path, fields, field):
    make(tmp_path, {"a.py": "x = 1\n"})
    with pytest.raises(RequestError) as raised:
        plan(tmp_path, RefactorRequest(**fields), CONFIG)
    assert raised.value.field == field


async def test_a_client_makes_the_file_from_the_wire(tmp_path):
    root = make(tmp_path, {"a.py": "é = self.x\r\n"})
    made = plan(root, RefactorRequest(instruction="Call `self` this."), CONFIG)
    (result,), _ = await results(made, scripted(right, lambda _code: "right"))
    data = (root / "a.py").read_bytes()
    assert changed_file(data, wire(result)) == TextFile.of(data.replace(b"self", b"this"))
