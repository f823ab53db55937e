"""Change many files as told: what `pillion refactor` and `pillion/refactor` ask for.

A plan says which files and where, and what syntax alone decides. Then each file's places go through
the model, several files at once, and each result is checked. Nothing is written here: a result is
text with the hash of what it was made from.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from msgspec import Struct

from engine import (
    ContextLengthExceeded,
    EngineClient,
    Finished,
    Priority,
    RequestError,
    instructions,
)
from sidecar.config import EditConfig
from sidecar.edits.hunks import hunks
from sidecar.edits.journal import Change
from sidecar.edits.renaming import Renamed, only_renamed, rename
from sidecar.edits.search import Found, Query, Skipped, search, words_of, words_of_diff
from sidecar.edits.syntax import Syntax, regions
from sidecar.edits.validation import MOST_CHANGED, check_syntax
from sidecar.edits.writable_root import Refused, WritableRoot
from sidecar.jobs.edit import Edit, EditRequest, edit, shared_prefix
from sidecar.jobs.refactor_result import FileResult

_EXAMPLE = (
    "{instruction}\nChange this code in the same way as this diff changes other code:\n{diff}"
)
_MOST_DIFF_CHARACTERS = 4000


class RefactorRequest(Struct, frozen=True, kw_only=True):
    """instruction: in the user's words. globs: which files, as in an ignore file. symbol: only
    where that name is used. rename: its new name. diff: an example of the change, as text.
    most_changed: see `check_region`; None is the usual bound."""

    instruction: str = ""
    globs: tuple[str, ...] = ()
    symbol: str | None = None
    rename: str | None = None
    diff: str | None = None
    most_changed: float | None = None
    draft: bool = True

    def __post_init__(self) -> None:
        if self.rename is not None and self.symbol is None:
            raise RequestError("rename needs symbol, the old name", field="rename")
        if self.rename is None and not self.instruction.strip() and self.diff is None:
            raise RequestError("say what to do: an instruction, or rename", field="instruction")

    @property
    def what(self) -> str:
        """For the journal, in a line."""
        said = self.instruction.strip() or "as in a diff"
        if self.rename is not None:
            said = f"rename {self.symbol} to {self.rename}"
        return " ".join(said.split())[:200]


@dataclass(frozen=True)
class Task:
    """One file. text: with what syntax decided done. regions: first line and the one behind the
    last, of `text`, that the model is asked about. undecided: lines that a rename may mean."""

    found: Found
    text: str
    regions: tuple[tuple[int, int], ...] = ()
    decided: int = 0
    undecided: tuple[int, ...] = ()

    @property
    def path(self) -> str:
        return self.found.path


@dataclass(frozen=True)
class Plan:
    """Files in order of their paths; those that are meant but cannot be edited are skipped."""

    request: RefactorRequest
    tasks: tuple[Task, ...] = ()
    skipped: tuple[Skipped, ...] = ()

    @property
    def regions(self) -> int:
        """How often the model is asked."""
        return sum(len(task.regions) for task in self.tasks)


def plan(root: Path, request: RefactorRequest, config: EditConfig) -> Plan:
    """Read the project and say what is to be done. Blocking. Raises RequestError."""
    words = _words(request)
    if not words and not request.globs:
        raise RequestError(
            "say which files: globs, a symbol, a diff, or `names` in the instruction",
            field="globs",
        )
    query = Query(
        globs=request.globs,
        words=words,
        # A rename looks at comments and strings, too.
        names=request.symbol is not None and request.rename is None,
        most_bytes=config.max_file_bytes,
    )
    with WritableRoot(root) as workspace:
        looked = list(search(workspace, query))
    found = [one for one in looked if isinstance(one, Found)]
    skipped = [one for one in looked if isinstance(one, Skipped)]
    if not looked:
        raise RequestError("no file is meant by that", field="globs")
    if request.rename is not None:
        return _rename_plan(request, found, skipped, config)
    tasks = [_task(one, config.region_lines) for one in found if one.file.text.strip()]
    return Plan(request, tuple(tasks), tuple(skipped))


def changes_of(made: Plan, files: Sequence[FileResult]) -> list[Change]:
    """The bytes before and after of every file that changed."""
    by_path = {task.path: task.found for task in made.tasks}
    return [
        Change(
            one.path,
            by_path[one.path].content.data,
            by_path[one.path].file.with_text(one.text).data,
        )
        for one in files
        if one.state == "changed"
    ]


def planned(made: Plan) -> dict[str, Any]:
    """A plan as clients get it: ``plan`` and ``skipped``, in order of the paths."""
    return {
        "plan": [
            {
                "path": task.path,
                "regions": [list(region) for region in task.regions],
                "decided": task.decided,
            }
            for task in made.tasks
        ],
        "skipped": [{"path": one.path, "reason": one.reason} for one in made.skipped],
    }


def _words(request: RefactorRequest) -> tuple[str, ...]:
    if request.symbol is not None:
        return (request.symbol.rpartition(".")[2],)
    if request.diff is not None:
        return words_of_diff(request.diff)
    return () if request.globs else words_of(request.instruction)


def _task(found: Found, most: int) -> Task:
    text = found.file.text
    if not found.lines:
        return Task(found, text, ((0, text.count("\n") + 1),))
    return Task(found, text, _regions(text, found.language, found.lines, most))


def _regions(
    text: str, language: str, lines: Sequence[int], most: int
) -> tuple[tuple[int, int], ...]:
    return tuple(regions(Syntax(text, language), lines, most))


def _rename_plan(
    request: RefactorRequest,
    found: Sequence[Found],
    skipped: Sequence[Skipped],
    config: EditConfig,
) -> Plan:
    assert request.symbol is not None
    assert request.rename is not None
    files = {one.path: Syntax(one.file.text, one.language) for one in found}
    renamed: Mapping[str, Renamed] = rename(files, request.symbol, request.rename)
    tasks, refused = [], list(skipped)
    for one in found:
        result = renamed[one.path]
        if result.reason:
            refused.append(Skipped(one.path, result.reason))
        elif result.decided or result.undecided:
            parts = _regions(result.text, one.language, result.undecided, config.region_lines)
            tasks.append(Task(one, result.text, parts, result.decided, result.undecided))
    return Plan(request, tuple(tasks), tuple(sorted(refused, key=lambda one: one.path)))


@dataclass
class Refactor:
    """Runs a plan. engine: None where only what syntax decides is done.
    started, done: called for each file."""

    plan: Plan
    engine: EngineClient | None
    config: EditConfig
    started: Callable[[str], None] = lambda _path: None
    done: Callable[[FileResult], None] = lambda _result: None
    _shared: dict[str, int] = field(default_factory=dict)

    async def run(self) -> list[FileResult]:
        """Results in the plan's order. Cancelling the task stops the engine's work within a round.
        Raises NotReady and EngineError; what concerns one file only is in its result."""
        turns = asyncio.Semaphore(self.config.in_flight)

        async def one(task: Task) -> FileResult:
            async with turns:
                self.started(task.path)
                result = await self._file(task)
                self.done(result)
                return result

        try:
            async with asyncio.TaskGroup() as group:
                running = [group.create_task(one(task)) for task in self.plan.tasks]
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None
        return [task.result() for task in running]

    async def _file(self, task: Task) -> FileResult:
        text, notes, replies = task.text, list[str](), list[Finished]()
        try:
            # From the last to the first, so that the lines of those before stay where they are.
            for first, last in reversed(task.regions):
                try:
                    edited = await self._region(task, text, first, last)
                except (Refused, ContextLengthExceeded) as refused:
                    # What syntax decided is right without it.
                    if self.plan.request.rename is None:
                        raise Refused(f"lines {first + 1} to {last}: {refused.message}") from None
                    lines = [line + 1 for line in task.undecided if first <= line < last]
                    named = ", ".join(map(str, lines))
                    notes.append(f"line {named} may mean it, too: {refused.message}")
                    continue
                replies.append(edited.finished)
                text = edited.text
            result = self._checked(task, text)
        except (Refused, RequestError) as refused:
            result = FileResult(path=task.path, state="refused", reason=refused.message)
        return _with_account(result, notes, replies)

    async def _region(self, task: Task, text: str, first: int, last: int) -> Edit:
        request = self.plan.request
        if self.engine is None:
            raise Refused("no model was asked")
        language = task.found.language
        instruction = _instruction(request)
        if language not in self._shared:
            self._shared[language] = await shared_prefix(self.engine, instruction, language)
        most = MOST_CHANGED if request.most_changed is None else request.most_changed
        edited = await edit(
            self.engine,
            self.config,
            EditRequest(
                text=text,
                instruction=instruction,
                first=first,
                last=last,
                language=language,
                most_changed=most,
                draft=request.draft,
                priority=Priority.AGENT,
                shared=self._shared[language],
            ),
        )
        if request.rename is not None and request.symbol is not None:
            old = request.symbol.rpartition(".")[2]
            if not only_renamed(text, edited.text, old, request.rename):
                raise Refused("the answer changes more than the name")
        return edited

    def _checked(self, task: Task, text: str) -> FileResult:
        before = task.found.file.text
        if text == before:
            return FileResult(path=task.path, state="unchanged")
        check_syntax(before, text, task.found.language)
        task.found.file.with_text(text)
        return FileResult(
            path=task.path,
            state="changed",
            before=task.found.content.sha256,
            text=text,
            hunks=hunks(before, text),
            decided=task.decided,
        )


def _instruction(request: RefactorRequest) -> str:
    if request.rename is not None and request.symbol is not None:
        old = request.symbol.rpartition(".")[2]
        return instructions.RENAME.format(old=old, new=request.rename)
    if request.diff is not None:
        if len(request.diff) > _MOST_DIFF_CHARACTERS:
            most = _MOST_DIFF_CHARACTERS
            raise RequestError(f"the diff is longer than {most} characters", field="diff")
        diff = request.diff.rstrip("\n")
        return _EXAMPLE.format(instruction=request.instruction.strip(), diff=diff).lstrip("\n")
    return request.instruction.strip()


def _with_account(
    result: FileResult, notes: Sequence[str], replies: Sequence[Finished]
) -> FileResult:
    return FileResult(
        path=result.path,
        state=result.state,
        reason=result.reason,
        before=result.before,
        text=result.text,
        hunks=result.hunks,
        decided=result.decided,
        notes=tuple(reversed(notes)),
        tokens=sum(len(reply.tokens) for reply in replies),
        rounds=sum(reply.rounds for reply in replies),
        accepted=sum(reply.accepted for reply in replies),
        cached=sum(reply.cached_tokens for reply in replies),
        prompt=sum(reply.prompt_tokens for reply in replies),
        seconds=round(sum(reply.decode_ms for reply in replies) / 1e3, 4),
        exact=all(reply.exact for reply in replies),
    )
