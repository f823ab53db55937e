"""`/v1/completions`, `/infill`, `/props`, `/tokenize`: raw prompts and gaps."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import httpx2
import pytest
from http_door import asgi_door, chat, error_of, events_of
from waiting import until

from engine import GenerateRequest, Priority
from engine.testing import EOS, FIM_MIDDLE, FIM_PREFIX, FIM_SUFFIX, ByteCodec, FakeEngine
from sidecar.jobs.chat import MOST_COUNTED

LONG = "x" * 70_000
PATH = "/v1/completions"


class SpellingCodec(ByteCodec):
    """Reads the fill-in-the-middle markers of a raw prompt, as a tokenizer does."""

    def encode(self, text: str, *, control: bool = False) -> list[int]:
        if not control:
            return super().encode(text)
        tokens: list[int] = []
        marks = {spelled: token for token, spelled in self.control_spellings().items()}
        while text:
            mark = next((one for one in marks if text.startswith(one)), None)
            tokens += [marks[mark]] if mark else text[0].encode()
            text = text[len(mark or text[0]) :]
        return tokens


async def asked(
    path: str = PATH, reply: str = "ok", **fields: Any
) -> tuple[httpx2.Response, list[GenerateRequest]]:
    engine = FakeEngine(reply)
    async with asgi_door(engine) as client:
        engine.codec = SpellingCodec()
        response = await client.post(path, json=fields)
    return response, engine.seen


async def test_a_raw_prompt_is_continued() -> None:
    response, (request,) = await asked(prompt="def ", seed=3)
    body = response.json()
    assert body["object"] == "text_completion"
    assert body["choices"] == [
        {"text": "ok", "index": 0, "finish_reason": "stop", "logprobs": None}
    ]
    assert body["usage"]["total_tokens"] == 7
    assert bytes(request.prompt) == b"def "
    assert (request.max_tokens, request.priority) == (16, Priority.AGENT)


async def test_what_is_far_too_long_does_not_keep_the_tokenizer_busy() -> None:
    class CountingCodec(SpellingCodec):
        longest = 0

        def encode(self, text: str, *, control: bool = False) -> list[int]:
            self.longest = max(self.longest, len(text))
            return super().encode(text, control=control)

    engine, codec = FakeEngine("ok"), CountingCodec()
    async with asgi_door(engine) as client:
        engine.codec = codec
        model = engine.status().model
        assert model is not None
        text = "x" * (64 * model.context + 1)
        refused = await client.post(PATH, json={"prompt": text})
        prediction = {"type": "content", "content": text}
        taken = await chat(client, prediction=prediction)
    assert error_of(refused)["code"] == "context_length_exceeded"
    assert taken.status_code == 200
    assert codec.longest < len(text)


async def test_markers_of_a_raw_prompt_are_control_tokens_and_end_its_gap() -> None:
    spelled = "<|fim_prefix|>a<|fim_suffix|>b<|fim_middle|>"
    _, (request,) = await asked(prompt=spelled, max_output_tokens=64)
    assert request.prompt == (FIM_PREFIX, ord("a"), FIM_SUFFIX, ord("b"), FIM_MIDDLE)
    assert request.stop_token_ids == (EOS,)
    assert (request.max_tokens, request.priority) == (64, Priority.INTERACTIVE)
    _, (same,) = await asked(prompt="a", suffix="b")
    assert same.prompt == request.prompt


async def test_several_prompts_and_choices_echoed() -> None:
    response, seen = await asked(prompt=["a", "bb"], n=2, echo=True, seed=5)
    texts = [choice["text"] for choice in response.json()["choices"]]
    assert texts == ["aok", "aok", "bbok", "bbok"]
    assert [request.seed for request in seen] == [5, 6, 5, 6]
    assert response.json()["usage"]["prompt_tokens"] == 3
    ids, _ = await asked(prompt=[[97], [98, 98]], echo=True)
    assert [choice["text"] for choice in ids.json()["choices"]] == ["aok", "bbok"]


async def test_log_probabilities() -> None:
    response, _ = await asked(prompt="a", logprobs=2, reply="éx")
    logprobs = response.json()["choices"][0]["logprobs"]
    assert logprobs["token_logprobs"] == [-0.5] * 3
    assert logprobs["tokens"] == ["\ufffd", "\ufffd", "x"]
    assert logprobs["top_logprobs"][2] == {"x": -0.5, "y": -1.0}


async def test_a_streamed_completion() -> None:
    response, _ = await asked(
        prompt="a", stream=True, echo=True, stream_options={"include_usage": True}
    )
    events = events_of(response.text)
    chunks = [event for event in events if isinstance(event, dict)]
    assert events[-1] == "[DONE]"
    assert [c["text"] for chunk in chunks for c in chunk["choices"]] == ["a", "o", "k", ""]
    assert chunks[-2]["choices"][0]["finish_reason"] == "stop"
    assert [chunk["usage"] is None for chunk in chunks] == [True] * 4 + [False]


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": ["a", 5]}, "prompt"),
        ({"prompt": [300]}, "prompt"),
        ({"prompt": ["a"] * 9}, "prompt"),
        ({"prompt": ["a", "b"], "suffix": "c"}, "suffix"),
        ({"prompt": "a", "best_of": 3}, "best_of"),
        ({"prompt": "a", "echo": True, "logprobs": 1}, "echo"),
        ({"prompt": "a", "logprobs": 21}, "logprobs"),
        ({"prompt": "a" * 5000}, "prompt"),
    ],
)
async def test_a_wrong_field_is_named(fields: dict[str, Any], field: str) -> None:
    if fields["prompt"] == [300]:
        # Only the engine knows how many tokens there are; the fake one takes what is a byte.
        fields = {"prompt": [-1, "a"]}
    response, _ = await asked(**fields)
    assert response.status_code == 400, response.text
    assert error_of(response)["param"] == field


GAP = {
    "input_prefix": "def f():\n",
    "input_suffix": "\n",
    "prompt": "    re",
    "input_extra": [{"filename": "a.py", "text": "A = 1"}],
    "samplers": ["top_k", "top_p", "infill"],
    "stop": [f"<mark {number}>" for number in range(40)],
    "id_slot": 0,
    "model": "",
}


async def test_a_gap_as_llama_vim_asks_for_it() -> None:
    fields = ["content", "timings/prompt_n", "timings/predicted_ms", "truncated", "no/such"]
    response, (request,) = await asked("/infill", "turn 1", **GAP, response_fields=fields)
    shown = response.json()
    assert shown["content"] == "turn 1"
    assert set(shown) == {"content", "timings/prompt_n", "timings/predicted_ms", "truncated"}
    assert shown["timings/prompt_n"] == len(request.prompt)
    text = bytes(token for token in request.prompt if token < 256)
    assert text == b"a.py\nA = 1\ndef f():\n    re\n"
    assert request.priority is Priority.INTERACTIVE
    assert request.segments[0].path == "a.py"


async def test_warming_up_computes_the_prompt_and_nothing_else() -> None:
    response, (request,) = await asked("/infill", **GAP, n_predict=0, t_max_predict_ms=1)
    assert request.warm
    assert (response.json()["content"], response.json()["tokens_predicted"]) == ("", 0)


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/tokenize", {"content": LONG}),
        ("/detokenize", {"tokens": [65] * len(LONG)}),
        ("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": LONG}]}),
    ],
)
async def test_others_are_answered_while_a_long_text_is_read(
    path: str, fields: dict[str, Any]
) -> None:
    begun, answered = threading.Event(), threading.Event()

    class SlowCodec(ByteCodec):
        """Not done with a long text before somebody else was answered."""

        def wait_for(self, length: int) -> None:
            if length >= len(LONG):
                begun.set()
                assert answered.wait(60), "nobody else was answered"

        def encode(self, text: str, *, control: bool = False) -> list[int]:
            self.wait_for(len(text))
            return super().encode(text, control=control)

        def decode(self, tokens: Sequence[int]) -> str:
            self.wait_for(len(tokens))
            return super().decode(tokens)

        def chat(self, messages: Any, **variables: Any) -> Any:
            self.wait_for(sum(len(message["content"]) for message in messages))
            return super().chat(messages, **variables)

    engine = FakeEngine("ok")
    async with asgi_door(engine) as client:
        engine.codec = SlowCodec()
        reading = asyncio.create_task(client.post(path, json=fields))
        await until(begun.is_set)
        for _ in range(3):
            assert (await client.post(PATH, json={"prompt": "def "})).status_code == 200
            assert (await chat(client)).status_code == 200
        answered.set()
        assert (await reading).status_code == 200


async def test_what_is_too_long_to_be_counted() -> None:
    text = "x" * (MOST_COUNTED + 1)
    messages = [{"role": "user", "content": text}]
    cases: list[tuple[str, dict[str, Any], str]] = [
        ("/tokenize", {"content": text}, "content"),
        ("/detokenize", {"tokens": [65] * len(text)}, "tokens"),
        ("/v1/messages/count_tokens", {"messages": messages}, "messages"),
    ]
    for path, fields, name in cases:
        refused, _ = await asked(path, **fields)
        assert refused.status_code == 413
        assert refused.json()["error"]["message"].startswith(name)


async def test_several_fillings_and_an_end_in_time() -> None:
    response, seen = await asked("/infill", **GAP, n_cmpl=2, seed=1)
    assert [one["content"] for one in response.json()] == ["ok", "ok"]
    assert [request.seed for request in seen] == [1, 2]
    engine = FakeEngine("x" * 400, round_seconds=0.01)
    async with asgi_door(engine) as client:
        late = await client.post("/infill", json=GAP | {"t_max_predict_ms": 30, "n_predict": 400})
    assert 0 < len(late.json()["content"]) < 400
    assert late.json()["stop_type"] == "limit"


async def test_tokens_there_and_back() -> None:
    tokens, _ = await asked("/tokenize", content="é<|im_start|>")
    assert tokens.json()["tokens"] == [195, 169, 260]
    plain, _ = await asked("/tokenize", prompt="é", with_pieces=True)
    assert plain.json()["tokens"] == [{"id": 195, "piece": [195]}, {"id": 169, "piece": [169]}]
    text, _ = await asked("/detokenize", tokens=[195, 169])
    assert text.json()["content"] == "é"
    foreign, _ = await asked("/detokenize", tokens=[5, 261])
    assert error_of(foreign)["param"] == "tokens[1]"
    async with asgi_door(FakeEngine()) as client:
        props = (await client.get("/props")).json()
    assert props["default_generation_settings"]["n_ctx"] == 4096
