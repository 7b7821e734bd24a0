"""Reciprocals that neighbours in a row share: four numbers of a known range take one reciprocal of their product and some multiplications.

The unit of exponentials and reciprocals does an eighth of what the multipliers do. Owns which divisions can share, and their loops.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

from ..nodes import Assign, Expr, Literal, Name
from ..types import F32, Scalar, TileType
from .flat import operation, subexpressions
from .layouts import shape_of
from .values import strip

if TYPE_CHECKING:
    from .tiles import At, Tiles

LARGEST = 31.0  # base-2 logarithm of a divisor: the product of four is a float
_EVERYTHING = (-math.inf, math.inf)


class Reciprocals:
    """Emits the full tiles of one role that are made with such divisions."""

    def __init__(self, tiles: Tiles):
        self.tiles, self.role, self.checked = tiles, tiles.role, tiles.role.kernel.checked
        self.site: Expr | None = None  # whose reciprocal stands in an array while its loop is emitted

    def into(self, target: str, expr: Expr, t: TileType) -> bool:
        """target[...] = expr, if just one part of it is such a division; False if it is to be emitted as usual."""
        frag = self.role.fragment(t)
        sites = [e for e in subexpressions(expr) if isinstance(e, Expr) and self._shares(e)]
        if shape_of(t) != "full" or t.dtype != F32 or len(sites) != 1 or frag.groups % 2:
            return False
        from .tiles import At

        out, at = self.role.out, At("i_", "r_", "c_", "k_")
        divisor = self._divisor(sites[0], at)
        self.site = sites[0]
        text = strip(self.tiles.element(expr, at, "full"))
        self.site = None
        array = out.temp("d")
        self.role.kernel.choice("four divisions by numbers of a known range share one reciprocal", out.span)
        with out.block(f"#pragma unroll\nfor (int g_ = 0; g_ < {frag.count // 4}; ++g_)"):
            out.line(f"float {array}[4];  // elements of one row")
            for line in (f"{array}[e_] = {strip(divisor)};", f"{target}[i_] = {text.replace(_PLACE, array)};"):
                with out.block("#pragma unroll\nfor (int e_ = 0; e_ < 4; ++e_)"):
                    out.line("const int i_ = 8 * (g_ / 2) + 2 * (g_ % 2) + 4 * (e_ / 2) + e_ % 2;")
                    for name, declaration in self.tiles.positions(frag):
                        if re.search(rf"\b{name}\b", line):
                            out.line(declaration)
                    out.line(line)
                if line.startswith(array):
                    out.line(f"cuir::reciprocals({array});")
        return True

    def text(self, expr: Expr, at: At) -> str | None:
        """An element of the division whose reciprocals are there; None for other expressions."""
        if expr is not self.site:
            return None
        op, args = operation(self.checked, expr)
        reciprocal = f"{_PLACE}[e_]"
        if op == "tanh":
            return f"(1.f - 2.f * {reciprocal})"
        one = isinstance(args[0], Literal) and args[0].value == 1
        return reciprocal if one else f"({self.tiles.element(args[0], at, 'full')} * {reciprocal})"

    def _divisor(self, site: Expr, at: At) -> str:
        op, args = operation(self.checked, site)
        if op == "/":
            return self.tiles.element(args[1], at, "full")
        op, factors = operation(self.checked, args[0])
        x, factor = args[0], _TWICE_LOG2E
        for tile, scalar in (factors, factors[::-1]) if op == "*" else ():
            if isinstance(self.checked.type_of(scalar), Scalar):  # one product for both factors
                x, factor = tile, self.tiles.hoist("float", (f"{_TWICE_LOG2E} * {self.tiles.uniform(scalar)}",), at)
        return f"1.f + cuir::ex2(cuir::min_nan({factor} * {self.tiles.element(x, at, 'full')}, {LARGEST}f))"  # tanh is 1 from 2^25 on

    def _shares(self, expr: Expr) -> bool:
        t = self.checked.types.get(id(expr))
        if isinstance(expr, (Name, Literal)) or not isinstance(t, TileType) or shape_of(t) != "full" or t.dtype != F32:
            return False
        op, args = operation(self.checked, expr)
        if op == "tanh":
            return True
        if op != "/":
            return False
        least, most = self._range(args[1], frozenset())
        return least >= 1 and most <= 2.0**LARGEST + 1

    def _range(self, expr: Expr, seen: frozenset[str]) -> tuple[float, float]:
        """Between which numbers a value lies for certain (if it is one)."""
        if isinstance(expr, Literal):
            return float(expr.value), float(expr.value)
        if isinstance(expr, Name):
            bound = self.role.facts.definitions.get(expr.id, [])
            if expr.id in seen or not bound or not all(isinstance(s, Assign) for s in bound):
                return _EVERYTHING
            ranges = [self._range(s.value, seen | {expr.id}) for s in bound if isinstance(s, Assign)]
            return min(r[0] for r in ranges), max(r[1] for r in ranges)
        op, args = operation(self.checked, expr)
        if op not in ("exp2", "min", "max", "+"):
            return _EVERYTHING
        ranges = [self._range(a, seen) for a in args]
        if op == "exp2":
            return 0.0, 2.0 ** min(ranges[0][1], 1000.0)
        if op == "+":
            return ranges[0][0] + ranges[1][0], ranges[0][1] + ranges[1][1]
        choose = min if op == "min" else max
        return choose(r[0] for r in ranges), choose(r[1] for r in ranges)


_TWICE_LOG2E = "2.885390081777927f"
_PLACE = "reciprocals_"  # stands in a text for the array, whose name is given when the loop is written

__all__ = ["Reciprocals"]
