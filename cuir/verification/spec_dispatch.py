"""Dispatch between both kinds of specification: mods of an attention, or a function."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from ..attn.splicing.captured_arguments import CapturedArguments, sources_of
from ..attn.splicing.captured_gradients import gradients_of
from ..attn.splicing.specification_copies import bound_reads, fix_lengths
from ..attn.tracing.read_ranges import trace_without_clashes
from ..attn.tracing.splice_names import BACKWARD, GRADIENT_SCALE
from ..attn.verification.fp8_specifications import make_fp8_gradients
from ..attn.verification.hidden_biases import make_hidden_biases
from ..attn.verification.numeric import add_note, judge
from ..attn.verification.problems import (
    Case,
    Launch,
    is_attention,
    list_simpler_cases,
    make_attention_launch,
    make_cases,
    make_small_attention_launches,
    require_attention,
    require_inputs_kept,
)
from ..attn.verification.score_corners import make_backward_case, make_forward_case
from ..attn.verification.splice_evaluator import collect_kernel_values
from ..checking.checked import Checked, Const
from ..interp import Schedule, run
from ..interp.interpreted_launch import Grid
from ..spec.function_specification import AnySpecification, FunctionSpecification
from ..spec.gradients import gradients
from ..spec.loading import as_any, load_any
from ..spec.specification import Lengths, Specification
from ..syntax.nodes import Kernel, Program
from ..text.diagnostics import CuirError
from .blame import blame
from .captured_corners import find_first_defined, make_corner_specifications, pick_corner_problem
from .function_judge import check_function, require_outputs
from .function_problems import make_draws, make_first_plain_draws, restrict_kinds
from .inputs import FunctionLaunch, make_function_launch
from .lengths import convert_case, find_wider_draws, list_simpler_draws, make_ring_draws, make_schedule_draws
from .line_coverage import ENOUGH, find_short_loops, find_unentered_loops
from .resource_limits import SEARCHED_RUN, SHRINKING, require_memory
from .tile_steps import count_ring_uses, find_steps, find_tiles
from .values.cases import Draw

AnyCase = Case | Draw
AnyLaunch = Launch | FunctionLaunch


def get_tile_sizes(checked: Checked) -> tuple[int, int]:
    """Return BM and BN, queries and keys of a tile.

    They are the sizes of the boxes that are moved where the kernel has no consts of these names.
    """
    BM, BN = (checked.consts.get(name) for name in ("BM", "BN"))
    steps = find_tiles(checked) if BM is None or BN is None else {}
    return int(BM or steps.get("M") or 128), int(BN or steps.get("N") or 128)  # type: ignore[arg-type]


def prepare_specification(
    spec: object,
    kernel: Kernel | None = None,
    program: Program | None = None,
    consts: Mapping[str, Const] | None = None,
    exact_scores: bool = False,
) -> AnySpecification:
    """Prepare a specification for lengths other than those of the user's tensors.

    For a backward kernel, prepare its gradients. exact_scores: gradients of scores that half precision does not round.
    Raises CuirError as `as_any`, and X109.
    """
    specification = _load(spec, kernel)
    if isinstance(specification, FunctionSpecification):
        return specification
    if kernel is None or program is None or not is_backward(kernel):
        return bound_reads(specification)
    gradient_names = gradients_of(kernel)
    variant = bound_reads(specification, learns=bool(gradient_names))
    captured = CapturedArguments(program, kernel, variant)

    def extra(lengths: Lengths) -> dict[str, Any]:
        return captured.values(lengths, consts=consts)

    def list_learned(lengths: Lengths) -> tuple[Specification, dict[str, tuple[torch.Tensor, Sequence[int]]]]:
        at_lengths, arguments = fix_lengths(variant, lengths), extra(lengths)
        leaves = sources_of(captured.traced.parameters if captured.traced is not None else (), at_lengths, lengths)
        pairs = {name: (leaves[name_of_tensor], arguments[name_of_tensor]) for name, name_of_tensor in gradient_names.items()}
        return at_lengths, {n: (x, y.shape) for n, (x, y) in pairs.items() if isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor)}

    names = _list_names(kernel)
    if GRADIENT_SCALE in names:
        return make_fp8_gradients(variant, extra)
    flags = {"queries_alone": "dK" not in names, "keys_alone": "dQ" not in names}
    return gradients(variant, extra, list_learned if gradient_names else None, **flags, exact_scores=exact_scores)


def _load(spec: object, kernel: Kernel | None) -> AnySpecification:
    if isinstance(spec, (str, os.PathLike)):
        spec = load_any(os.fspath(spec), kernel=kernel)
    if isinstance(spec, (Specification, FunctionSpecification)):
        return spec
    return as_any(spec, getattr(spec, "__name__", type(spec).__name__), kernel=kernel)


def get_mods(spec: object, checked: Checked) -> Specification | None:
    """Return the mods that specify a kernel, or its backward kernel; None for a function."""
    specification = _load(spec, checked.origin)
    return bound_reads(specification) if isinstance(specification, Specification) else None


def make_corner_cases(
    spec: object, program: Program, checked: Checked, cases: Iterable[AnyCase]
) -> Iterator[tuple[str, AnySpecification, AnyCase]]:
    """Make problems of an attention kernel, or of its backward kernel, at corners of the score.

    Yields a description, the specification, for a backward kernel also with captured tensors at corners, and the
    problem.
    """
    specification, backward = _load(spec, checked.origin), is_backward(checked.origin)
    if not isinstance(specification, Specification) or not (backward or is_attention(checked.origin)):
        return
    yield from _make_score_corners(specification, program, checked)
    problem = pick_corner_problem(cases)
    if not backward or problem is None:
        return
    for words, variants in make_corner_specifications(specification):
        specs = (prepare_specification(v, checked.origin, program, checked.consts) for v in variants)
        variant = find_first_defined(checked, (s for s in specs if isinstance(s, FunctionSpecification)), problem)
        if variant is not None:
            yield words, variant, problem


def make_hidden_cases(spec: object, checked: Checked) -> Iterator[tuple[str, AnySpecification, AnyCase]]:
    """Make problems of an attention kernel whose captured biases have runs of -inf.

    Yields a description, the specification and the problem.
    """
    specification = _load(spec, checked.origin)
    if isinstance(specification, Specification) and is_attention(checked.origin):
        yield from make_hidden_biases(specification, *get_tile_sizes(checked))


def _make_score_corners(spec: Specification, program: Program, checked: Checked) -> Iterator[tuple[str, AnySpecification, AnyCase]]:
    if spec.score_mod is None:
        return
    try:
        traced = trace_without_clashes(spec)
    except CuirError:  # a mod that cannot be traced: a handwritten program is judged by drawn scores alone
        return
    judge = prepare_specification(spec, checked.origin, program, checked.consts, exact_scores=True)
    if isinstance(judge, FunctionSpecification):
        backward_case = make_backward_case(spec, judge, traced, checked)
        if backward_case is not None:
            yield backward_case
    elif (forward := make_forward_case(spec, traced, checked)) is not None:
        words, case = forward
        yield words, judge, case


def is_backward(kernel: Kernel) -> bool:
    """Return whether a kernel takes the inputs of attention's backward pass and gives gradients of Q or K."""
    names = _list_names(kernel)
    return set(BACKWARD) <= names and bool({"dQ", "dK"} & names) and "O" not in names


