"""Verdict on numbers for a function: error against float64, bounded by that of PyTorch."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from ..calls.binding import TORCH
from ..checking.checked import Checked
from ..spec.functions import FunctionSpecification
from ..text.diagnostics import CuirError, Diagnostic, Note
from ..text.user_code import function_span
from .decisive import KIND as STEPS
from .decisive import describe_steps, find_undecided
from .draws import Draw
from .inputs import FunctionLaunch, half_dtype, readable
from .integer_outputs import collect_right_integers, find_out_of_range
from .number_text import describe_overflow, show_different
from .numeric import RATIO, RATIO_ROW, share
from .problems import Case, parts_of
from .roundings import rounds_between, rounds_for_products
from .yardstick import SingleError

HIDDEN = 2.0**-8  # of the output's rounding: what may be wrong in all elements alike, beside what rounding explains of each
FLUSHED = 2.0**-126  # what exponentials give as 0
_CANCELLED = (
    2.0**-20
)  # of the largest input: what a kernel that rounds to 16 bits in between leaves of a row whose terms cancel, as those of a gradient that is 0 do
_MASK = 1e30  # beyond it a number hides what it is added to
_NEAR = 0.5  # of what is allowed by PyTorch's plain error: from there on the errors of the language's own operations count as well
_EDGE = 0.99  # of the largest number of a dtype: near it rounding decides between a number and infinity
_BROKEN = 1 / 8  # relative error of a row in PyTorch's float32, of which nothing can be asked where intermediate values overflow


@dataclass(frozen=True)
class OutputNumbers:
    """Errors of one output against float64, relative in the norm, and what was allowed: of all of it, of its worst row (along the last dim), and beyond what rounding the output explains.

    yardstick, row_yardstick: PyTorch's own error. share: the largest quotient of an error and what is allowed, at most 1.
    outside: elements that the function gives as NaN, or as an infinity where inputs are, so that nothing is asked of them.
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
    checked: Checked, spec: FunctionSpecification, given: FunctionLaunch, case: Draw, run: Callable[[FunctionLaunch], None]
) -> list[Mapping[str, object]]:
    """Runs a problem and judges its outputs; gives rows of the table. Raises CuirError as `judge_function`, and what `run` raises; V302 that comes of reading what the function does not says so."""
    run(given)
    try:
        numbers = judge_function(checked, spec, given, case)
    except CuirError as error:
        if given.poisoned and error.diagnostics[0].code in ("V301", "V302"):
            raise _blamed(checked, spec, given, case, run, error) from error
        raise
    left = {t.name for t in checked.outputs} - {n.name for n in numbers}
    scratch = spec.scratch(readable(checked, given), list(given.before)) if left else []
    return table_rows(case, numbers, given.positive, scratch)


