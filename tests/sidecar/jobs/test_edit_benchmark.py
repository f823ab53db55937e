import ast
from pathlib import Path

import pytest

import engine
from engine import EngineClient, EngineError, instructions
from engine.testing import FakeEngine
from sidecar.jobs.edit_benchmark import (
    differences,
    edit_figures,
    edit_rows,
    paired,
    right_answers,
)
from sidecar.jobs.edit_tasks import KINDS, EditTask, edit_tasks
from sidecar.jobs.race.contenders import InProcess, Measured
from sidecar.jobs.race.tasks import Task

SOURCE = '''
def f(path, mode):
    """Read."""
    with open(path, mode) as file:
        return file.read("all") + len(path)
'''


@pytest.fixture
def package(tmp_path):
    for number in range(5):
        (tmp_path / f"m{number}.py").write_text(SOURCE.replace("f(", f"f{number}("))
    (tmp_path / "empty.py").write_text("x = 1\n")
    return tmp_path


def test_one_task_a_file_the_kinds_in_turn(package):
    tasks = edit_tasks({"p": package}, 5)
    assert [task.kind for task in tasks] == [*KINDS, next(iter(KINDS))]
    assert tasks[0].name == "p/m0.py:f0"
    assert edit_tasks({"p": package}, 3) == tasks[:3]


def test_the_right_answers(package):
    right = {task.kind: task.right for task in edit_tasks({"p": package}, 4)}
    body = SOURCE.strip()
    assert right["rename"] == body.replace("f(", "f0(").replace("path", "renamed_value")
    assert right["add a parameter"] == body.replace("f(path, mode", "f1(path, mode, strict=False")
    assert right["wrap calls"] == body.replace("f(", "f2(").replace(
        "open(path, mode)", "checked(open(path, mode))"
    )
    assert right["change quotes"] == body.replace("f(", "f3(").replace('"all"', "'all'")


def test_tasks_from_real_code_have_answers_that_parse_and_differ():
    tasks = edit_tasks({"engine": Path(engine.__file__).parent}, 40)
    assert len(tasks) == 40
    assert {task.kind for task in tasks} == set(KINDS)
    for task in tasks:
        ast.parse(task.right)
        assert task.right != task.code
        assert task.user.startswith(f"{task.instruction}\n```python\n{task.code}")


def run(tokens, decode, output="a", accepted=None, text=""):
    return {
        0: Measured(
            prompt_tokens=5,
            tokens=tokens,
            prefill=1.0,
            decode=decode,
            output=output,
            accepted=accepted,
            text=text,
        )
    }


RUNS = {
    ("target-only", "x"): run(11, 2.0, accepted=0),
    ("copy", "x"): run(11, 1.0, accepted=6),
    ("portfolio", "x"): run(11, 0.5, accepted=8),
    ("target-only", "y"): run(11, 2.0, accepted=0),
    ("copy", "y"): run(11, 1.0, "b", accepted=6),
    ("portfolio", "y"): run(11, 0.5, accepted=8),
    ("mlx_lm", "x"): run(11, 4.0),
}
SERIAL = {
    "target-only": None,
    "copy": "target-only",
    "portfolio": "target-only",
    "mlx_lm": None,
}


def test_rows_by_kind_and_of_all():
    rows = edit_rows("m", RUNS, {"x": "rename", "y": "quotes"}, SERIAL)
    found = {(row.kind, row.system): row for row in rows}
    assert len(found) == 4 + 3 + 4
    assert found["rename", "copy"].tok_s == 10
    assert found["rename", "copy"].same is True
    assert found["quotes", "copy"].same is False
    assert found["all", "portfolio"].accepted == 8
    assert found["all", "mlx_lm"].tasks == 1
    assert found["all", "mlx_lm"].same is None


def test_a_repeat_that_was_disturbed_does_not_count():
    repeats = {0: run(11, 1.0)[0], 1: run(11, 9.0)[0], 2: run(11, 1.1)[0]}
    (row, _) = edit_rows("m", {("copy", "x"): repeats}, {"x": "rename"}, {"copy": None})
    assert row.tok_s == pytest.approx(10 / 1.1, abs=0.01)
    runs = {("copy", "x"): repeats, ("target-only", "x"): run(11, 2.2)}
    assert paired(runs, "copy", "target-only", ["x"]).mean == pytest.approx(2)


def test_figures():
    rows = edit_rows("m", RUNS, {"x": "rename", "y": "quotes"}, SERIAL)
    found = edit_figures(RUNS, rows, 1, ["target-only", "copy", "portfolio"])
    assert found.rewrite_portfolio_over_target_only == pytest.approx(4)
    assert found.portfolio_over_best_single == pytest.approx(2)
    assert found.portfolio_over_best_single_per_task == pytest.approx(2)
    slow = RUNS | {("portfolio", "y"): run(101, 20.0)}
    rows = edit_rows("m", slow, {"x": "rename", "y": "quotes"}, SERIAL)
    again = edit_figures(slow, rows, 1, ["target-only", "copy", "portfolio"])
    assert again.portfolio_over_best_single < again.portfolio_over_best_single_per_task
    assert (found.best_single, found.differences, found.tasks, found.right) == ("copy", 1, 2, 1)
    assert found.peers == {"mlx_lm on m": 2.5}
    assert differences(RUNS, ["portfolio"], "target-only") == 0


def test_no_figures_without_a_measurement():
    with pytest.raises(EngineError, match="no time"):
        edit_figures({}, [], 0, ["target-only", "copy", "portfolio"])


async def test_right_answers_are_counted_by_what_the_engine_says():
    task = EditTask(name="x", kind="rename", instruction="i", code="a", right="b = 1")
    client = EngineClient(FakeEngine(instructions.reply("b = 1")))
    client.start()
    await client.ready()
    asked = Task(name="x", regime="r", prompt=(1, 2))
    measured = await InProcess("portfolio", client).reply(asked, 100)
    await client.stop()
    assert measured.text == "```python\nb = 1\n```"
    assert right_answers({("portfolio", "x"): {0: measured}}, "portfolio", [task]) == 1
    assert right_answers({("portfolio", "x"): run(3, 1.0)}, "portfolio", [task]) == 0
