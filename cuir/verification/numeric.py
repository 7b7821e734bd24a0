"""Numbers: a kernel's O and LSE in the interpreter against PyTorch in float64, judged by the error that PyTorch's half precision makes.

Owns the verdict; the problems are problems.py's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from ..checking.checked import Checked
from ..interp import Schedule, run
from ..spec.specification import Specification, lengths_of, products
from ..syntax.nodes import Program
from ..text.diagnostics import CuirError, Diagnostic, Note
from ..text.source import Span
from ..variants import MAX_SCORES
from .number_text import describe_overflow
from .problems import Case, Launch, launch

RATIO = 1.2  # of PyTorch's own error in half precision, in the norm of the whole output
RATIO_ROW = 2.0  # of its error for its worst query: one stale row is lost in the norm of all
RATIO_SINGLE = 2.0  # of PyTorch's own error in float32, or in TF32
PORTIONS = (
    0.87,
    0.74,
    0.63,
)  # of weights, which a kernel rounds before it divides by their sum: in TF32 the largest of these errors is PyTorch's own
WEIGHT = 2.0**-22  # of a weight in float32, relative, for each unit of its logit and one more: both are within 2 units in the last place


@dataclass(frozen=True)
class Numbers:
    """Errors of one case against float64, relative in the norm: of all of O, and of the worst query, for the kernel, what it was allowed, and for PyTorch in half precision."""

    case: Case
    error: float
    yardstick: float
    row: float
    row_yardstick: float
    lse: float
    allowed: float
    row_allowed: float
    lse_allowed: float

    @property
    def share(self) -> float:
        """The largest quotient of an error and what is allowed, at most 1."""
        return max(share(self.error, self.allowed), share(self.row, self.row_allowed), share(self.lse, self.lse_allowed))


def ratio_of(dtype: torch.dtype) -> float:
    """How many times PyTorch's own error, in the norm of the whole output, a kernel for a dtype may make."""
    return RATIO_SINGLE if dtype == torch.float32 else RATIO


def share(error: float, allowed: float) -> float:
    """error / allowed; infinite where either is no number, or nothing is allowed."""
    if error == 0:
        return 0.0
    return error / allowed if error < math.inf and allowed > 0 else math.inf


def check_numbers(program: Program, checked: Checked, spec: Specification, case: Case, schedule: Schedule | None = None) -> Numbers:
    """Runs one case. Raises CuirError: V301 wrong numbers, V302 unwritten outputs, V303 queries without keys, V304 LSE, V309 MAX_SCORES, or a fault of the program."""
    given = launch(program, checked, spec, case)
    try:
        run(checked, given.arguments(), schedule=schedule)
    except CuirError as error:
        raise with_note(error, f"in the case {case}") from error
    return judge(given, spec, case, checked.origin.span)


