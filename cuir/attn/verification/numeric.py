"""Numbers of an attention kernel: O and LSE of the interpreter against PyTorch in float64.

The allowed error is derived from the error of PyTorch's half precision. The problems are in problems.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from ...checking.checked import Checked
from ...interp import Schedule, run
from ...ops.meaning.tiles import multiply_narrow
from ...spec.specification import Specification, lengths_of, products
from ...syntax.nodes import Program
from ...text.diagnostics import CuirError, Diagnostic, Note
from ...text.source import Span
from ...verification.values.number_text import describe_overflow
from ..outputs.output_table import find_outputs
from .problems import Case, Launch, make_attention_launch

RATIO = 1.2  # of PyTorch's own error in half precision, in the norm of the whole output
RATIO_ROW = 2.0  # of its error for its worst query: one stale row is negligible in the norm of all
RATIO_SINGLE = 2.0  # of PyTorch's own error in float32, or in TF32
LARGEST_NARROW = 256.0  # the largest weight in 8 bits, so that small ones are normal numbers
# factors of weights, which a kernel rounds before it divides by their sum: in TF32 and in 8 bits the largest of these
# errors counts as PyTorch's own
PORTIONS = (
    0.87,
    0.74,
    0.63,
)
# relative error of a weight in float32, for each unit of its logit plus one: both are within 2 units in the last place
WEIGHT = 2.0**-22


@dataclass(frozen=True)
class Numbers:
    """Errors of one case against float64, relative in the norm.

    Of all of O, and of the worst query: the kernel's, the allowed ones, and PyTorch's in half precision.
    """

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
        """The largest quotient of an error and its allowed value, at most 1."""
        return max(
            compute_share(self.error, self.allowed), compute_share(self.row, self.row_allowed), compute_share(self.lse, self.lse_allowed)
        )


def get_ratio(dtype: torch.dtype) -> float:
    """Return the allowed multiple of PyTorch's own error, in the norm of the whole output, for a dtype."""
    return RATIO_SINGLE if dtype == torch.float32 else RATIO


def compute_share(error: float, allowed: float) -> float:
    """Return error / allowed; infinite where either is not a number, or nothing is allowed."""
    if error == 0:
        return 0.0
    return error / allowed if error < math.inf and allowed > 0 else math.inf


def check_numbers(program: Program, checked: Checked, spec: Specification, case: Case, schedule: Schedule | None = None) -> Numbers:
    """Run one case and judge its numbers.

    Raises CuirError: V301 wrong numbers, V302 unwritten outputs, V303 queries without keys, V304 LSE, V309 further
    outputs, or a fault of the program.
    """
    launched = make_attention_launch(program, checked, spec, case)
    try:
        run(checked, launched.arguments(), schedule=schedule)
    except CuirError as error:
        raise add_note(error, f"in the case {case}") from error
    return judge(launched, spec, case, checked.origin.span)