def _list_names(kernel: Kernel) -> set[str]:
    return {p.name for p in kernel.params}


def require_judgeable(checked: Checked, spec: AnySpecification) -> None:
    """Raise CuirError V300 if the specification does not apply to such a kernel."""
    if isinstance(spec, Specification):
        require_attention(checked.origin)
        require_inputs_kept(checked)
    elif not checked.outputs:
        raise CuirError.of("V300", f"`{checked.name}` writes no tensor: there is nothing to compare", checked.origin.span)


def require_outputs_of(program: Program, checked: Checked, spec: AnySpecification, case: AnyCase) -> None:
    """Raise CuirError for a function whose outputs do not match the kernel's, before anything runs.

    Mods have no names and shapes.
    """
    if isinstance(spec, FunctionSpecification):
        launched = prepare_launch(program, checked, spec, case)
        assert isinstance(launched, FunctionLaunch)
        require_outputs(checked, spec, launched, case)


def prepare_launch(program: Program, checked: Checked, spec: AnySpecification, case: AnyCase, poison: bool = False) -> AnyLaunch:
    """Return the arguments of a kernel for a problem, with poisoned outputs.

    poison: also poison the input elements that a function does not read. Raises CuirError as `require_memory`, `launch`
    and `function_launch`.
    """
    if isinstance(case, Case):
        lengths = case.lengths
        logits = 8 * lengths.B * lengths.H * lengths.M * lengths.N  # bytes of the reference's logits, in float64
        require_memory(checked, collect_kernel_values(checked.origin, asdict(lengths), checked.consts, {}), logits)
    else:
        require_memory(checked, case.sizes)
    if isinstance(spec, FunctionSpecification):
        draw = convert_case(checked, spec, case) if isinstance(case, Case) else case
        return make_function_launch(checked, spec, draw, poison=poison)
    assert isinstance(case, Case)
    return make_attention_launch(program, checked, spec, case)


