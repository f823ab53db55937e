"""Settings files with comments are changed in one place only."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.clients.commented_json import NotThisJson, value_of, with_value

ZED = """// Zed settings
{
  "theme": "One Dark", // dark
  /* fonts */
  "buffer_font_size": 15,
  "language_models": {
    "ollama": {"api_url": "http://localhost:11434"},
  },
}
"""


def test_everything_else_stays_byte_for_byte():
    changed = with_value(ZED, ("language_models", "openai_compatible", "Pillion"), {"a": [1]})
    assert value_of(changed)["language_models"]["openai_compatible"] == {"Pillion": {"a": [1]}}
    added = changed.replace(
        ',\n    "openai_compatible": {\n      "Pillion": {\n        "a": [\n          1\n'
        "        ]\n      }\n    }",
        "",
    )
    assert added == ZED


def test_a_value_that_is_there_is_replaced_and_an_equal_one_left():
    changed = with_value(ZED, ("buffer_font_size",), 16)
    assert changed == ZED.replace("15", "16")
    assert (
        with_value(ZED, ("language_models", "ollama"), {"api_url": "http://localhost:11434"}) == ZED
    )


@pytest.mark.parametrize("text", ["", "  \n", "{}", "{ }\n", "{\n}\n"])
def test_an_empty_file_becomes_a_document(text):
    assert json.loads(with_value(text, ("a", "b"), "é")) == {"a": {"b": "é"}}


def test_a_comment_in_an_empty_object_stays():
    changed = with_value("{\n  // nothing yet\n}\n", ("a",), 1)
    assert "// nothing yet" in changed
    assert value_of(changed) == {"a": 1}


def test_line_ends_stay_what_they_are():
    changed = with_value('{\r\n  "a": 1\r\n}\r\n', ("b",), {"c": 2})
    assert "\n" not in changed.replace("\r\n", "")
    assert value_of(changed) == {"a": 1, "b": {"c": 2}}


@pytest.mark.parametrize(
    "text", ["[1]", "{a: 1}", '{"a": 1', "{'a': 1}", '{"a": f()}', "1", "{...x}", '{"a": 1} {}']
)
def test_what_is_no_json_object_is_refused(text):
    with pytest.raises(NotThisJson):
        with_value(text, ("b",), 1)


def test_a_key_on_the_way_that_is_no_object_is_named():
    with pytest.raises(NotThisJson, match=r"a\.b is no object"):
        with_value('{"a": {"b": 1}}', ("a", "b", "c"), 1)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(0, 1 << 50) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(
    st.dictionaries(st.text(), VALUES, max_size=4),
    st.lists(st.text(), min_size=1, max_size=3),
    VALUES,
    st.sampled_from([None, 2, 4]),
)
def test_it_says_what_a_parser_makes_of_it(document, keys, value, indent):
    expected, inner = json.loads(json.dumps(document)), None
    at = expected
    for key in keys[:-1]:
        inner = at.setdefault(key, {})
        if not isinstance(inner, dict):
            with pytest.raises(NotThisJson):
                with_value(json.dumps(document), keys, value)
            return
        at = inner
    at[keys[-1]] = value
    text = json.dumps(document, indent=indent)
    assert json.loads(with_value(text, keys, value)) == expected
