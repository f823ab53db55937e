"""What users of coding assistants, editors and their servers have reported, and where the tests are
that it does not happen here. Each test is named after what is right.

The groups are those of the reports that we collected; ``COVERED`` says which tests hold for which,
and a test below that they are all there. What only a plugin can get wrong is tested with the real
editor (tests/clients).
"""

from pathlib import Path

import pytest
from waiting import until

from engine import Priority
from engine.testing import FIM_PREFIX, FIM_SUFFIX
from sidecar.config import Config, WorkspaceConfig

TESTS = Path(__file__).parents[2]
URI = "file:///w/a.py"
NOT_AHEAD = Config(workspace=WorkspaceConfig(warm=False))

COVERED = {
    "1 a cancel counts, however soon it comes": (
        "sidecar/lsp/test_inline_completion.py::test_a_cancel_in_the_same_read_as_its_request_counts",
        "sidecar/lsp/test_inline_completion.py::test_a_cancelled_request_is_answered_and_leaves_the_engine",
    ),
    "2 many clients, one process, one socket": (
        "sidecar/lsp/test_inline_completion.py::test_three_clients_with_three_encodings_at_once",
        "sidecar/lsp/test_lifecycle.py::test_exit_ends_one_connection_and_not_the_daemon",
    ),
    "3 a request per key, and one at work": (
        "sidecar/lsp/test_inline_completion.py::test_typing_forty_characters_with_a_request_per_key",
        "clients/test_vscode.py::test_fast_typing_does_not_ask_at_each_key",
    ),
    "4 who is gone costs nothing": (
        "sidecar/lsp/test_dispatch.py::test_a_client_that_is_gone_leaves_nothing_behind_in_the_engine",
        "sidecar/http/test_disconnects.py::test_leaving_in_the_middle_of_a_reply",
        "sidecar/http/test_disconnects.py::test_leaving_during_prefill",
        "sidecar/http/test_disconnects.py::test_leaving_while_queued",
    ),
    "5 the next request after an aborted one is answered": (
        "sidecar/lsp/test_reported_problems.py::test_the_request_after_many_aborted_ones_is_answered",
        "sidecar/http/test_disconnects.py::test_many_clients_that_leave_at_random_points_leak_nothing",
    ),
    "6 two equal requests": (
        "sidecar/lsp/test_inline_completion.py::test_the_newest_of_two_requests_for_one_text_wins",
        "sidecar/lsp/test_reported_problems.py::test_an_equal_request_afterwards_costs_no_model",
    ),
    "7 what follows the cursor is not said again": (
        "sidecar/jobs/test_suggestion.py::test_the_reply_never_repeats_what_follows_the_cursor",
        "sidecar/jobs/test_suggestion.py::test_lines_further_down_are_not_said_again",
        "sidecar/lsp/test_typing_through.py::test_a_bracket_that_the_editor_closed_is_not_repeated",
        "clients/test_neovim_ghost_text.py::test_a_bracket_that_the_editor_closed_is_not_inserted_twice",
    ),
    "8 one blank at the cursor": (
        "sidecar/lsp/test_reported_problems.py::test_there_is_one_blank_at_the_cursor",
    ),
    "9 columns in any script and encoding": (
        "sidecar/lsp/test_reported_problems.py::test_columns_are_right_in_every_script",
        "sidecar/lsp/test_inline_completion.py::test_columns_are_in_the_connections_encoding_both_ways",
        "clients/test_neovim_ghost_text.py::test_a_word_of_ideographs_is_one_of_them",
        "clients/test_neovim_ghost_text.py::test_a_latin1_file_stays_latin1",
    ),
    "10 no answer to what is gone, no ghost where it was": (
        "sidecar/lsp/test_inline_completion.py::test_an_answer_for_an_old_text_is_dropped",
        "sidecar/lsp/test_inline_completion.py::test_a_change_behind_a_request_does_not_slip_under_it",
        "sidecar/jobs/test_suggestion.py::test_indentation_is_the_documents",
        "clients/test_neovim_ghost_text.py::test_moving_the_cursor_takes_the_question_back",
        "clients/test_vscode.py::test_a_late_answer_is_not_shown_where_the_cursor_was",
    ),
    "11 an item is an insertion that can be seen": (
        "sidecar/lsp/test_reported_problems.py::test_an_item_only_inserts_and_is_never_blank",
        "clients/test_vscode.py::test_a_suggestion_is_indented_once_on_a_line_that_is_indented",
    ),
    "12 beside the completion list": (
        "sidecar/lsp/test_inline_completion.py::test_a_suggestion_extends_the_entry_chosen_in_the_completion_list",
        "clients/test_neovim_ghost_text.py::test_no_ghost_text_while_the_popup_menu_is_open",
    ),
    "13 only what is not ignored is watched": (
        "sidecar/workspace/test_watcher.py::test_only_directories_that_are_not_ignored_are_watched",
        "sidecar/workspace/test_watcher.py::test_without_watches_it_polls_and_says_so",
    ),
    "14 a root that is too wide": (
        "sidecar/workspace/test_root.py::test_a_home_and_a_disk_are_too_wide",
        "sidecar/workspace/test_watcher.py::test_a_home_is_not_walked",
    ),
    "15 no watches left, and huge trees": (
        "sidecar/workspace/test_watcher.py::test_watches_that_are_free_again_are_taken",
        "sidecar/workspace/test_large_project.py::test_a_large_project_is_known_soon_and_costs_nothing_then",
    ),
    "16 loops of links": ("sidecar/workspace/test_watcher.py::test_loops_of_links_end",),
    "17 at the limit it says so and goes on": (
        "sidecar/workspace/test_watcher.py::test_without_watches_it_polls_and_says_so",
        "sidecar/workspace/test_ignore.py::test_the_listing_is_what_git_lists",
    ),
    "18 what a link points to is not watched": (
        "sidecar/workspace/test_root.py::test_links_are_not_followed",
        "sidecar/lsp/test_prompt_context.py::test_a_link_out_of_the_folder_is_not_followed",
    ),
    "19 a prompt begins as the one before": (
        "sidecar/lsp/test_prompt_context.py::test_every_key_has_the_same_beginning",
        "engine/text/test_boundaries.py::test_reasoning_that_the_next_question_drops_is_in_no_segment",
        "engine/prefix_cache/test_reuse.py::test_titles_and_a_second_agent_do_not_evict_the_session",
    ),
    "20 calls have ids and end as calls": (
        "sidecar/http/test_reply_format.py::test_calls_are_streamed_whole",
        "sidecar/http/test_reply_format.py::test_calls_come_back_as_calls",
    ),
    "21 ignored and secret files reach no prompt": (
        "sidecar/lsp/test_prompt_context.py::test_withheld_documents_get_nothing_and_go_nowhere",
        "sidecar/workspace/test_ignore.py::test_no_ignore_file_lets_a_secret_through",
    ),
    "22 the buffer and the disk": (
        "sidecar/lsp/test_prompt_context.py::test_an_unsaved_buffer_wins_and_an_edit_elsewhere_goes_last",
        "sidecar/edits/test_journal.py::test_files_changed_or_deleted_meanwhile_are_reported_and_left_alone",
    ),
    "23 a key goes before a chat, and what is ahead behind both": (
        "engine/test_loop.py::test_a_keystroke_waits_for_one_turn_at_most",
        "sidecar/lsp/test_reported_problems.py::test_keys_are_asked_for_before_all_and_what_may_come_behind_all",
    ),
    "24 without a network": ("engine/loading/test_fetch_hub.py::test_offline",),
}


