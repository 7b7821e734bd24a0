"""Tables of score terms that depend on the distance q - k alone.

Parts of a score that follow from q - k, b, h and captured values, and cost much for each pair, are computed once for
all distances and read from a table.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import torch

from ...ops.expressions import traits
from ...spec.specification import LENGTHS, Lengths
from ...syntax.nodes import Binary, Expr, GlobalType, Literal, Name, Param, Subscript
from ...syntax.types import F32
from ...syntax.walk import IdentityKey, children, names_read, with_children
from ..tracing.mod_evaluator import Value, evaluate
from ..tracing.splice_names import DISTANCES
from ..tracing.traced_result import Parameter
from .block_lists import TooLarge
from .pair_costs import DISTANCE_READ
from .predicate import linear

WORTH = 12.0  # least cost for which a table is cheaper
MOST = 2**26  # bytes of a table
DISTANCE = "q - k"  # the name of the distance in a table's expression: no identifier, so it cannot clash


@dataclass(frozen=True)
class Table:
    """A parameter, f32 [B or 1, H or 1, M + N - 1], with the values of a term for each distance.

    Attributes:
        term:, an expression of q - k, b, h and captured values, for q - k from 1 - N to M - 1.
        size: the name of its last dim.
    """

    name: str
    term: Expr
    size: str

    @property
    def leading(self) -> tuple[str, str]:
        """The indices by which it is read besides the distance."""
        read = names_read(self.term)
        return "b" if "b" in read else "0", "h" if "h" in read else "0"

    def read(self) -> Expr:
        indices = [Name(i) if i in "bh" else Literal(0) for i in self.leading]
        last = Binary("+", Binary("-", Name("q"), Name("k")), Binary("-", Name("N"), Literal(1)))
        return Subscript(Name(self.name), (*indices, last))

    def parameter(self) -> Param:
        b, h = self.leading
        return Param(self.name, GlobalType("f32", ("B" if b == "b" else 1, "H" if h == "h" else 1, self.size)))

    def value(self, captured: Mapping[str, Value], at: Lengths, device: torch.device | str) -> torch.Tensor:
        """Compute the table.

        `captured` has the values of the names that the term reads besides indices and lengths, on the device.
        """
        shape = at.B if self.leading[0] == "b" else 1, at.H if self.leading[1] == "h" else 1, max(1, at.M + at.N - 1)
        if math.prod(shape) * 4 > MOST:
            raise TooLarge
        heads, batches = (torch.arange(n, dtype=torch.int32, device=device) for n in (at.H, at.B))
        places = {
            "b": batches[:, None, None],
            "h": heads[:, None],
            DISTANCE: torch.arange(1 - at.N, 1 - at.N + shape[2], dtype=torch.int32, device=device),
        }
        lengths = {n: getattr(at, n) for n in LENGTHS}
        with torch.no_grad():
            values = torch.as_tensor(evaluate(self.term, {**captured, **lengths, **places}), dtype=torch.float32, device=device)
            return values.expand(shape).contiguous()


def by_distance(score: Expr, parameters: Iterable[Parameter], fresh: Callable[[str], str]) -> tuple[Expr, tuple[Table, ...]]:
    """Return a score that reads terms from tables, and the tables.

    `fresh` turns a name into one that is free in the kernel. Terms that learn are computed for each pair: their table
    would be made anew in each step.
    """
    search = _Search({p.name: p for p in parameters}, fresh)
    rewritten_score = search.rewrite(score)
    return rewritten_score, tuple(search.tables.values())


class _Search:
    def __init__(self, parameters: Mapping[str, Parameter], fresh: Callable[[str], str]):
        self.parameters, self.fresh = parameters, fresh
        self.tables: dict[IdentityKey, Table] = {}  # by what they hold
        self.rewrites: dict[IdentityKey, Expr] = {}  # tracing shares subexpressions
        self.distances: dict[IdentityKey, Expr | None] = {}

    def rewrite(self, e: Expr) -> Expr:
        key = IdentityKey(e)
        if key not in self.rewrites:
            self.rewrites[key] = self._rewrite(e)
        return self.rewrites[key]

    def _rewrite(self, e: Expr) -> Expr:
        if not names_read(e) & {"q", "k"}:
            return e
        if self.is_float(e) and not self.learns(e) and cost(e) >= WORTH and (term := self.of_distance(e)) is not None:
            if (key := IdentityKey(term)) not in self.tables:
                n = len(self.tables) + 1
                name, size = (self.fresh(f"{stem}{n if n > 1 else ''}") for stem in DISTANCES)
                self.tables[key] = Table(name, term, size)
            return self.tables[key].read()
        return with_children(e, lambda c: self.rewrite(c) if isinstance(c, Expr) else c)

    def is_float(self, e: Expr) -> bool:
        """Return True if an expression is an f32 for certain.

        This holds for a function of floats, a float of a tensor, or arithmetic with one.
        """
        if isinstance(e, Literal):
            return isinstance(e.value, float)
        if isinstance(e, Subscript):
            tensor = self.parameters.get(e.value.id) if isinstance(e.value, Name) else None
            return tensor is not None and tensor.dtype == F32
        if isinstance(e, Name):
            return e.id in self.parameters and self.parameters[e.id].dtype == F32
        op_traits, below = traits(e), [c for c in children(e) if isinstance(c, Expr)]
        if op_traits.converts:
            return any(isinstance(c, Name) and c.id == F32.name for c in below)
        if op_traits.compares or op_traits.decided_by is not None or op_traits.complements:
            return False
        if op_traits.chooses:
            return any(self.is_float(c) for c in below[1:])
        return bool(op_traits.exponential or op_traits.logarithm or op_traits.special) or any(self.is_float(c) for c in below)

    def learns(self, e: Expr) -> bool:
        values = [self.parameters[n].value for n in names_read(e) & self.parameters.keys()]
        return any(isinstance(v, torch.Tensor) and v.requires_grad for v in values)

    def of_distance(self, e: Expr) -> Expr | None:
        """Return the expression with one name for q - k.

        None if it depends on more of q and k, or on the products.
        """
        key = IdentityKey(e)
        if key not in self.distances:
            self.distances[key] = self._of_distance(e)
        return self.distances[key]

    def _of_distance(self, e: Expr) -> Expr | None:
        names = names_read(e)
        if "S" in names or (isinstance(e, Name) and e.id in ("q", "k")):
            return None
        if not names & {"q", "k"}:
            return e
        line = linear(e)
        if line is not None:
            if line.q != -line.k or any(names_read(term) & {"q", "k"} for term, _ in line.terms):
                return None
            parts: list[Expr] = [_times(Name(DISTANCE), line.q), *(_times(term, n) for term, n in sorted(line.terms, key=repr))]
            whole = parts[0]
            for part in parts[1:]:
                whole = Binary("+", whole, part)
            return whole if line.const == 0 else Binary("+", whole, Literal(line.const))
        below = {id(c): self.of_distance(c) for c in children(e) if isinstance(c, Expr)}
        if None in below.values():
            return None
        return with_children(e, lambda c: below.get(id(c)) or c)


def _times(e: Expr, n: int) -> Expr:
    return e if n == 1 else Binary("*", e, Literal(n))


def cost(e: Expr) -> float:
    """Estimate the instructions for a pair, each subexpression counted once.

    Parts that read neither q nor k cost nothing.
    """
    visited: set[IdentityKey] = set()

    def cost_of(e: Expr) -> float:
        if IdentityKey(e) in visited or isinstance(e, (Name, Literal)) or not names_read(e) & {"q", "k"}:
            return 0.0
        visited.add(IdentityKey(e))
        own_cost = DISTANCE_READ if isinstance(e, Subscript) else float(traits(e).cost)
        return own_cost + sum(cost_of(c) for c in children(e) if isinstance(c, Expr))

    return cost_of(e)


__all__ = ["Table", "by_distance", "cost"]
