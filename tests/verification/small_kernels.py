"""Right kernels that are no attention, each with its function, and with faults: text and its replacement.

Report of verification on a wrong program: the first report of the first question answered with no.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from cuir.checking.checked import Const
from cuir.checking.checker import check
from cuir.spec.specification import Lengths, Specification
from cuir.syntax.nodes import Program
from cuir.syntax.types import BF16, F16, F32
from cuir.text.diagnostics import CuirError, Diagnostic
from cuir.verification import Case, check_mask, check_numbers

_ROWS = """
@kernel(arch="sm_80")
def kernel(X: Global[T, M, D], {more}*, T: const, D: const):
    work = tiles(cdiv(M, 16))
    with role("all", warps=1):
        for t in work:
            q = t * 16 + rows(16)
            x = cast(X[q, cols(D)], f32)
{body}
"""


def rows(more: str, body: str) -> str:
    """A kernel of a warp for each 16 rows: `x` holds them in f32, q are their numbers."""
    lines = [line.strip() for line in body.strip().splitlines()]
    return _ROWS.format(more=more + ", " if more else "", body="\n".join(" " * 12 + line for line in lines))


@dataclass(frozen=True)
class Small:
    text: str
    reference: Callable[..., Any]
    wrong: tuple[tuple[str, str], ...] = ()
    consts: tuple[Mapping[str, Const], ...] = ({"T": F16, "D": 64},)
    inputs: Callable[..., Any] | None = None
    sizes: Callable[..., Any] | None = None
    right: tuple[tuple[str, str], ...] = field(default=())  # other ways to write it


def layer_norm(x: torch.Tensor, g: torch.Tensor, b: torch.Tensor, eps: float) -> torch.Tensor:
    return F.layer_norm(x, x.shape[-1:], g, b, eps)


def rms_norm(x: torch.Tensor, g: torch.Tensor, eps: float) -> torch.Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * g


def variance(x: torch.Tensor) -> torch.Tensor:
    return x.var(-1)


def rope(x: torch.Tensor, c: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    a, b = x.chunk(2, -1)
    return torch.cat([a * c - b * s, b * c + a * s], -1)


ALL = ({"T": F16, "D": 64}, {"T": BF16, "D": 64}, {"T": F32, "D": 32})

KERNELS: dict[str, Small] = {
    "layer_norm": Small(
        rows(
            "G: Global[f32, D], Bias: Global[f32, D], Y: Global[T, M, D], eps: f32",
            """
            mean = row_sum(x) / D
            c = x - mean
            var = row_sum(c * c) / D
            y = c * exp2(-0.5 * log2(var + eps)) * G[cols(D)] + Bias[cols(D)]
            store(Y[q, cols(D)], cast(y, T))
            """,
        ),
        lambda x, g, bias, eps: layer_norm(x, g, bias, eps),
        (
            ("var = row_sum(c * c) / D", "var = row_sum(x * x) / D - mean * mean"),  # one pass
            ("var = row_sum(c * c) / D", "var = row_sum(c * c) / (D - 1)"),
            ("mean = row_sum(x) / D", "mean = row_sum(x) / (D - 1)"),
            ("exp2(-0.5 * log2(var + eps))", "(1.0 / (exp2(0.5 * log2(var)) + eps))"),
            ("log2(var + eps)", "log2(var + eps * eps)"),
            ("log2(var + eps)", "log2(max(var, eps))"),
            ("log2(var + eps)", "log2(var + 0.00001)"),
            ("c * exp2", "x * exp2"),
            ("+ Bias[cols(D)]", ""),
            ("* G[cols(D)]", "* (1.0 + G[cols(D)])"),
            ("x - mean", "x - cast(cast(mean, T), f32)"),
        ),
        ALL[:2],
        right=(
            ("c * exp2(-0.5 * log2(var + eps))", "c / exp2(0.5 * log2(var + eps))"),
            ("row_sum(x) / D", "row_sum(x * (1.0 / D))"),
            ("c * exp2(-0.5 * log2(var + eps)) * G[cols(D)]", "(c * G[cols(D)]) * exp2(-0.5 * log2(var + eps))"),
        ),
    ),
    "rms_norm": Small(
        rows(
            "G: Global[T, D], Y: Global[f32, M, D], eps: f32",
            """
            y = x * exp2(-0.5 * log2(row_sum(x * x) / D + eps)) * cast(G[cols(D)], f32)
            store(Y[q, cols(D)], y)
            """,
        ),
        lambda x, g, eps: rms_norm(x, g, eps),
        (
            ("row_sum(x * x) / D + eps", "row_sum(x * x) / D"),
            ("row_sum(x * x) / D + eps", "(row_sum(x * x) + eps) / D"),
            ("row_sum(x * x) / D + eps", "row_sum(x * x) / D + 2.0 * eps"),
            ("/ D + eps", "/ (D + 1) + eps"),
            ("y = x *", "y = cast(cast(x * 0.5, f16), f32) * 2.0 * 1.001 *"),
        ),
        ALL,
    ),
    "softmax": Small(
        rows(
            "Y: Global[T, M, D]",
            """
            m = row_max(x)
            e = exp2((x - m) * 1.4426950408889634)
            store(Y[q, cols(D)], cast(e / row_sum(e), T))
            """,
        ),
        lambda x: x.softmax(-1),
        (
            ("x - m", "x"),  # overflows
            ("1.4426950408889634", "1.44"),
            ("row_sum(e)", "(row_sum(e) + 0.001)"),
            ("m = row_max(x)", "m = row_sum(x)"),
        ),
        ALL,
        right=(
            ("exp2((x - m) * 1.4426950408889634)", "exp2(x * 1.4426950408889634 - m * 1.4426950408889634)"),
            ("e / row_sum(e)", "e * (1.0 / row_sum(e))"),
        ),
    ),
    "variance": Small(
        rows(
            "V: Global[f32, M]",
            """
            c = x - row_sum(x) / D
            store(V[q], row_sum(c * c) / (D - 1))
            """,
        ),
        variance,
        (("(D - 1)", "D"), ("c = x - row_sum(x) / D", "c = x"), ("x - row_sum(x) / D", "x - row_sum(x) / (D + 1)")),
        ALL,
    ),
    "logsumexp": Small(
        rows(
            "L: Global[f32, M]",
            """
            m = row_max(x)
            s = row_sum(exp2((x - m) * 1.4426950408889634))
            store(L[q], m + log2(s) * 0.6931471805599453)
            """,
        ),
        lambda x: x.logsumexp(-1),
        (
            ("m + log2(s) * 0.6931471805599453", "m + log2(s)"),
            ("m + log2(s) * 0.69", "log2(s) * 0.69"),
            ("(x - m)", "x"),
            ("log2(s)", "log2(s + 0.001)"),
        ),
        ALL,
        right=(("row_max(x)", "row_max(x) + 1.0"),),
    ),
    "gelu": Small(
        rows(
            "Y: Global[T, M, D]",
            """
            u = 0.7978845608028654 * (x + 0.044715 * x * x * x)
            store(Y[q, cols(D)], cast(0.5 * x * (1.0 + tanh(u)), T))
            """,
        ),
        lambda x: F.gelu(x, approximate="tanh"),
        (("0.044715", "0.04"), ("0.7978845608028654", "0.7"), ("0.5 * x *", "x *"), ("1.0 + tanh", "1.01 + tanh")),
        ({"T": F16, "D": 64}, {"T": BF16, "D": 64}),
    ),
    "rope": Small(
        rows(
            "C: Global[f32, M, H2], S: Global[f32, M, H2], Y: Global[T, M, D]",
            """
            x1, x2 = cast(X[q, cols(D // 2)], f32), cast(X[q, D // 2 + cols(D // 2)], f32)
            c, s = C[q, cols(D // 2)], S[q, cols(D // 2)]
            store(Y[q, cols(D // 2)], cast(x1 * c - x2 * s, T))
            store(Y[q, D // 2 + cols(D // 2)], cast(x2 * c + x1 * s, T))
            """,
        ).replace("            x = cast(X[q, cols(D)], f32)\n", ""),
        rope,
        (
            ("x1 * c - x2 * s", "x1 * c + x2 * s"),
            ("x2 * c + x1 * s", "x2 * c + x2 * s"),
            ("s = C[q, cols(D // 2)], S[q", "s = C[q, cols(D // 2)], S[q + 1"),
            ("x2 * c +", "x2 * c * 1.004 +"),
        ),
        ALL,
        sizes=lambda drawn: {"H2": drawn["D"] // 2},
    ),
    "rms_norm_copied": Small(
        """
@kernel(arch="sm_90a")
def kernel(X: Global[T, M, D], G: Global[f32, D], Y: Global[T, M, D], eps: f32, *, T: const, D: const, STAGES: const = 2):
    buf = shared(T, [STAGES, 64, D])
    filled, free = mbarrier(1, stages=STAGES), mbarrier(1, stages=STAGES)
    work = tiles(cdiv(M, 64))
    with role("load", warps=1):
        i = 0
        for t in work:
            free[i % STAGES].wait(i // STAGES % 2 ^ 1)
            filled[i % STAGES].expect(nbytes(buf[i % STAGES]))
            copy_async(X[t * 64 : t * 64 + 64, :], buf[i % STAGES], filled[i % STAGES])
            i += 1
    with role("norm", warpgroups=1):
        i = 0
        for t in work:
            filled[i % STAGES].wait(i // STAGES % 2)
            x = cast(load(buf[i % STAGES]), f32)
            free[i % STAGES].arrive()
            y = x * exp2(-0.5 * log2(row_sum(x * x) / D + eps)) * G[cols(D)]
            store(Y[t * 64 : t * 64 + 64, :], cast(y, T))
            i += 1
""",
        lambda x, g, eps: rms_norm(x, g, eps),
        (
            ("row_sum(x * x) / D + eps", "row_sum(x * x) / D"),
            ("row_sum(x * x) / D + eps", "row_sum(x * x) / D + eps * eps"),
            ("exp2(-0.5 * log2(row_sum(x * x) / D + eps))", "(1.0 / (exp2(0.5 * log2(row_sum(x * x) / D)) + eps))"),
            ("row_sum(x * x) / D", "row_sum(x * x) / (D - 1)"),
            ("G[cols(D)]", "G[0]"),
        ),
        ({"T": F16, "D": 64}, {"T": BF16, "D": 128}),
    ),
}


def read_diagnostic(
    program: Program, spec: Specification, consts: Mapping[str, Const], mask: Lengths, numbers: Case | None = None
) -> Diagnostic:
    checked = check(program, None, consts)
    with pytest.raises(CuirError) as caught:
        check_mask(program, checked, spec, mask)
        if numbers is not None:
            check_numbers(program, checked, spec, numbers)
    return caught.value.diagnostics[0]
