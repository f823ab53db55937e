"""What of a reply is shown at the cursor. `|` marks the cursor in the documents below."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.jobs.suggestion import MAX_LINES, Gap, may_decide, settle


def at(document, multiline="auto"):
    prefix, suffix = document.split("|")
    return Gap(prefix, suffix, multiline)


def shown(document, reply, ending="stop", multiline="auto"):
    return settle(reply, at(document, multiline), ending).text


@pytest.mark.parametrize(
    ("document", "reply", "expected"),
    [
        # The rest of the line, said again after the middle.
        ("x = |foo + 1\n", "bar + foo + 1\nmore", "bar + "),
        ("x = |foo  +  1\n", "bar + foo + 1", "bar + "),
        ("x = |foo + 1\n", "bar + foo", "bar + "),
        ("x = |foo(1)\n", "foo", ""),
        ("call(a|, b)\n", "1, b)", "1"),
        # Closers are a repeat only where the suggestion did not open them.
        ("print(|)\n", "x)", "x"),
        ("print(|)\n", "bar(x)", "bar(x)"),
        ("print(|)\n", "bar(x))", "bar(x)"),
        ("print(|)\n", "a):\n    return a", "a"),
        ("f(g(|))\n", "x)", "x"),
        ('print("|")\n', 'hello")', "hello"),
        ('print("|")\n', 'hello") + f', "hello"),
        ("def f(|):\n    pass\n", "a, b):", "a, b"),
        ("def f(|):\n    pass\n", "a, b) -> int:", "a, b"),
        ("x[(|)]\n", "a), (b", "a), (b"),
        # The next lines, said again.
        ("def f(x):\n    |\n    return x\n", "x += 1\n    return x\n", "x += 1"),
        ("def f(x):\n    |\n\n    return x\n", "return x", ""),
        ("if (a) {|\n}\n", "\n    b();\n}\n", "\n    b();"),
        ("if a:\n    |\n}\n", "if b {\n    c\n    }", "if b {\n    c\n    }"),
        ("def f(x):\n\t|\n\treturn x\n", "x += 1\n\treturn  x \n\ty", "x += 1"),
        # Nothing to see.
        ("x = |\n", "   \n  ", ""),
        ("x = |\n", "", ""),
        ("    |\n", "\n\n\n", ""),
        # No second blank at the cursor, none before one.
        ("x = |\n", " 1", "1"),
        ("x =|\n", " 1", " 1"),
        ("x = | + 1\n", "2 ", "2"),
    ],
)
def test_the_reply_never_repeats_what_follows_the_cursor(document, reply, expected):
    assert shown(document, reply) == expected


BODY = "if n < 2:\n        return n\n    return f(n - 1)\n"


@pytest.mark.parametrize(
    ("document", "reply", "expected"),
    [
        # A blank line in a body: the body, until it dedents.
        ("def f(n):\n    |\n", BODY + "\nprint(f(3))\n", BODY.rstrip()),
        ("def f(n):\n    |\n", BODY + "print(f(3))\n", BODY.rstrip()),
        ("def f(n):\n    |\n", "a = 1\n\n    b = 2\n\n\n    c = 3", "a = 1\n\n    b = 2"),
        # At the margin: one definition, not the next one too.
        ("|\n", "def a():\n    return 1\n\n\ndef b():\n", "def a():\n    return 1"),
        ("|\n", "def a():\n    return 1\n\ndef b():\n", "def a():\n    return 1"),
        # A line that opens a block takes the block with it.
        ("def f(|\n", "n):\n    return n\nprint(1)", "n):\n    return n"),
        ("    if a:|\n", "\n        b()\n    c()\n", "\n        b()"),
        (
            "    if a:|\n",
            "\n        b()\n    else:\n        c()\n    d()",
            "\n        b()\n    else:\n        c()",
        ),
        ("int f() {|\n", "\n  return 1;\n}\n\nint g() {\n", "\n  return 1;\n}"),
        ("x = [|\n", "\n    1,\n    2,\n]\ny = 3\n", "\n    1,\n    2,\n]"),
        ("items.each do |\n".replace("do |", "do|"), "\n  go\nend\nrest\n", "\n  go\nend"),
        ("\tif a {|\n", "\n\t\tb()\n\t}\n\tc()\n", "\n\t\tb()\n\t}"),
        # Any other line is one line.
        ("x = |\n", "1\ny = 2\n", "1"),
        ("# Note:|\n", " this\nx = 1\n", " this"),
        ("x = |1 + y\n", "[\n  2,\n]", "["),
    ],
)
def test_a_suggestion_ends_with_its_block(document, reply, expected):
    assert shown(document, reply) == expected


def test_the_multiline_setting():
    assert shown("def f():\n    |\n", "a\n    b\n", multiline="never") == "a"
    assert shown("x = |\n", "1\ny = 2\nz = 3\n", multiline="always") == "1\ny = 2\nz = 3"
    assert shown("x = |y\n", "1\nz\n", multiline="always") == "1"


def test_a_suggestion_has_at_most_so_many_lines():
    lines = [f"x{i} = {i}" for i in range(MAX_LINES * 2)]
    settled = settle("\n".join(lines[: MAX_LINES + 1]), at("|"))
    assert settled == ("\n".join(lines[:MAX_LINES]), True)


def test_a_line_that_ran_out_of_tokens_is_dropped_unless_it_is_all_there_is():
    assert shown("def f():\n    |\n", "a = 1\n    b = fo", "length") == "a = 1"
    assert shown("def f():\n    |\n", "a = fo", "length") == "a = fo"


@pytest.mark.parametrize(
    "spelling", ["<|im_end|>", "<|fim_middle|>", "<｜end▁of▁sentence｜>", "<file_sep>"]
)
def test_no_control_token_is_ever_spelled(spelling):
    assert shown("x = |\n", f"1{spelling}2") == "1"
    assert settle(f"1{spelling}", at("x = |\n")).decided


def test_ordinary_text_that_looks_alike_is_kept():
    assert shown("x = |\n", "a <|b| c |> d") == "a <|b| c |> d"
    assert shown("|\n", "<s>old</s>") == "<s>old</s>"


@pytest.mark.parametrize(
    ("document", "reply", "expected"),
    [
        ("def f():\n    |\n", "go()\n    go()\n    go()\n    go()", "go()"),
        ("|\n", "a\n    b\na\n    b\na\n    b\n", "a\n    b"),
        ("|\n", "x = " + "again " * 40, "x = again"),
        ("|\n", "# " + "-" * 76, "# " + "-" * 76),
        ("|\n", "0, 0, 0, 0, 0, 0, 0", "0, 0, 0, 0, 0, 0, 0"),
        ("x = |\n", "get" + "_all" * 30, "get_all"),
    ],
)
def test_a_loop_is_shown_once(document, reply, expected):
    assert shown(document, reply) == expected


def test_a_loop_in_one_line_is_found_out_before_the_line_ends():
    settled = settle("get" + "_all" * 15, at("x = |\n"))
    assert settled == ("get_all", True)
    assert not settle("get" + "_all" * 14, at("x = |\n")).decided


def test_line_ends_are_the_documents():
    assert shown("def f():\r\n    |\r\n", "a\n    b\n") == "a\r\n    b"
    assert shown("def f():\n    |\n", "a\r\n    b\r\n") == "a\n    b"
    assert shown("|\r\nx\r\n", "a\nb\n") == "a\r\nb"
    assert shown("|", "a\nb\n") == "a\nb"


def test_tabs_stay_tabs_and_spaces_stay_spaces():
    assert shown("def f():\n\t|\n", "if a:\n\t\tb\n\tc\n") == "if a:\n\t\tb\n\tc"
    assert shown("def f():\n  |\n", "if a:\n    b\n  c\n") == "if a:\n    b\n  c"


def test_a_markdown_fence_around_the_reply_is_taken_off():
    assert shown("|\n", "```python\nx = 1\ny = 2\n```\nThis sets x.") == "x = 1\ny = 2"
    assert shown("```\nold\n```\n|\n", "```\nnew\n```\n").startswith("```")


@pytest.mark.parametrize(
    ("document", "reply", "expected"),
    [
        # The model counts from the margin, the cursor is indented already.
        ("x = 1\nif a:\n    |\n", "    b = 1\n    c = 2\n", "b = 1\n    c = 2"),
        ("if a:\n    x = 1\n    |\n", "    b = 1\n    c = 2\n", "b = 1\n    c = 2"),
        # Or all of it is too deep.
        ("if a:\n    x = 1\n    |\n", "    b = 1\n        c = 2\n", "b = 1\n    c = 2"),
        ("if a:\n    x = 1\n    |\n", "    if b:\n        c = 2\n", "if b:\n        c = 2"),
        ("if a:\n    |\n", "\n    b = 1\n    c = 2\n", "b = 1\n    c = 2"),
        ("if a:\n    |\n", "\n        b = 1\n", "    b = 1"),
        ("if a:\n    |\n", "\n\nb = 1\n", ""),
        # At the margin blank lines are how code is spaced.
        ("import a\n|\n", "\ndef f():\n    pass\n", "\ndef f():\n    pass"),
        # Tabs in a document of tabs, spaces in one of spaces.
        ("if a:\n\tif b:\n\t\t|\n", "c()\n        d()\n", "c()\n\t\td()"),
        ("if a {|\n\tb()\n", "\n    c()\n    d()\n", "\n\tc()\n\td()"),
        ("if a:\n  x = 1\n  |\n", "if b:\n\t\tc()\n", "if b:\n    c()"),
        ("if a:\n    x = 1\n    |\n", "if b:\n\t\tc()\n", "if b:\n        c()"),
    ],
)
def test_indentation_is_the_documents(document, reply, expected):
    assert shown(document, reply) == expected


@pytest.mark.parametrize(
    ("document", "reply", "expected"),
    [
        ("x = f(|\n", "a, b)\n", "a, b)"),
        ("x = f(|\n", "a, b))\n", "a, b)"),
        ("x = |\n", "f(a)] + 1\n", "f(a)"),
        ("x = |\n", "a)\n", "a"),
        ("x = f(g(|\n", "1), [2])", "1), [2])"),
        ("x = (\n    a,\n    |\n", "b,\n)\n)\n", "b,"),
        ("x = |\n", '")" + a', '")" + a'),
        ("x = f(  # (see a\n    |\n", "1)", "1)"),
        ("x = |\n", "1  # 1) first", "1  # 1) first"),
        # What is open is not known: nothing is cut.
        ("    x = |\n", "a)\n", "a)"),
        ("x = y)\nz = |\n".replace("y)", "y"), "a)", "a"),
        ('def f():\n    """(see a\n    x = |\n', "a)", "a)"),
        ('def f():\n    """See (a."""\n    |\n    g()\n', "}", ""),
        ("def f():\n    '''See\n    (a.'''\n    x = |\n", "a)", "a"),
        ("a)\n|\n", "b) go\n", "b) go"),
        ("|\n", "1) one", "1) one"),
    ],
)
def test_no_bracket_is_closed_that_is_not_open(document, reply, expected):
    assert shown(document, reply) == expected


