"""Hypothesis strategies: lengths, dtypes, strides, values, schedules, masks and scores.

They shrink to what a person reads first: one tile, normal values, in order, no mask.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from ..arguments.binding import TORCH
from ..checking.checked import Checked
from ..interp.schedule import POLICIES
from ..syntax.types import BF16, F16, F32, DType
from ..text.diagnostics import CuirError
from ..verification.values.input_kinds import draw_tensor

try:
    from hypothesis import strategies as st
except ImportError:
    raise CuirError.of("U513", "cuir.testing.strategies needs Hypothesis", hint="pip install cubridge[testing]") from None

# kinds for any kernel with a tensor of floats; the others of SHAPED need two dims or a scalar below a root
VALUE_KINDS = ("normal", "tiny", "huge", "spikes", "large", "wide", "zero", "growing", "offset", "largest", "ties")
Index = torch.Tensor
Mod = Callable[..., torch.Tensor]


def lengths(most: int = 300, tile: int = 64, least: int = 1) -> st.SearchStrategy[int]:
    """Draw the length of a dim: often one, a tile, one more or less, and whole numbers of tiles."""
    edges = [n for k in range(most // tile + 1) for n in (k * tile - 1, k * tile, k * tile + 1) if least <= n <= most]
    any_length = st.integers(least, most)
    return any_length | st.sampled_from(edges) if edges else any_length


def dims(checked: Checked, most: int = 300, tile: int = 64, **fixed: int) -> st.SearchStrategy[dict[str, int]]:
    """Draw a length for each dim of a kernel; `fixed` ones stay."""
    return st.fixed_dictionaries({n: st.just(fixed[n]) if n in fixed else lengths(most, tile) for n in checked.dims})


def dtypes(*among: DType) -> st.SearchStrategy[DType]:
    """Draw one of CuIR's dtypes: f16, bf16, f32, or one of those named."""
    return st.sampled_from(among or (F16, BF16, F32))


def kinds(*among: str) -> st.SearchStrategy[str]:
    """Draw a kind of values for `assert_matches(kind=...)`, normal ones first.

    docs/testing.md lists the kinds.
    """
    return st.sampled_from(among or VALUE_KINDS)


def seeds() -> st.SearchStrategy[int]:
    """Draw a seed."""
    return st.integers(0, 2**31 - 1)


def schedules() -> st.SearchStrategy[str]:
    """Draw the name of a schedule: in order, random, or adversarial."""
    return (
        st.just("in_order")
        | st.builds("random:{}".format, seeds())
        | st.builds("adversarial:{}".format, seeds())
        | st.sampled_from([f"adversarial:{p}" for p in POLICIES])
    )


@st.composite
def tensors(
    draw: st.DrawFn,
    shape: Sequence[int],
    dtype: DType | torch.dtype = torch.float32,
    kind: st.SearchStrategy[str] | str = "normal",
    strided: bool = False,
) -> torch.Tensor:
    """Draw a tensor: a seed and a kind of values, not each element.

    shape: lengths. dtype: CuIR's or PyTorch's, of floats. kind: of values, or a strategy of kinds. strided: the first
    two dims may lie in the other order in memory, and rows farther apart than their length.
    """
    by_torch = {TORCH[d]: d for d in (F16, BF16, F32)}
    element = dtype if isinstance(dtype, DType) else by_torch.get(dtype)
    if element is None or element not in by_torch.values():
        raise CuirError.of("U113", f"values are drawn for f16, bf16 and f32, found {dtype}")
    chosen = kind if isinstance(kind, str) else draw(kind)
    generator = torch.Generator().manual_seed(draw(seeds()))
    x = draw_tensor(element, shape, chosen, generator, True)
    return draw(strides(x)) if strided else x


@st.composite
def strides(draw: st.DrawFn, x: torch.Tensor) -> torch.Tensor:
    """Draw a tensor of equal values with other strides.

    It is left as it is, or has dims 0 and 1 exchanged, or rows with gaps.
    """
    forms = ["as it is", *(["exchanged"] * (x.dim() > 1)), *(["gaps"] * (x.dim() > 0))]
    form = draw(st.sampled_from(forms))
    if form == "exchanged" and x.dim() > 2:
        return x.transpose(0, 1).contiguous().transpose(0, 1)
    if form == "gaps" and x.dim() > 1:
        wider = torch.full((*x.shape[:-1], x.shape[-1] + 8), torch.nan, dtype=x.dtype)
        wider[..., : x.shape[-1]] = x
        return wider[..., : x.shape[-1]]
    return x


