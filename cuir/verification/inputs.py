"""Arguments of a kernel for one problem, drawn from its signature for a function specification.

Outputs are full of NaN. Kinds of values are defined in input_kinds.py, lengths in lengths.py.
"""

from __future__ import annotations

import contextlib
import inspect
import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

import torch

from ..arguments.binding import TORCH
from ..arguments.requirements import copy_of, pad_arguments
from ..attn.verification.problems import KINDS, SCALED, Case, draw_attention_inputs, is_attention
from ..attn.verification.sizes import Problem
from ..checking.checked import Checked, ScalarParam, TensorParam
from ..checking.kernel_results import ResultKey, SameObject
from ..checking.tensor_modes import find_tensor_modes
from ..interp.interpreted_launch import _read_tensors
from ..spec.function_specification import FunctionSpecification, Value, scale_of
from ..spec.specification import LENGTHS, Lengths
from ..syntax.types import BF16, BOOL, F16, F32, I32, DType
from ..text.diagnostics import CuirError
from .resource_limits import TRIED_VALUES
from .unread_inputs import find_unread
from .values.cases import Draw, compute_shape, count_elements, get_integer_consts
from .values.input_kinds import LARGEST, SHAPED, SQUARED, draw_small_value, draw_tensor, find_arbitrary, is_deep_enough, without_fillers
from .values.joint_extremes import find_apart, find_steep_sums
from .values.mentioned_numbers import Comparisons, collect_from_kernel, collect_from_source
from .values.special_plan import SPECIAL, SpecialPlan, Uses, find_uses, has_numbers, list_operations, make_plan, widen
from .values.special_values import SPREAD_NAN as NAN
from .values.special_values import UNDERFLOW, find_spread, list_others, make_underflowing
from .values.step_inputs import KIND as STEPS
from .values.step_inputs import make_decisive_inputs, move_to_steps

_EPSILON = ("eps", "epsilon")
_MOST_TRIED = 200_000  # elements of a tensor in the problem on which special values are tried
_SEED_STEP = 1_000_003  # added to a seed
_VAST = 1e30  # of a scalar: larger than everything that it is added to
_POISONED = ("normal", "strided", "ties")  # kinds in which derivatives are 0 only for unread elements


@dataclass
class FunctionLaunch:
    """Arguments of a run by name: inputs of the kernel, and its outputs before the run.

    Outputs that the function reads, or that `inputs` gives, have values; the others are NaN, or 0 if the kernel adds to
    them.

    undefined: tensors that the kernel writes and reads, and that the specification does not define before the run: as
    in scratch, each element must be written first.
    poisoned: elements of inputs that are NaN since the function does not read them; clean: these inputs without NaN.
    """

    inputs: dict[str, Value]
    before: dict[str, torch.Tensor]
    outputs: dict[str, torch.Tensor] = field(default_factory=dict)
    positive: tuple[str, ...] = ()  # scalars that were drawn negative, for which the specification is less defined
    poisoned: Mapping[str, torch.Tensor] = field(default_factory=dict)
    clean: Mapping[str, torch.Tensor] = field(default_factory=dict)
    from_inputs: Collection[str] = ()  # names of the results of the specification's `inputs`
    exact: Mapping[str, torch.Tensor] | None = None  # the function's results for these inputs, if already computed
    undefined: Collection[str] = ()
    redraw: Callable[[], Mapping[str, Value]] = dict  # results of the specification's `inputs` with another generator
    special: bool = False  # values chosen by verification, for which infinities of the function are not compared
    spread: Mapping[str, torch.Tensor] = field(default_factory=dict)  # elements of outputs that must be NaN

    def __post_init__(self) -> None:
        self.outputs = self.outputs or {n: copy_of(x) for n, x in self.before.items()}

    def arguments(self) -> dict[str, Value]:
        """Return the arguments of one run.

        Inputs are copied, since a kernel may write them, and the specification needs their values before the run.
        """
        return {**{n: copy_of(x) if isinstance(x, torch.Tensor) else x for n, x in self.inputs.items()}, **self.outputs}

    def fresh(self) -> FunctionLaunch:
        """Return a launch with the same inputs, and outputs as before the run."""
        return replace(self, outputs={})

    def poison_only(self, places: Mapping[str, torch.Tensor]) -> FunctionLaunch:
        """Return the same problem with NaN in these elements alone, and outputs as before the run."""
        inputs = {**self.inputs, **{n: _put_nan(x, places.get(n)) for n, x in self.clean.items()}}
        before = {n: inputs[n] if n in self.clean else x for n, x in self.before.items()}
        return replace(self, inputs=inputs, before=before, outputs={}, poisoned=places)  # type: ignore[arg-type]