def judge(given: Launch, spec: Specification, case: Case, span: Span) -> Numbers:
    """The verdict on outputs that are there already. Raises as `check_numbers`."""

    def wrong(code: str, message: str, hint: str | None = None) -> CuirError:
        return CuirError([Diagnostic(code, message, span, (Note(f"in the case {case}"),), hint)])

    o, lse = given.o.double(), given.lse.double()
    wanted, wanted_lse = spec.reference(given.q, given.k, given.v, given.scale)
    exact_scores = case.given is not None
    half, half_lse = spec.half(given.q, given.k, given.v, given.scale, given.parts, exact_scores=exact_scores)
    if not half.isfinite().all():  # products that overflow before they are scaled: as PyTorch's own attention, which scales Q first
        half, _ = spec.half((given.q * given.scale).to(given.q.dtype), given.k, given.v, 1.0, given.parts)
    if spec.max_scores and given.most is None:
        raise wrong(
            "V309",
            f"`{spec.name}` asks for the largest scores, and the kernel gives no {MAX_SCORES}",
            f"{MAX_SCORES}: Global[f32, B, H, M]",
        )
    undefined = (half.isnan() | wanted.isnan()).any(
        -1
    )  # queries of which PyTorch makes NaN: a score_mod that overflows, or a root of a negative score
    if (lse.isnan() & ~undefined).any():
        at = lengths_of(given.q, given.k)
        undefined |= (
            spec.weights(2 * spec.scores(products(given.q, given.k, given.scale).float(), at), at)[0].isnan().any(-1)
        )  # twice: kernels have base-2 logits
    for name, x in given.outputs.items():
        bad = x.isnan() & ~(undefined[..., None] if name == "O" else undefined)
        if bad.any():
            raise wrong("V302", f"{name} is NaN, as before the launch, or computed so, at {_place(bad)}; {int(bad.sum())} of {x.numel()} elements",
                        "every query of every head is stored, and nothing divides 0 by 0")  # fmt: skip
    o, wanted, half = (x.masked_fill(undefined[..., None], 0.0) for x in (o, wanted, half))
    lse, wanted_lse = (x.masked_fill(undefined, 0.0) for x in (lse, wanted_lse))
    empty = wanted_lse == -math.inf
    if empty.any() and not ((o[empty] == 0).all() and (lse[empty] == -math.inf).all()):
        raise wrong(
            "V303",
            f"a query without keys gives O = 0 and LSE = -inf; found otherwise at {_place(empty & ((lse != -math.inf) | (o != 0).any(-1)))}",
        )
    unit = torch.finfo(given.q.dtype).eps / 2  # what rounding the output costs
    size = wanted.norm().item() or 1.0
    error, yardstick = ((x.double() - wanted).norm().item() / size for x in (o, half))
    rows, rows_yardstick = (_of_rows(x.double(), wanted) for x in (o, half))
    row, row_yardstick = (x.max().item() if x.numel() else 0.0 for x in (rows, rows_yardstick))
    if given.parts == 1:
        for portion in PORTIONS:
            other = (
                spec.half(given.q, given.k, given.v, given.scale, 1, portion, exact_scores)[0]
                .masked_fill(undefined[..., None], 0.0)
                .double()
            )
            yardstick = max(yardstick, (other - wanted).norm().item() / size)
            row_yardstick = max(row_yardstick, _of_rows(other, wanted).max().item() if rows.numel() else 0.0)
    precision = "half precision" if given.q.dtype != torch.float32 else "TF32" if given.parts == 1 else "float32"
    ratio = ratio_of(given.q.dtype)
    exact = products(given.q, given.k, given.scale)
    if precision == "float32":  # then it is not the products' operands alone that round
        unit += WEIGHT * (1 + (exact.abs().max().item() if exact.numel() else 0.0))
    allowed, row_allowed = ratio * yardstick + unit, max(ratio, RATIO_ROW) * row_yardstick + 2 * unit
    if not error <= allowed or not row <= row_allowed:
        overflow = describe_overflow("O", given.o, wanted)
        if overflow is not None:
            raise wrong("V301", overflow, "scale down, subtract the largest number before an exponential, or compute in f32")
        raise wrong("V301", f"O differs from float64 by {error:.2e}, allowed {allowed:.2e} ({ratio} x PyTorch's own error in {precision}, {yardstick:.2e}, and the rounding of the output); "
                    f"the worst query by {row:.2e}, allowed {row_allowed:.2e}, at {_place(rows == row)}", _pattern(rows > row_allowed))  # fmt: skip
    finite = ~empty & ~undefined
    logits = spec.scores(exact, lengths_of(given.q, given.k))
    terms = torch.cat([logits.flatten(), wanted_lse.flatten()])  # a sink may be far above the logits
    scale_of = terms[terms.isfinite()].abs().max().item() if terms.isfinite().any() else 0.0
    q, k = given.q.double().abs(), given.k.double().abs().repeat_interleave(given.q.shape[1] // given.k.shape[1], 1)
    summands = (q @ k.mT).max().item() * given.scale if k.numel() else 0.0  # of a product, which may cancel and then be capped
    lse_errors = (lse - wanted_lse).abs().masked_fill(~finite, 0.0)
    lse_allowed = 2.0**-19 * (1 + scale_of) + 2.0**-22 * summands  # LSE is computed in float32, and so are products
    rounded = (
        (products(given.q, given.k, given.scale, given.parts) - exact).abs().max().item() if given.parts == 1 and exact.numel() else 0.0
    )
    lse_allowed += rounded
    lse_error = lse_errors.max().item() if lse_errors.numel() else 0.0
    if not lse_error <= lse_allowed:  # a score_mod may make more of such an error: a step, a pole, a steep power
        off = _off(given, spec, wanted_lse, 0.0 if exact_scores else 2.0**-20 * summands + rounded)
        if given.parts == 1:
            off = torch.maximum(off, (half_lse - wanted_lse).abs().masked_fill(~finite, 0.0))
        own = lse_allowed + 2 * off
        beyond = ~(lse_errors <= own)
        if beyond.any():
            error, allowed = lse_errors[beyond].max().item(), own[beyond].min().item()
            raise wrong(
                "V304",
                f"LSE (natural logarithm) differs from float64 by {error:.2e}, allowed {allowed:.2e}, at {_place(beyond)}, where logits reach {scale_of:.1f}",
            )
        lse_allowed = max(lse_allowed, lse_error)
    if given.most is not None:
        most = spec.most(given.q, given.k, given.scale)
        apart = torch.where((given.most == most) | undefined, 0.0, (given.most - most).abs().nan_to_num(math.inf))
        if not apart.max().item() <= lse_allowed:
            raise wrong(
                "V309",
                f"{MAX_SCORES} differs from float64 by {apart.max().item():.2e}, allowed {lse_allowed:.2e}, at {_place(apart == apart.max())}, where logits reach {scale_of:.1f}",
            )
    return Numbers(case, error, yardstick, row, row_yardstick, lse_error, allowed, row_allowed, lse_allowed)


def _off(given: Launch, spec: Specification, wanted: torch.Tensor, most: float) -> torch.Tensor:
    """By how much the LSE of each query [B, H, M] differs where all products are off by `most`, up, down or at random, and where the mods compute in float32.

    Infinite where that is more than 1: there the rounding of the products decides, and no LSE is wrong."""
    at, exact = lengths_of(given.q, given.k), products(given.q, given.k, given.scale)
    signs = [torch.randint(0, 2, exact.shape, generator=torch.Generator().manual_seed(seed)) * 2 - 1 for seed in range(2)]
    others = [exact + most, exact - most, *(exact + most * sign for sign in signs), exact.float()]
    off = torch.zeros_like(wanted)
    for other in others:
        lse = spec.weights(spec.scores(other, at).double(), at)[1]
        off = torch.maximum(off, (lse - wanted).abs().nan_to_num(math.inf, math.inf))
    return torch.where(off > 1, math.inf, off)


def _place(where: torch.Tensor) -> str:
    """The first true element of [B, H, M] or [B, H, M, D] in words."""
    if not where.any():
        return "no place"
    first = torch.nonzero(where)[0].tolist()
    return ", ".join(f"{n} {i}" for n, i in zip(("batch", "head", "query", "column"), first))


def _of_rows(x: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """The relative error of each query, [B, H, M]; queries whose output is 0 count absolutely."""
    size = wanted.norm(dim=-1)
    return (x - wanted).norm(dim=-1) / torch.where(size == 0, 1.0, size)


def _pattern(bad: torch.Tensor) -> str | None:
    """Where the wrong queries [B, H, M] lie, if that says something."""
    if not bad.any() or bad.all():
        return None
    heads, queries = int(bad.any(2).sum()), bad.any(1).any(0).nonzero().flatten().tolist()
    return (
        f"wrong in {heads} of {bad.shape[0] * bad.shape[1]} heads, queries {queries[0]} to {queries[-1]} ({len(queries)} of {bad.shape[2]})"
    )


def with_note(error: CuirError, text: str) -> CuirError:
    return CuirError([Diagnostic(d.code, d.message, d.span, (*d.notes, Note(text)), d.hint) for d in error.diagnostics])
