"""The tree and the memory tier, with payloads that know their tokens."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))

from kept_tokens import TokenState, cache, found, put, rows_of, use

from engine.errors import EngineError
from engine.prefix_cache.messages import FileContent, Segment
from engine.prefix_cache.radix_tree import NODE_BYTES


def test_attention_is_reused_up_to_the_first_difference():
    kept = cache()
    put(kept, [1, 2, 3, 4, 5])
    assert found(kept, [1, 2, 3, 9, 9]) == 3
    assert found(kept, [1, 2, 3, 4, 5]) == 5
    assert found(kept, [7, 1, 2]) == 0
    assert found(kept, []) == 0


def test_state_is_reused_at_snapshots_only():
    kept = cache(recurrent=True)
    put(kept, [1, 2], state=True)
    put(kept, [1, 2, 3, 4, 5], state=True)
    put(kept, [1, 2, 3, 4, 5, 6])
    assert found(kept, [1, 2, 3, 4, 9]) == 2
    assert found(kept, [1, 2, 3, 4, 5, 6, 7]) == 5
    assert found(kept, [1, 9, 9]) == 0


def test_hits_are_cut_to_the_grid():
    kept = cache(granularity=4)
    put(kept, list(range(10)))
    assert found(kept, [*range(7), 99, 99]) == 4
    assert found(kept, [0, 1, 2, 99]) == 0


def test_what_branches_share_is_there_once():
    kept = cache()
    stem = list(range(1000))
    put(kept, [*stem, 1, 2])
    alone = kept.memory.tree.nbytes
    put(kept, [*stem, 3, 4, 5])
    kept.check_integrity()
    assert kept.memory.tree.nbytes < alone + 3 * NODE_BYTES
    assert found(kept, [*stem, 1, 2]) == 1002
    assert found(kept, [*stem, 3, 4, 5, 6]) == 1003


def test_a_session_in_use_outlives_what_was_asked_once():
    """A title, a summary, another agent's first look: none of them evicts the session."""
    session = list(range(400))
    room = 400 * 14 + NODE_BYTES * 8
    kept = cache(room)
    for turn in range(100, 401, 100):
        if turn > 100:
            use(kept, session[:turn])
        put(kept, session[:turn])
    for once in range(1000, 1004):
        put(kept, [once, *range(2000, 2150)])
        kept.check_integrity()
        assert found(kept, session) == 400
        use(kept, session)
    assert kept.memory.evictions["budget"] >= 3


def test_the_newest_turn_of_a_named_session_outlives_a_longer_prompt_without_a_name():
    """Neither was used yet; only one says that it will be."""
    kept = cache(300 * 14 + NODE_BYTES * 3)
    put(kept, range(100), session="s")
    put(kept, range(1000, 1150))
    put(kept, range(2000, 2170))
    assert (found(kept, range(100)), found(kept, range(1000, 1150))) == (100, 0)
    kept.check_integrity()
    # It goes on elsewhere; what is left behind is like anything else.
    other = cache(300 * 14 + NODE_BYTES * 3)
    put(other, range(100), session="s")
    put(other, range(500, 510), session="s")
    put(other, range(1000, 1150))
    put(other, range(2000, 2170))
    assert found(other, range(100)) == 0
    other.check_integrity()


def test_what_is_not_used_any_more_ages():
    kept = cache(200 * 14 + NODE_BYTES * 4)
    old = list(range(100))
    put(kept, old)
    for _ in range(3):
        use(kept, old)
    for other in range(1, 60):
        tokens = [other * 1000 + n for n in range(100)]
        put(kept, tokens)
        if found(kept, tokens):
            use(kept, tokens)
    assert found(kept, old) == 0


def test_an_entry_larger_than_the_budget_evicts_nothing():
    kept = cache(5000)
    put(kept, [1, 2, 3])
    assert put(kept, list(range(10, 1000))) is None
    assert found(kept, [1, 2, 3]) == 3
    kept.check_integrity()


def test_the_snapshot_of_an_inner_node_goes_without_its_tokens():
    kept = cache(60 * 14 + 3 * NODE_BYTES + 2000, recurrent=True)
    prompt = list(range(60))
    for length in (20, 40, 60):
        kept.insert(
            prompt[:length], rows_of(prompt), TokenState(tuple(prompt[:length]), nbytes=900)
        )
        kept.check_integrity()
    assert kept.memory.tree.snapshots == 2
    assert found(kept, prompt) == 60


def test_what_is_locked_stays():
    kept = cache(120 * 14 + 2 * NODE_BYTES)
    mine = put(kept, list(range(100)))
    kept.memory.lock(mine)
    for other in range(20):
        put(kept, [5000 + other, *range(6000, 6090)])
    assert found(kept, list(range(100))) == 100
    kept.check_integrity()
    kept.memory.unlock(mine)
    for other in range(20, 40):
        tokens = [5000 + other, *range(6000, 6090)]
        put(kept, tokens)
        if found(kept, tokens):
            use(kept, tokens)
    assert found(kept, list(range(100))) == 0
    kept.check_integrity()
    with pytest.raises(EngineError, match="unlocked"):
        kept.memory.unlock(mine)


