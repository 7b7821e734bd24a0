"""A mutant beside its original: where they differ, what both give in the same problems, and what is known of all schedules of the mutant."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import torch

from ..checking.checked import Const
from ..checking.checker import check, pick_kernel
from ..explore import explore
from ..interp import Schedule
from ..interp import run as interpret
from ..spec.functions import AnySpecification
from ..spec.specification import Lengths
from ..syntax.nodes import Expr, Node, Program
from ..syntax.printer import show
from ..syntax.rewrite import Path
from ..text.diagnostics import CuirError, Diagnostic
from ..verification import Case
from ..verification.inputs import added
from ..verification.problems import is_attention
from ..verification.spec_dispatch import AnyCase, launch_of, number_cases, schedule_cases, small_launches
from .places import Places, Site

SCHEDULES = ("in_order", "adversarial:lockstep")
Output = tuple[torch.Tensor, bool]  # of a run, and whether its bits count
_wanted: dict[tuple[Any, ...], list[Output] | None] = {}


@dataclass(frozen=True)
class Explored:
    """What is known of all schedules: a fault, or that there is none, or neither."""

    fault: Diagnostic | None
    clean: bool
    states: int
    launches: int


@dataclass
class Trial:
    """A program, a mutant of it, both as the parser gives them, and what they are run with."""

    program: Program
    mutant: Program
    spec: AnySpecification
    kernel: str | None
    consts: Mapping[str, Const]
    level: str

    @cached_property
    def places(self) -> Places:
        return Places(self.program, pick_kernel(self.program, self.kernel))

    @cached_property
    def at(self) -> Site:
        """The smallest node that holds all of the change."""
        path: Path = ()
        a: Any = self.program
        b: Any = self.mutant
        while True:
            step = _step(a, b)
            if step is None or (*path, step) not in self.places.at:
                return self.places.at[path] if path else Site((), self.program, ())
            path = (*path, step)
            a, b = (_child(x, step) for x in (a, b))

    @cached_property
    def new(self) -> Any:
        """What the mutant has there."""
        node: Any = self.mutant
        for step in self.at.path:
            node = _child(node, step)
        return node

    def expressions(self) -> Iterator[tuple[Site, Expr]]:
        """The changed expression and those around it, innermost first, each with what the mutant has there."""
        path = self.at.path
        while path and path in self.places.at:
            site, put = self.places.at[path], self.mutant
            if not isinstance(site.node, Expr):
                return
            for step in path:
                put = _child(put, step)
            if path[-1][0] != "func":
                yield site, put  # type: ignore[misc]
            path = path[:-1]

    @cached_property
    def problems(self) -> list[tuple[AnyCase, int | None]]:
        """Problems and how many CTAs share them: those of the numbers, and a few with so many tiles a CTA that every ring is used over and over."""
        checked = check(self.program, self.kernel, self.consts)
        problems: list[tuple[AnyCase, int | None]] = [(c, None) for c in number_cases(checked, self.spec, [], "quick")]
        if not is_attention(checked.origin):
            return [*problems, *((c, 1) for c in schedule_cases(checked, self.spec))]
        BM, BN = self.tile
        long = [
            Lengths(1, 6, 2, 2 * BM + 9, 3 * BN + 5),
            Lengths(2, 4, 2, 3, BN // 2),
            Lengths(1, 5, 1, 2 * BM, BN),
            Lengths(1, 3, 3, BM, 5 * BN),
            Lengths(1, 1, 1, 3 * BM, 6 * BN),  # a window of a tile's size has left the first block, for some rows of a tile alone
        ]
        return [*problems, *((Case("many tiles", at), 1) for at in long)]

    @cached_property
    def explored(self) -> Explored:
        """Every schedule of a few launches of the mutant."""
        return self.explore(self.mutant)

    @cached_property
    def launches(self) -> list[tuple[AnyCase, int]]:
        """Small launches and how many CTAs share them."""
        checked = check(self.program, self.kernel, self.consts)
        if not is_attention(checked.origin):
            return small_launches(checked, self.spec, 2, 4)
        BM, BN = self.tile
        return [
            (Case("explored", Lengths(1, 1, 1, BM + 9, 5 * BN + 3)), 1),
            (Case("explored", Lengths(1, 4, 1, 2 * BM, 2 * BN)), 2),
            (Case("explored", Lengths(1, 3, 1, 3 * BM, BN)), 1),
            (Case("explored", Lengths(1, 1, 1, 5 * BM, 5 * BN)), 1),
        ]

    @property
    def extent(self) -> str:
        """How long the launches are, in words."""
        if is_attention(pick_kernel(self.program, self.kernel)):
            return "of up to 9 tiles a CTA and 6 blocks a tile"
        return "; ".join(f"{case} on {grid} CTAs" for case, grid in self.launches)

    def explore(self, program: Program) -> Explored:
        """Every schedule of a few launches."""
        states = 0
        launches = self.launches
        try:
            checked = check(program, self.kernel, self.consts)
            for case, grid in launches:
                given = launch_of(program, checked, self.spec, case)
                report = explore(checked, given.arguments(), grid=grid, classes=2000)
                states += report.states
                if not report.ok:
                    return Explored(report.diagnostics[0] if report.verdict == "faulty" else None, False, states, len(launches))
        except CuirError as error:  # steps that depend on what the program computes
            return Explored(None if error.diagnostics[0].code == "V202" else error.diagnostics[0], False, states, len(launches))
        return Explored(None, True, states, len(launches))

    @cached_property
    def tile(self) -> tuple[int, int]:
        """Queries and keys of a tile."""
        consts = check(self.program, self.kernel, self.consts).consts
        return int(consts.get("BM", 128)), int(consts.get("BN", 128))  # type: ignore[arg-type]

    def bits(self, program: Program) -> list[Output] | None:
        """What a program gives in all problems, under several schedules, and whether its bits count: those of sums in any order do not. None if it is refused in one."""
        outputs: list[Output] = []
        try:
            checked = check(program, self.kernel, self.consts)
            free = added(checked)
            for case, grid in self.problems:
                for schedule in SCHEDULES if grid else SCHEDULES[:1]:
                    given = launch_of(program, checked, self.spec, case)
                    interpret(checked, given.arguments(), schedule=Schedule.parse(schedule), grid=grid)
                    outputs += [(x, name not in free) for name, x in given.outputs.items()]
        except CuirError:
            return None
        return outputs

    @cached_property
    def wanted(self) -> list[Output] | None:
        key = (show(self.program), self.kernel, str(self.consts), self.spec.name, str(self.problems))
        if key not in _wanted:
            _wanted.clear()  # a process judges mutants of one program
            _wanted[key] = self.bits(self.program)
        return _wanted[key]

    def same(self, program: Program) -> bool:
        """Whether a program gives the bits of the original in all problems."""
        outputs = self.bits(program)
        return outputs is not None and self.wanted is not None and all(map(_same, outputs, self.wanted))

    def gives(self, outputs: list[Output]) -> bool:
        """Whether the original gives these bits."""
        mine = self.bits(self.program)
        return mine is not None and len(mine) == len(outputs) and all(map(_same, mine, outputs))

    @property
    def runs(self) -> int:
        return sum(len(SCHEDULES) if grid else 1 for _, grid in self.problems)


def _step(a: Any, b: Any) -> tuple[str, int | None] | None:
    """The only child in which two nodes differ."""
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
    return steps[0] if len(steps) == 1 and isinstance(_child(a, steps[0]), Node) else None


def _child(node: Any, step: tuple[str, int | None]) -> Any:
    value = getattr(node, step[0])
    return value if step[1] is None else value[step[1]]


def _same(one: Output, other: Output) -> bool:
    a, b = (torch.nan_to_num(x, nan=7e4) for x, _ in (one, other))
    if one[1]:
        return torch.equal(a, b)
    return bool(((a - b).norm() <= 2.0**-20 * a.norm()).all())  # float32, added up in another order
