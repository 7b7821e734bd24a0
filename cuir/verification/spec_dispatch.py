"""What verification asks of either kind of specification: mods of an attention, or a function. Owns the choice between the two, nothing of either."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch

from ..checking.checked import Checked, Const
from ..interp import Schedule, run
from ..interp.launch import Grid
from ..spec.functions import AnySpecification, FunctionSpecification
from ..spec.gradients import gradients
from ..spec.loading import as_any, load_any
from ..spec.specification import Lengths, Specification
from ..syntax.nodes import Kernel, Program
from ..text.diagnostics import CuirError
from ..variants.arguments import CapturedArguments, sources_of
from ..variants.learned import gradients_of
from ..variants.names import BACKWARD
from ..variants.ranges import traced_apart
from ..variants.rebuilt import bounded, made_at
from .blame import blame
from .corners import find_first_defined, make_corner_specifications, pick_corner_problem
from .counters import uses_of_rings
from .draws import Draw
from .evaluate import kernel_names
from .function_problems import draws, with_applicable_kinds
from .functions import check_function, require_outputs
from .hidden_biases import make_hidden_biases
from .inputs import FunctionLaunch, function_launch
from .lengths import from_case, ring_draws, schedule_draws, simpler_draws, wider_draws
from .memory import require_memory
from .numeric import judge, with_note
from .problems import Case, Launch, cases, is_attention, launch, require_attention, require_inputs_kept, simpler, small_attention_launches
from .score_corners import make_backward_case, make_forward_case
from .steps import steps_of_dims, tile_of_dims
from .unreached import ENOUGH, short_loops, unentered_loops

AnyCase = Case | Draw
AnyLaunch = Launch | FunctionLaunch

_TRIAL = 2.0  # seconds of a run that looks for more turns: what takes longer would exceed the budget on a slower machine


def tile_sizes(checked: Checked) -> tuple[int, int]:
    """BM and BN: queries and keys of a tile; by the boxes that are moved, where the kernel has no consts of these names."""
    BM, BN = (checked.consts.get(name) for name in ("BM", "BN"))
    steps = tile_of_dims(checked) if BM is None or BN is None else {}
    return int(BM or steps.get("M") or 128), int(BN or steps.get("N") or 128)  # type: ignore[arg-type]


def prepared(
    spec: Any,
    kernel: Kernel | None = None,
    program: Program | None = None,
    consts: Mapping[str, Const] | None = None,
    exact_scores: bool = False,
) -> AnySpecification:
    """Prepare a specification for lengths that the user's tensors were not made for; of a backward kernel its gradients.

    exact_scores: gradients of scores that half precision does not round. Raises CuirError as `as_any` does for what is none, and X109.
    """
    known = _known(spec, kernel)
    if isinstance(known, FunctionSpecification):
        return known
    if kernel is None or program is None or not is_backward(kernel):
        return bounded(known)
    asked = gradients_of(kernel)
    variant = bounded(known, learns=bool(asked))
    captured = CapturedArguments(program, kernel, variant)

    def extra(lengths: Lengths) -> dict[str, Any]:
        return captured.values(lengths, consts=consts)

    def learned(lengths: Lengths) -> tuple[Specification, dict[str, tuple[torch.Tensor, Sequence[int]]]]:
        here, given = made_at(variant, lengths), extra(lengths)
        leaves = sources_of(captured.traced.parameters if captured.traced is not None else (), here, lengths)
        pairs = {name: (leaves[of], given[of]) for name, of in asked.items()}
        return here, {n: (x, y.shape) for n, (x, y) in pairs.items() if isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor)}

    names = _names(kernel)
    alone = {"queries_alone": "dK" not in names, "keys_alone": "dQ" not in names}
    return gradients(variant, extra, learned if asked else None, **alone, exact_scores=exact_scores)


def _known(spec: Any, kernel: Kernel | None) -> AnySpecification:
    if isinstance(spec, (str, os.PathLike)):
        spec = load_any(os.fspath(spec), kernel=kernel)
    if isinstance(spec, (Specification, FunctionSpecification)):
        return spec
    return as_any(spec, getattr(spec, "__name__", type(spec).__name__), kernel=kernel)


def mods_of(spec: Any, checked: Checked) -> Specification | None:
    """The mods that a kernel, or its backward kernel, is specified by; None of a function."""
    known = _known(spec, checked.origin)
    return bounded(known) if isinstance(known, Specification) else None


def make_corner_cases(
    spec: Any, program: Program, checked: Checked, cases: Iterable[AnyCase]
) -> Iterator[tuple[str, AnySpecification, AnyCase]]:
    """Make problems of an attention kernel, or of its backward kernel, at corners of the score.

    Gives a name in words, the specification, of a backward kernel with captured tensors at corners over these tensors, and the problem.
    """
    known, backward = _known(spec, checked.origin), is_backward(checked.origin)
    if not isinstance(known, Specification) or not (backward or is_attention(checked.origin)):
        return
    yield from _score_corners(known, program, checked)
    problem = pick_corner_problem(cases)
    if not backward or problem is None:
        return
    for words, variants in make_corner_specifications(known):
        specs = (prepared(v, checked.origin, program, checked.consts) for v in variants)
        found = find_first_defined(checked, (s for s in specs if isinstance(s, FunctionSpecification)), problem)
        if found is not None:
            yield words, found, problem


def make_hidden_cases(spec: Any, checked: Checked) -> Iterator[tuple[str, AnySpecification, AnyCase]]:
    """Make problems of an attention kernel whose captured biases have runs of -inf, with a name in words and the specification."""
    known = _known(spec, checked.origin)
    if isinstance(known, Specification) and is_attention(checked.origin):
        yield from make_hidden_biases(known, *tile_sizes(checked))


def _score_corners(spec: Specification, program: Program, checked: Checked) -> Iterator[tuple[str, AnySpecification, AnyCase]]:
    if spec.score_mod is None:
        return
    try:
        traced = traced_apart(spec)
    except CuirError:  # a mod that no kernel can have: a program by hand is judged by drawn scores alone
        return
    judge = prepared(spec, checked.origin, program, checked.consts, exact_scores=True)
    if isinstance(judge, FunctionSpecification):
        found = make_backward_case(spec, judge, traced, checked)
        if found is not None:
            yield found
    elif (forward := make_forward_case(spec, traced, checked)) is not None:
        words, case = forward
        yield words, judge, case


def is_backward(kernel: Kernel) -> bool:
    """Check for a kernel that takes the inputs of attention's backward pass and gives gradients of queries or keys."""
    names = _names(kernel)
    return set(BACKWARD) <= names and bool({"dQ", "dK"} & names) and "O" not in names


