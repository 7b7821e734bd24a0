"""Verdict on numbers for a function: error against float64, bounded by that of PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from ..attn.verification.numeric import RATIO, RATIO_ROW, compute_share
from ..attn.verification.problems import Case
from ..checking.checked import Checked
from ..spec.function_specification import FunctionSpecification
from ..text.diagnostics import CuirError, Diagnostic, Note
from ..text.source import function_span
from .inputs import FunctionLaunch, collect_readable
from .rounding import (
    half_steps,
    round_to,
    saturate,
    saturates,
)
from .values.cases import Draw
from .values.number_text import describe_overflow, describe_pattern, describe_worst, format_place, show_different
from .values.step_inputs import KIND as STEPS
from .values.step_inputs import describe_steps
from .yardstick import Yardstick

HIDDEN = 2.0**-8  # of the output's rounding: allowed error common to all elements, besides the rounding of each
FLUSHED = 2.0**-126  # exponentials below are 0
# of the largest number of a dtype: near it rounding decides between numbers about as large and infinities
_EDGE = 0.99
_GROSS = 1 / 16  # relative error of an element that is wrong beside larger ones
_STEADY = 2.0**-10  # relative error of an element whose size float32 determines
_LEAST = 2.0**-100  # smaller elements are not compared beside larger ones: exponentials below 2^-126 are 0
# relative error of a row in PyTorch's float32 above which the row is not compared, if intermediate values overflow
_BROKEN = 1 / 8


@dataclass(frozen=True)
class OutputNumbers:
    """Relative errors (2-norm) of one output against float64, and the allowed errors.

    Of the whole output, of its worst row (along the last dim), and beyond the rounding of the output. yardstick,
    row_yardstick: PyTorch's own error. share: the largest quotient of an error and its allowed value, at most 1.
    outside: elements that the function gives as NaN, or as an infinity where inputs are infinite, which are not
    compared.
    """

    name: str
    error: float
    allowed: float
    yardstick: float
    row: float
    row_allowed: float
    row_yardstick: float
    share: float
    outside: int = 0


def check_function(
    checked: Checked, spec: FunctionSpecification, launch: FunctionLaunch, case: Draw, run: Callable[[FunctionLaunch], None]
) -> list[Mapping[str, object]]:
    """Run a problem and judge its outputs; return rows of the table.

    Raises CuirError as `judge_function`, and as `run`. A V302 that comes from reading elements that the function does
    not read says so.
    """
    run(launch)
    try:
        numbers = judge_function(checked, spec, launch, case)
    except CuirError as error:
        if launch.poisoned and error.diagnostics[0].code in ("V301", "V302"):
            raise _blame_unread_input(checked, spec, launch, case, run, error) from error
        raise
    not_compared = {t.name for t in checked.outputs} - {n.name for n in numbers}
    scratch = spec.scratch(collect_readable(checked, launch), list(launch.before)) if not_compared else []
    return make_table_rows(case, numbers, launch.positive, scratch)


def _blame_unread_input(
    checked: Checked,
    spec: FunctionSpecification,
    launch: FunctionLaunch,
    case: Draw,
    run: Callable[[FunctionLaunch], None],
    error: CuirError,
) -> CuirError:
    """Return the error as one of reading an unread element, if it disappears without NaN there."""

    def fails(places: Mapping[str, torch.Tensor]) -> bool:
        variant = launch.poison_only(places)
        try:
            run(variant)
            judge_function(checked, spec, variant, case)
        except CuirError:
            return True
        return False

    if fails({}):
        return error
    name = next((n for n, x in launch.poisoned.items() if fails({n: x})), None)
    if name is None:
        return error
    places = launch.poisoned[name].nonzero()
    while len(places) > 1:  # reduce to one element
        half = places[: len(places) // 2]
        selected = torch.zeros_like(launch.poisoned[name])
        selected[tuple(half.T)] = True
        places = half if fails({name: selected}) else places[len(places) // 2 :]
    index, first = places[0].tolist(), error.diagnostics[0]
    message = f"{first.message}; the NaN comes from the input element {name}{index}, which `{spec.name}` does not read"
    hint = "what lies beyond a length, in an unused page or in padding may be NaN, and 0 * NaN is NaN: leave it out with where(...), or clear it before the product; if numbers always stand there, let the function multiply by 0, too, in place of a choice"
    return CuirError([Diagnostic("V302", message, first.span, first.notes, hint)])


def judge_function(checked: Checked, spec: FunctionSpecification, launch: FunctionLaunch, case: Draw) -> list[OutputNumbers]:
    """Judge computed outputs; return one entry for each that the specification gives.

    Raises CuirError: V301 wrong numbers, V302 unwritten outputs, X105 to X107 and X113 of the specification.
    """
    names, inputs = list(launch.before), collect_readable(checked, launch)
    exact = launch.exact if launch.exact is not None else spec.exact(inputs, names)
    _require_shapes(spec, exact, launch, case)
    require_defined(spec, {n: x for n, x in exact.items() if n not in launch.spread}, case)
    _require_spread(checked, spec, launch, case)
    measure = Yardstick(checked, spec, inputs, names, exact, case.corners or launch.special, launch.special)
    measure.spread = bool(launch.spread)
    judged = [_Judgement(checked, launch.outputs[n], exact[n], measure, n, case).judge() for n in names if n in exact]
    return [replace(n, outside=n.outside - int(launch.spread[n.name].sum())) if n.name in launch.spread else n for n in judged]


def _require_spread(checked: Checked, spec: FunctionSpecification, launch: FunctionLaunch, case: Draw) -> None:
    """Raise CuirError V301 for an output that is a number where an extreme of the function is NaN."""
    for name, places in launch.spread.items():
        output = launch.outputs[name].double()
        if (dropped := places & ~output.isnan()).any():
            index = torch.nonzero(dropped)[0].tolist()
            message = f"{name}{index} is {output[tuple(index)].item():.6g}, `{spec.name}` gives NaN, since an element that it selects from is NaN; {int(dropped.sum())} such elements"
            hint = "a comparison with NaN is false, so `where(x > m, x, m)` drops it; `max(x, m)`, `row_max` and `col_max` keep it"
            raise CuirError([Diagnostic("V301", message, checked.origin.span, (Note(f"in the case {case}"),), hint)])


def require_defined(spec: FunctionSpecification, exact: Mapping[str, torch.Tensor], case: Draw | Case) -> None:
    """Raise CuirError X106 for an output that the specification gives as NaN alone."""
    for name, expected in exact.items():
        if expected.numel() and bool(expected.isnan().all()):
            raise CuirError.of(
                "X106",
                f"the specification `{spec.name}` gives NaN for all of {name} in the case {case}",
                function_span(spec.reference),
                "NaN says that nothing is asked there",
            )


def require_outputs(checked: Checked, spec: FunctionSpecification, launch: FunctionLaunch, case: Draw | Case) -> None:
    """Evaluate the specification once.

    Raises CuirError X105, X106, X113 for names that the kernel lacks, other shapes, and an exception.
    """
    _require_shapes(spec, spec.exact(collect_readable(checked, launch), list(launch.before)), launch, case)


def _require_shapes(spec: FunctionSpecification, exact: Mapping[str, torch.Tensor], launch: FunctionLaunch, case: Draw | Case) -> None:
    for name, expected in exact.items():
        output = launch.outputs[name]
        if expected.shape != output.shape:
            message = f"the specification `{spec.name}` gives {name} of shape {list(expected.shape)}, the kernel's is {list(output.shape)} in the case {case}"
            raise CuirError.of("X106", message, function_span(spec.reference), "the kernel's signature gives the shape")
        if expected.is_floating_point() and output.is_floating_point() and torch.finfo(expected.dtype).eps > torch.finfo(output.dtype).eps:
            coarse, fine = (str(x.dtype).removeprefix("torch.") for x in (expected, output))
            message = f"the specification `{spec.name}` gives {name} rounded to {coarse}, and the kernel's is {fine}"
            raise CuirError.of("X106", message, function_span(spec.reference), "leave the dtype to the inputs, which are float64")


class _Judgement:
    """Judgement of one output of one problem."""

    def __init__(self, checked: Checked, output: torch.Tensor, expected: torch.Tensor, measure: Yardstick, name: str, case: Draw):
        self.checked, self.output, self.measure, self.name, self.case = checked, output, measure, name, case
        self.expected = saturate(expected, output.dtype)

    def make_error(self, code: str, message: str, hint: str | None = None) -> CuirError:
        return CuirError(
            [
                Diagnostic(
                    code,
                    message,
                    self.checked.origin.span,
                    (*(describe_steps(self.checked) if self.case.kind == STEPS else ()), Note(f"in the case {self.case}")),
                    hint,
                )
            ]
        )

    def judge(self) -> OutputNumbers:
        """Judge the output. Raises CuirError V301, V302."""
        if not self.output.dtype.is_floating_point:
            return self.judge_integers()
        is_undefined = self.output.isnan() if self.measure.spread else torch.zeros((), dtype=torch.bool)
        try:
            return self.judge_floats(is_undefined)
        except CuirError:
            ordered = self.measure.find_ordered(self.name)
            not_compared = is_undefined if ordered is None else ordered
            if self.measure.special:
                not_compared = (
                    not_compared | self.measure.find_turned(self.name) | self.find_unsteady() | self.measure.find_undefined(self.name)
                )
            if not not_compared.any():
                raise
            return self.judge_floats(not_compared)

    def find_unsteady(self) -> torch.Tensor:
        """Return elements that special values leave undetermined.

        float32 has no number in their row, or another one once its operations are off by a few units.
        """
        rounded = [round_to(x, self.output.dtype).double() for x in (self.measure.first[self.name], *self.measure.list_off(self.name))]
        expected = self.expected.double()
        free = torch.zeros_like(expected, dtype=torch.bool)
        for x in rounded:
            endless = ~x.isfinite() & expected.isfinite()
            far = _compute_norms(torch.where(endless | ~expected.isfinite(), 0.0, x - expected)) > _BROKEN * _compute_norms(
                torch.where(expected.isfinite(), expected, 0.0)
            )
            far &= _compute_norms(self.output.double()).isfinite()  # an undetermined number must still be finite
            free |= (endless.any(-1) | far)[..., None] if expected.dim() else endless | far
        return free

    def judge_floats(self, ordered: torch.Tensor) -> OutputNumbers:
        """Judge an output of floats.

        ordered: elements that are not compared, since a sum in another order leaves float32, or rounding decides
        between numbers that are far apart.
        """
        name, output, measure = self.name, self.output, self.measure
        x, w = output.double(), self.expected.double()
        limit = torch.inf if saturates(output.dtype) else torch.finfo(output.dtype).max
        own_errors = self.error_of(measure.first[name])
        ordinary = (
            (measure.coarse or not measure.get_single().overflows)
            and bool(x.isfinite().all() and own_errors.isfinite().all())
            and bool((w.abs() <= _EDGE * limit).all())
        )
        self.outside = 0
        self.free = ordered.expand(w.shape) if ordinary else self.find_free(x, w, own_errors, ordered, limit)
        steps = self.case.kind == STEPS and not measure.coarse
        if steps:
            self.free = self.free | measure.find_undecided(name, self.expected)
        verdict = self.compare(own_errors, measure.first[name])
        if verdict.share > 1:
            verdict = self.compare_with_errors(verdict, own_errors, steps or (measure.special and not measure.coarse))
        if not verdict.share <= 1:
            raise self.make_refusal(verdict)
        self.require_elements()
        return verdict

    def find_free(self, x: torch.Tensor, w: torch.Tensor, own_errors: torch.Tensor, ordered: torch.Tensor, limit: float) -> torch.Tensor:
        """Return the elements that are not compared, of outputs with NaN, infinities or numbers near the dtype's limit.

        Raises CuirError V301, V302 for those of the output that are wrong.
        """
        name, measure = self.name, self.measure
        broken = ~own_errors.isfinite() & w.isfinite() & (w.abs() < limit)
        if not measure.coarse and measure.get_single().overflows:
            own_rows, rows = (_compute_norms(torch.where(w.isfinite(), y, 0.0)) for y in (own_errors, w))
            broken |= (own_rows > _BROKEN * rows)[..., None] if w.dim() else own_rows > _BROKEN * rows
        if (not_finite := ~x.isfinite() & w.isfinite()).any():
            broken |= not_finite & measure.overflows(name)
        self.outside = int((w.isnan() | (w.isinf() & measure.open)).sum())
        edge = (w.abs() > _EDGE * limit) & (w.abs() < limit / _EDGE) & (x * w.sign() > _EDGE**2 * limit)
        free = w.isnan() | broken | ordered | edge
        infinite = w.isinf() & measure.open
        if measure.below:  # NaN is wrong where float32 has the same infinity
            infinite = infinite & ~(x.isnan() & (measure.first[name].double() == w))
        free = free | infinite
        if measure.special:  # rounding decides whether a sum lies beyond the dtype
            free = free | (w.isfinite() & (w.abs() > limit))
        if (unwritten := x.isnan() & ~free).any():
            raise self.make_error(
                "V302",
                f"{name} is NaN, as before the launch, or computed so, at {format_place(unwritten)}; {int(unwritten.sum())} of {x.numel()} elements",
                _describe_unwritten(self.case),
            )
        overflowing = ~free & (w.abs() >= limit)
        if (differs := overflowing & (x != torch.where(w > 0, torch.inf, -torch.inf))).any():
            index = torch.nonzero(differs)[0].tolist()
            actual, expected = show_different(x[tuple(index)].item(), w[tuple(index)].item())
            raise self.make_error(
                "V301", f"{name}{index} is {actual}, the specification gives {expected}; {int(differs.sum())} such elements"
            )
        return free | overflowing

    def compare_with_errors(self, verdict: OutputNumbers, own_errors: torch.Tensor, decided: bool) -> OutputNumbers:
        """Compare again, with the errors of the language's operations counted as PyTorch's own.

        One evaluation after the other, until the output is right; each costs as much as the function. Returns
        `verdict` if float32 cannot be evaluated.
        """
        first, w = verdict, self.expected.double()
        free, largest, beyond = self.free, own_errors, torch.zeros_like(w)
        try:
            for other in self.measure.off(self.name, decided):
                errors = self.error_of(other)
                self.free = self.free | ~errors.isfinite()  # float32 has no number there, such as a difference of logits of 1e18
                largest, beyond = torch.maximum(largest, errors), torch.maximum(beyond, (other.double() - w).abs())
                verdict = self.compare(largest, None, beyond)
                if verdict.share <= 1:
                    return verdict
        except CuirError:
            self.free = free
            return first
        return verdict

    def require_elements(self) -> None:
        """Raise CuirError V301 for an element that is off by a sixteenth of itself, beside larger ones of its row.

        Only elements that float32 gives to a thousandth, also with the errors of operations: sums that cancel, and what
        lies near a decision, are not.
        """
        if self.measure.coarse or self.output.dtype.itemsize < 2:
            return
        x, w = self.x, self.w
        least = max(_LEAST, torch.finfo(self.output.dtype).smallest_normal)
        off = (w.abs() >= least) & w.isfinite() & ((x - w).abs() > _GROSS * w.abs()) & ~self.free
        if not off.any():
            return
        for values in (self.measure.first[self.name], *self.measure.list_off(self.name)):
            off = off & ((values.double() - w).abs() <= _STEADY * w.abs())
        if off.any():
            index = torch.nonzero(off)[0].tolist()
            actual, expected = show_different(x[tuple(index)].item(), w[tuple(index)].item())
            raise self.make_error(
                "V301",
                f"{self.name}{index} is {actual}, the specification gives {expected}: PyTorch's {self.measure.words} gives such a small element as exactly as large ones; {int(off.sum())} such elements",
                "a floor or an addend beside small numbers, or a sum that rounds them away, makes a small result wrong",
            )

    def judge_integers(self) -> OutputNumbers:
        differs = self.output != self.expected
        if self.case.kind == STEPS:
            differs &= ~self.measure.find_undecided(self.name, self.expected)
        for right in self.measure.list_right_integers(self.name, self.output) if differs.any() else ():
            differs &= ~right
            if not differs.any():
                break
        if differs.any():
            index = torch.nonzero(differs)[0].tolist()
            actual, expected = show_different(self.output[tuple(index)].item(), self.expected[tuple(index)].item())
            raise self.make_error(
                "V301",
                f"{self.name}{index} is {actual}, the specification gives {expected}; {int(differs.sum())} of {self.output.numel()} differ",
            )
        return OutputNumbers(self.name, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)

    def error_of(self, values: torch.Tensor) -> torch.Tensor:
        """Return PyTorch's error of each element, in the output's dtype."""
        return (round_to(values, self.output.dtype).double() - self.expected.double()).abs()

    def compare(self, own_errors: torch.Tensor, plain: torch.Tensor | None, beyond: torch.Tensor | None = None) -> OutputNumbers:
        """Compare the output.

        own: PyTorch's error of each element. plain: PyTorch's values before the output is rounded; or beyond: their
        errors.
        """
        output, measure = self.output, self.measure
        x, w, own_errors = (torch.where(self.free, 0.0, y) for y in (output.double(), self.expected.double(), own_errors))
        unit = torch.finfo(output.dtype).eps / 2  # the error of rounding the output
        size, sizes = w.norm().item() or 1.0, _compute_norms(w)
        sizes = torch.where(sizes == 0, 1.0, sizes)  # rows whose output is 0 count absolutely
        difference = x - w
        rows, own_row_errors = _compute_norms(difference), _compute_norms(own_errors)
        bad = (rows - measure.floor).clamp(min=0)
        yardstick, row_yardstick = own_errors.norm().item() / size, _find_largest(own_row_errors / sizes)
        smallest = max(
            torch.finfo(output.dtype).smallest_normal * unit * 2, FLUSHED
        )  # half of the distance of the smallest numbers, for each element
        allowed = RATIO * yardstick + unit + smallest * x.numel() ** 0.5 / size
        row_allowed = RATIO_ROW * row_yardstick + 2 * unit
        shares = [compute_share(bad.norm().item() / size, allowed)]
        excess = (bad - 2 * smallest * max(1, x.shape[-1] if x.dim() else 1) ** 0.5).clamp(min=0) / sizes
        shares.append(compute_share(_find_largest(excess), row_allowed))
        self.each, self.row_allowed, self.hidden = excess, row_allowed, (0.0, 0.0)
        if not measure.coarse and output.dtype.itemsize < 4:
            if beyond is None:
                assert plain is not None
                beyond = (saturate(plain, output.dtype).double() - self.expected.double()).abs()
            beyond = torch.where(self.free, 0.0, beyond)
            unexplained = (difference.abs() - half_steps(output, round_to(self.expected, output.dtype))).clamp(min=0)
            unexplained = torch.where(self.free, 0.0, unexplained)
            self.hidden = unexplained.norm().item() / size, RATIO * beyond.norm().item() / size + HIDDEN * unit
            shares.append(compute_share(*self.hidden))
        self.x, self.w = x, w
        return OutputNumbers(
            self.name,
            rows.norm().item() / size,
            allowed,
            yardstick,
            _find_largest(rows / sizes),
            row_allowed,
            row_yardstick,
            max(shares),
            self.outside,
        )

    def make_refusal(self, n: OutputNumbers) -> CuirError:
        words, name = self.measure.words, self.name
        overflow = describe_overflow(name, self.output, torch.where(self.free, torch.nan, self.expected.double()))
        if overflow is not None:
            return self.make_error("V301", overflow, "scale down, subtract the largest number before an exponential, or compute in f32")
        message = f"{name} differs from float64 by {n.error:.2e}, allowed {n.allowed:.2e} ({RATIO} x PyTorch's own error in {words}, {n.yardstick:.2e}, and the rounding of the output)"
        message += f"; the worst row by {n.row:.2e}, allowed {n.row_allowed:.2e}; "
        hidden, most = self.hidden
        if hidden > most:
            message += f"rounding the output does not explain {hidden:.2e} of it, allowed {most:.2e}; "
        return self.make_error(
            "V301", message + describe_worst(name, self.x, self.w, self.each), describe_pattern(~(self.each <= self.row_allowed), name)
        )


def _compute_norms(x: torch.Tensor) -> torch.Tensor:
    """Compute the norm of each row."""
    return x.norm(dim=-1) if x.dim() else x.abs()


def _find_largest(x: torch.Tensor) -> float:
    return x.max().item() if x.numel() else 0.0


def make_table_rows(
    case: Draw, numbers: Sequence[OutputNumbers], positive: Sequence[str], scratch: Sequence[str] = ()
) -> list[Mapping[str, object]]:
    """Return rows for the table of the numbers stage.

    positive: scalars that had to be positive; scratch: tensors that the function declares scratch.
    """
    return [
        {
            "case": str(case),
            "output": n.name,
            "error": n.error,
            "allowed": n.allowed,
            "PyTorch's own": n.yardstick,
            "worst row": n.row,
            "allowed of a row": n.row_allowed,
            "worst row, PyTorch's own": n.row_yardstick,
            "error / allowed": n.share,
            "not asked": n.outside,
            "made positive": ", ".join(positive),
            "scratch": ", ".join(scratch),
        }
        for n in numbers
    ]


def _describe_unwritten(case: Draw) -> str:
    """Return what to do about an output that is NaN.

    The advice also covers a problem whose lengths the specification may exclude.
    """
    empty = [d for d, n in case.sizes.items() if n == 0]
    excluded = ", ".join(f'"{d}": max(1, drawn["{d}"])' for d in empty)
    excluding = f"; where {' and '.join(empty)} is never 0, let the specification say so: def sizes(drawn): return {{{excluded}}}"
    return "every element is stored, and nothing divides 0 by 0" + (excluding if empty else "")
