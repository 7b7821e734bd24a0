"""Problems with inputs of every kind for branches that short lengths do not take.

The path of long rows is such a branch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ..attn.verification.problems import is_attention
from ..checking.checked import Checked
from ..ops.expressions import is_where
from ..spec.function_specification import AnySpecification, FunctionSpecification
from ..syntax.nodes import Call, Expr, For, If, IfExp, Node
from ..syntax.types import F32, TileType
from ..syntax.walk import IdentityKey
from .coverage.conditions import Condition, collect_conditions, map_parents
from .coverage.observed_sides import Observed
from .coverage.origins import NUMBERS
from .coverage.scalar_program import ScalarProgram, Unknown
from .coverage.size_search import Search, Space, choose, solve
from .coverage.targets import Target
from .function_problems import make_value_draws, restrict_kinds
from .inputs import get_special_plan
from .spec_dispatch import AnyCase
from .step_counts import is_counted
from .user_sizes import is_user_case
from .values.cases import Draw, get_integer_consts
from .values.special_plan import SPECIAL

_PLAIN = ("normal", "strided")  # kinds of inputs that show no cancellation and no overflow
_BRANCHES = {"quick": 1, "full": 6}  # the largest number of lengths that get all kinds
_COST = {"quick": 300_000, "full": 6_000_000}  # of a problem (see Solution.cost)
_OPERATIONS = {"quick": 400_000, "full": 10_000_000}
_TURNS = 20_000  # of all loops, in one evaluation of a problem that has run


def make_branch_draws(checked: Checked, spec: AnySpecification, observed: Observed, cases: Sequence[AnyCase], level: str) -> list[Draw]:
    """Return problems for the sides of branches that only problems with plain inputs have taken.

    Branches that sizes decide, and that choose between computations. cases: the problems that have run.
    """
    if not isinstance(spec, FunctionSpecification) or is_attention(checked.origin):
        return []
    branches = [(c, program) for c in _list_branches(checked) if (program := _read_sizes_alone(checked, c)) is not None]
    several = [d for d in cases if isinstance(d, Draw) and d.kind not in _PLAIN and not is_user_case(d) and not is_counted(d)]
    sizes = {tuple(sorted(d.sizes.items())) for d in several}
    masks = observed.masks()
    targets = list[Target]()
    for c, program in branches:
        missing = masks[c.number] & ~_collect_sides(checked, c, program, [dict(s) for s in sizes], masks[c.number])
        targets += [Target("side", c, side) for side in range(len(c.sides)) if missing >> side & 1]
    search = Search(_OPERATIONS[level])
    if targets:
        solve(checked, Space(checked, spec), targets, search, lambda problem: _refuse_tensor)
    fits = [s for s in search.solutions if not s.problem.large and s.cost <= _COST[level]]
    draws = list[Draw]()
    for s in choose(fits, targets, _BRANCHES[level], 1 << 62):
        assert isinstance(s.problem.case, Draw)
        draws += _make_draws_of_kinds(checked, spec, s.problem.case.sizes, str(s.targets[0].condition.source_text))
    return draws


def _refuse_tensor(name: str) -> np.ndarray:
    """Stand for the inputs: conditions that sizes decide read none."""
    raise AssertionError(f"a condition of sizes reads the tensor {name}")


def _make_draws_of_kinds(checked: Checked, spec: FunctionSpecification, sizes: Mapping[str, int], branch: str) -> Iterator[Draw]:
    """Yield problems of these lengths with inputs of each kind but the plain ones."""
    name, plan = f"for the branch `{branch}`", get_special_plan(checked, spec)
    kinds = [(d.kind, d.seed) for d in make_value_draws(checked, spec, [Draw(name, sizes)])]
    kinds += [(kind, 0) for kind in SPECIAL if plan.count(kind)]
    for d in restrict_kinds(checked, spec, [Draw(f"{name}, {kind} {seed}", sizes, kind, seed) for kind, seed in kinds]):
        if d.kind not in _PLAIN:
            yield d


def _list_branches(checked: Checked) -> Iterator[Condition]:
    """Yield conditions of sizes that decide a branch, or choose a float."""
    parents = map_parents(checked)
    for c in collect_conditions(checked):
        is_of_sizes = c.level == NUMBERS and not c.tile and c.kind in ("truth", "comparison")
        if is_of_sizes and not isinstance(c.node, For) and _decides(checked, c.node, parents):
            yield c


def _decides(checked: Checked, node: Expr, parents: Mapping[IdentityKey, Node]) -> bool:
    """Return whether an expression is in the condition of a branch or of a choice between floats.

    It is the condition, or a part of one.
    """
    inner: Node = node
    while (outer := parents.get(IdentityKey(inner))) is not None:
        if isinstance(outer, If):
            return outer.cond is inner
        is_choice = (isinstance(outer, IfExp) and outer.cond is inner) or (
            isinstance(outer, Call) and is_where(outer) and outer.args[0] is inner
        )
        if is_choice:
            kind: Any = checked.find_type(outer)
            return isinstance(kind, TileType) or getattr(kind, "dtype", None) == F32
        if not isinstance(outer, Expr):
            return False
        inner = outer
    return False


def _read_sizes_alone(checked: Checked, c: Condition) -> ScalarProgram | None:
    """Return the program that evaluates a condition, if it reads no tensors and no scalars of the caller."""
    program = ScalarProgram(checked, [c])
    return None if program.reads or program.names & {s.name for s in checked.scalars} else program


def _collect_sides(checked: Checked, c: Condition, program: ScalarProgram, problems: Sequence[Mapping[str, int]], enough: int) -> int:
    """Return the mask of the sides of a condition that problems take, until these are enough."""
    mask = 0
    for sizes in problems:
        if mask & enough == enough:
            break
        try:
            mask |= program.evaluate({**get_integer_consts(checked), **sizes}, 1, None, _TURNS).sides[c.number]
        except Unknown:
            continue
    return mask


__all__ = ["make_branch_draws"]