def _names(kernel: Kernel) -> set[str]:
    return {p.name for p in kernel.params}


def require_judgeable(checked: Checked, spec: AnySpecification) -> None:
    """Raises CuirError V300 if the specification says nothing about such a kernel."""
    if isinstance(spec, Specification):
        require_attention(checked.origin)
        require_inputs_kept(checked)
    elif not checked.outputs:
        raise CuirError.of("V300", f"`{checked.name}` writes no tensor: there is nothing to compare", checked.origin.span)


def require_outputs_of(program: Program, checked: Checked, spec: AnySpecification, case: AnyCase) -> None:
    """Raise CuirError for a function whose outputs are not the kernel's, before anything runs; mods have no names and shapes."""
    if isinstance(spec, FunctionSpecification):
        given = launch_of(program, checked, spec, case)
        assert isinstance(given, FunctionLaunch)
        require_outputs(checked, spec, given, case)


def launch_of(program: Program, checked: Checked, spec: AnySpecification, case: AnyCase, poison: bool = False) -> AnyLaunch:
    """Arguments of a kernel for a problem, its outputs poisoned; poison: what a function does not read of its inputs, too. Raises CuirError as `require_memory`, `launch` and `function_launch` do."""
    if isinstance(case, Case):
        at = case.lengths
        logits = 8 * at.B * at.H * at.M * at.N  # of the reference, in float64
        require_memory(checked, kernel_names(checked.origin, asdict(at), checked.consts, {}), logits)
    else:
        require_memory(checked, case.sizes)
    if isinstance(spec, FunctionSpecification):
        draw = from_case(checked, spec, case) if isinstance(case, Case) else case
        return function_launch(checked, spec, draw, poison=poison)
    assert isinstance(case, Case)
    return launch(program, checked, spec, case)


def number_cases(checked: Checked, spec: AnySpecification, marks: list[int], level: str) -> list[AnyCase]:
    """Problems of the numbers stage."""
    if isinstance(spec, FunctionSpecification):
        return list(draws(checked, spec, level))
    return list(cases(spec, *tile_sizes(checked), marks, level))