def _put_nan(x: torch.Tensor, places: torch.Tensor | None) -> torch.Tensor:
    """Apply masked_fill, which 8-bit floats do not have; the strides stay."""
    return x if places is None else torch.empty_like(x).copy_(torch.where(places, torch.nan, x))


def choose_half_dtype(checked: Checked) -> DType:
    """Return the dtype in which PyTorch would compute.

    That is the dtype of the kernel's 16-bit tensors, else that of the operands of its products, else f32.
    """
    tensors = (t.dtype for t in checked.tensors)
    products = (c for c in checked.calls() if c.op.sums and len(c.op.params) > 1)
    operands = (checked.find_type(e) for c in products for e in c.args.values())
    return next((d for d in (*tensors, *(getattr(t, "dtype", F32) for t in operands)) if d in (F16, BF16)), F32)


def find_accumulated(checked: Checked) -> set[str]:
    """Return the tensors that atomic additions write, in any order."""
    return {name for name, modes in find_tensor_modes(checked).items() if "add" in modes}


def find_overwritten(checked: Checked) -> set[str]:
    """Return names of outputs whose values before a run do not matter.

    The kernel neither reads them nor adds to them.
    """
    return {t.name for t in checked.outputs} - _read_tensors(checked) - find_accumulated(checked)


def make_function_launch(
    checked: Checked, spec: FunctionSpecification, draw: Draw, tile: Mapping[str, int] | None = None, poison: bool = False
) -> FunctionLaunch:
    """Return the arguments for one problem.

    tile: other values of BM and BN than the kernel's, for inputs that depend on them. poison: NaN in elements that were
    drawn and that the function does not read.
    A negative float scalar is made positive where the specification fails for it, or gives more NaN, or does so for
    twice its value. One that keeps a root away from 0 (an `eps`) is positive and small. Raises CuirError: X105, X106,
    X113 of the specification's functions, X108 for inputs that nothing defines.
    """
    if draw.kind == UNDERFLOW:
        return _make_underflowing_launch(checked, spec, draw, tile)
    if draw.kind in SPECIAL:
        return _make_special_launch(checked, spec, draw, tile, poison)
    small = get_small_scalars(checked, spec)
    launch = _make_launch(checked, spec, draw, tile, {}, small)
    negative = [s.name for s in checked.scalars if s.dtype == F32 and launch.inputs[s.name] < 0]

    def open_places(factors: Mapping[str, float]) -> float:
        """Count the elements that are not compared."""
        try:
            variant = _make_launch(checked, spec, draw, tile, factors, small)
            return _count_undefined(checked, spec, variant)
        except CuirError:
            return math.inf

    def negate(names: Iterable[str]) -> dict[str, float]:
        return dict.fromkeys(names, -1.0)

    positive: list[str] = []
    if negative:
        least = open_places(negate(negative))
        positive = [n for n in negative if any(open_places({**negate(negative), n: factor}) > least for factor in (1.0, 2.0))]
        if open_places(negate(positive)) > least:  # some are defined only together
            positive = negative
    if positive:
        launch = _make_launch(checked, spec, draw, tile, negate(positive), small)
    launch = replace(launch, positive=(*(n for n, is_root in small.items() if is_root), *positive))
    return _poison(checked, spec, launch) if poison and draw.kind in _POISONED else launch


def _make_underflowing_launch(checked: Checked, spec: FunctionSpecification, draw: Draw, tile: Mapping[str, int] | None) -> FunctionLaunch:
    """Return f32 inputs whose products are subnormal; the normal inputs if there are none.

    Only where the outputs that the kernel adds to are sums of such products.
    """
    normal = replace(draw, kind="normal")
    plain = make_function_launch(checked, spec, normal, tile)
    drawn, names = {n: v for n, v in plain.inputs.items() if n not in plain.from_inputs}, find_accumulated(checked)

    def evaluate(values: Mapping[str, Value]) -> Mapping[str, torch.Tensor]:
        launch = _make_launch(checked, spec, normal, tile, {}, (), {**drawn, **values})
        return {n: x for n, x in spec.exact(collect_readable(checked, launch), list(launch.before)).items() if n in names}

    floats = {n: x for n, x in drawn.items() if isinstance(x, torch.Tensor) and x.dtype == torch.float32 and n not in plain.before}
    try:
        values = make_underflowing(floats, evaluate)
    except CuirError:
        return plain
    return plain if values is None else _make_launch(checked, spec, normal, tile, {}, (), {**drawn, **values})


