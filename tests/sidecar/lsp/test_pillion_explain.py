"""Explanations of code."""

import pytest
from edited_code import CODE, LINE_2, URI, ProgressClient, instructions
from rpc_client import RpcFailure


async def test_an_explanation_comes_in_pieces_and_whole(serve):
    door = await serve("It *adds*.")
    client = await door.client()
    client.open(URI, CODE)
    asked = {"uri": URI, "range": LINE_2, "partialResultToken": "p"}
    result = await client.request("pillion/explain", asked)
    assert result["markdown"] == "It *adds*."
    pieces = [value["markdown"] for value in ProgressClient(client).of("p")]
    assert len(pieces) > 1
    assert "".join(pieces) == result["markdown"]
    assert {"finish_reason", "model", "completion_tokens"} <= set(result)
    text = bytes(t for t in door.backend.seen[0].prompt if t < 256).decode()
    assert "Explain this code:\n```python\ny = self\n```" in text


async def test_an_explanation_of_a_text_with_a_question_that_is_cut_off(serve):
    door = await serve("b" * 100)
    client = await door.client(handshake=False)
    asked = {"text": CODE, "path": "a.py", "question": "Why?", "maxTokens": 9}
    result = await client.request("pillion/explain", asked)
    assert (result["markdown"], result["finish_reason"]) == ("b" * 9, "length")
    assert instructions(door) == ["Why?"]
    for params, field in (({"question": " "}, "question"), ({"maxTokens": 0}, "maxTokens")):
        with pytest.raises(RpcFailure) as raised:
            await client.request("pillion/explain", {"text": CODE, **params})
        assert raised.value.data["field"] == field
