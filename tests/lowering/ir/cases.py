"""Kernels to build, run and lower, each with small arguments: those of the corpus, and the expert kernel of each variant."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

import corpus
from cuir.arguments.binding import TORCH, bind
from cuir.attn.splicing.splice import transfer
from cuir.checking.checked import Checked, Const
from cuir.checking.checker import check
from cuir.lowering.ir import ops
from cuir.lowering.ir.build_ir import build
from cuir.spec.loading import as_specification
from cuir.spec.specification import Lengths
from cuir.syntax.nodes import Program
from cuir.syntax.parser import parse
from cuir.syntax.types import BF16, F16, DType

Arguments = dict[str, Any]
POOL = torch.randn(1 << 17, generator=torch.Generator().manual_seed(0))


@dataclass(frozen=True)
class Case:
    """A kernel with arguments. `ctas`: how many share the work; one where they add to the same elements, so that there is an order."""

    checked: Checked
    arguments: Arguments = field(repr=False)
    ctas: int = 2

    def fresh(self) -> Arguments:
        """The arguments, copied; outputs hold what they held."""
        return {n: v.clone() if isinstance(v, torch.Tensor) else v for n, v in self.arguments.items()}

    @functools.cached_property
    def built(self) -> ops.Kernel:
        """Its IR, which nobody may change: a pass gets a clone."""
        return build(self.checked)

    @property
    def written(self) -> list[str]:
        return [t.name for t in self.checked.tensors if t.written]


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    n = 1
    for d in shape:
        n *= d
    return POOL.roll(-37 * seed)[:n].reshape(shape).clone()


def nan(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.full(shape, torch.nan, dtype=dtype)


def forward(dtype: torch.dtype, b: int = 1, h: int = 2, hk: int = 1, m: int = 150, n: int = 210, d: int = 64) -> Arguments:
    """Arguments of a forward pass."""
    q, k, v = (randn(b, heads, length, d, seed=i).to(dtype) for i, (heads, length) in enumerate(((h, m), (hk, n), (hk, n))))
    return {"Q": q, "K": k, "V": v, "O": nan(b, h, m, d, dtype=dtype), "LSE": nan(b, h, m), "scale": d**-0.5}


def documents(dtype: torch.dtype) -> Arguments:
    """Return causal attention within documents: blocks of 128 keys that each tile of 128 queries visits."""
    a = forward(dtype, m=300, n=300)
    doc = torch.tensor([[i // 110 for i in range(300)]], dtype=torch.int32)
    keep = (doc[:, :, None] == doc[:, None]) & torch.ones(300, 300, dtype=torch.bool).tril()
    span = torch.zeros(1, 3, 3, dtype=torch.int32)
    for t in range(3):
        blocks = [keep[0, t * 128 : t * 128 + 128, j * 128 : j * 128 + 128] for j in range(t + 1)]
        first = next(j for j, block in enumerate(blocks) if block.any())
        full = [j for j, block in enumerate(blocks) if block.all() and block.shape[1] == 128]
        span[0, t] = torch.tensor([first, *((full[0], full[-1] + 1) if full else (first, first))])
    return a | {"doc": doc, "span": span}


def backward(dtype: torch.dtype, m: int = 70, n: int = 140) -> Arguments:
    a = forward(dtype, m=m, n=n)
    out = {"dQ": torch.zeros(1, 2, m, 64), "dK": nan(1, 2, n, 64, dtype=dtype), "dV": nan(1, 2, n, 64, dtype=dtype)}
    return (
        {x: a[x] for x in ("Q", "K", "V", "scale")}
        | {"dO": randn(1, 2, m, 64, seed=3).to(dtype), "LSE": randn(1, 2, m, seed=4) + 5, "DL": randn(1, 2, m, seed=5)}
        | out
    )


def decoding(dtype: torch.dtype) -> Arguments:
    lengths = torch.tensor([70, 170], dtype=torch.int32)
    table = torch.tensor([[4, 2, -1], [1, 0, 3]], dtype=torch.int32)
    k, v = (randn(5, 2, 64, 64, seed=i).to(dtype) for i in (1, 2))
    k[2, :, 6:] = v[2, :, 6:] = torch.nan  # behind the last key
    out = {"OS": nan(2, 2, 4, 3, 64), "LS": nan(2, 2, 4, 3), "scale": 0.125}
    return {"Q": randn(2, 4, 3, 64).to(dtype), "K": k, "V": v, "page": table, "len_k": lengths} | out


def combining(dtype: torch.dtype) -> Arguments:
    parts = randn(2, 2, 4, 3, seed=1)
    parts[0, 1] = -torch.inf
    return {"OS": randn(2, 2, 4, 3, 64), "LS": parts, "O": nan(2, 4, 3, 64, dtype=dtype)}


def product(dtype: torch.dtype) -> Arguments:
    return {
        "A": randn(70, 96).to(dtype),
        "Bt": randn(136, 96, seed=1).to(dtype),
        "C": nan(70, 136, dtype=dtype),
        "bias": randn(136, seed=2),
    }


FORWARD = {"D": 64, "BN": 64}
EXPERT: dict[str, tuple[dict[str, Const], dict[str, int]]] = {  # settings of the expert kernel, lengths
    "plain": ({"D": 64, "BN": 64}, {}),
    "wide": ({"D": 128, "BN": 64, "QBUF": 1}, {"d": 128}),
    "apart": ({"D": 128, "BN": 64, "QBUF": 1, "AHEAD": False, "STAGED": False}, {"d": 128, "m": 250}),
    "three": ({"D": 64, "BM": 192, "BN": 64, "STAGES": 3}, {"m": 250}),
    "pingpong": ({"D": 64, "BN": 64, "PINGPONG": True}, {}),
    "cluster": ({"D": 64, "BN": 64, "CLUSTER": 2, "BM": 256}, {"m": 300}),
    "one row": ({"D": 64, "BN": 64}, {"m": 1, "n": 77}),
    "no keys": ({"D": 64, "BN": 64}, {"n": 40}),
}
PROGRAMS: dict[str, tuple[str, str | None, dict[str, Const], Callable[[torch.dtype], Arguments], int]] = {
    "flash_fwd": ("flash_fwd", None, FORWARD, forward, 2),
    "flash_fwd_over_v": ("flash_fwd_over_v", None, FORWARD, forward, 2),
    "flash_fwd_warps": ("flash_fwd_warps", None, {"D": 64}, forward, 2),
    "flash_fwd_cluster": ("flash_fwd_cluster", None, FORWARD, lambda t: forward(t, m=270), 2),
    "sigmoid": ("sigmoid", None, FORWARD, lambda t: forward(t) | {"bias": -1.5}, 2),
    "causal_document": ("causal_document", None, {"D": 64}, documents, 2),
    "global_sliding_window": ("global_sliding_window", None, {**FORWARD, "L": 64, "R": 32, "g": 16}, forward, 3),
    "gemm": ("gemm", None, {}, product, 1),
    "delta": (
        "flash_bwd",
        "delta",
        {},
        lambda t: {"O": randn(1, 2, 70, 64).to(t), "dO": randn(1, 2, 70, 64, seed=1).to(t), "DL": nan(1, 2, 70)},
        2,
    ),
    "flash_bwd": ("flash_bwd", "flash_bwd", {}, backward, 1),
    "decode": ("decode_paged", "decode", {"G": 2}, decoding, 2),
    "combine": ("decode_paged", "combine", {}, combining, 2),
}
NAMES = [f"{name} f16" for name in (*PROGRAMS, *(f"expert {setting}" for setting in EXPERT))]
NAMES += [f"{name} bf16" for name in ("flash_fwd_warps", "gemm", "flash_bwd", "decode", "combine", "expert plain", "expert cluster")]


@functools.cache
def program(name: str) -> Program:
    return parse({**corpus.programs(), **corpus.kernels()}[name].read_text(encoding="utf-8"), f"{name}.cuir")


@functools.cache
def case(name: str) -> Case:
    """A case by its name, one of NAMES."""
    description, _, dtype_name = name.rpartition(" ")
    dtype: DType = {"f16": F16, "bf16": BF16}[dtype_name]
    if description.startswith("expert "):
        consts, lengths = EXPERT[description.removeprefix("expert ")]
        file, kernel, result, ctas = "flash_fwd_sm90", None, forward(TORCH[dtype], **lengths), 2
    else:
        file, kernel, consts, arguments, ctas = PROGRAMS[description]
        result = arguments(TORCH[dtype])
    kernels = program(file).kernels()
    origin = kernels[kernel] if kernel else next(iter(kernels.values()))
    needed = {"T": dtype} if any(p.name == "T" for p in origin.params) else {}
    checked = check(program(file), origin.name, dict(bind(origin, result, {**needed, **consts}).consts))
    return Case(checked, result, ctas)


@functools.cache
def variant(name: str) -> Case:
    """The expert kernel of a variant."""
    result = transfer(program("flash_fwd_sm90"), as_specification(corpus.variant(name), name))
    consts: dict[str, Const] = {"T": F16, "D": 64, "BM": 128, "BN": 64}
    created = forward(torch.float16, h=2, hk=1, m=130, n=130)
    created |= result.arguments(Lengths(1, 2, 1, 130, 130), consts=consts)
    return Case(check(parse(result.text, f"{name}.cuir"), result.kernel, consts), created)


VARIANTS = sorted(corpus.variants())