def _make_special_launch(
    checked: Checked, spec: FunctionSpecification, draw: Draw, tile: Mapping[str, int] | None, poison: bool
) -> FunctionLaunch:
    """Return a launch with special values in normal inputs, or a normal launch if the specification fails.

    Args:
        draw: kind and seed of the special values.
        tile: other values of BM and BN than the kernel's.
        poison: put NaN in elements that the specification does not read.
    """
    plan, plain = get_special_plan(checked, spec), make_function_launch(checked, spec, replace(draw, kind="normal"), tile)
    if not plan.count(draw.kind):
        return plain
    block = get_integer_consts(checked).get("BN", 0) or 16
    for turn in range(3):  # if there are few rows, all may be hidden
        values = plan.values(draw.kind, draw.seed + turn * plan.count(draw.kind), plain.inputs, block)
        drawn = {n: v for n, v in plain.inputs.items() if n not in plain.from_inputs}
        try:
            launch = _make_launch(checked, spec, replace(draw, kind="normal"), tile, {}, (), {**drawn, **values})
            exact = spec.exact(collect_readable(checked, launch), list(launch.before))
        except CuirError:
            continue
        spread = _find_spread(checked, spec, plain, values, turn, draw, tile) if draw.kind == NAN else {}
        if spread if draw.kind == NAN else has_numbers(exact):
            launch = replace(launch, positive=plain.positive, exact=exact, special=True, spread=spread)
            return _poison(checked, spec, launch, always=True) if poison and draw.kind == "edges" else launch
    return plain


