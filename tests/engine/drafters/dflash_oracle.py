"""DFlash written down a second time, in float64 numpy: one row after the other, no caches."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from engine.drafters.dflash_config import DFlashConfig

Weights = dict[str, np.ndarray]


def rms_norm(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * weight


def rotate(x: np.ndarray, position: int, theta: float) -> np.ndarray:
    """x: (heads, head_dim). Halves are paired, as in Qwen."""
    half = x.shape[-1] // 2
    angle = position * theta ** (-np.arange(half) / half)
    cos, sin = np.cos(angle), np.sin(angle)
    a, b = x[:, :half], x[:, half:]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


def silu(x: np.ndarray) -> np.ndarray:
    return x / (1.0 + np.exp(-x))


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max())
    return e / e.sum()


@dataclass
class Oracle:
    """weights: by published name, float64."""

    config: DFlashConfig
    weights: Weights

    def linear(self, name: str, x: np.ndarray) -> np.ndarray:
        out = x @ self.weights[f"{name}.weight"].T
        return out + self.weights.get(f"{name}.bias", 0.0)

    def norm(self, name: str, x: np.ndarray) -> np.ndarray:
        return rms_norm(x, self.weights[f"{name}.weight"], self.config.rms_norm_eps)

    def project(self, hidden: np.ndarray) -> np.ndarray:
        return self.norm("hidden_norm", self.linear("fc", hidden))

    def block(self, hidden: np.ndarray, start: int, block: np.ndarray) -> np.ndarray:
        """hidden: (n, taps * H), the target's rows of positions [start, start + n); block:
        (B, H), embeddings of the anchor and masks behind them. Final hidden rows (B, H)."""
        context = self.project(hidden)
        x = block * self.config.input_embedding_scale
        for index, kind in enumerate(self.config.layer_types):
            x = self.layer(f"layers.{index}", kind, context, start, x)
        return self.norm("norm", x)

    def layer(self, name: str, kind: str, context: np.ndarray, start: int, x: np.ndarray):
        for norm, conv, inner in (
            (
                "input_layernorm",
                "attention_conv",
                lambda u: self.attention(name, kind, context, start, u),
            ),
            ("post_attention_layernorm", "mlp_conv", lambda u: self.mlp(name, u)),
        ):
            u = self.norm(f"{name}.{norm}", x)
            if self.config.has_selector:
                kernels = self.kernels(f"{name}.{conv}", u)
                x = x + convolve(inner(convolve(u, kernels[0])), kernels[1])
            else:
                x = x + inner(u)
        return x

    def kernels(self, name: str, u: np.ndarray) -> np.ndarray:
        """(side, row, tap, channel)."""
        base = self.weights[f"{name}.base_kernel"]
        taps, group = self.config.conv_kernel_size, self.config.conv_group_size
        dynamic = self.linear(f"{name}.kernel_projection", u)
        out = np.zeros((2, len(u), taps, u.shape[1]))
        for side in range(2):
            for row in range(len(u)):
                for tap in range(taps):
                    for channel in range(u.shape[1]):
                        at = (side * taps + tap) * (u.shape[1] // group) + channel // group
                        out[side, row, tap, channel] = base[side, tap, channel] + dynamic[row, at]
        return out

    def mlp(self, name: str, u: np.ndarray) -> np.ndarray:
        gate = silu(self.linear(f"{name}.mlp.gate_proj", u))
        return self.linear(f"{name}.mlp.down_proj", gate * self.linear(f"{name}.mlp.up_proj", u))

    def attention(self, name: str, kind: str, context, start: int, x: np.ndarray) -> np.ndarray:
        config = self.config
        head, first = config.head_dim, start + len(context)

        def heads(part: str, rows: np.ndarray, norm: bool) -> list[np.ndarray]:
            split = self.linear(f"{name}.self_attn.{part}_proj", rows).reshape(len(rows), -1, head)
            return [self.norm(f"{name}.self_attn.{part}_norm", r) if norm else r for r in split]

        keys = heads("k", context, True) + heads("k", x, True)
        values = heads("v", context, False) + heads("v", x, False)
        keys = [rotate(key, start + i, config.rope_theta) for i, key in enumerate(keys)]
        out = []
        for row, query in enumerate(heads("q", x, True)):
            query = rotate(query, first + row, config.rope_theta)
            seen = [i for i in range(len(keys)) if self.sees(kind, first + row, start + i, first)]
            mixed = []
            for index in range(config.num_attention_heads):
                shared = index * config.num_key_value_heads // config.num_attention_heads
                scores = [query[index] @ keys[i][shared] / head**0.5 for i in seen]
                mixed.append(
                    softmax(np.array(scores)) @ np.stack([values[i][shared] for i in seen])
                )
            out.append(np.concatenate(mixed))
        return self.linear(f"{name}.self_attn.o_proj", np.stack(out))

    def sees(self, kind: str, query: int, key: int, first: int) -> bool:
        if key >= first:
            causal = (
                kind == "sliding_attention"
                if self.config.is_causal is None
                else self.config.is_causal
            )
            return key <= query or not causal
        return kind == "full_attention" or query - key < self.config.sliding_window

    def logits(self, hidden: np.ndarray, table: np.ndarray) -> np.ndarray:
        out = hidden @ table.T * self.config.output_multiplier
        cap = self.config.softcap
        return cap * np.tanh(out / cap) if cap else out

    def chain(self, hidden, logits, anchor: int, noise=None, temperature: float = 1.0) -> list[int]:
        """The selector's walk by brute force. noise: (slots, vocabulary), None when greedy."""
        before = self.weights["candidate_selector.predecessor_codebook"]
        after = self.weights["candidate_selector.successor_codebook"]
        tokens, previous = [], anchor
        for slot, row in enumerate(logits[:, : self.config.vocab_size]):
            best = sorted(range(len(row)), key=lambda token: (-row[token], token))
            projected = self.linear("candidate_selector.hidden_projection", hidden[slot])
            scores = {}
            for token in best[: self.config.selector_top_k]:
                edge = np.sum(before[previous] * projected * after[token])
                scores[token] = (row[token] + edge) / temperature
                if noise is not None:
                    scores[token] += noise[slot, token]
            previous = max(scores, key=scores.__getitem__)
            tokens.append(previous)
        return tokens


def convolve(x: np.ndarray, kernel: np.ndarray) -> np.ndarray:
    """kernel: (row, tap, channel); zeros stand before the first row."""
    out = np.zeros_like(x)
    for row in range(len(x)):
        for tap in range(min(kernel.shape[1], row + 1)):
            out[row] += kernel[row, tap] * x[row - tap]
    return out