def test_every_group_has_tests_that_are_there():
    assert [int(group.split()[0]) for group in COVERED] == list(range(1, 25))
    named = {name for names in COVERED.values() for name in names}
    assert [name for name in sorted(named) if not _is_there(*name.split("::"))] == []


def _is_there(file, name):
    return f"def {name}(" in (TESTS / file).read_text()


def before(request):
    tokens = list(request.prompt)
    start = tokens.index(FIM_PREFIX) + 1
    return bytes(tokens[start : tokens.index(FIM_SUFFIX)]).decode()


async def test_the_request_after_many_aborted_ones_is_answered(serve):
    """Aborted while they wait, in prefill, and while they decode."""
    door = await serve(
        lambda r: "done" if before(r).endswith("9") else " ".join(map(str, range(99))),
        round_seconds=0.001,
        prefill_seconds=0.001,
        config=NOT_AHEAD,
    )
    client = await door.client()
    client.open(URI, "x = " + "a" * 200)
    for number in range(10):
        client.change(URI, number + 2, str(number), 0, 204 + number, 0, 204 + number)
        answer = client.inline(URI, 0, 205 + number)
        if number == 9:
            assert (await answer)["items"][0]["insertText"] == "done"
        elif number % 2:
            client.cancel(answer)
        elif number % 4:
            await until(lambda: any(door.backend.steps.values()))
    await until(lambda: not door.services.engine.open_requests)


