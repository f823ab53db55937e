"""Codecs to test: the built-in model's, and ones with other tokenizers and templates."""

from __future__ import annotations

import json
import shutil
from typing import Any

import pytest
from tokenizers_made import CodecFactory

from engine.builtin import TARGET
from engine.text.codec import TextCodec


@pytest.fixture(scope="session")
def codec() -> TextCodec:
    return TextCodec(TARGET)


@pytest.fixture(scope="session")
def codec_with(tmp_path_factory: pytest.TempPathFactory) -> CodecFactory:
    """Builds a codec like the built-in one with another `template`, `tokenizer` (a parsed or
    built tokenizer.json) or settings in tokenizer_config.json."""

    def build(
        template: str | list[dict[str, str]] | None = None,
        tokenizer: str | None = None,
        files: dict[str, Any] | None = None,
        **settings: Any,
    ) -> TextCodec:
        folder = tmp_path_factory.mktemp("model")
        for name in ("tokenizer.json", "config.json", "generation_config.json"):
            shutil.copy(TARGET / name, folder / name)
        config = json.loads((TARGET / "tokenizer_config.json").read_text())
        if template is not None:
            config["chat_template"] = template
        if tokenizer is not None:
            (folder / "tokenizer.json").write_text(tokenizer)
        (folder / "tokenizer_config.json").write_text(json.dumps(config | settings))
        for name, content in (files or {}).items():
            text = content if isinstance(content, str) else json.dumps(content)
            (folder / name).write_text(text)
        return TextCodec(folder)

    return build
