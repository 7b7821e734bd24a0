"""Search space of problems: lengths and scalars that a specification and memory admit."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from ...attn.verification.problems import Case, Kind, is_attention
from ...checking.checked import Checked
from ...spec.function_specification import AnySpecification, FunctionSpecification
from ...spec.specification import LENGTHS, Lengths
from ...syntax.types import BOOL, F32, I32, DType
from ..tile_steps import align_heads, find_steps, find_tiles
from ..values.cases import MOST_ELEMENTS, Draw, count_elements, get_integer_consts, select_fitting
from .scalar_program import Size

NAME = "for a condition"
_HEADS = ("H", "HK")


@dataclass(frozen=True)
class Problem:
    """A problem with the lengths and scalars of its launch.

    elements: of all its tensors; large: too many for a run with data.
    """

    case: Draw | Case
    sizes: Mapping[str, Size]
    elements: int
    large: bool = False


class Space:
    """Lengths of dims, and values of scalars, by name."""

    def __init__(self, checked: Checked, spec: AnySpecification):
        self.checked, self.spec = checked, spec
        function = isinstance(spec, FunctionSpecification)
        self.dims = tuple(checked.dims) if function else LENGTHS
        self.steps = find_steps(checked, spec) if isinstance(spec, FunctionSpecification) else self._get_tiles()
        self.scalars: dict[str, DType] = {s.name: s.dtype for s in checked.scalars if s.name != "scale"} if function else {}
        self.integer_consts = get_integer_consts(checked)
        # so that state carried between blocks matters
        self.kind: Kind = "growing" if is_attention(checked.origin) else "normal"

    def _get_tiles(self) -> dict[str, int]:
        tiles = find_tiles(self.checked)
        BM, BN = (self.checked.consts.get(n) for n in ("BM", "BN"))
        return {**dict.fromkeys(LENGTHS, 0), "M": int(BM or tiles.get("M") or 0), "N": int(BN or tiles.get("N") or 0)}  # type: ignore[arg-type]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the dims and scalars that may be chosen."""
        return (*self.dims, *self.scalars)

    def make_thin(self, scalars: Collection[str] = (), steps: int = 0) -> dict[str, Size]:
        """Return the smallest problem, with a value for these scalars.

        steps: so many steps of each dim and a remainder, instead of one element.
        """
        sizes: dict[str, Size] = {
            d: steps * max(1, self.steps.get(d, 0)) + (1 if steps and self.steps.get(d) else 0) or 1 for d in self.dims
        }
        if steps > 1:
            sizes |= {d: 1 for d in _HEADS if d in sizes and d == "HK"}
        return {
            **sizes,
            **{n: 1 if kind == I32 else kind == BOOL if kind == BOOL else 1.0 for n, kind in self.scalars.items() if n in scalars},
        }

    def problem(self, sizes: Mapping[str, Size]) -> Problem | None:
        """Return the problem of these lengths and scalars, as admitted by the specification, or None."""
        lengths = align_heads({d: int(sizes[d]) for d in self.dims})
        if min(lengths.values(), default=1) < 1 or max(lengths.values(), default=1) >= 2**31:
            return None
        scalars = {n: self._convert_scalar(n, sizes[n]) for n in self.scalars if n in sizes}
        if isinstance(self.spec, FunctionSpecification):
            draw = Draw(NAME, lengths, self.kind, scalars=tuple(scalars.items()))
            admitted, large = select_fitting(self.checked, self.spec, [draw])
            chosen = admitted[0] if admitted else large[0][2] if large else None
            if chosen is None:
                return None
            return Problem(chosen, {**self.integer_consts, **chosen.sizes, **scalars}, self._count_elements(chosen.sizes), not admitted)
        if lengths["H"] % lengths["HK"]:
            return None
        elements = self._count_elements(lengths)
        return Problem(Case(NAME, Lengths(**lengths), self.kind), {**self.integer_consts, **lengths}, elements, elements > MOST_ELEMENTS)

    def _convert_scalar(self, name: str, value: Size) -> Size:
        kind = self.scalars[name]
        return float(value) if kind == F32 else bool(value) if kind == BOOL else int(value)

    def _count_elements(self, sizes: Mapping[str, int]) -> int:
        all_sizes = {**dict.fromkeys(self.checked.dims, 1), **self.integer_consts, **sizes}
        return sum(count_elements(t, all_sizes) for t in self.checked.tensors if not t.scratch)