@dataclass(frozen=True)
class Rule:
    """A mod with the text of its expression, which a failing example shows."""

    text: str
    mod: Mod

    def __repr__(self) -> str:
        return self.text


def _causal(b: Index, h: Index, q: Index, k: Index) -> Index:
    return q >= k


def _make_window(n: int) -> Rule:
    return Rule(f"q - k < {n}", lambda b, h, q, k: q - k < n)


def _make_prefix(n: int) -> Rule:
    return Rule(f"k < {n}", lambda b, h, q, k: k < n)


def _make_blocks(n: int) -> Rule:
    return Rule(f"q // {n} == k // {n}", lambda b, h, q, k: q // n == k // n)


def _make_stripes(n: int) -> Rule:
    return Rule(f"(k + h) % {n} != 0", lambda b, h, q, k: (k + h) % n != 0)


def _make_causal_heads(n: int) -> Rule:
    return Rule(f"(q >= k) | (h < {n})", lambda b, h, q, k: (q >= k) | (h < n))


def _intersect(x: Rule, y: Rule) -> Rule:
    return Rule(f"({x.text}) & ({y.text})", lambda b, h, q, k: x.mod(b, h, q, k) & y.mod(b, h, q, k))


def _unite(x: Rule, y: Rule) -> Rule:
    return Rule(f"({x.text}) | ({y.text})", lambda b, h, q, k: x.mod(b, h, q, k) | y.mod(b, h, q, k))


def mask_mods(most: int = 300) -> st.SearchStrategy[Rule]:
    """Draw a mask: causal, windows, prefixes, stripes, documents, and their unions and intersections.

    Some masks are those of some heads.

    most: the number of queries and keys that numbers in it lie below.
    """
    number = st.integers(0, most)
    plain = (
        st.just(Rule("q >= k", _causal))
        | st.builds(_make_window, number)
        | st.builds(_make_prefix, number)
        | st.builds(_make_blocks, st.integers(1, max(1, most // 2)))
        | st.builds(_make_stripes, st.integers(2, 7))
        | st.builds(_make_causal_heads, st.integers(0, 3))
    )
    return st.recursive(plain, lambda inner: st.builds(_intersect, inner, inner) | st.builds(_unite, inner, inner), max_leaves=3)


def _keep_score(s: torch.Tensor, b: Index, h: Index, q: Index, k: Index) -> torch.Tensor:
    return s


def _make_slope(step: float) -> Rule:
    return Rule(f"s + {step} * (k - q)", lambda s, b, h, q, k: s + step * (k - q))


def _make_alibi() -> Rule:
    return Rule("s - 2.0 ** (-(h + 1.0)) * (q - k)", lambda s, b, h, q, k: s - 2.0 ** (-(h + 1.0)) * (q - k))


def _make_soft_cap(cap: float) -> Rule:
    return Rule(f"{cap} * torch.tanh(s / {cap})", lambda s, b, h, q, k: cap * torch.tanh(s / cap))


def _make_factor(step: float) -> Rule:
    return Rule(f"s * (1.0 + {step} * h)", lambda s, b, h, q, k: s * (1.0 + step * h))


def _make_step(n: int) -> Rule:
    return Rule(f"torch.where(k < {n}, s, s - 1.0)", lambda s, b, h, q, k: torch.where(k < n, s, s - 1.0))


def _add(x: Rule, y: Rule) -> Rule:
    return Rule(f"({x.text}) + 0.5 * ({y.text})", lambda s, b, h, q, k: x.mod(s, b, h, q, k) + 0.5 * y.mod(s, b, h, q, k))


def score_mods(most: int = 300) -> st.SearchStrategy[Rule]:
    """Draw a score: slopes, soft caps, relative biases, factors of heads, and sums of two.

    most: as for masks.
    """
    step = st.sampled_from([0.5, 0.0625, -0.25, 0.001])
    plain = (
        st.just(Rule("s", _keep_score))
        | st.builds(_make_slope, step)
        | st.builds(_make_alibi)
        | st.builds(_make_soft_cap, st.sampled_from([5.0, 20.0, 50.0]))
        | st.builds(_make_factor, step)
        | st.builds(_make_step, st.integers(0, most))
    )
    return plain | st.builds(_add, plain, plain)


__all__ = ["Rule", "dims", "dtypes", "kinds", "lengths", "mask_mods", "schedules", "score_mods", "seeds", "strides", "tensors"]