@pytest.mark.parametrize(
    ("document", "reply", "expected"),
    [
        # Of a line below, and of one cut short.
        ("if a:\n    |\n    b()\n    total = compute(a)\n", "c()\n    total = compute(a)\n", "c()"),
        ("if a:\n    |\n    # Sometimes it is 16.1.\n", "# Sometimes it is 16", ""),
        ("if a:\n    |\n    b()\n    c()\n", "c()\n    d()", "c()\n    d()"),
        ("if a:\n    |\n    found = other(value)\n", "found = 1", "found = 1"),
    ],
)
def test_lines_further_down_are_not_said_again(document, reply, expected):
    assert shown(document, reply) == expected


@pytest.mark.parametrize("char", ["\x00", "\x1b", "\u202e", "\u2066", "\ufeff", "\u200b", "\u2028"])
def test_no_character_is_shown_that_no_one_sees(char):
    assert shown("x = |\n", f"1{char}2") == "1"
    assert settle(f"1{char}", at("x = |\n")).decided


def test_an_emoji_that_is_joined_of_several_is_whole():
    assert shown('x = "|"\n', "👩\u200d🚀") == "👩\u200d🚀"


def test_a_fence_that_ends_the_reply_is_taken_off():
    assert shown("def f():\n    |\n", "a = 1\n    b = 2\n```\nThis does") == "a = 1\n    b = 2"


