"""Specifications: attention variants as PyTorch functions (FlexAttention's signature), and what they compute, in float64.

Owns the reference and the yardstick of half precision. Does not own CuIR: `cuir.transfer` turns a specification into splice points.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from .diagnostics import CuirError
from .source import Source, Span

Captured = int | float | torch.Tensor | Callable[["Lengths"], torch.Tensor]
LENGTHS = ("B", "H", "HK", "M", "N")


@dataclass(frozen=True)
class Lengths:
    """The sizes of one problem: batch, query heads, key heads, queries, keys."""

    B: int
    H: int
    HK: int
    M: int
    N: int


@dataclass(frozen=True)
class Specification:
    """An attention variant, as users of FlexAttention write it.

    `mask_mod(b, h, q_idx, kv_idx)` is true where the query may attend to the key; `score_mod(score, b, h, q_idx, kv_idx)` gives the new
    score from `score = scale * <q, k>`. Either may be left out. After `*` a mod may ask by name for the lengths `B, H, HK, M, N` and for
    what `captured` holds: numbers, tensors, or functions `Lengths -> tensor` for data that follow the problem's size. Numbers and tensors
    that a mod closes over, and keyword parameters with a default, are captured as well. Captured values become parameters of the kernel,
    so another prefix, another window or other documents need no new kernel; so do `M` and `N`.

    Order: scale, score_mod, mask_mod, softmax. A query with nothing to attend to gives O = 0 and LSE = -inf.
    """

    name: str
    mask_mod: Callable[..., Any] | None = None
    score_mod: Callable[..., Any] | None = None
    captured: Mapping[str, Captured] = field(default_factory=dict)
    doc: str = ""

    def __post_init__(self) -> None:
        for mod, kind, count in ((self.mask_mod, "mask_mod", 4), (self.score_mod, "score_mod", 5)):
            if mod is None:
                continue
            if not callable(mod):
                raise CuirError.of("X101", f"{kind} of `{self.name}` must be a function, found {type(mod).__name__}")
            positional = _positional(mod)
            if positional != count:
                wanted = "(b, h, q_idx, kv_idx)" if count == 4 else "(score, b, h, q_idx, kv_idx)"
                raise CuirError.of("X101", f"{kind} of `{self.name}` takes {wanted}, found {positional} positional parameters", function_span(mod),
                                   "other values: close over them, or take them by keyword after `*`")  # fmt: skip
            for p in asked(mod):
                if p.name not in LENGTHS and p.name not in self.captured and p.default is p.empty:
                    raise CuirError.of("X102", f"{kind} of `{self.name}` asks for `{p.name}`, which is no length ({', '.join(LENGTHS)}) and is not captured",
                                       function_span(mod), f'give it a default, or pass captured={{"{p.name}": ...}}')  # fmt: skip

    def values(self, lengths: Lengths) -> dict[str, int | float | torch.Tensor]:
        """What is captured by name, for a problem of these lengths."""
        found: dict[str, int | float | torch.Tensor] = {}
        for name, value in self.captured.items():
            found[name] = value if isinstance(value, (int, float, torch.Tensor)) else value(lengths)
        return found

    def mods(self, lengths: Lengths, device: torch.device | str = "cpu") -> tuple[Callable[..., Any] | None, Callable[..., Any] | None]:
        """(mask_mod, score_mod) with FlexAttention's plain signature, everything asked for by name filled in."""
        known: dict[str, Any] = {name: getattr(lengths, name) for name in LENGTHS} | self.values(lengths)
        known = {n: v.to(device) if isinstance(v, torch.Tensor) else v for n, v in known.items()}

        def filled(mod: Callable[..., Any] | None) -> Callable[..., Any] | None:
            if mod is None:
                return None
            given = {p.name: known[p.name] for p in asked(mod) if p.name in known}
            if mod is self.mask_mod:  # FlexAttention counts positional parameters
                return lambda b, h, q_idx, kv_idx: mod(b, h, q_idx, kv_idx, **given)
            return lambda score, b, h, q_idx, kv_idx: mod(score, b, h, q_idx, kv_idx, **given)

        return filled(self.mask_mod), filled(self.score_mod)

    def mask(self, lengths: Lengths, device: torch.device | str = "cpu") -> torch.Tensor:
        """The pairs that are kept: bool [B, H, M, N]."""
        mask_mod, _ = self.mods(lengths, device)
        shape = (lengths.B, lengths.H, lengths.M, lengths.N)
        if mask_mod is None:
            return torch.ones(shape, dtype=torch.bool, device=device)
        return torch.as_tensor(mask_mod(*indices(lengths, device)), device=device).to(torch.bool).expand(shape)

    def kept(self, lengths: Lengths) -> torch.Tensor:
        """The pairs that count: those of the mask, less those whose score is -inf for a product of 0 (a score_mod that masks). bool [B, H, M, N]."""
        shape = (lengths.B, lengths.H, lengths.M, lengths.N)
        return self.mask(lengths) if self.score_mod is None else self.scores(torch.zeros(shape), lengths) > -torch.inf

    def scores(self, s: torch.Tensor, lengths: Lengths) -> torch.Tensor:
        """Scaled products [B, H, M, N] -> natural logits with -inf where the mask drops a pair."""
        _, score_mod = self.mods(lengths, s.device)
        if score_mod is not None:
            with _default_dtype(s.dtype):
                s = torch.as_tensor(score_mod(s, *indices(lengths, s.device)), device=s.device).to(s.dtype).expand(s.shape)
        return s.masked_fill(~self.mask(lengths, s.device), -torch.inf)

    def reference(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> tuple[torch.Tensor, torch.Tensor]:
        """What the variant computes, in float64: q [B, H, M, D], k and v [B, HK, N, D] -> O [B, H, M, D], LSE [B, H, M] (natural logarithm)."""
        lengths = lengths_of(q, k)
        q, k, v = q.double(), _per_head(k, lengths).double(), _per_head(v, lengths).double()
        s = self.scores(q @ k.mT * scale, lengths)
        lse = s.logsumexp(-1)
        p = torch.exp(s - lse.masked_fill(lse == -torch.inf, 0.0)[..., None])
        return p @ v, lse

    def half(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> tuple[torch.Tensor, torch.Tensor]:
        """The same in the dtype of q as eager FlexAttention computes it: products and weights in half precision, softmax in float32."""
        lengths = lengths_of(q, k)
        k, v = _per_head(k, lengths), _per_head(v, lengths)
        s = self.scores((q @ k.mT).float() * scale, lengths)
        lse = s.logsumexp(-1)
        p = torch.exp(s - lse.masked_fill(lse == -torch.inf, 0.0)[..., None])
        return p.to(q.dtype) @ v, lse


def lengths_of(q: torch.Tensor, k: torch.Tensor) -> Lengths:
    return Lengths(q.shape[0], q.shape[1], k.shape[1], q.shape[2], k.shape[2])


def indices(lengths: Lengths, device: torch.device | str) -> tuple[torch.Tensor, ...]:
    """b, h, q_idx, kv_idx as broadcasting index tensors of shape [B, 1, 1, 1] ... [1, 1, 1, N]."""
    sizes = (lengths.B, lengths.H, lengths.M, lengths.N)
    return tuple(torch.arange(n, device=device).view([-1 if i == d else 1 for i in range(4)]) for d, n in enumerate(sizes))


def asked(mod: Callable[..., Any]) -> list[inspect.Parameter]:
    """The keyword-only parameters of a mod."""
    return [p for p in inspect.signature(mod).parameters.values() if p.kind is p.KEYWORD_ONLY]


def function_span(function: Callable[..., Any]) -> Span | None:
    """Where a Python function's definition starts."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    if code is None:
        return None
    import linecache

    source = Source(code.co_filename, "".join(linecache.getlines(code.co_filename)))
    line = source.line(code.co_firstlineno)
    start = len(line) - len(line.lstrip()) + 1
    return Span(source, code.co_firstlineno, start, code.co_firstlineno, max(start + 1, len(line) + 1))


def _positional(function: Callable[..., Any]) -> int:
    kinds = [p for p in inspect.signature(function).parameters.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return sum(p.default is p.empty for p in kinds)


def _per_head(x: torch.Tensor, lengths: Lengths) -> torch.Tensor:
    return x.repeat_interleave(lengths.H // lengths.HK, dim=1)


@contextlib.contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Integers times Python floats become this dtype, so that a float64 reference is float64 throughout."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
