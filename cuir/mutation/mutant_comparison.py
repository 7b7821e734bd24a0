"""A mutant and its original: their difference, their results, and explored schedules of the mutant."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import torch

from ..attn.verification.problems import is_attention
from ..checking.checked import Checked, Const
from ..checking.checker import check, pick_kernel
from ..checking.kernel_results import SameObject
from ..explore import explore
from ..interp import Schedule
from ..interp import run as interpret
from ..spec.function_specification import AnySpecification, FunctionSpecification
from ..spec.specification import Lengths
from ..syntax.nodes import Expr, Node, Program
from ..syntax.printer import show
from ..syntax.walk import Path
from ..text.diagnostics import CuirError, Diagnostic
from ..verification import Case
from ..verification.inputs import FunctionLaunch, find_accumulated
from ..verification.spec_dispatch import AnyCase, AnyLaunch, make_number_cases, make_schedule_cases, make_small_launches, prepare_launch
from .mutation_sites import Places, Site

SCHEDULES = ("in_order", "adversarial:lockstep")
Output = tuple[torch.Tensor, bool]  # of a run, and whether its bits are compared
Shared = tuple[AnyCase, int | None]  # a problem, and the CTAs that share it
ORIGINALS = 4  # programs and consts that a process keeps: arguments try other consts
KEPT = 2**24  # elements of inputs that are kept of one
_originals: dict[tuple[Hashable, ...], Original] = {}


@dataclass(frozen=True)
class Explored:
    """Result of exploring all schedules: a fault, or the absence of faults, or neither."""

    fault: Diagnostic | None
    clean: bool
    states: int
    launches: int


class Original:
    """A program of whose mutants a process judges many: what their comparisons share.

    Attributes:
        program, spec, kernel, consts: Those of the trials.
        checked: The kernel.
    """

    def __init__(self, program: Program, spec: AnySpecification, kernel: str | None, consts: Mapping[str, Const]):
        self.program, self.spec, self.kernel, self.consts = program, spec, kernel, consts
        self.checked = check(program, kernel, consts)
        self._prepared: dict[str, FunctionLaunch] = {}
        self._expected: dict[str, list[Output] | None] = {}
        self._kept = 0  # elements of the prepared launches

    @cached_property
    def tile(self) -> tuple[int, int]:
        """Queries and keys of a tile."""
        consts = self.checked.consts
        return int(consts.get("BM", 128)), int(consts.get("BN", 128))  # type: ignore[arg-type]

    @cached_property
    def problems(self) -> list[Shared]:
        """Problems and how many CTAs share them.

        Those of the numbers, and a few with so many tiles a CTA that every ring is used over and over.
        """
        checked = self.checked
        problems: list[Shared] = [(c, None) for c in make_number_cases(checked, self.spec, [], "quick")]
        if not is_attention(checked.origin):
            return [*problems, *((c, 1) for c in make_schedule_cases(checked, self.spec))]
        BM, BN = self.tile
        long = [
            Lengths(1, 6, 2, 2 * BM + 9, 3 * BN + 5),
            Lengths(2, 4, 2, 3, BN // 2),
            Lengths(1, 5, 1, 2 * BM, BN),
            Lengths(1, 3, 3, BM, 5 * BN),
            # a window of a tile's size has left the first block, for some rows of a tile alone
            Lengths(1, 1, 1, 3 * BM, 6 * BN),
        ]
        return [*problems, *((Case("many tiles", at), 1) for at in long)]

    @cached_property
    def launches(self) -> list[tuple[AnyCase, int]]:
        """Small launches and how many CTAs share them."""
        checked = self.checked
        if not is_attention(checked.origin):
            return make_small_launches(checked, self.spec, 2, 4)
        BM, BN = self.tile
        return [
            (Case("explored", Lengths(1, 1, 1, BM + 9, 5 * BN + 3)), 1),
            (Case("explored", Lengths(1, 4, 1, 2 * BM, 2 * BN)), 2),
            (Case("explored", Lengths(1, 3, 1, 3 * BM, BN)), 1),
            (Case("explored", Lengths(1, 1, 1, 5 * BM, 5 * BN)), 1),
        ]

    def expect(self, problems: Sequence[Shared]) -> list[Output] | None:
        """Return the outputs of the kernel in some problems; None if verification refuses one."""
        key = repr(problems)
        if key not in self._expected:
            try:
                self._expected[key] = list(self.run(self.program, self.checked, problems))
            except CuirError:
                self._expected[key] = None
        return self._expected[key]

    def run(self, program: Program, checked: Checked, problems: Sequence[Shared]) -> Iterator[Output]:
        """Yield the outputs of a program, this one or a mutant, in all problems and schedules.

        With each, whether its bits are compared: those of sums in any order are not. Raises CuirError if it is refused in
        one.
        """
        free = find_accumulated(checked)
        for case, grid in problems:
            for schedule in SCHEDULES if grid else SCHEDULES[:1]:
                launch = self._prepare(program, checked, case)
                interpret(checked, launch.arguments(), schedule=Schedule.parse(schedule), grid=grid)
                yield from ((x, name not in free) for name, x in launch.outputs.items())

    def _prepare(self, program: Program, checked: Checked, case: AnyCase) -> AnyLaunch:
        if not isinstance(self.spec, FunctionSpecification):
            return prepare_launch(program, checked, self.spec, case)
        # decisive inputs follow from the text: a mutant is run on those of the original
        key = repr(case)
        if key in self._prepared:
            return self._prepared[key].fresh()
        prepared = prepare_launch(self.program, self.checked, self.spec, case)
        assert isinstance(prepared, FunctionLaunch)
        elements = sum(x.numel() for x in prepared.inputs.values() if isinstance(x, torch.Tensor))
        if self._kept + elements <= KEPT:
            self._prepared[key], self._kept = prepared, self._kept + elements
        return prepared.fresh()


@dataclass
class Trial:
    """A program and a mutant of it, both as the parser gives them, and the settings of their runs."""

    program: Program
    mutant: Program
    spec: AnySpecification
    kernel: str | None
    consts: Mapping[str, Const]
    level: str

    @cached_property
    def places(self) -> Places:
        """Places of the original."""
        return Places(self.program, pick_kernel(self.program, self.kernel))

    @cached_property
    def at(self) -> Site:
        """The smallest node that contains all of the change."""
        path: Path = ()
        a: Any = self.program
        b: Any = self.mutant
        while True:
            step = _find_step(a, b)
            if step is None or (*path, step) not in self.places.at:
                return self.places.at[path] if path else Site((), self.program, ())
            path = (*path, step)
            a, b = (_get_child(x, step) for x in (a, b))

    @cached_property
    def new(self) -> Any:
        """The mutant's node in place of `at`."""
        node: Any = self.mutant
        for step in self.at.path:
            node = _get_child(node, step)
        return node

    def expressions(self) -> Iterator[tuple[Site, Expr]]:
        """Yield the changed expression and those around it, innermost first, each with its replacement."""
        path = self.at.path
        while path and path in self.places.at:
            site, replacement = self.places.at[path], self.mutant
            if not isinstance(site.node, Expr):
                return
            for step in path:
                replacement = _get_child(replacement, step)
            if path[-1][0] != "func":
                yield site, replacement  # type: ignore[misc]
            path = path[:-1]

    @cached_property
    def original(self) -> Original:
        """Return the state that all trials of the program share; that of few programs is kept."""
        key = (show(self.program), self.kernel, str(self.consts), SameObject(self.spec))
        shared = _originals.pop(key, None) or Original(self.program, self.spec, self.kernel, self.consts)
        _originals[key] = shared
        while len(_originals) > ORIGINALS:
            del _originals[next(iter(_originals))]
        return shared

    @cached_property
    def problems(self) -> list[Shared]:
        """Problems and how many CTAs share them; see `Original`."""
        return self.original.problems

    @cached_property
    def explored(self) -> Explored:
        """Result of exploring a few launches of the mutant."""
        return self.explore(self.mutant)

    @property
    def launches(self) -> list[tuple[AnyCase, int]]:
        """Small launches and how many CTAs share them."""
        return self.original.launches

    @property
    def extent(self) -> str:
        """Size of the launches, for messages."""
        if is_attention(pick_kernel(self.program, self.kernel)):
            return "of up to 9 tiles a CTA and 6 blocks a tile"
        return "; ".join(f"{case} on {grid} CTAs" for case, grid in self.launches)

    def explore(self, program: Program) -> Explored:
        """Explore every schedule of a few launches of a program."""
        states = 0
        launches = self.launches
        try:
            checked = check(program, self.kernel, self.consts)
            for case, grid in launches:
                launch = prepare_launch(program, checked, self.spec, case)
                report = explore(checked, launch.arguments(), grid=grid, classes=2000)
                states += report.states
                if not report.ok:
                    return Explored(report.diagnostics[0] if report.verdict == "faulty" else None, False, states, len(launches))
        except CuirError as error:  # steps that depend on what the program computes
            return Explored(None if error.diagnostics[0].code == "V202" else error.diagnostics[0], False, states, len(launches))
        return Explored(None, True, states, len(launches))

    @property
    def tile(self) -> tuple[int, int]:
        """Queries and keys of a tile."""
        return self.original.tile

    def bits(self, program: Program) -> list[Output] | None:
        """Return the outputs of a program in all problems and schedules; None if it is refused in one."""
        try:
            return list(self.original.run(program, check(program, self.kernel, self.consts), self.problems))
        except CuirError:
            return None

    @property
    def expected(self) -> list[Output] | None:
        """Outputs of the unmutated kernel in all problems; None if verification refuses one."""
        return self.original.expect(self.problems)

    def has_same_bits(self, program: Program) -> bool:
        """Return whether a program gives the bits of the original in all problems."""
        expected = self.expected
        if expected is None:
            return False
        try:
            outputs = self.original.run(program, check(program, self.kernel, self.consts), self.problems)
            return all(_is_same(output, other) for output, other in zip(outputs, expected))
        except CuirError:
            return False

    def gives(self, outputs: list[Output]) -> bool:
        """Return whether the original program computes exactly these outputs, bit by bit."""
        expected = self.bits(self.program)
        return expected is not None and len(expected) == len(outputs) and all(map(_is_same, expected, outputs))

    @property
    def runs(self) -> int:
        """Number of runs in all problems."""
        return sum(len(SCHEDULES) if grid else 1 for _, grid in self.problems)


def _find_step(a: Any, b: Any) -> tuple[str, int | None] | None:
    """Return the only child in which two nodes differ."""
    if not isinstance(a, Node) or type(a) is not type(b):
        return None
    steps: list[tuple[str, int | None]] = []
    for f in fields(a):
        x, y = getattr(a, f.name), getattr(b, f.name)
        if not f.compare or x == y:
            continue
        if isinstance(x, tuple) and isinstance(y, tuple) and len(x) == len(y):
            steps += [(f.name, i) for i, (p, q) in enumerate(zip(x, y)) if p != q]
        else:
            steps.append((f.name, None))
    return steps[0] if len(steps) == 1 and isinstance(_get_child(a, steps[0]), Node) else None


def _get_child(node: Any, step: tuple[str, int | None]) -> Any:
    value = getattr(node, step[0])
    return value if step[1] is None else value[step[1]]


def _is_same(output: Output, expected: Output) -> bool:
    a, b = (torch.nan_to_num(x, nan=7e4) for x, _ in (output, expected))
    if output[1]:
        return torch.equal(a, b)
    return bool(((a - b).norm() <= 2.0**-20 * a.norm()).all())  # float32, added up in another order