def test_a_change_demotes_and_a_revert_hits_again():
    kept = cache(2 * (100 * 14 + NODE_BYTES))
    files = [Segment(end=100, path="a.py", content=b"1")]
    changed, other = list(range(100)), list(range(1000, 1100))
    put(kept, changed, segments=files)
    for _ in range(5):
        use(kept, changed)
    kept.files_changed([FileContent(path="a.py", content=b"2")])
    node = kept.lookup(changed).nodes[0]
    assert kept.memory.demoted(node)
    assert found(kept, changed) == 100
    kept.files_changed([FileContent(path="a.py", content=b"1")])
    assert not kept.memory.demoted(node)
    kept.files_changed([FileContent(path="a.py", content=b"")])
    put(kept, other)
    put(kept, list(range(2000, 2100)))
    assert found(kept, other) == 100
    assert found(kept, changed) == 0


def test_clearing_leaves_what_is_in_use():
    kept = cache()
    mine = put(kept, [1, 2, 3])
    put(kept, [1, 2, 4])
    put(kept, [5])
    kept.memory.lock(mine)
    reports = []
    kept.report("clear", str, reports.append)
    assert reports[0].removed == 2
    assert found(kept, [1, 2, 3]) == 3
    assert found(kept, [5]) == 0


def test_the_tree_can_be_looked_at():
    kept = cache()
    put(kept, [1, 2, 3, 4], segments=[Segment(end=4, path="a.py", content=b"1")])
    put(kept, [1, 2, 5], state=True)
    use(kept, [1, 2, 5])
    reports = []
    kept.report("tree", lambda tokens: "-".join(map(str, tokens)), reports.append)
    (report,) = reports
    shown = {(n.depth, n.start, n.end, n.text, n.path, n.snapshot, n.hits) for n in report.nodes}
    assert shown == {
        (0, 0, 2, "1-2", "a.py", False, 1),
        (1, 2, 4, "3-4", "a.py", False, 0),
        (1, 2, 3, "5", "", True, 1),
    }
    assert report.status.nodes == 3
    kept.report("outline", pytest.fail, reports.append)
    outline = reports.pop().nodes
    assert [(n.depth, n.start, n.end, n.path) for n in outline] == [
        (n.depth, n.start, n.end, n.path) for n in report.nodes
    ]
    assert {n.text for n in outline} == {""}


def test_a_broken_cache_is_noticed():
    kept = cache()
    node = put(kept, [1, 2])
    node.locks = 1
    with pytest.raises(EngineError, match="locks"):
        kept.check_integrity()
    node.locks = 0
    kept.memory.tree.nbytes += 1
    reports = []
    kept.report("verify", str, reports.append)
    assert "counted" in reports[0].problem


words = st.lists(st.integers(0, 2), min_size=1, max_size=8)


@given(st.lists(words, max_size=12), words, st.booleans())
def test_a_hit_is_always_a_true_prefix_and_as_long_as_can_be(inserted, wanted, recurrent):
    kept = cache(recurrent=recurrent)
    for tokens in inserted:
        put(kept, tokens, state=True)
        kept.check_integrity()

    def shared(tokens):
        pairs = zip(tokens, wanted, strict=False)
        same = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
        length = min(len(tokens), len(wanted)) if same is None else same
        return length if not recurrent or length == len(tokens) else 0

    assert found(kept, wanted) == max(map(shared, inserted), default=0)


@settings(max_examples=25)
@given(st.integers(0, 2**32), st.booleans(), st.sampled_from([3_000, 12_000, 60_000]))
def test_random_branchings_cancels_and_evictions(seed, recurrent, budget):
    """Twenty a run. Whatever happened, what is found is of the tokens that were asked for, the
    counts are right and the budget is kept."""
    draw = random.Random(seed)
    kept = cache(budget, recurrent=recurrent)
    stems = [[draw.randrange(4) for _ in range(draw.randrange(1, 60))] for _ in range(4)]
    locked = []
    for _ in range(20):
        stem = draw.choice(stems)
        tokens = stem[: draw.randrange(1, len(stem) + 1)]
        tokens = tokens + [draw.randrange(4) for _ in range(draw.randrange(20))]
        if found(kept, tokens):
            use(kept, tokens)
        # A cancelled request leaves a part.
        done = tokens[: draw.randrange(1, len(tokens) + 1)]
        session = draw.choice([None, "a", "b"])
        node = put(kept, done, state=draw.random() < 0.7, session=session)
        if node is not None and draw.random() < 0.3:
            kept.memory.lock(node)
            locked.append(node)
        if locked and draw.random() < 0.5:
            kept.memory.unlock(locked.pop(draw.randrange(len(locked))))
        if draw.random() < 0.05:
            kept.memory.clear()
        stems.append(tokens)
        kept.check_integrity()
        assert kept.memory.tree.nbytes <= budget or locked


def test_rows_that_cannot_be_had_change_nothing():
    """As where a record from disk does not reach back to what is known by now."""
    kept = cache(budget=2500)
    put(kept, range(80))

    def none(start, end):
        raise EngineError("no rows")

    with pytest.raises(EngineError, match="no rows"):
        kept.insert([*range(50), 7, 8], none)
    kept.check_integrity()
    assert len(kept.memory.tree) == 1