async def test_an_equal_request_afterwards_costs_no_model(serve):
    door = await serve("one", config=NOT_AHEAD)
    client = await door.client()
    client.open(URI, "x = ")
    answers = [await client.inline(URI, 0, 4) for _ in range(3)]
    assert answers[0] == answers[1] == answers[2]
    assert len(door.backend.seen) == 1


@pytest.mark.parametrize(
    ("line", "reply", "shown"),
    [("x = ", " 1 + 1 ", "1 + 1"), ("x =", " 1", " 1"), ("return ", "  a", "a"), ("\t", "a", "a")],
)
async def test_there_is_one_blank_at_the_cursor(serve, line, reply, shown):
    door = await serve(reply, config=NOT_AHEAD)
    client = await door.client()
    client.open(URI, f"{line}\n")
    answer = await client.inline(URI, 0, len(line))
    assert answer["items"][0]["insertText"] == shown


SCRIPTS = {
    "latin": "größe_é = ",
    "cyrillic": "имя_файла = ",
    "chinese": "名前的文件 = ",
    "hindi": "नाम_फ़ाइल = ",
    "hebrew": "שם_הקובץ = ",
    "emoji": "x👩‍🚀🇩🇪 = ",
}
UNITS = {
    "utf-8": lambda text: len(text.encode()),
    "utf-16": lambda text: len(text.encode("utf-16-le")) // 2,
    "utf-32": len,
}


@pytest.mark.parametrize("encoding", UNITS)
async def test_columns_are_right_in_every_script(serve, encoding):
    door = await serve("значение('é😀')", config=NOT_AHEAD)
    client = await door.client(encoding)
    count = UNITS[encoding]
    for script, line in SCRIPTS.items():
        uri = f"file:///w/{script}.py"
        client.open(uri, f"# {line}\n{line}\n")
        answer = await client.inline(uri, 1, count(line))
        place = {"line": 1, "character": count(line)}
        assert answer["items"][0]["range"] == {"start": place, "end": place}
        assert before(door.backend.seen[-1]) == f"# {line}\n{line}"
        # And again behind half of what is shown.
        client.change(uri, 2, "значение('", 1, count(line), 1, count(line))
        column = count(line + "значение('")
        answer = await client.inline(uri, 1, column)
        assert answer["items"][0]["insertText"] == "é😀')"
        assert answer["items"][0]["range"]["start"]["character"] == column


@pytest.mark.parametrize(
    ("text", "line", "reply"),
    [
        ("if a:\n    \n", 1, "        b()"),
        ("if a:\n\t\n", 1, "\t\tb()"),
        ("f()\n", 0, "a, b)"),
        ("x =  + 1\n", 0, " 2 "),
        ("    \n", 0, "   \n\n  "),
        ("x = \n", 0, "\n\n"),
    ],
)
async def test_an_item_only_inserts_and_is_never_blank(serve, text, line, reply):
    """An editor hides an item that replaces indentation, or text to the right, or shows nothing."""
    door = await serve(reply, config=NOT_AHEAD)
    client = await door.client()
    client.open(URI, text)
    column = {"f()": 2, "x =  + 1": 4}.get(text.split("\n")[line], len(text.split("\n")[line]))
    answer = await client.inline(URI, line, column)
    for item in [] if answer is None else answer["items"]:
        assert item["range"]["start"] == item["range"]["end"]
        assert item["insertText"].strip()
        assert set(item) == {"insertText", "range"}


async def test_keys_are_asked_for_before_all_and_what_may_come_behind_all(serve, monkeypatch):
    monkeypatch.setattr("sidecar.jobs.suggestions.AHEAD_SECONDS", 0.0)
    door = await serve("one")
    client = await door.client()
    client.open(URI, "x = ")
    await client.inline(URI, 0, 4)
    await until(lambda: len(door.backend.seen) == 2)
    assert [one.priority for one in door.backend.seen] == [Priority.INTERACTIVE, Priority.IDLE]
