"""Holes of held-out code: what is asked, and how an answer is judged."""

import ast

from sidecar.jobs.fim_benchmark import begun_text, holes, judged, settled_text, similarity

SOURCE = '''"""A module."""

import os


def first(a, b):
    """What it says."""
    total = a + b
    return total


def second(names):
    for name in names:
        if name:
            print(name)
    found = os.path.join(
        "a",
        "b",
    )
    return found


def short(): return 1


def long(a):
    if a:
        a = 1
        a = 2
        a = 3
        a = 4
        a = 5
        a = 6
    return a
'''


def package(tmp_path, **files):
    folder = tmp_path / "package"
    folder.mkdir()
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    return {"package": folder}


def test_a_hole_is_a_run_of_whole_statements(tmp_path):
    found = holes(package(tmp_path, a=SOURCE), 100)
    assert [hole.middle for hole in found] == [
        "total = a + b\n    return total",
        "for name in names:\n        if name:\n            print(name)",
        'found = os.path.join(\n        "a",\n        "b",\n    )',
    ]
    for hole in found:
        assert hole.prefix + hole.middle + hole.suffix == SOURCE
        assert hole.gap.before == "    "
        ast.parse(hole.prefix + "pass" + hole.suffix)


def test_holes_are_spread_evenly_and_the_same_each_time(tmp_path):
    folders = package(tmp_path, a=SOURCE, b=SOURCE, c=SOURCE)
    found = holes(folders, 3)
    assert [hole.path for hole in found] == [f"package/{name}.py" for name in "abc"]
    assert found == holes(folders, 3)


def test_answers_are_judged_by_what_a_reader_sees(tmp_path):
    found = holes(package(tmp_path, a=SOURCE), 100)
    right = [hole.middle for hole in found]
    row = judged("system", "model", found, right)
    assert (row.holes, row.exact_match, row.edit_similarity, row.first_line) == (3, 1.0, 1.0, 1.0)
    spaced = judged("system", "model", found, [text.replace("\n", "  \n") for text in right])
    assert spaced.exact_match == 1.0
    wrong = judged("system", "model", found, ["total = a + b", "", right[2].replace("b", "c")])
    assert (wrong.exact_match, wrong.empty) == (0.0, 1)
    assert wrong.first_line == round(2 / 3, 4)
    assert 0.3 < wrong.edit_similarity < 0.9


def test_similarity_is_of_all_characters():
    assert similarity("abcd", "abcd") == 1.0
    assert similarity("abcd", "abxx") == 0.5
    assert similarity("abcd", "") == 0.0


def test_a_model_that_continues_text_sees_whole_lines(tmp_path):
    (hole, *_) = holes(package(tmp_path, a=SOURCE), 1)
    assert begun_text(hole, 10_000) == hole.prefix
    assert begun_text(hole, 40) == '    """What it says."""\n    '


def test_what_a_continuation_says_is_cut_as_the_product_cuts_it(tmp_path):
    (hole, *_) = holes(package(tmp_path, a=SOURCE), 1)
    reply = "total = a - b\n    return total\n\n\ndef other():\n    pass\n"
    assert settled_text(hole, reply, whole=False) == "total = a - b\n    return total"