@settings(max_examples=200)
@given(st.text("ab\n>#( \r", max_size=80), st.text("ab\n>#( \r", max_size=8))
def test_only_what_may_decide_decides(reply, added):
    gap = at("x = |\n")
    if not may_decide(reply + added, added) and not settle(reply, gap).decided:
        assert not settle(reply + added, gap).decided


LINES = st.lists(
    st.sampled_from(
        [
            "",
            "    x = 1",
            "x = 1",
            "def f():",
            "    return f(x)",
            ")",
            "}",
            "  }",
            "{",
            "foo + 1",
            "\tx",
            "<|im_end|>",
            "```",
            "else:",
            "    else:",
            "end",
            "é😀",
            "a)",
            "again " * 12,
        ]
    ),
    max_size=12,
)
DOCUMENTS = st.sampled_from(
    [
        "|",
        "|\n",
        "x = |foo + 1\n",
        "def f(|):\n    return f(x)\n",
        "if a:\n    |\n    return f(x)\n",
        "int f() {|\r\n}\r\n",
        "f(|)\n",
        "\tif a {|\n\t}\n",
        'p("|")',
        "x = |\n",
    ]
)


@settings(max_examples=300)
@given(DOCUMENTS, LINES, st.sampled_from(["auto", "never", "always"]), st.integers(0, 200))
def test_what_is_decided_stays_decided(document, lines, multiline, cut):
    """Stopping the engine early never changes what is shown."""
    reply, gap = "\n".join(lines), at(document, multiline)
    early = settle(reply[:cut], gap)
    if early.decided:
        assert settle(reply, gap) == early
        assert settle(reply, gap, "stop") == early
        assert settle(reply, gap, "length") == early


@settings(max_examples=300)
@given(DOCUMENTS, LINES, st.sampled_from(["auto", "never", "always"]))
def test_what_every_suggestion_holds_to(document, lines, multiline):
    gap = at(document, multiline)
    text = settle("\n".join(lines), gap, "stop").text
    assert text == "" or text.strip()
    assert "<|im_end|>" not in text
    assert text.count("\n") < MAX_LINES
    assert text.replace("\r\n", "").count("\n") == 0 or gap.newline == "\n"
    if multiline == "never":
        assert "\n" not in text
    if gap.rest == "foo + 1":
        assert not text.rstrip().endswith("foo + 1")
    if gap.next_lines[:1] == ["    return f(x)"]:
        assert gap.next_lines[0] not in text.split("\n")[1:]