def schedule_cases(checked: Checked, spec: AnySpecification) -> list[AnyCase]:
    """Problems of the schedules stage, on two CTAs each."""
    if isinstance(spec, FunctionSpecification) and not is_attention(checked.origin):
        return list(with_applicable_kinds(checked, spec, schedule_draws(checked, spec)))
    BM, BN = tile_sizes(checked)
    return [
        Case("persistent tiles", Lengths(1, 2, 1, BM + 9, 5 * BN + 3)),
        Case("short rows", Lengths(1, 4, 2, BM, BN // 2), "strided"),
        Case("long tiles, then short ones", Lengths(1, 4, 1, 2 * BM, 2 * BN)),  # rings do not hold a CTA's workers together
        Case(
            "as many keys as queries", Lengths(1, 2, 1, 3 * BM, 3 * BM)
        ),  # a worker may skip all blocks on the diagonal, with many behind them
    ]


def empty_cases(checked: Checked, spec: AnySpecification) -> list[AnyCase]:
    """Problems, for a few schedules on one CTA, in which tiles without keys come before tiles with keys, and between them, in some order of tiles."""
    if not is_attention(checked.origin):
        return []
    BM, _ = tile_sizes(checked)
    return [Case("tiles without keys among others", Lengths(1, 4, 2, 3 * BM, BM))]


def ring_cases(checked: Checked, spec: AnySpecification) -> list[AnyCase]:
    """Problems, for a few schedules: each of two CTAs goes round every ring twice and begins once more, by tiles and by blocks of a tile; other grids give some one unit and some none."""
    if isinstance(spec, FunctionSpecification) and not is_attention(checked.origin):
        return list(with_applicable_kinds(checked, spec, ring_draws(checked, spec)))
    (BM, BN), uses = tile_sizes(checked), uses_of_rings(checked)
    tiles = Case("rings go round by tiles", Lengths(1, 2 * uses, uses, BM, max(1, BN // 2)))
    return [tiles, *([Case("rings go round by blocks", Lengths(1, 2, 1, BM, uses * BN))] if uses > 6 else [])]


def wider_cases(program: Program, checked: Checked, spec: AnySpecification) -> list[AnyCase]:
    """Longer problems, in which loops make three turns that have made fewer in all runs so far; none for mods, whose problems do not depend on the kernel's text."""
    if not isinstance(spec, FunctionSpecification):
        return []

    def wanted() -> list[int]:
        return [*short_loops(checked, below=ENOUGH), *unentered_loops(checked)]

    def enough(draw: Draw) -> bool:
        before = wanted()
        if before:
            try:
                run(checked, launch_of(program, checked, spec, draw).arguments(), budget=_TRIAL)
            except CuirError as error:  # a fault is told when the problem is asked for its faults
                return all(d.code != "D402" for d in error.diagnostics)
            return len(wanted()) < len(before)
        return False

    return list(wider_draws(checked, spec, enough)) if wanted() else []


def single_steps(checked: Checked, spec: AnySpecification, cases: Iterable[AnyCase]) -> list[str]:
    """Dims of which no problem is longer than one tile or block, as the kernel goes through them."""
    if not isinstance(spec, FunctionSpecification):
        return []
    steps, draws = steps_of_dims(checked, spec), [c for c in cases if isinstance(c, Draw)]
    return [d for d in checked.dims if draws and max(c.sizes[d] for c in draws) <= max(1, steps[d])]


def check_case(program: Program, checked: Checked, spec: AnySpecification, case: AnyCase, schedule: Schedule | None = None, grid: Grid | None = None) -> list[dict[str, object]]:  # fmt: skip
    """Runs one problem (grid: on so many CTAs) and judges its numbers; gives rows of the stage's table. Raises CuirError: V301 to V304, or a fault of the program."""
    given = launch_of(program, checked, spec, case, poison=True)
    ran: list[int] = []  # on how many CTAs

    def launched(now: AnyLaunch) -> None:
        try:
            ran.append(run(checked, now.arguments(), schedule=schedule, grid=grid, undefined=now.undefined).grid)
        except CuirError as error:
            raise with_note(error, f"in the case {case}") from error

    try:
        if isinstance(given, FunctionLaunch):
            assert isinstance(spec, FunctionSpecification) and isinstance(case, Draw)
            return [dict(r) for r in check_function(checked, spec, given, case, launched)]
        launched(given)
        assert isinstance(spec, Specification) and isinstance(case, Case)
        numbers = judge(given, spec, case, checked.origin.span)
    except CuirError as error:
        raise (with_note(error, f"replay: --grid {ran[-1]}") if ran and callable(grid) else error) from None
    return [{"case": str(case), "error": numbers.error, "allowed": numbers.allowed, "PyTorch, half": numbers.yardstick, "worst query": numbers.row,
             "allowed of a query": numbers.row_allowed, "worst query, half": numbers.row_yardstick, "LSE": numbers.lse, "allowed of LSE": numbers.lse_allowed,
             "error / allowed": numbers.share}]  # fmt: skip


def not_compared(checked: Checked, rows: Iterable[Mapping[str, object]]) -> list[str]:
    """Tensors that the kernel writes and no row of the numbers is about, nor says that they are scratch: a function may give some outputs only. Rows of mods are about all of them."""
    table = list(rows)
    asked = {row["output"] for row in table if "output" in row}
    scratch = {name for row in table for name in str(row.get("scratch", "")).split(", ")}
    return [t.name for t in checked.outputs if t.name not in asked | scratch] if asked else []


def require_compared(checked: Checked, spec: AnySpecification, rows: Iterable[Mapping[str, object]]) -> None:
    """Raises CuirError V307 if the kernel writes what nothing was compared with."""
    if left := not_compared(checked, rows):
        one = left[0]
        spans = {t.name: t.span for t in checked.tensors}
        raise CuirError.of("V307", f"not compared: `{checked.name}` writes {', '.join(left)}, which `{spec.name}` does not give", spans[one],
                           f'let the function give it under its name, {{..., "{one}": ...}}, or None if it is scratch: {{..., "{one}": None}}')  # fmt: skip


def made_positive(rows: Iterable[Mapping[str, object]]) -> list[str]:
    """Scalars that were drawn negative in some problem, and that the function admits positive only."""
    return list(dict.fromkeys(name for row in rows for name in str(row.get("made positive", "")).split(", ") if name))


def describe_outside(rows: Iterable[Mapping[str, object]]) -> str:
    """Describe of how many elements nothing was asked, "" if of none."""
    outside = [n for row in rows if type(n := row.get("not asked", 0)) is int and n]
    return (
        f"nothing is asked where the function itself gives NaN, or an infinity for inputs that hold one: {sum(outside):,} elements in {len(outside)} cases"
        if outside
        else ""
    )


def smallest(
    program: Program,
    checked: Checked,
    spec: AnySpecification,
    case: AnyCase,
    error: CuirError,
    seconds: float = 5.0,
    grid: Grid | None = None,
) -> CuirError:
    """The error of the smallest case that was found to fail with the same code, by trying simpler ones for a while; `error` is that of `case`."""
    code, end, latest, now = error.diagnostics[0].code, time.perf_counter() + seconds, error, case
    trying = _simpler(checked, spec, now)
    while time.perf_counter() < end and (candidate := next(trying, None)) is not None:
        try:
            check_case(program, checked, spec, candidate, grid=grid)
        except CuirError as other:
            if other.diagnostics[0].code == code:
                latest, now, trying = other, candidate, _simpler(checked, spec, candidate)
    latest = blame(checked, spec, launch_of(program, checked, spec, now), latest)
    return latest if now is case else with_note(latest, f"the smallest problem found that fails like this; first seen in the case {case}")


def _simpler(checked: Checked, spec: AnySpecification, case: AnyCase) -> Iterator[AnyCase]:
    if isinstance(case, Case):
        return simpler(case)
    assert isinstance(spec, FunctionSpecification)
    return simpler_draws(checked, spec, case)


def small_launches(checked: Checked, spec: AnySpecification, tiles: int, blocks: int) -> list[tuple[AnyCase, int]]:
    """Problems and grids whose schedules can all be explored; `tiles` units of work of up to `blocks` blocks each, where the kernel is of an attention."""
    if not isinstance(spec, FunctionSpecification) or is_attention(checked.origin):
        return list(small_attention_launches(*tile_sizes(checked), tiles, blocks, checked.longest_ring))
    return [(d, grid) for d in (*schedule_draws(checked, spec), *ring_draws(checked, spec)) for grid in (1, 2)]