def _find_spread(
    checked: Checked,
    spec: FunctionSpecification,
    plain: FunctionLaunch,
    values: Mapping[str, Value],
    turn: int,
    draw: Draw,
    tile: Mapping[str, int] | None,
) -> dict[str, torch.Tensor]:
    """Return the elements of outputs that must be NaN.

    One of `values`, the tensor with NaN in it, says so.
    """
    drawn = {n: v for n, v in plain.inputs.items() if n not in plain.from_inputs}
    (name,) = values

    def evaluate(x: torch.Tensor) -> Mapping[str, torch.Tensor] | None:
        try:
            launch = _make_launch(checked, spec, replace(draw, kind="normal"), tile, {}, (), {**drawn, name: x})
            return spec.exact(collect_readable(checked, launch), list(launch.before))
        except CuirError:
            return None

    x = drawn[name]
    assert isinstance(x, torch.Tensor)
    return find_spread(x, turn + draw.seed // get_special_plan(checked, spec).count(NAN), evaluate(x), evaluate, list_others(drawn, name))


_SPECIAL_PLAN = ResultKey[SpecialPlan]("special values")
_SMALL_SCALARS = ResultKey[dict[str, bool]]("small scalars")
_COMPARED_SUMS = ResultKey[set[str]]("compared sums")


def get_special_plan(checked: Checked, spec: FunctionSpecification) -> SpecialPlan:
    """Return which inputs of the kernel may hold which special values, by trial on a small problem."""
    plan = checked.results.find(_SPECIAL_PLAN, SameObject(spec))
    if plan is None:
        checked.results.store(_SPECIAL_PLAN, SpecialPlan(), SameObject(spec))  # for problems that are drawn meanwhile
        plan = checked.results.store(_SPECIAL_PLAN, _make_plan(checked, spec), SameObject(spec))
    return plan


def _make_plan(checked: Checked, spec: FunctionSpecification) -> SpecialPlan:
    draw, comparisons = find_small_problem(checked, spec), Comparisons()
    if draw is None:
        return SpecialPlan()
    try:
        launch = make_function_launch(checked, spec, draw)
        with comparisons:
            spec.exact(collect_readable(checked, launch), list(launch.before))
    except CuirError:
        return SpecialPlan()
    plain = {n: v for n, v in launch.inputs.items() if n not in launch.from_inputs}

    begin = time.process_time()

    def evaluate(values: Mapping[str, Value]) -> Mapping[str, torch.Tensor] | None:
        if time.process_time() - begin > TRIED_VALUES:  # a slow function is tried with fewer values
            return None
        try:
            variant = _make_launch(checked, spec, draw, None, {}, (), {**plain, **values})
            return {n: widen(x) for n, x in spec.exact(collect_readable(checked, variant), list(variant.before)).items()}
        except CuirError:
            return None

    def uses(name: str) -> Uses:
        leaf = launch.inputs[name].detach().double().requires_grad_()  # type: ignore[union-attr]
        try:
            uses_of_leaf = find_uses(
                spec.compute_attached({**collect_readable(checked, launch), name: leaf}, list(launch.before)).values(), leaf
            )
        except (CuirError, RuntimeError):
            uses_of_leaf = None
        return uses_of_leaf or Uses(multiplied=any(c.op.traits.product for c in checked.calls()))

    attention = is_attention(checked.origin)
    fixed = {*launch.from_inputs, "scale", *(("Q", "K", "V") if attention else ()), *get_small_scalars(checked, spec)}
    drawn = {n: v for n, v in launch.inputs.items() if n not in fixed}
    tensors = {n: v for n, v in drawn.items() if isinstance(v, torch.Tensor) and v.is_floating_point()}
    scalars = {n: v for n, v in drawn.items() if not isinstance(v, torch.Tensor) and spec.asks(n)}
    mentioned = collect_from_source(spec.reference) | comparisons.mentioned | collect_from_kernel(checked)
    has = list_operations(checked)
    plan = make_plan(tensors, scalars, evaluate, mentioned, uses, {t.name: t.dims for t in checked.tensors}, has)
    if attention:
        return SpecialPlan(hidden=plan.hidden, reduced=plan.reduced, scalars=plan.scalars, integers=plan.integers, mentioned=plan.mentioned)
    floats = {n: x for n in sorted(launch.from_inputs) if isinstance(x := launch.inputs.get(n), torch.Tensor) and x.is_floating_point()}
    if has.exponentials and len(floats) == 1:  # with several, some may follow from others
        plan = replace(plan, steep=plan.steep + find_steep_sums(floats, evaluate))
    elif has.exponentials:
        plan = replace(plan, steep=plan.steep + find_apart({n: floats[n] for n in find_arbitrary(floats, launch.redraw)}, evaluate))
    return replace(plan, derived=bool(floats))


def find_small_problem(checked: Checked, spec: FunctionSpecification) -> Draw | None:
    """Return a problem of few elements, with room for several forms of rows."""
    for n in (12, 16, 64, 128):
        sizes = {d: min(n, 2) if d in ("B", "H", "HK") else n for d in checked.dims}
        with contextlib.suppress(CuirError):
            admitted = spec.admit_lengths({**get_integer_consts(checked), **sizes})
            if admitted is not None and max((count_elements(t, admitted) for t in checked.tensors), default=0) <= _MOST_TRIED:
                return Draw("a trial", {d: admitted[d] for d in checked.dims})
    return None


def _count_undefined(checked: Checked, spec: FunctionSpecification, launch: FunctionLaunch) -> int:
    return sum(int(x.isnan().sum()) for x in spec.exact(collect_readable(checked, launch), list(launch.before)).values())


def get_small_scalars(checked: Checked, spec: FunctionSpecification) -> dict[str, bool]:
    """Return the scalars that keep a root, a logarithm or a quotient away from 0.

    They are found by the function's results for large values of both signs, or by the name `eps`. The value tells
    whether the function is less defined for a negative one.
    """
    names = [s.name for s in checked.scalars if s.dtype == F32 and s.name != "scale" and spec.asks(s.name)]
    if not names:
        return {}
    small = checked.results.find(_SMALL_SCALARS, SameObject(spec))
    return checked.results.store(_SMALL_SCALARS, _find_small_scalars(checked, spec, names), SameObject(spec)) if small is None else small


def _find_small_scalars(checked: Checked, spec: FunctionSpecification, names: Sequence[str]) -> dict[str, bool]:
    draw = _find_smallest(checked, spec, 2)
    if draw is None:
        return {}

    def open_places(name: str, value: float) -> float | None:
        try:
            launch = _make_launch(checked, spec, draw, None, {}, {}, {**dict.fromkeys(names, 1.0), name: value})
            return _count_undefined(checked, spec, launch)
        except CuirError:
            return None

    scalars: dict[str, bool] = {}
    for name in names:
        below, above = open_places(name, -_VAST), open_places(name, _VAST)
        fails, less = below is None and above is not None, below is not None and above is not None and below > above
        if less or name.lower().startswith(_EPSILON):
            scalars[name] = fails or less
    return scalars


def _poison(checked: Checked, spec: FunctionSpecification, launch: FunctionLaunch, always: bool = False) -> FunctionLaunch:
    """Put NaN in elements of drawn floats that the function does not read.

    They are drawn by verification, or at random by the specification's `inputs`.
    """
    drawn = [n for n, x in launch.inputs.items() if isinstance(x, torch.Tensor) and x.is_floating_point() and n not in launch.from_inputs]
    from_inputs = {n: x for n, x in launch.inputs.items() if n in launch.from_inputs and n not in launch.before}
    empty = any(x.numel() == 0 for x in launch.inputs.values() if isinstance(x, torch.Tensor))  # then nothing is read
    arbitrary = [] if empty else find_arbitrary(from_inputs, launch.redraw)
    places, exact = find_unread(checked, spec, collect_readable(checked, launch), list(launch.before), [*drawn, *arbitrary], always)
    launch = replace(launch, exact=exact)
    filled = {n: x for n, x in places.items() if n in arbitrary}
    places = {n: x for n, x in places.items() if n not in arbitrary} | without_fillers(from_inputs, filled)
    if not places:
        return launch
    clean = {n: x for n, x in launch.inputs.items() if n in places and isinstance(x, torch.Tensor)}
    return replace(launch, clean=clean).poison_only(places)


def _make_launch(
    checked: Checked,
    spec: FunctionSpecification,
    draw: Draw,
    tile: Mapping[str, int] | None,
    factors: Mapping[str, float],
    small: Collection[str],
    values: Mapping[str, Value] | None = None,
    turn: int = 0,
) -> FunctionLaunch:
    """Return the arguments of a draw.

    factors: of float scalars that are drawn. small: scalars that are drawn small. values: replace some scalars and
    tensors. turn: how many tensors before the one of the kind the specification gives.
    """
    generator = torch.Generator().manual_seed(draw.seed)
    reads, adds = _read_tensors(checked), find_accumulated(checked)
    lengths = {**get_integer_consts(checked), **draw.sizes, **(tile or {})}
    outputs = list(checked.outputs)
    initialised = {t.name for t in outputs if _asks(checked, spec, t)}  # outputs whose values before the run matter
    drawn: dict[str, Value] = {s.name: _draw_scalar(s.name, s.dtype, lengths, generator) for s in checked.scalars}
    drawn |= {n: draw_small_value(draw.seed + i + 3 * (draw.kind != "normal"), generator) for i, n in enumerate(small)}
    drawn |= {n: drawn[n] * factor for n, factor in factors.items()}
    drawn |= dict(draw.scalars)
    drawn |= {n: v for n, v in (values or {}).items() if not isinstance(v, torch.Tensor)}
    if draw.kind == "scaled" and "scale" in drawn and spec.asks("scale"):
        drawn["scale"] *= SCALED
    needed = [t for t in checked.tensors if not t.scratch and (not t.written or t.name in initialised)]
    floats = [t for t in needed if t.dtype != I32]
    attention = is_attention(checked.origin)
    chosen, form = (None, 0) if attention else _choose_tensor(floats, draw.kind, draw.seed + turn)
    top = _find_largest_exponent(checked, spec, chosen, lengths) if draw.kind == "largest" and chosen is not None else LARGEST
    least = [float(drawn[n]) for n in small]
    for t in floats:
        drawn[t.name] = draw_tensor(t.dtype, compute_shape(t, lengths), draw.kind, generator, t is chosen, least, form, top)
    if attention:
        case = Case(draw.name, Lengths(*(lengths[n] for n in LENGTHS)), draw.kind, draw.seed)  # type: ignore[arg-type]
        shapes = {t.name: compute_shape(t, lengths) for t in floats if t.name in ("Q", "V")}
        dims = shapes["Q"][-1], shapes["V"][-1]
        q, k, v = draw_attention_inputs(case, dims, lengths.get("BN", 128), scale_of(dims[0]), TORCH[choose_half_dtype(checked)])
        drawn |= {n: x.to(TORCH[choose_half_dtype(checked)]) for n, x in (("Q", q), ("K", k), ("V", v))}
    elif draw.kind == STEPS:
        inputs_at_steps = make_decisive_inputs(checked, spec, drawn, floats, small, draw.seed, lambda: ask_small(checked, spec))
        drawn |= {n: x * factors[n] if n in factors else x for n, x in inputs_at_steps.items()} | dict(values or {})
    if draw.kind == "strided":
        drawn = {n: _make_strided(x) if isinstance(x, torch.Tensor) else x for n, x in drawn.items()}
    drawn |= {n: v for n, v in (values or {}).items() if isinstance(v, torch.Tensor)} | dict(draw.tensors)
    params: dict[str, TensorParam | ScalarParam] = {t.name.lower(): t for t in checked.tensors} | {
        s.name.lower(): s for s in checked.scalars
    }
    from_inputs, fixed = set[str](), dict(draw.tensors)

    def redraw() -> Mapping[str, Value]:
        return spec.make_inputs(lengths, torch.Generator().manual_seed(draw.seed + _SEED_STEP), independent)

    independent = dict(drawn)
    for name, value in spec.make_inputs(lengths, generator, drawn).items():
        p = params.get(name.lower())
        if p is None or (isinstance(p, TensorParam) and p.written and p.name not in initialised | reads | adds):
            raise CuirError.of(
                "X108",
                f"inputs of `{spec.name}` gives `{name}`, which `{checked.name}` does not read",
                checked.origin.span,
                f"it reads: {', '.join([*(t.name for t in needed), *(s.name for s in checked.scalars)])}",
            )
        from_inputs.add(p.name)
        if p.name not in fixed and not _is_of_nothing(value, drawn.get(p.name), draw):
            drawn[p.name] = convert_value(p, value)
    if chosen is not None and chosen.name in from_inputs and turn < len(floats):  # the kind applies to a drawn tensor
        return _make_launch(checked, spec, draw, tile, factors, small, values, turn + 1)
    missing = [t.name for t in needed if t.name not in drawn]
    if missing:
        raise CuirError.of(
            "X108",
            f"`{checked.name}` reads `{missing[0]}`, integers whose meaning its signature does not say",
            checked.origin.span,
            f"give them: FunctionSpecification(..., inputs=lambda sizes, generator: {{{missing[0]!r}: ...}})",
        )
    drawn |= {n: v for n, v in (values or {}).items() if n in from_inputs and isinstance(v, torch.Tensor)}
    tensors = [(t, drawn[t.name]) for t in checked.tensors if t.name in from_inputs]
    actual = {d: x.shape[i] for t, x in tensors if isinstance(x, torch.Tensor) for i, d in enumerate(t.dims) if isinstance(d, str)}
    before = {
        t.name: drawn[t.name] if t.name in initialised or t.name in from_inputs else _make_output(t, {**lengths, **actual}, adds)
        for t in outputs
    }
    inputs: dict[str, Value] = {n: drawn[n] for n in (*(t.name for t in needed), *(s.name for s in checked.scalars))}
    undefined = {t.name for t in outputs if t.name in reads and t.name not in initialised | from_inputs}
    if draw.kind == STEPS and from_inputs:
        readable = collect_readable(checked, FunctionLaunch(inputs, cast(dict[str, torch.Tensor], before)))
        own = {t.name: x for t in floats if t.name not in from_inputs and isinstance(x := inputs.get(t.name), torch.Tensor)}
        inputs |= move_to_steps(lambda: spec.exact(readable, list(before)), own, draw.seed)
    padded = pad_arguments(checked, inputs)
    initial = cast(dict[str, torch.Tensor], pad_arguments(checked, before))
    launch = FunctionLaunch(padded, initial, from_inputs=from_inputs, redraw=redraw)
    return replace(launch, undefined=undefined - (_find_compared_sums(checked, spec, launch) if undefined & adds else set()))


def _find_largest_exponent(checked: Checked, spec: FunctionSpecification, t: TensorParam, lengths: Mapping[str, int]) -> int:
    """Return the power of 2 up to which a tensor is drawn, so that f32 holds right results.

    A kernel that adds up elements may add all of the tensor's, also where PyTorch's function adds them in double
    precision.
    """
    if _gives_statistics(checked, spec, t):
        return SQUARED
    sums = any("sum" in (c.op.traits.reduction, c.op.traits.column_reduction) for c in checked.calls())
    elements = math.prod(compute_shape(t, lengths)) if sums else 1
    return LARGEST - max(elements - 1, 0).bit_length()


def _gives_statistics(checked: Checked, spec: FunctionSpecification, t: TensorParam) -> bool:
    """Return whether `inputs` computes floats from a tensor, such as statistics of a forward pass.

    Those square it in f32.
    """
    if spec.inputs is None or not any(n.lower() == t.name.lower() for n in inspect.signature(spec.inputs).parameters):
        return False
    names = _list_names_from_inputs(checked, spec)
    return any(second.dtype.is_float and second.name in names for second in checked.tensors)


def convert_value(p: TensorParam | ScalarParam, value: Value) -> Value:
    """Convert a value of the specification's `inputs` to the parameter's dtype.

    For a scalar parameter a tensor without dims becomes a number.
    """
    if not isinstance(value, torch.Tensor):
        return value
    return value.item() if isinstance(p, ScalarParam) and not value.dim() else value.to(TORCH[p.dtype])


def _is_of_nothing(value: Value, drawn: Value | None, draw: Draw) -> bool:
    """Return whether `inputs` gives only NaN since a dim is 0, such as the mean over an empty batch.

    The drawn numbers are then used.
    """
    if 0 not in draw.sizes.values() or not isinstance(value, torch.Tensor) or not isinstance(drawn, torch.Tensor):
        return False
    return value.is_floating_point() and value.numel() > 0 and value.shape == drawn.shape and bool(value.isnan().all())


def _find_compared_sums(checked: Checked, spec: FunctionSpecification, launch: FunctionLaunch) -> set[str]:
    """Return the tensors that the kernel adds to and the function gives; they are 0 before the run."""
    sums = checked.results.find(_COMPARED_SUMS, SameObject(spec))
    if sums is None:
        names: set[str] = set()
        with contextlib.suppress(CuirError):  # reported by the comparison of outputs
            names = set(spec.exact(collect_readable(checked, launch), list(launch.before)))
        sums = checked.results.store(_COMPARED_SUMS, names & find_accumulated(checked), SameObject(spec))
    return sums


def _asks(checked: Checked, spec: FunctionSpecification, t: TensorParam) -> bool:
    """Return whether the function reads the tensor, not a dim or a const of the same name up to case."""
    return spec.asks(t.name) and not any(
        spec.asks_exactly(n) for n in (*checked.dims, *checked.consts) if n != t.name and n.lower() == t.name.lower()
    )


def _choose_tensor(floats: Sequence[TensorParam], kind: str, seed: int) -> tuple[TensorParam | None, int]:
    """Choose the tensor that a kind is about, another one for each seed; also return its number of turns.

    Tensors with rows come first.
    """
    if kind not in SHAPED:
        return None, 0
    tensors = [t for t in floats if is_deep_enough(kind, len(t.dims))]
    tensors = [t for t in tensors if len(t.dims) > 1] or tensors
    return (tensors[seed % len(tensors)], seed // len(tensors)) if tensors else (None, 0)


def list_applicable_kinds(checked: Checked, spec: FunctionSpecification) -> tuple[str, ...]:
    """Return the kinds of inputs that apply to a kernel.

    `faint` needs a scalar that keeps a root away from 0, `scaled` one called scale, most a tensor of floats that the
    specification does not give.
    """
    small = get_small_scalars(checked, spec)
    scale = any(s.name == "scale" for s in checked.scalars) and spec.asks("scale")
    plan = get_special_plan(checked, spec)
    if is_attention(checked.origin):
        return tuple(k for k in KINDS if k not in ("aligned", "faint") and (k != "scaled" or scale) and (k not in SPECIAL or plan.count(k)))
    names = _list_names_from_inputs(checked, spec)
    floats = [
        t
        for t in checked.tensors
        if t.dtype.is_float and not t.scratch and (not t.written or _asks(checked, spec, t)) and t.name not in names
    ]

    def fits(kind: str) -> bool:
        if kind in ("normal", "scaled", "faint"):
            return {"normal": True, "scaled": scale, "faint": bool(small) and bool(floats)}[kind]
        if kind in SPECIAL:
            return plan.count(kind) > 0
        return any(is_deep_enough(kind, len(t.dims)) for t in floats)

    return tuple(k for k in KINDS if fits(k))


def _list_names_from_inputs(checked: Checked, spec: FunctionSpecification) -> Collection[str]:
    """Return the names of tensors that the specification's `inputs` gives."""
    if spec.inputs is None:
        return ()
    draw = _find_smallest(checked, spec, 1)
    try:
        return _make_launch(checked, spec, draw, None, {}, ()).from_inputs if draw is not None else ()
    except CuirError:  # reported when a problem is made
        return ()


def _find_smallest(checked: Checked, spec: FunctionSpecification, length: int) -> Draw | None:
    """Return the first problem that the specification admits for dims of that length, or longer ones."""
    for n in (length, 16, 64, 128):
        sizes = dict.fromkeys(checked.dims, n)
        with contextlib.suppress(CuirError):
            if (admitted := spec.admit_lengths({**get_integer_consts(checked), **sizes})) is not None:
                return Draw("a small one", {d: admitted[d] for d in checked.dims})
    return None


def ask_small(checked: Checked, spec: FunctionSpecification) -> tuple[dict[str, Value], list[str]] | None:
    """Build the inputs and output names of a small problem for the function; None if it admits none.

    Raises CuirError as `function_launch` does.
    """
    draw = _find_smallest(checked, spec, 2)
    if draw is None:
        return None
    launch = make_function_launch(checked, spec, draw)
    return collect_readable(checked, launch), list(launch.before)


def collect_readable(checked: Checked, launch: FunctionLaunch) -> dict[str, Value]:
    """Return what a reference may read, by name.

    That is what the kernel reads (before the run), dims, and consts that are integers or booleans.
    """
    tensors = {n: x for n, x in {**launch.inputs, **launch.outputs}.items() if isinstance(x, torch.Tensor)}
    dims = {d: tensors[t.name].shape[i] for t in checked.tensors if t.name in tensors for i, d in enumerate(t.dims) if isinstance(d, str)}
    return {**launch.inputs, **dims, **{n: v for n, v in checked.consts.items() if isinstance(v, int)}}


def make_contract_problems(
    checked: Checked, spec: FunctionSpecification, problems: Iterable[Problem]
) -> dict[Problem, Mapping[str, Value]]:
    """Return problems for the contracts of an attention kernel, as the specification admits them.

    With each, the integers that the kernel reads.
    """
    extras: dict[Problem, Mapping[str, Value]] = {}
    for p in problems:
        tile = {"BM": p.BM, "BN": p.BN}
        sizes = {**get_integer_consts(checked), **{d: getattr(p.lengths, d, 1) for d in checked.dims}, **tile}
        admitted = spec.admit_lengths(sizes) if p.lengths.N or spec.variant is not None else None  # others' functions may want keys
        if admitted is None:
            continue
        draw = Draw("contracts", {d: admitted[d] for d in checked.dims})
        inputs = make_function_launch(checked, spec, draw, tile).inputs
        extra = {**draw.sizes, **{n: x for n, x in inputs.items() if n not in ("Q", "K", "V", "scale")}}
        extras[Problem(Lengths(*(admitted[n] for n in LENGTHS)), p.BM, p.BN)] = extra
    return extras


def _make_strided(x: torch.Tensor) -> torch.Tensor:
    """Return the same values with the two dims before the last exchanged in memory."""
    return x.transpose(-2, -3).contiguous().transpose(-2, -3) if x.dim() > 2 else x


def _draw_scalar(name: str, dtype: DType, sizes: Mapping[str, int], generator: torch.Generator) -> Value:
    if name == "scale" and "D" in sizes:
        return scale_of(sizes["D"])
    if dtype == BOOL:
        return bool(torch.randint(2, (), generator=generator))
    if dtype == I32:
        return int(torch.randint(max(sizes.values(), default=1) + 1, (), generator=generator))
    return float(torch.randn((), generator=generator))


def _make_output(t: TensorParam, sizes: Mapping[str, int], accumulated: set[str]) -> torch.Tensor:
    """Return an output before the run: NaN, so that unwritten elements show, or zeros for sums."""
    shape, dtype = compute_shape(t, sizes), TORCH[t.dtype]
    if t.name in accumulated:
        return torch.zeros(shape, dtype=dtype)
    return torch.full(shape, -(2**31) if t.dtype == I32 else torch.nan, dtype=dtype)
