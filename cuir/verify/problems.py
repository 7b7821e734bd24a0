"""Problems for an attention kernel: shapes, inputs and poisoned outputs. Owns what is tried; not what is asked of the results."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from ..bind import TORCH
from ..checked import Checked, Const
from ..diagnostics import CuirError
from ..nodes import GlobalType, Kernel, Program
from ..spec import Lengths, Specification
from ..transfer import captured_arguments
from ..types import DType

Kind = Literal["normal", "strided", "large", "tiny", "equal", "spikes", "zero"]
_RANKS = {"Q": 4, "K": 4, "V": 4, "O": 4, "LSE": 3}


@dataclass(frozen=True)
class Case:
    """One numeric problem. `kind` says how inputs are drawn.

    normal: N(0, 1). strided: the same, heads inside of positions in memory. large: logits of about +-100. tiny: 2^-12. equal: all keys alike.
    spikes: single entries of 40 among small ones. zero: all zero.
    """

    name: str
    lengths: Lengths
    kind: Kind = "normal"

    def __str__(self) -> str:
        at = self.lengths
        return f"{self.name}: B={at.B}, H={at.H}, HK={at.HK}, M={at.M}, N={at.N}, {self.kind} inputs"


@dataclass
class Launch:
    """Arguments of a run: inputs, outputs full of NaN, the scale, captured values."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    o: torch.Tensor
    lse: torch.Tensor
    scale: float
    captured: Mapping[str, Any] = field(default_factory=dict)

    def arguments(self) -> dict[str, Any]:
        return {"Q": self.q, "K": self.k, "V": self.v, "O": self.o, "LSE": self.lse, "scale": self.scale, **self.captured}


def require_attention(kernel: Kernel) -> None:
    """Raises CuirError V300 unless the kernel takes Q, K, V [B, H, M, D], O, LSE [B, H, M] and scale."""
    ranks = {p.name: len(p.type.dims) for p in kernel.params if isinstance(p.type, GlobalType)}
    wrong = [n for n, rank in _RANKS.items() if ranks.get(n) != rank]
    if wrong or not any(p.name == "scale" for p in kernel.params):
        raise CuirError.of("V300", f"verification knows attention kernels: Q, K, V, O [B, H, M, D], LSE [B, H, M], scale; `{kernel.name}` lacks {', '.join(wrong) or 'scale'}",
                           kernel.span)  # fmt: skip


def launch(program: Program, checked: Checked, spec: Specification, case: Case, seed: int = 0) -> Launch:
    dtype, dim = TORCH[dtype_of(checked.consts)], int(checked.consts["D"])  # type: ignore[arg-type]
    at = case.lengths
    rng = torch.Generator().manual_seed(seed)
    q, k, v = (
        _inputs(case.kind, name, (at.B, heads, length, dim), rng).to(dtype)
        for name, heads, length in (("q", at.H, at.M), ("k", at.HK, at.N), ("v", at.HK, at.N))
    )
    if case.kind == "strided":
        q, k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v))
    return Launch(q, k, v, *outputs(q), dim**-0.5, captured_arguments(program, checked.origin, spec, at, consts=checked.consts))


def outputs(q: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """O and LSE, poisoned: what a kernel does not write stays NaN."""
    return torch.full_like(q, math.nan), torch.full(q.shape[:-1], math.nan)


def _inputs(kind: Kind, name: str, shape: tuple[int, ...], rng: torch.Generator) -> torch.Tensor:
    x = torch.randn(shape, generator=rng)
    if kind == "large" and name == "q":
        return x * 30
    if kind == "tiny":
        return x * 2.0**-12
    if kind == "equal" and name == "k":
        return x[:, :, :1].expand(shape).clone() if shape[2] else x
    if kind == "spikes":
        return torch.where(torch.rand(shape, generator=rng) < 1 / 256, torch.sign(x) * 40, x * 0.1)
    return torch.zeros(shape) if kind == "zero" and name != "v" else x


def dtype_of(consts: Mapping[str, Const]) -> DType:
    found = next((v for v in consts.values() if isinstance(v, DType)), None)
    if found is None:
        raise CuirError.of("V300", "verification needs the dtype of Q, K and V as a const parameter")
    return found


def cases(spec: Specification, BM: int, BN: int, marks: list[int], level: str) -> list[Case]:
    """Ragged ends, GQA and MQA, M != N, lengths below a tile, N = 0, extreme values; `marks`: captured integers, where masks have edges."""
    near = min((m for m in marks if m > 0), default=BN)
    near = near if near <= 8 * BN else BN
    found = [
        Case("grouped heads, ragged", Lengths(1, 4, 2, BM + 17, near + BN + 9)),
        Case("one key head, more keys than queries", Lengths(1, 3, 1, 37, 3 * BN + 1), "strided"),
        Case("more queries than keys", Lengths(2, 2, 2, 2 * BM + 5, BN // 2 + 3)),
        Case("fewer keys than a block", Lengths(1, 2, 1, BM, 7)),
        Case("one query", Lengths(1, 2, 2, 1, near + 3)),
        Case("whole tiles", Lengths(1, 2, 1, 2 * BM, 2 * BN), "large"),
        Case("alike keys", Lengths(1, 2, 2, BM, BN + 40), "equal"),
        Case("no keys", Lengths(1, 2, 1, 40, 0)),
    ]
    if level == "full":
        edges: tuple[tuple[int, Kind], ...] = ((-1, "normal"), (0, "spikes"), (1, "tiny"))
        found += [Case("around the captured number", Lengths(1, 1, 1, near + d, near - d), kind) for d, kind in edges]
        found += [
            Case("zeros", Lengths(1, 2, 1, BM + 1, BN + 1), "zero"),
            Case("single", Lengths(1, 1, 1, 1, 1)),
            Case("spikes", Lengths(1, 4, 1, BM + 9, 2 * BN + 9), "spikes"),
        ]
        rng = random.Random(0)
        for i in range(12):
            group, hk = rng.choice([1, 2, 4]), rng.choice([1, 2])
            drawn: Kind = rng.choice(["normal", "strided", "large", "spikes"])
            found.append(
                Case(f"drawn {i}", Lengths(rng.choice([1, 2]), group * hk, hk, rng.randint(1, 3 * BM), rng.randint(1, 4 * BN)), drawn)
            )
    return [c for c in found if min(c.lengths.M, c.lengths.H) > 0 and c.lengths.N >= 0]