def judge(launched: Launch, spec: Specification, case: Case, span: Span, by_tensor_core: bool = False) -> Numbers:
    """Judge computed outputs. Raises CuirError as `check_numbers`.

    by_tensor_core: it has summed products of 8 bits, whose sums in its order then count as PyTorch's own, too.
    """

    def wrong(code: str, message: str, hint: str | None = None) -> CuirError:
        return CuirError([Diagnostic(code, message, span, (Note(f"in the case {case}"),), hint)])

    o, lse = launched.o.double(), launched.lse.double()
    expected, expected_lse = spec.reference(launched.q, launched.k, launched.v, launched.scale)
    exact_scores, narrow = case.fixed is not None, launched.q.dtype.itemsize == 1
    weight = LARGEST_NARROW if narrow else 1.0
    half, half_lse = spec.half(launched.q, launched.k, launched.v, launched.scale, launched.parts, weight, exact_scores)
    expected, half = expected * launched.value_factor, half * launched.value_factor
    # products that overflow before they are scaled: as PyTorch's own attention, which scales Q first
    if not half.isfinite().all() and not narrow:
        half, _ = spec.half((launched.q * launched.scale).to(launched.q.dtype), launched.k, launched.v, 1.0, launched.parts)
    for output in find_outputs(spec.output_names):
        if output.name not in launched.extra_outputs:
            raise wrong(
                "V309",
                f"`{spec.name}` asks for {output.description}, and the kernel gives no {output.name}",
                f"{output.name}: Global[f32, B, H, M]",
            )
    undefined = (half.isnan() | expected.isnan()).any(
        -1
    )  # queries for which PyTorch computes NaN: an overflow of a score_mod, or a root of a negative score
    if (lse.isnan() & ~undefined).any():
        lengths = lengths_of(launched.q, launched.k)
        undefined |= (
            spec.weights(2 * spec.scores(products(launched.q, launched.k, launched.scale).float(), lengths), lengths)[0].isnan().any(-1)
        )  # doubled: kernels have base-2 logits
    for name, x in launched.outputs.items():
        bad = x.isnan() & ~(undefined[..., None] if name == "O" else undefined)
        if bad.any():
            raise wrong(
                "V302",
                f"{name} is NaN, as before the launch, or computed so, at {_format_place(bad)}; {int(bad.sum())} of {x.numel()} elements",
                "every query of every head is stored, and nothing divides 0 by 0",
            )
    o, expected, half = (x.masked_fill(undefined[..., None], 0.0) for x in (o, expected, half))
    lse, expected_lse = (x.masked_fill(undefined, 0.0) for x in (lse, expected_lse))
    empty = expected_lse == -math.inf
    if empty.any() and not ((o[empty] == 0).all() and (lse[empty] == -math.inf).all()):
        raise wrong(
            "V303",
            f"a query without keys gives O = 0 and LSE = -inf; found otherwise at {_format_place(empty & ((lse != -math.inf) | (o != 0).any(-1)))}",
        )
    unit = torch.finfo(launched.o.dtype).eps / 2  # the error of rounding the output
    size = expected.norm().item() or 1.0
    error, yardstick = ((x.double() - expected).norm().item() / size for x in (o, half))
    rows, rows_yardstick = (_compute_row_errors(x.double(), expected) for x in (o, half))
    row, row_yardstick = (x.max().item() if x.numel() else 0.0 for x in (rows, rows_yardstick))
    if launched.parts == 1 or narrow:
        for portion in PORTIONS:
            in_portion, _ = spec.half(launched.q, launched.k, launched.v, launched.scale, launched.parts, portion * weight, exact_scores)
            rounded_weights = (in_portion * launched.value_factor).masked_fill(undefined[..., None], 0.0).double()
            yardstick = max(yardstick, (rounded_weights - expected).norm().item() / size)
            row_yardstick = max(row_yardstick, _compute_row_errors(rounded_weights, expected).max().item() if rows.numel() else 0.0)
    cut_off = 0.0
    if narrow and by_tensor_core:
        summed, cut_off = _sum_by_tensor_core(launched, spec)
        summed = (summed * launched.value_factor).masked_fill(undefined[..., None], 0.0)
        yardstick = max(yardstick, (summed - expected).norm().item() / size)
        row_yardstick = max(row_yardstick, _compute_row_errors(summed, expected).max().item() if rows.numel() else 0.0)
    precision = (
        "weights of 8 bits"
        if narrow
        else "half precision"
        if launched.q.dtype != torch.float32
        else "TF32"
        if launched.parts == 1
        else "float32"
    )
    ratio = get_ratio(launched.q.dtype)
    exact = products(launched.q, launched.k, launched.scale)
    if precision == "float32":  # then not only the operands of products are rounded
        unit += WEIGHT * (1 + (exact.abs().max().item() if exact.numel() else 0.0))
    allowed, row_allowed = ratio * yardstick + unit, max(ratio, RATIO_ROW) * row_yardstick + 2 * unit
    if not error <= allowed or not row <= row_allowed:
        overflow = describe_overflow("O", launched.o, expected)
        if overflow is not None:
            raise wrong("V301", overflow, "scale down, subtract the largest number before an exponential, or compute in f32")
        raise wrong(
            "V301",
            f"O differs from float64 by {error:.2e}, allowed {allowed:.2e} ({ratio} x PyTorch's own error in {precision}, {yardstick:.2e}, and the rounding of the output); "
            f"the worst query by {row:.2e}, allowed {row_allowed:.2e}, at {_format_place(rows == row)}",
            _describe_pattern(rows > row_allowed),
        )
    finite = ~empty & ~undefined
    logits = spec.scores(exact, lengths_of(launched.q, launched.k))
    terms = torch.cat([logits.flatten(), expected_lse.flatten()])  # a sink may be far above the logits
    scale_of = terms[terms.isfinite()].abs().max().item() if terms.isfinite().any() else 0.0
    q, k = launched.q.double().abs(), launched.k.double().abs().repeat_interleave(launched.q.shape[1] // launched.k.shape[1], 1)
    # terms of a product, which may cancel and then be capped
    summands = (q @ k.mT).max().item() * launched.scale if k.numel() else 0.0
    lse_errors = (lse - expected_lse).abs().masked_fill(~finite, 0.0)
    lse_allowed = 2.0**-19 * (1 + scale_of) + 2.0**-22 * summands  # LSE is computed in float32, and so are products
    rounded = (
        (products(launched.q, launched.k, launched.scale, launched.parts) - exact).abs().max().item()
        if launched.parts == 1 and exact.numel()
        else cut_off
    )
    lse_allowed += rounded
    lse_error = lse_errors.max().item() if lse_errors.numel() else 0.0
    if not lse_error <= lse_allowed:  # a score_mod may amplify such an error: a step, a pole, a steep power
        sensitivity = _compute_lse_sensitivity(launched, spec, expected_lse, 0.0 if exact_scores else 2.0**-20 * summands + rounded)
        if launched.parts == 1:
            sensitivity = torch.maximum(sensitivity, (half_lse - expected_lse).abs().masked_fill(~finite, 0.0))
        allowed_of_query = lse_allowed + 2 * sensitivity
        exceeds = ~(lse_errors <= allowed_of_query)
        if exceeds.any():
            error, allowed = lse_errors[exceeds].max().item(), allowed_of_query[exceeds].min().item()
            raise wrong(
                "V304",
                f"LSE (natural logarithm) differs from float64 by {error:.2e}, allowed {allowed:.2e}, at {_format_place(exceeds)}, where logits reach {scale_of:.1f}",
            )
        lse_allowed = max(lse_allowed, lse_error)
    for output in find_outputs(launched.extra_outputs):
        computed = launched.extra_outputs[output.name]
        exact_output = spec.compute_output(output.name, launched.q, launched.k, launched.scale)
        distance = torch.where((computed == exact_output) | undefined, 0.0, (computed - exact_output).abs().nan_to_num(math.inf))
        allowed_distance = output.allow(exact_output, lse_allowed)
        exceeds = ~(distance <= allowed_distance) & ~undefined
        if exceeds.any():
            worst = exceeds & (distance == distance[exceeds].max())
            raise wrong(
                "V309",
                f"{output.name} differs from float64 by {distance[worst][0].item():.2e}, allowed {allowed_distance[worst][0].item():.2e}, at {_format_place(worst)}, where logits reach {scale_of:.1f}",
            )
    return Numbers(case, error, yardstick, row, row_yardstick, lse_error, allowed, row_allowed, lse_allowed)


def _sum_by_tensor_core(launched: Launch, spec: Specification) -> tuple[torch.Tensor, float]:
    """Return O as the tensor core sums products of 8 bits, and the largest error of a scaled product."""
    lengths = lengths_of(launched.q, launched.k)
    k, v = (x.repeat_interleave(lengths.H // lengths.HK, 1).double() for x in (launched.k, launched.v))
    summed = multiply_narrow(launched.q.double(), k.mT) * launched.scale
    weights = spec.weights(spec.scores(summed, lengths), lengths)[0]
    o = multiply_narrow((weights * LARGEST_NARROW).to(launched.q.dtype).double(), v) / LARGEST_NARROW
    exact = products(launched.q, launched.k, launched.scale)
    return o, (summed - exact).abs().max().item() if exact.numel() else 0.0


def _compute_lse_sensitivity(launched: Launch, spec: Specification, expected: torch.Tensor, most: float) -> torch.Tensor:
    """Compute how much the LSE of each query [B, H, M] changes if all products change by `most`.

    Up, down or at random, and where the mods compute in float32. Infinite where that is more than 1: there the rounding
    of the products decides, and no LSE is wrong.
    """
    lengths, exact = lengths_of(launched.q, launched.k), products(launched.q, launched.k, launched.scale)
    signs = [torch.randint(0, 2, exact.shape, generator=torch.Generator().manual_seed(seed)) * 2 - 1 for seed in range(2)]
    changed_products = [exact + most, exact - most, *(exact + most * sign for sign in signs), exact.float()]
    difference = torch.zeros_like(expected)
    for changed in changed_products:
        lse = spec.weights(spec.scores(changed, lengths).double(), lengths)[1]
        difference = torch.maximum(difference, (lse - expected).abs().nan_to_num(math.inf, math.inf))
    return torch.where(difference > 1, math.inf, difference)


def _format_place(selected: torch.Tensor) -> str:
    """Describe the first true element of [B, H, M] or [B, H, M, D]."""
    if not selected.any():
        return "no place"
    first = torch.nonzero(selected)[0].tolist()
    return ", ".join(f"{n} {i}" for n, i in zip(("batch", "head", "query", "column"), first))


def _compute_row_errors(x: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    """Return the relative error of each query, [B, H, M]; queries whose output is 0 count absolutely."""
    size = expected.norm(dim=-1)
    return (x - expected).norm(dim=-1) / torch.where(size == 0, 1.0, size)


def _describe_pattern(bad: torch.Tensor) -> str | None:
    """Describe the heads and queries that are wrong [B, H, M], if not all are."""
    if not bad.any() or bad.all():
        return None
    heads, queries = int(bad.any(2).sum()), bad.any(1).any(0).nonzero().flatten().tolist()
    return (
        f"wrong in {heads} of {bad.shape[0] * bad.shape[1]} heads, queries {queries[0]} to {queries[-1]} ({len(queries)} of {bad.shape[2]})"
    )


def add_note(error: CuirError, text: str) -> CuirError:
    """Return an error with another note on each diagnostic."""
    return CuirError([Diagnostic(d.code, d.message, d.span, (*d.notes, Note(text)), d.hint) for d in error.diagnostics])