def _blamed(
    checked: Checked,
    spec: FunctionSpecification,
    given: FunctionLaunch,
    case: Draw,
    run: Callable[[FunctionLaunch], None],
    error: CuirError,
) -> CuirError:
    """The error, told as one of reading an element that the function does not read, if there is none without NaN there."""

    def fails(places: Mapping[str, torch.Tensor]) -> bool:
        now = given.poisoned_only(places)
        try:
            run(now)
            judge_function(checked, spec, now, case)
        except CuirError:
            return True
        return False

    if fails({}):
        return error
    name = next((n for n, x in given.poisoned.items() if fails({n: x})), None)
    if name is None:
        return error
    places = given.poisoned[name].nonzero()
    while len(places) > 1:  # one of them is enough
        half = places[: len(places) // 2]
        mine = torch.zeros_like(given.poisoned[name])
        mine[tuple(half.T)] = True
        places = half if fails({name: mine}) else places[len(places) // 2 :]
    at, first = places[0].tolist(), error.diagnostics[0]
    message = f"{first.message}; the NaN comes from the input element {name}{at}, which `{spec.name}` does not read"
    hint = "what lies beyond a length, in an unused page or in padding may be NaN, and 0 * NaN is NaN: leave it out with where(...), or clear it before the product"
    return CuirError([Diagnostic("V302", message, first.span, first.notes, hint)])


def judge_function(checked: Checked, spec: FunctionSpecification, given: FunctionLaunch, case: Draw) -> list[OutputNumbers]:
    """The verdict on outputs that are there already, one entry for each that the specification gives.

    Raises CuirError: V301 wrong numbers, V302 unwritten outputs, X105 to X107 and X113 of the specification.
    """
    names, inputs = list(given.before), readable(checked, given)
    exact = given.exact if given.exact is not None else spec.exact(inputs, names)
    _require_shapes(spec, exact, given, case)
    require_defined(spec, exact, case)
    measure = _Measure(checked, spec, inputs, names, exact, case.corners or given.special, given.special)
    return [_Judged(checked, given.outputs[n], exact[n], measure, n, case).numbers() for n in names if n in exact]


def require_defined(spec: FunctionSpecification, exact: Mapping[str, torch.Tensor], case: Draw | Case) -> None:
    """Raise CuirError X106 for an output that the specification gives as NaN alone."""
    for name, wanted in exact.items():
        if wanted.numel() and bool(wanted.isnan().all()):
            raise CuirError.of(
                "X106",
                f"the specification `{spec.name}` gives NaN for all of {name} in the case {case}",
                function_span(spec.reference),
                "NaN says that nothing is asked there",
            )


def require_outputs(checked: Checked, spec: FunctionSpecification, given: FunctionLaunch, case: Draw | Case) -> None:
    """Evaluate the specification once. Raises CuirError X105, X106, X113 for names that the kernel lacks, other shapes, and an exception."""
    _require_shapes(spec, spec.exact(readable(checked, given), list(given.before)), given, case)


def _require_shapes(spec: FunctionSpecification, exact: Mapping[str, torch.Tensor], given: FunctionLaunch, case: Draw | Case) -> None:
    for name, wanted in exact.items():
        output = given.outputs[name]
        if wanted.shape != output.shape:
            message = f"the specification `{spec.name}` gives {name} of shape {list(wanted.shape)}, the kernel's is {list(output.shape)} in the case {case}"
            raise CuirError.of("X106", message, function_span(spec.reference), "the kernel's signature gives the shape")
        if wanted.is_floating_point() and output.is_floating_point() and torch.finfo(wanted.dtype).eps > torch.finfo(output.dtype).eps:
            coarse, fine = (str(x.dtype).removeprefix("torch.") for x in (wanted, output))
            message = f"the specification `{spec.name}` gives {name} rounded to {coarse}, and the kernel's is {fine}"
            raise CuirError.of("X106", message, function_span(spec.reference), "leave the dtype to the inputs, which are float64")


class _Measure:
    """PyTorch's own error: in float32 where the kernel computes in f32 from what it is given, with products of TF32 where the kernel's are; in the kernel's dtype where it rounds to it in
    between, or float32 says nothing."""

    def __init__(
        self,
        checked: Checked,
        spec: FunctionSpecification,
        inputs: Mapping[str, object],
        names: Sequence[str],
        exact: Mapping[str, torch.Tensor],
        steps: bool = False,
        special: bool = False,
    ):
        self.spec, self.inputs, self.names, self.steps, self.special = spec, inputs, names, steps, special
        self.dtype = TORCH[half_dtype(checked)]
        self.coarse = rounds_between(checked)
        self.single: SingleError | None = None
        if not self.coarse:
            try:
                self.of_single()
            except CuirError:
                self.coarse = True
        self.tf32 = not self.coarse and parts_of(checked) == 1
        if self.coarse:
            self.first = spec.yardstick(inputs, names, exact, self.dtype)  # type: ignore[arg-type]
        else:
            self.first = self.of_single().tf32()[0] if self.tf32 else self.of_single().plain
        self.products = self.coarse and rounds_for_products(checked)
        floats = [
            x.double() for x in inputs.values() if isinstance(x, torch.Tensor) and x.is_floating_point()
        ]  # of 8 bits PyTorch does not say what is finite
        counted = [x[x.abs() < (_MASK if special else torch.inf)] for x in floats]
        largest = max((x.abs().max().item() for x in counted if x.numel()), default=1.0)
        self.endless = any(bool(x.isinf().any()) for x in floats)
        self.below = not any(bool((x == torch.inf).any()) for x in floats)  # then -inf is a mask, or the logarithm of 0, and counts
        self.floor = _CANCELLED * largest if self.coarse else 0.0

    @property
    def open(self) -> bool:
        """Return whether verification added infinities; the function's own are then not examined."""
        return self.special and self.endless

    @property
    def words(self) -> str:
        return "TF32" if self.tf32 else str(self.dtype if self.coarse else torch.float32).removeprefix("torch.")

    def of_single(self) -> SingleError:
        if self.single is None:
            self.single = SingleError(self.spec, self.inputs, self.names, steps=self.steps)  # type: ignore[arg-type]
        return self.single

    def undecided(self, name: str, wanted: torch.Tensor) -> torch.Tensor:
        """Elements of inputs at steps about which nothing is asked: PyTorch's float32 comes out on another side than float64."""
        try:
            return find_undecided(self.of_single().plain[name], wanted)
        except CuirError:
            return torch.ones_like(wanted, dtype=torch.bool)

    def off(self, name: str, decided: bool = False) -> list[torch.Tensor]:
        """Return other right values: of float32, and with the errors that the language's operations may have.

        decided: results of step functions keep their float32 values. Empty if float32 cannot be evaluated.
        """
        try:
            single = self.of_single()
            if decided:
                return [single.plain[name], *(x[name] for x in single.off_between_steps())]
            more = single.tf32() if self.tf32 else single.rounded(self.dtype) if self.coarse and self.dtype != torch.float32 else []
            return [single.plain[name], *(x[name] for x in (*single.off(), *more))]
        except CuirError:
            return []

    def overflows(self, name: str) -> torch.Tensor:
        """Elements that PyTorch gives as no finite number in the kernel's dtype, where products leave a kernel no other one."""
        if not self.products:
            return torch.zeros((), dtype=torch.bool)
        return ~self.spec.half(self.inputs, self.names, self.dtype)[name].isfinite()  # type: ignore[arg-type]

    def turned(self, name: str) -> torch.Tensor:
        """Elements that hang on decisions which rounding turns; none where float32 cannot be evaluated so."""
        try:
            return self.of_single().turned()[name]
        except CuirError:
            return torch.zeros((), dtype=torch.bool)

    def right_integers(self, name: str, output: torch.Tensor) -> Iterator[torch.Tensor]:
        """Elements of an output of integers that are as float arithmetic of the kernel's precision gives them, or that nothing is asked of."""
        if self.coarse:
            yield output == self.first[name]
        with contextlib.suppress(CuirError):
            for right in collect_right_integers(self.of_single(), name, self.tf32):
                yield output == right
            yield find_out_of_range(self.of_single(), name)

    def undefined(self, name: str) -> torch.Tensor:
        """Elements that hang on integers made of NaN or infinities; none where float32 cannot be evaluated so."""
        try:
            return find_out_of_range(self.of_single(), name)
        except CuirError:
            return torch.zeros((), dtype=torch.bool)

    def ordered(self, name: str) -> torch.Tensor | None:
        """Elements that hang on the order of a sum; nothing where float32 cannot be evaluated."""
        try:
            return self.of_single().ordered()[name]
        except CuirError:
            return None


class _Judged:
    """One output of one problem."""

    def __init__(self, checked: Checked, output: torch.Tensor, wanted: torch.Tensor, measure: _Measure, name: str, case: Draw):
        self.checked, self.output, self.wanted, self.measure, self.name, self.case = checked, output, wanted, measure, name, case

    def wrong(self, code: str, message: str, hint: str | None = None) -> CuirError:
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

    def numbers(self) -> OutputNumbers:
        """Raises CuirError V301, V302."""
        if not self.output.dtype.is_floating_point:
            return self.integers()
        none = torch.zeros_like(self.wanted, dtype=torch.bool)
        try:
            return self.floats(none)
        except CuirError:
            ordered = self.measure.ordered(self.name)
            left = none if ordered is None else ordered
            if self.measure.special:
                left = left | self.measure.turned(self.name) | self.unsteady() | self.measure.undefined(self.name)
            if not left.any():
                raise
            return self.floats(left)

    def unsteady(self) -> torch.Tensor:
        """Elements of which special values leave little: float32 has no number in their row, or another one once its operations are off by a few units."""
        rounded = [x.to(self.output.dtype).double() for x in (self.measure.first[self.name], *self.measure.off(self.name))]
        wanted = self.wanted.double()
        free = torch.zeros_like(wanted, dtype=torch.bool)
        for x in rounded:
            endless = ~x.isfinite() & wanted.isfinite()
            far = _norms(torch.where(endless | ~wanted.isfinite(), 0.0, x - wanted)) > _BROKEN * _norms(
                torch.where(wanted.isfinite(), wanted, 0.0)
            )
            far &= _norms(self.output.double()).isfinite()  # a number that is not steady is still a number
            free |= (endless.any(-1) | far)[..., None] if wanted.dim() else endless | far
        return free

    def floats(self, ordered: torch.Tensor) -> OutputNumbers:
        """ordered: elements about which nothing is asked, since a sum in another order leaves float32, or rounding decides between numbers that are far apart."""
        name, output, measure = self.name, self.output, self.measure
        x, w = output.double(), self.wanted.double()
        limit = torch.finfo(output.dtype).max
        own = self.own_error(measure.first[name])
        broken = ~own.isfinite() & w.isfinite() & (w.abs() < limit)
        if not measure.coarse and measure.of_single().overflows:
            own_rows, rows = (_norms(torch.where(w.isfinite(), y, 0.0)) for y in (own, w))
            broken |= (own_rows > _BROKEN * rows)[..., None] if w.dim() else own_rows > _BROKEN * rows
        if (lost := ~x.isfinite() & w.isfinite()).any():
            broken |= lost & measure.overflows(name)
        self.outside = int((w.isnan() | (w.isinf() & measure.open)).sum())
        free = w.isnan() | broken | ordered | ((w.abs() > _EDGE * limit) & (w.abs() < limit / _EDGE))
        unasked = w.isinf() & measure.open
        if measure.below:  # NaN is wrong where float32 has the same infinity
            unasked = unasked & ~(x.isnan() & (measure.first[name].double() == w))
        free = free | unasked
        if measure.special:  # how far beyond the dtype a sum lies hangs on what is lost in it
            free = free | (w.isfinite() & (w.abs() >= limit))
        if (unwritten := x.isnan() & ~free).any():
            raise self.wrong("V302", f"{name} is NaN, as before the launch, or computed so, at {_place(unwritten)}; {int(unwritten.sum())} of {x.numel()} elements",
                             "every element is stored, and nothing divides 0 by 0")  # fmt: skip
        endless = ~free & (w.abs() >= limit)
        if (differs := endless & (x != torch.where(w > 0, torch.inf, -torch.inf))).any():
            at = torch.nonzero(differs)[0].tolist()
            found, expected = show_different(x[tuple(at)].item(), w[tuple(at)].item())
            raise self.wrong("V301", f"{name}{at} is {found}, the specification gives {expected}; {int(differs.sum())} such elements")
        self.free = free | endless
        steps = self.case.kind == STEPS and not measure.coarse
        if steps:
            self.free = self.free | measure.undecided(name, self.wanted)
        verdict = self.compared(own, measure.first[name])
        if verdict.share > _NEAR and (off := measure.off(name, decided=steps or (measure.special and not measure.coarse))):
            more = [self.own_error(o) for o in off]
            self.free = self.free | ~torch.stack(more).isfinite().all(0)  # float32 has no number there: a difference of logits of 1e18, say
            beyond = torch.stack([(o.double() - w).abs() for o in off]).amax(0)
            verdict = self.compared(torch.stack([own, *more]).amax(0), None, beyond)
        if not verdict.share <= 1:
            raise self.refused(verdict)
        return verdict

    def integers(self) -> OutputNumbers:
        differs = self.output != self.wanted
        if self.case.kind == STEPS:
            differs &= ~self.measure.undecided(self.name, self.wanted)
        for right in self.measure.right_integers(self.name, self.output) if differs.any() else ():
            differs &= ~right
            if not differs.any():
                break
        if differs.any():
            at = torch.nonzero(differs)[0].tolist()
            found, expected = show_different(self.output[tuple(at)].item(), self.wanted[tuple(at)].item())
            raise self.wrong(
                "V301",
                f"{self.name}{at} is {found}, the specification gives {expected}; {int(differs.sum())} of {self.output.numel()} differ",
            )
        return OutputNumbers(self.name, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)

    def own_error(self, own: torch.Tensor) -> torch.Tensor:
        """PyTorch's error of each element, in the output's dtype."""
        return (own.to(self.output.dtype).double() - self.wanted.double()).abs()

    def compared(self, own: torch.Tensor, plain: torch.Tensor | None, beyond: torch.Tensor | None = None) -> OutputNumbers:
        """own: PyTorch's error of each element; plain, or beyond: what it gives before the output is rounded, or the error of that."""
        output, measure = self.output, self.measure
        x, w, own = (torch.where(self.free, 0.0, y) for y in (output.double(), self.wanted.double(), own))
        unit = torch.finfo(output.dtype).eps / 2  # what rounding the output costs
        size, sizes = w.norm().item() or 1.0, _norms(w)
        sizes = torch.where(sizes == 0, 1.0, sizes)  # rows whose output is 0 count absolutely
        off = x - w
        rows, own_rows = _norms(off), _norms(own)
        bad = (rows - measure.floor).clamp(min=0)
        yardstick, row_yardstick = own.norm().item() / size, _largest(own_rows / sizes)
        least = max(
            torch.finfo(output.dtype).smallest_normal * unit * 2, FLUSHED
        )  # half of the distance of the smallest numbers, for each element
        allowed = RATIO * yardstick + unit + least * x.numel() ** 0.5 / size
        row_allowed = RATIO_ROW * row_yardstick + 2 * unit
        shares = [share(bad.norm().item() / size, allowed)]
        each = (bad - 2 * least * max(1, x.shape[-1] if x.dim() else 1) ** 0.5).clamp(min=0) / sizes
        shares.append(share(_largest(each), row_allowed))
        self.each, self.row_allowed, self.hidden = each, row_allowed, (0.0, 0.0)
        if not measure.coarse and output.dtype.itemsize < 4:
            if beyond is None:
                assert plain is not None
                beyond = (plain.double() - self.wanted.double()).abs()
            beyond = torch.where(self.free, 0.0, beyond)
            unexplained = (off.abs() - _half_steps(output, self.wanted.to(output.dtype))).clamp(min=0)
            unexplained = torch.where(self.free, 0.0, unexplained)
            self.hidden = unexplained.norm().item() / size, RATIO * beyond.norm().item() / size + HIDDEN * unit
            shares.append(share(*self.hidden))
        self.x, self.w = x, w
        return OutputNumbers(
            self.name,
            rows.norm().item() / size,
            allowed,
            yardstick,
            _largest(rows / sizes),
            row_allowed,
            row_yardstick,
            max(shares),
            self.outside,
        )

    def refused(self, n: OutputNumbers) -> CuirError:
        words, name = self.measure.words, self.name
        overflow = describe_overflow(name, self.output, torch.where(self.free, torch.nan, self.wanted.double()))
        if overflow is not None:
            return self.wrong("V301", overflow, "scale down, subtract the largest number before an exponential, or compute in f32")
        message = f"{name} differs from float64 by {n.error:.2e}, allowed {n.allowed:.2e} ({RATIO} x PyTorch's own error in {words}, {n.yardstick:.2e}, and the rounding of the output)"
        message += f"; the worst row by {n.row:.2e}, allowed {n.row_allowed:.2e}; "
        hidden, most = self.hidden
        if hidden > most:
            message += f"rounding the output does not explain {hidden:.2e} of it, allowed {most:.2e}; "
        return self.wrong("V301", message + _worst(name, self.x, self.w, self.each), _pattern(~(self.each <= self.row_allowed), name))


def _norms(x: torch.Tensor) -> torch.Tensor:
    """Of each row."""
    return x.norm(dim=-1) if x.dim() else x.abs()


def _half_steps(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Half of the distance to the next number of the dtype, for each element the larger of both tensors'."""
    larger = torch.maximum(x.abs(), y.abs())
    return (torch.nextafter(larger, torch.full_like(larger, torch.inf)).double() - larger.double()) / 2


def _largest(x: torch.Tensor) -> float:
    return x.max().item() if x.numel() else 0.0


def _worst(name: str, output: torch.Tensor, wanted: torch.Tensor, bad: torch.Tensor) -> str:
    """Where an output is farthest off: a row, or the element of an output of one dim."""
    if output.dim() > 1:
        return f"the worst row is {_place(~(bad < _largest(bad)))}"
    at = int((output - wanted).abs().argmax())
    found, expected = show_different(output.flatten()[at].item(), wanted.flatten()[at].item())
    return f"{name}[{at}] is {found}, the specification gives {expected}"


def _place(where: torch.Tensor) -> str:
    return str(torch.nonzero(where)[0].tolist()) if where.any() else "no place"


def _pattern(bad: torch.Tensor, name: str) -> str | None:
    """Which rows are wrong, dim by dim, if that says something."""
    if not bad.any() or bad.all() or not bad.dim():
        return None
    said = []
    for d, n in enumerate(bad.shape):
        places = bad.movedim(d, 0).reshape(n, -1).any(1).nonzero().flatten().tolist()
        if len(places) < n:
            said.append(f"of dim {d}: {places[0]} to {places[-1]} ({len(places)} of {n})")
    return f"wrong rows of {name}: {int(bad.sum())} of {bad.numel()}" + (", " + "; ".join(said) if said else "")


def table_rows(
    case: Draw, numbers: Sequence[OutputNumbers], positive: Sequence[str], scratch: Sequence[str] = ()
) -> list[Mapping[str, object]]:
    """Rows for the table of the numbers stage; positive: scalars that had to be; scratch: tensors of which the function says that they are nobody's business."""
    return [{"case": str(case), "output": n.name, "error": n.error, "allowed": n.allowed, "PyTorch's own": n.yardstick, "worst row": n.row, "allowed of a row": n.row_allowed,
             "worst row, PyTorch's own": n.row_yardstick, "error / allowed": n.share, "not asked": n.outside, "made positive": ", ".join(positive), "scratch": ", ".join(scratch)} for n in numbers]  # fmt: skip
