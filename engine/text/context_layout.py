"""How a completion prompt shows other files ahead of the one that is edited.

A model that was trained on whole repositories gets them in its own words (Qwen2.5-Coder,
arXiv:2409.12186, section 3.1; StarCoder2, arXiv:2402.19173, section 5.4). For any other they are
parts of the file itself, each below a comment that names it. Each file is tokenised for itself, so
that a change in one leaves the tokens of those before it as they were.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.messages import ContextFile
from engine.prefix_cache.messages import Segment
from engine.text.instructions import shown_file

if TYPE_CHECKING:
    from engine.text.vocabulary import Vocabulary

# Repository, file, and whether the edited file's name stands behind the prefix marker.
REPOSITORY_MARKERS = (
    ("<|repo_name|>", "<|file_sep|>", False),
    ("<repo_name>", "<file_sep>", True),
)
# Files are a few hundred tokens each; these are those of a few dozen open documents.
KEPT = 512


@dataclass(frozen=True)
class Context:
    """ahead: ids in front of the prefix marker. inside: ids behind it, in front of the prefix.
    ends: (path, content, length), lengths counted from the first id of the context."""

    ahead: tuple[int, ...] = ()
    inside: tuple[int, ...] = ()
    ends: tuple[tuple[str, bytes, int], ...] = ()

    def segments(self, start: int) -> tuple[Segment, ...]:
        """start: the prompt's length in front of the context."""
        return tuple(
            Segment(path=path, content=content, end=start + end) for path, content, end in self.ends
        )


NO_CONTEXT = Context()


class ContextLayout:
    """Lays files out for one vocabulary. fills: whether it has fill-in-the-middle markers."""

    def __init__(self, vocabulary: Vocabulary, *, fills: bool) -> None:
        self._encode = functools.lru_cache(KEPT)(lambda text: tuple(vocabulary.encode_sealed(text)))
        found = (
            (vocabulary.find(repository, file), inside)
            for repository, file, inside in REPOSITORY_MARKERS
        )
        none: tuple[tuple[int, ...], bool] = ((), False)
        self._markers, self._path_inside = next(
            (one for one in found if len(one[0]) == 2 and fills), none
        )
        # With the very files, which are the same ones from key to key.
        self._last: tuple[Sequence[ContextFile], tuple[str, str, int], Context] | None = None

    def layout(self, project: str, files: Sequence[ContextFile], path: str, limit: int) -> Context:
        """The files that fit into `limit` tokens: those in front of the first that does not."""
        if not files:
            return NO_CONTEXT
        context = self._laid_out(project, files, path, limit)
        self._last = files, (project, path, limit), context
        return context

    def known_layout(
        self, project: str, files: Sequence[ContextFile], path: str, limit: int
    ) -> Context | None:
        """The same, if these files were laid out last."""
        if not files:
            return NO_CONTEXT
        last = self._last
        known = last is not None and last[0] is files and last[1] == (project, path, limit)
        return last[2] if last is not None and known else None

    def _laid_out(
        self, project: str, files: Sequence[ContextFile], path: str, limit: int
    ) -> Context:
        if not self._markers:
            ids, ends = self._fitting(
                [],
                [self._encode(shown_file(one.path, one.text, one.comment)) for one in files],
                limit,
            )
            return Context(inside=tuple(ids), ends=_ends(files, ends))
        repository, separator = self._markers
        head = [repository, *self._encode(f"{project}\n")]
        name = self._encode(f"{path}\n")
        parts = [(separator, *self._encode(f"{one.path}\n{one.text}")) for one in files]
        ids, ends = self._fitting(head, parts, limit - len(name) - 1)
        if not ends:
            return NO_CONTEXT
        if self._path_inside:
            return Context((*ids, separator), name, _ends(files, ends))
        return Context((*ids, separator, *name), (), _ends(files, ends))

    @staticmethod
    def _fitting(
        ids: list[int], parts: Sequence[tuple[int, ...]], limit: int
    ) -> tuple[list[int], list[int]]:
        """`ids` and the leading `parts` that fit, and where each of those ends."""
        ends = []
        for part in parts:
            if len(ids) + len(part) > limit:
                break
            ids = [*ids, *part]
            ends.append(len(ids))
        return ids, ends


def _ends(
    files: Sequence[ContextFile], lengths: Sequence[int]
) -> tuple[tuple[str, bytes, int], ...]:
    return tuple(
        (file.place, file.content, length) for file, length in zip(files, lengths, strict=False)
    )
