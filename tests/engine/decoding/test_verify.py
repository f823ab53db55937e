from __future__ import annotations

import pytest

from engine.decoding.verify import accept, commit_run
from engine.errors import EngineError


@pytest.mark.parametrize(
    ("drafts", "chosen", "run"),
    [
        ([], [5], [5]),
        ([1, 2, 3], [1, 2, 3, 4], [1, 2, 3, 4]),
        ([1, 2, 3], [1, 9, 3, 4], [1, 9]),
        ([1, 2, 3], [9, 2, 3, 4], [9]),
        ([1, 1, 1], [1, 1, 2, 1], [1, 1, 2]),
    ],
)
def test_commits_the_accepted_prefix_and_one_more(
    drafts: list[int], chosen: list[int], run: list[int]
) -> None:
    assert accept(drafts, chosen) == len(run) - 1
    assert commit_run(drafts, chosen) == run


def test_every_draft_needs_a_choice_and_the_end_one_more() -> None:
    with pytest.raises(ValueError, match="2 drafts need 3 choices, got 2"):
        accept([1, 2], [1, 2])


def test_unusable_logits_fail_only_where_serial_decoding_would_meet_them() -> None:
    assert commit_run([1, 2], [7, -1, -1]) == [7]
    with pytest.raises(EngineError, match="NaN"):
        commit_run([1, 2], [1, -1, 5])
    with pytest.raises(EngineError, match="NaN"):
        commit_run([], [-1])
