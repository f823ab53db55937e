from __future__ import annotations

import subprocess
from io import BytesIO
from pathlib import Path

import msgspec
import pytest

from engine import (
    BaselineReply,
    BaselineRequest,
    EngineOptions,
    GenerateRequest,
    baseline_command,
    engine_client,
)
from engine.targets.baseline import serve

PROMPT = tuple(range(20, 60))


def answers(*lines: bytes) -> list[BaselineReply]:
    replies = BytesIO()
    serve(lines, replies)
    return [
        msgspec.json.decode(line, type=BaselineReply) for line in replies.getvalue().splitlines()
    ]


@pytest.mark.slow
async def test_it_decodes_what_our_engine_decodes() -> None:
    """On the same arithmetic: kernels of ours round otherwise than the stock ones."""
    ask = BaselineRequest(prompt=PROMPT, max_tokens=12)
    ready, reply = answers(msgspec.json.encode(EngineOptions()), msgspec.json.encode(ask))
    assert ready == BaselineReply()
    request = GenerateRequest(id="ours", prompt=PROMPT, max_tokens=12)
    engine = engine_client(EngineOptions(kernels="off"))
    engine.start()
    await engine.ready()
    ours = await engine.generate(request).finished()
    await engine.stop()
    assert reply.tokens == ours.tokens
    assert reply.decode_ms > 0
    assert reply.prefill_ms > 0


def test_what_it_cannot_do_it_says() -> None:
    (wrong_model,) = answers(msgspec.json.encode(EngineOptions(model="./no-such-folder")))
    assert "no-such-folder" in wrong_model.error
    (wrong_message,) = answers(b'{"model": 3}')
    assert "model" in wrong_message.error
    _, wrong_request = answers(msgspec.json.encode(EngineOptions()), b'{"prompt": "x"}')
    assert "prompt" in wrong_request.error
    assert answers() == []


def test_a_hostile_folder_is_not_run(tmp_path: Path) -> None:
    (tmp_path / "engine").mkdir()
    (tmp_path / "engine" / "__init__.py").write_text("raise SystemExit('hostile code ran')")
    ran = subprocess.run(
        baseline_command(), cwd=tmp_path, input=b"", capture_output=True, timeout=120
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, b"", b"")
