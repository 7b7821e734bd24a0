"""Reciprocals that neighbours in a row share: four numbers of a known range take one reciprocal of their product and some multiplications.

The unit of exponentials and reciprocals does an eighth of what the multipliers do. Owns which divisions can share, and their loops.
"""

from __future__ import annotations

import math
import re
from contextlib import nullcontext
from typing import TYPE_CHECKING

from ..syntax.nodes import Assign, Expr, Literal, Name
from ..syntax.types import F32, Scalar, TileType
from .flat import operation, subexpressions
from .layouts import Fragment, Shape, shape_of
from .values import strip
from .writer import identifier

if TYPE_CHECKING:
    from .tiles import At, TileEmitter

LARGEST = 31.0  # base-2 logarithm of a divisor: the product of four is a float
_EVERYTHING = (-math.inf, math.inf)


class Reciprocals:
    """Emits the full tiles of one role that are made with such divisions."""

    def __init__(self, tiles: TileEmitter):
        self.tiles, self.role, self.checked = tiles, tiles.role, tiles.role.kernel.checked
        self.site: Expr | None = None  # whose reciprocal stands in an array while its loop is emitted
        self.small = False  # or, of a tanh: whose argument is small

    def into(self, target: str, expr: Expr, t: TileType) -> bool:
        """target[...] = expr, if just one part of it is such a division; False if it is to be emitted as usual."""
        frag = self.role.fragment(t)
        sites = [e for e in subexpressions(expr) if isinstance(e, Expr) and self._shares(e)]
        if shape_of(t) != "full" or t.dtype != F32 or len(sites) != 1 or frag.groups % 2:
            return False
        from .tiles import At

        out, at = self.role.out, At("i_", "r_", "c_", "k_")
        divisor = strip(self._divisor(sites[0], at))
        self.site, self.small = sites[0], False
        text = strip(self.tiles.element(expr, at, "full"))
        greatest = self._greatest(sites[0], at, frag)
        if greatest is not None:
            self.small = True
            small = strip(self.tiles.element(expr, at, "full"))
            with out.block(f"if (!__any_sync(~0u, !({greatest})))"):
                out.line("// polynomials, where no thread of the warp has a greater argument")
                with out.block(f"#pragma unroll\nfor (int i_ = 0; i_ < {frag.count}; ++i_)"):
                    self._lines(frag, f"{target}[i_] = {small};")
        self.site = None
        self.role.kernel.choice("four divisions by numbers of a known range share one reciprocal", out.span)
        with out.block("else") if greatest is not None else nullcontext():
            self._shared(sites[0], target, divisor, text, frag, "true" if self._apart(target, expr, sites[0]) else "false")
        return True

    def _apart(self, target: str, expr: Expr, site: Expr) -> bool:
        """Whether a NaN among four divisors must leave the other three alone: not where it makes NaN of the whole row anyway, and there is none in a tanh."""
        if operation(self.checked, site)[0] == "tanh":
            return False
        name = next((n for n in self.role.role.locals if identifier(n) == target), None)
        return name is None or expr is not site or not self.role.nans.spoils_row(name)

    def _shared(self, site: Expr, target: str, divisor: str, text: str, frag: Fragment, nans: str) -> None:
        out = self.role.out
        array = out.temp("d")
        with out.block(f"#pragma unroll\nfor (int g_ = 0; g_ < {frag.count // 4}; ++g_)"):
            out.line(f"float {array}[4];  // elements of one row")
            for line in (f"{array}[e_] = {divisor};", f"{target}[i_] = {text.replace(_PLACE, array)};"):
                with out.block("#pragma unroll\nfor (int e_ = 0; e_ < 4; ++e_)"):
                    out.line("const int i_ = 8 * (g_ / 2) + 2 * (g_ % 2) + 4 * (e_ / 2) + e_ % 2;")
                    self._lines(frag, line)
                if line.startswith(array):
                    out.line(f"cuir::reciprocals<{nans}>({array});")

    def _lines(self, frag: Fragment, line: str) -> None:
        """A line of a loop over i_, behind the places that it reads."""
        for name, declaration in self.tiles.positions(frag):
            if re.search(rf"\b{name}\b", line):
                self.role.out.line(declaration)
        self.role.out.line(line)

    def _greatest(self, site: Expr, at: At, frag: Fragment) -> str | None:
        """A condition that all arguments of a tanh in this thread are small; None if their numbers are not there yet, and would be computed twice."""
        if operation(self.checked, site)[0] != "tanh":
            return None
        x, factor = self._argument(site)
        if not isinstance(x, Name) or self.tiles.storage(x.id).kind != "array":
            return None
        out, most = self.role.out, self.role.out.temp("most")
        out.line(f"float {most} = 0.f;  // the greatest magnitude")
        with out.block(f"#pragma unroll\nfor (int i_ = 0; i_ < {frag.count}; ++i_)"):
            self._lines(frag, f"{most} = fmaxf({most}, fabsf({self.tiles.element(x, at, 'full')}));")
        return f"{most} < {SMALL}f" if factor is None else f"{most} * fabsf({self.tiles.uniform(factor)}) < {SMALL}f"

    def _argument(self, site: Expr) -> tuple[Expr, Expr | None]:
        """x and f of tanh(x * f) with a scalar f, else x alone."""
        (x,) = operation(self.checked, site)[1]
        op, factors = operation(self.checked, x)
        for tile, scalar in (factors, factors[::-1]) if op == "*" else ():
            if isinstance(self.checked.type_of(scalar), Scalar):
                return tile, scalar
        return x, None

    def text(self, expr: Expr, at: At) -> str | None:
        """An element of the division whose reciprocals are there; None for other expressions."""
        if expr is not self.site:
            return None
        op, args = operation(self.checked, expr)
        if op == "tanh":
            x = strip(self.tiles.element(args[0], at, "full"))
            return f"cuir::tanh_small({x})" if self.small else f"cuir::tanh_large({x}, {_PLACE}[e_])"
        return self._by(args[0], f"{_PLACE}[e_]", at)

    def alone(self, expr: Expr, at: At, shape: Shape) -> str | None:
        """An element of a division by a number of a known range: its reciprocal needs no care of the ends of the range. None for other expressions."""
        op, args = operation(self.checked, expr)
        if op != "/" or self.tiles.decides(expr) or not self._near(args[1]) or self.role.dtype(expr) != F32:
            return None
        return self._by(args[0], f"cuir::reciprocal({strip(self.tiles.element(args[1], at, shape))})", at, shape)

    def _by(self, x: Expr, reciprocal: str, at: At, shape: Shape = "full") -> str:
        one = isinstance(x, Literal) and x.value == 1
        return reciprocal if one else f"({self.tiles.element(x, at, shape)} * {reciprocal})"

    def _divisor(self, site: Expr, at: At) -> str:
        op, args = operation(self.checked, site)
        if op == "/":
            return self.tiles.element(args[1], at, "full")
        x, scalar = self._argument(site)
        factor = _TWICE_LOG2E
        if scalar is not None:  # one product for both factors
            factor = self.tiles.hoist("float", (f"{_TWICE_LOG2E} * {self.tiles.uniform(scalar)}",), at)
        return f"1.f + cuir::ex2(fminf(fabsf({factor} * {self.tiles.element(x, at, 'full')}), {LARGEST}f))"  # tanh is 1 from 2^25 on

    def _shares(self, expr: Expr) -> bool:
        t = self.checked.find_type(expr)
        if isinstance(expr, (Name, Literal)) or not isinstance(t, TileType) or shape_of(t) != "full" or t.dtype != F32:
            return False
        op, args = operation(self.checked, expr)
        if op == "tanh":
            return True
        return op == "/" and not self.tiles.decides(expr) and self._near(args[1])

    def _near(self, divisor: Expr) -> bool:
        least, most = self._range(divisor, frozenset())
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
SMALL = 0.5999  # below it tanh is a polynomial: 0.6, less what the product may be rounded by
_PLACE = "reciprocals_"  # stands in a text for the array, whose name is given when the loop is written

__all__ = ["Reciprocals"]
