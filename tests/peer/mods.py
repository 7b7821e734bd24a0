"""The score and mask mods that the scenarios share, under the names that PyTorch's tests give them in the names of their cases."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.attention.flex_attention import noop_mask

Mod = Callable[..., Any]
NEVER = float("-inf")


def name_mod(name: str, mod: Mod) -> Mod:
    mod.__name__ = name
    return mod


def identity(score: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
    return score


def times_two(score: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
    return score * 2


def squared(score: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
    return score * score


def causal(score: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
    return torch.where(q >= kv, score, NEVER)


def inverse_causal(score: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
    return torch.where(q <= kv, score, NEVER)


def rel_bias(score: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
    return score + (q - kv)


def rel_causal(score: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
    return torch.where(q >= kv, score + (q - kv), NEVER)


def alibi(heads: int) -> Mod:
    def alibi_bias(score: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
        slope = torch.exp2(-8.0 * (h + 1) / heads)
        return score + slope * (kv - q)

    return alibi_bias


def make_window(offset: int) -> Mod:
    def window(score: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
        return torch.where(kv <= q + offset, score, NEVER)

    return window


def trig(score: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
    return torch.tan(b) + torch.sin(torch.cos(score))


def trig2(score: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
    c, s = torch.cos(score), torch.sin(score)
    return s * c + torch.tan(b)


def causal_mask(b: Any, h: Any, q: Any, kv: Any) -> Any:
    return q >= kv


def inverse_causal_mask(b: Any, h: Any, q: Any, kv: Any) -> Any:
    return q <= kv


SCORE_MODS = {
    "_identity": identity,
    "_times_two": times_two,
    "_squared": squared,
    "_causal": causal,
    "_inverse_causal": inverse_causal,
    "_rel_bias": rel_bias,
    "_rel_causal": rel_causal,
    "_alibi_bias": alibi(8),
}
# Each with the mask that says what it drops, if it drops anything.
MASKS_OF_MODS = {
    "_identity": (identity, noop_mask),
    "_times_two": (times_two, noop_mask),
    "_squared": (squared, noop_mask),
    "_causal": (causal, causal_mask),
    "_inverse_causal": (inverse_causal, inverse_causal_mask),
    "_rel_bias": (rel_bias, noop_mask),
    "_rel_causal": (rel_causal, causal_mask),
    "_alibi_bias": (alibi(8), noop_mask),
}
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
FAST = (torch.float16,)