def make_number_cases(checked: Checked, spec: AnySpecification, marks: list[int], level: str) -> list[AnyCase]:
    """Return the problems of the numbers stage."""
    if isinstance(spec, FunctionSpecification):
        return list(make_draws(checked, spec, level))
    return list(make_cases(spec, *get_tile_sizes(checked), marks, level))


def make_first_number_cases(checked: Checked, spec: AnySpecification, marks: list[int], level: str, count: int) -> list[AnyCase]:
    """Return at most `count` of the first problems of the numbers stage, without making the others."""
    if isinstance(spec, FunctionSpecification):
        return list(make_first_plain_draws(checked, spec, level, count))
    return make_number_cases(checked, spec, marks, level)[:count]


def make_schedule_cases(checked: Checked, spec: AnySpecification) -> list[AnyCase]:
    """Return the problems of the schedules stage, on two CTAs each."""
    if isinstance(spec, FunctionSpecification) and not is_attention(checked.origin):
        return list(restrict_kinds(checked, spec, make_schedule_draws(checked, spec)))
    BM, BN = get_tile_sizes(checked)
    return [
        Case("persistent tiles", Lengths(1, 2, 1, BM + 9, 5 * BN + 3)),
        Case("short rows", Lengths(1, 4, 2, BM, BN // 2), "strided"),
        # rings do not bound the distance of a CTA's workers
        Case("long tiles, then short ones", Lengths(1, 4, 1, 2 * BM, 2 * BN)),
        Case(
            "as many keys as queries", Lengths(1, 2, 1, 3 * BM, 3 * BM)
        ),  # a worker may skip all blocks on the diagonal, with many after them
    ]


def make_empty_cases(checked: Checked, spec: AnySpecification) -> list[AnyCase]:
    """Return problems in which tiles without keys come before and between tiles with keys.

    They run under a few schedules on one CTA, in some order of tiles.
    """
    if not is_attention(checked.origin):
        return []
    BM, _ = get_tile_sizes(checked)
    return [Case("tiles without keys among others", Lengths(1, 4, 2, 3 * BM, BM))]


def make_ring_cases(checked: Checked, spec: AnySpecification) -> list[AnyCase]:
    """Return problems for a few schedules in which two CTAs go round every ring twice and begin again.

    By tiles and by blocks of a tile; other grids give some CTAs one unit and some none.
    """
    if isinstance(spec, FunctionSpecification) and not is_attention(checked.origin):
        return list(restrict_kinds(checked, spec, make_ring_draws(checked, spec)))
    (BM, BN), uses = get_tile_sizes(checked), count_ring_uses(checked)
    tiles = Case("rings go round by tiles", Lengths(1, 2 * uses, uses, BM, max(1, BN // 2)))
    return [tiles, *([Case("rings go round by blocks", Lengths(1, 2, 1, BM, uses * BN))] if uses > 6 else [])]


def find_wider_cases(program: Program, checked: Checked, spec: AnySpecification) -> list[AnyCase]:
    """Return longer problems in which loops make three turns that have made fewer in all runs so far.

    Empty for mods, whose problems do not depend on the kernel's text.
    """
    if not isinstance(spec, FunctionSpecification):
        return []

    def open_loops() -> list[int]:
        return [*find_short_loops(checked, below=ENOUGH), *find_unentered_loops(checked)]

    def enough(draw: Draw) -> bool:
        before = open_loops()
        if before:
            try:
                run(checked, prepare_launch(program, checked, spec, draw).arguments(), budget=SEARCHED_RUN)
            except CuirError as error:  # faults are reported when the problem is checked
                return all(d.code != "D402" for d in error.diagnostics)
            return len(open_loops()) < len(before)
        return False

    return list(find_wider_draws(checked, spec, enough)) if open_loops() else []


def find_single_steps(checked: Checked, spec: AnySpecification, cases: Iterable[AnyCase]) -> list[str]:
    """Return dims in which no problem is longer than one tile or block, as the kernel steps through them."""
    if not isinstance(spec, FunctionSpecification):
        return []
    steps, draws = find_steps(checked, spec), [c for c in cases if isinstance(c, Draw)]
    return [d for d in checked.dims if draws and max(c.sizes[d] for c in draws) <= max(1, steps[d])]


@dataclass(frozen=True)
class FinishedRun:
    """A problem that another process has run.

    It has its launch here, the outputs from there, and the number of CTAs.
    """

    problem: FunctionLaunch
    outputs: Mapping[str, torch.Tensor]
    grid: int


def check_case(
    program: Program,
    checked: Checked,
    spec: AnySpecification,
    case: AnyCase,
    schedule: Schedule | None = None,
    grid: Grid | None = None,
    finished: FinishedRun | None = None,
) -> list[dict[str, object]]:
    """Run one problem and judge its numbers; return rows of the stage's table.

    grid: the number of CTAs. finished: its run. Raises CuirError: V301 to V304, or a fault of the program.
    """
    problem = prepare_launch(program, checked, spec, case, poison=True) if finished is None else finished.problem
    grids: list[int] = []  # numbers of CTAs of the runs

    def execute(launched: AnyLaunch) -> None:
        if finished is not None and launched is problem:  # and no variant of it
            launched.outputs.update(finished.outputs)
            grids.append(finished.grid)
            return
        try:
            grids.append(run(checked, launched.arguments(), schedule=schedule, grid=grid, undefined=launched.undefined).grid)
        except CuirError as error:
            raise add_note(error, f"in the case {case}") from error

    try:
        if isinstance(problem, FunctionLaunch):
            assert isinstance(spec, FunctionSpecification) and isinstance(case, Draw)
            return [dict(r) for r in check_function(checked, spec, problem, case, execute)]
        execute(problem)
        assert isinstance(spec, Specification) and isinstance(case, Case)
        numbers = judge(problem, spec, case, checked.origin.span)
    except CuirError as error:
        raise (add_note(error, f"replay: --grid {grids[-1]}") if grids and callable(grid) else error) from None
    return [
        {
            "case": str(case),
            "error": numbers.error,
            "allowed": numbers.allowed,
            "PyTorch, half": numbers.yardstick,
            "worst query": numbers.row,
            "allowed of a query": numbers.row_allowed,
            "worst query, half": numbers.row_yardstick,
            "LSE": numbers.lse,
            "allowed of LSE": numbers.lse_allowed,
            "error / allowed": numbers.share,
        }
    ]


def list_not_compared(checked: Checked, rows: Iterable[Mapping[str, object]]) -> list[str]:
    """Return tensors that the kernel writes and that are neither compared in a row nor scratch.

    A function may give only some outputs. Rows of mods are about all of them.
    """
    table = list(rows)
    compared = {row["output"] for row in table if "output" in row}
    scratch = {name for row in table for name in str(row.get("scratch", "")).split(", ")}
    return [t.name for t in checked.outputs if t.name not in compared | scratch] if compared else []


def require_compared(checked: Checked, spec: AnySpecification, rows: Iterable[Mapping[str, object]]) -> None:
    """Raise CuirError V307 if the kernel writes a tensor that was not compared."""
    if missing := list_not_compared(checked, rows):
        first = missing[0]
        spans = {t.name: t.span for t in checked.tensors}
        raise CuirError.of(
            "V307",
            f"not compared: `{checked.name}` writes {', '.join(missing)}, which `{spec.name}` does not give",
            spans[first],
            f'let the function give it under its name, {{..., "{first}": ...}}, or None if it is scratch: {{..., "{first}": None}}',
        )


def list_made_positive(rows: Iterable[Mapping[str, object]]) -> list[str]:
    """Return scalars that were drawn negative in some problem, and that must be positive."""
    return list(dict.fromkeys(name for row in rows for name in str(row.get("made positive", "")).split(", ") if name))


def describe_outside(rows: Iterable[Mapping[str, object]]) -> str:
    """Describe how many elements were not compared; "" if all were."""
    outside = [n for row in rows if type(n := row.get("not asked", 0)) is int and n]
    return (
        f"nothing is asked where the function itself gives NaN, or an infinity for inputs that hold one: {sum(outside):,} elements in {len(outside)} cases"
        if outside
        else ""
    )


def shrink_error(
    program: Program,
    checked: Checked,
    spec: AnySpecification,
    case: AnyCase,
    error: CuirError,
    seconds: float = SHRINKING,
    grid: Grid | None = None,
) -> CuirError:
    """Return the error of the smallest case that fails with the same code.

    Simpler cases are tried for a while; `error` is that of `case`.
    """
    code, end, latest, current = error.diagnostics[0].code, time.perf_counter() + seconds, error, case
    trying = _list_simpler(checked, spec, current)
    while time.perf_counter() < end and (candidate := next(trying, None)) is not None:
        try:
            check_case(program, checked, spec, candidate, grid=grid)
        except CuirError as failure:
            if failure.diagnostics[0].code == code:
                latest, current, trying = failure, candidate, _list_simpler(checked, spec, candidate)
    latest = blame(checked, spec, prepare_launch(program, checked, spec, current), latest)
    return (
        latest if current is case else add_note(latest, f"the smallest problem found that fails like this; first seen in the case {case}")
    )


def _list_simpler(checked: Checked, spec: AnySpecification, case: AnyCase) -> Iterator[AnyCase]:
    if isinstance(case, Case):
        return list_simpler_cases(case)
    assert isinstance(spec, FunctionSpecification)
    return list_simpler_draws(checked, spec, case)


def make_small_launches(checked: Checked, spec: AnySpecification, tiles: int, blocks: int) -> list[tuple[AnyCase, int]]:
    """Return problems and grids whose schedules can all be explored.

    `tiles` units of work of up to `blocks` blocks each, for an attention kernel.
    """
    if not isinstance(spec, FunctionSpecification) or is_attention(checked.origin):
        return list(make_small_attention_launches(*get_tile_sizes(checked), tiles, blocks, checked.longest_ring))
    return [(d, grid) for d in (*make_schedule_draws(checked, spec), *make_ring_draws(checked, spec)) for grid in (1, 2)]
