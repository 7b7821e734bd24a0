"""Biases that are learned, as score mods read them: relative, of heads, through other tables, gates. The forward part; their gradients with `--part gradients`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tests.peer.cases import ATTENTION, BACKWARD, scenario
from tests.peer.mods import DTYPES, Mod
from tests.peer.trial import Trial, attention

THEME = "learned biases"
B, H, D = 2, 4, 16
PARAMS = {
    f"batch:{B}_head:{H}_seq_len:{n}_headdim:{D}_dtype:{str(dtype).removeprefix('torch.')}": (n, dtype)
    for n in (37, 256, 277)
    for dtype in DTYPES
}
MODES = ("default", "max-autotune-no-cudagraphs")
Biased = Callable[[Trial, int, torch.dtype], tuple[Mod, tuple[torch.Tensor, ...]]]  # the mod, and what it learns


def enter_learned(with_modes: bool = False) -> Callable[[Biased], Biased]:
    """Enters a bias for each length and dtype; with_modes: and for each mode of torch.compile that the original tries."""

    def enter(function: Biased) -> Biased:
        def run(t: Trial, params: Any, mode: str = "default") -> None:
            mod, biases = function(t, *params)
            t.judge(attention(mod), t.qkv((B, H, params[0], D), dtype=params[1]), learned=biases, mode=mode)

        run.__name__ = function.__name__
        scenario(ATTENTION, THEME, gradients=BACKWARD, params=PARAMS, **({"mode": MODES} if with_modes else {}))(run)
        return function

    return enter


@enter_learned(with_modes=True)
def relative_1d_bias(t: Trial, n: int, dtype: torch.dtype) -> Any:
    bias = t.randn(2 * n, dtype=dtype)
    return lambda score, b, h, q, kv: score + bias[torch.abs(q - kv)], (bias,)


@enter_learned()
def absolute_2d_bias(t: Trial, n: int, dtype: torch.dtype) -> Any:
    bias = t.randn(n, n, dtype=dtype)
    return lambda score, b, h, q, kv: score + bias[q, kv], (bias,)


@enter_learned()
def head_specific_bias(t: Trial, n: int, dtype: torch.dtype) -> Any:
    bias = t.randn(H, n, n, dtype=dtype)
    return lambda score, b, h, q, kv: score + bias[h, q, kv], (bias,)


@enter_learned()
def batch_head_bias(t: Trial, n: int, dtype: torch.dtype) -> Any:
    bias = t.randn(B, H, n, n, dtype=dtype)
    return lambda score, b, h, q, kv: score + bias[b, h, q, kv], (bias,)


@enter_learned()
def multiplicative_bias(t: Trial, n: int, dtype: torch.dtype) -> Any:
    bias = t.randn(n, dtype=dtype)
    return lambda score, b, h, q, kv: score * bias[q], (bias,)


@enter_learned()
def local_window_bias(t: Trial, n: int, dtype: torch.dtype) -> Any:
    window = 8
    bias = t.randn(2 * window + 1)
    return lambda score, b, h, q, kv: score + bias[torch.clamp(q - kv + window, 0, 2 * window)], (bias,)


@enter_learned()
def global_tokens_bias(t: Trial, n: int, dtype: torch.dtype) -> Any:
    bias = t.randn(n)
    return lambda score, b, h, q, kv: score + bias[kv], (bias,)


@enter_learned()
def weird_bias(t: Trial, n: int, dtype: torch.dtype) -> Any:
    bias, index = t.randn(B, H, 4, n, dtype=dtype), torch.tensor(0, device=t.device)
    return lambda score, b, h, q, kv: score + bias[b, h, index, q], (bias,)


@enter_learned()
def indirect_bias(t: Trial, n: int, dtype: torch.dtype) -> Any:
    bias, indices = t.randn(n, dtype=dtype), torch.randint(0, n, (n,), device=t.device)
    return lambda score, b, h, q, kv: score + bias[indices[q]], (bias,)


@enter_learned(with_modes=True)
def symmetric_bias(t: Trial, n: int, dtype: torch.dtype) -> Any:
    bias = t.randn(n, dtype=dtype)  # its gradient is refused by PyTorch, which reads it twice
    return lambda score, b, h, q, kv: score + bias[q] + bias[kv], (bias,)


@enter_learned()
def flipped_indexed_bias(t: Trial, n: int, dtype: torch.dtype) -> Any:
    bias = t.randn(n, n, dtype=dtype)
    return lambda score, b, h, q, kv: score + bias[kv, q], (bias,)


@enter_learned(with_modes=True)
def head_specific_gate(t: Trial, n: int, dtype: torch.dtype) -> Any:
    gate = t.randn(H)
    return lambda score, b, h, q, kv: score * torch.sigmoid(gate[h]), (gate,)


@enter_learned()
def distinct_biases(t: Trial, n: int, dtype: torch.dtype) -> Any:
    of_query, of_key = t.randn(n, dtype=dtype), t.randn(n)
    return lambda score, b, h, q, kv: score + of_query[q] + of_key[kv], (of_query, of_key)


@scenario(ATTENTION, THEME, gradients=BACKWARD, params=PARAMS)
def relative_1d_bias_only_grad(t: Trial, params: Any) -> None:
    n, dtype = params
    mod, biases = relative_1d_bias(t, n, dtype)
    t.judge(attention(mod), [x.detach() for x in t.qkv((B, H, n, D), dtype=dtype)], learned=biases)


@scenario(ATTENTION, THEME, gradients=BACKWARD, params=PARAMS)
def learnable_bias_global_compiled(t: Trial, params: Any) -> None:
    n = 128  # whatever the parameters, which the original does not use
    bias = t.randn(1, 1, n, n)
    project = t.randn(D, D)

    def make(api: Any) -> Callable[..., Any]:
        flex_attention = api.flex_attention

        def call(q: Any, k: Any, v: Any) -> Any:
            o = flex_attention(query=q, key=k, value=v, score_mod=lambda score, b, h, q, kv: score + bias[b, h, q, kv])
            return o.transpose(1, 2).contiguous().view(1, n, D) @ project.to(o.dtype)

        return call

    t.judge(make, t.qkv((1, 1, n, D)), learned=(bias,))


@scenario(ATTENTION, THEME, gradients=BACKWARD)
def backprop_error_case(t: Trial) -> None:
    x, y = t.randn(2, 16, 64), t.randn(2, 16)

    def make(api: Any) -> Callable[..., Any]:
        flex_attention = api.flex_attention

        def call(x: Any) -> Any:
            bias = y[:, :, None] + y[:, None, :]

            def score_mod(score: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
                return score + bias[b, q, kv]

            wide = x[:, :, None].repeat(1, 1, 16, 1)
            return flex_attention(wide, wide, wide, score_mod=score_mod)

        return call

    t.judge(make, (x,), learned=(y,))


@scenario(ATTENTION, THEME, gradients=BACKWARD)
def head_bias_req_grad(t: Trial) -> None:
    bias = t.randn(4, dtype=torch.float16)
    t.judge(attention(lambda score, b, h, q, kv: score + bias[h]), make_ones(t, 1, 4), learned=(bias,), compiled=False)


@scenario(ATTENTION, THEME, gradients=BACKWARD)
def comparison_vs_sdpa_with_learnable_bias(t: Trial) -> None:
    n = 256
    line, square, cube = t.randn(2 * n, dtype=torch.float16), t.randn(n, n, dtype=torch.float16), t.randn(8, n, n, dtype=torch.float16)
    for b, h, bias, mod in (
        (1, 1, line, lambda score, b, h, q, kv: score + line[q + kv]),
        (1, 1, square, lambda score, b, h, q, kv: score + square[q, kv]),
        (1, 1, square, lambda score, b, h, q, kv: score + square[q][kv]),
        (1, 1, square, lambda score, b, h, q, kv: score + square[kv, q]),
        (4, 8, cube, lambda score, b, h, q, kv: score + cube[h, kv, q]),
    ):
        t.judge(attention(mod), make_ones(t, b, h), learned=(bias,), compiled=False)


def make_ones(t: Trial, b: int, h: int) -> list[torch.Tensor]:
    return [t.wanting(torch.ones(b, h, 256, 64, dtype=torch.float16, device=t.device)) for _ in range(3)]
