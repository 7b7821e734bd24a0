"""Description of a launch for callers in other languages.

It names the symbol, grid, block, parameters and tensor maps.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from ..checking.fold import specialise
from ..lowering import Cuda
from ..lowering.cuda.writer import symbol
from ..syntax.nodes import Assign, Expr
from ..syntax.printer import show
from .argument_buffer import DIM, POINTER, STRIDE, ArgumentLayout

_TYPES = {"": "CUtensorMap", STRIDE: "int64_t", DIM: "int", "f": "float", "?": "bool"}


@dataclass(frozen=True)
class ParameterDescription:
    """A parameter of a kernel, in the order of its signature.

    offset: bytes behind the first parameter; meaning: a phrase for people.
    """

    name: str
    type: str
    offset: int
    meaning: str


@dataclass(frozen=True)
class MapDescription:
    """Arguments of `cuTensorMapEncodeTiled` for a parameter.

    dims and boxes have the innermost first, as it takes them.
    """

    name: str
    tensor: str
    dtype: str
    dims: tuple[str, ...]
    box: tuple[int, ...]
    swizzle: str


@dataclass(frozen=True)
class LaunchDescription:
    """A launch: `grid` CTAs are the units of work or, if these are fewer, the CTAs that fit on the device.

    cta_per_unit: the grid is the units of work, however many CTAs fit. units: the number of units of work, an expression of dims and scalars; None for a kernel without `tiles`, which is
    launched as one CTA or cluster. Of a kernel with clusters the grid is a multiple of `cluster`.
    """

    symbol: str
    arch: str
    block: int
    cluster: int
    shared_bytes: int
    units: str | None
    cta_per_unit: bool
    parameters: tuple[ParameterDescription, ...]
    maps: tuple[MapDescription, ...]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def grid(self) -> str:
        """The rule of the grid, for people."""
        each = f" x {self.cluster}" if self.cluster > 1 else ""
        if self.units is None:
            return f"1{each}"
        if self.cta_per_unit:
            return f"units = {self.units}"
        return f"min(units, {'clusters' if self.cluster > 1 else 'CTAs'} that fit on the device){each}; units = {self.units}"


def count_ctas(cuda: Cuda, units: int | None, resident: int) -> int:
    """Return the CTAs of a launch.

    units: of work, None without `tiles`. resident: CTAs, or clusters, that fit on the device.
    """
    if units is None:
        return cuda.cluster
    return max(units, 0) if cuda.cta_per_unit else min(max(units, 0), resident) * cuda.cluster


def describe_launch(cuda: Cuda) -> LaunchDescription:
    """Describe the launch of a lowered kernel."""
    tensors = {t.name: t for t in cuda.checked.tensors}
    maps = tuple(
        MapDescription(
            m.name,
            m.tensor,
            tensors[m.tensor].dtype.name,
            tuple(str(d) for d in reversed(tensors[m.tensor].dims)),
            tuple(reversed(m.sizes)),
            "128B" if m.swizzled else "none",
        )
        for m in cuda.maps
    )
    parameters = []
    for p in ArgumentLayout(cuda).parameters:
        kind, meaning = _TYPES.get(p.code, "int"), ""
        if p.code == "":
            kind, meaning = "CUtensorMap", f"boxes of {next(m.tensor for m in cuda.maps if m.name == p.name)}, by value"
        elif p.code == POINTER and p.name in tensors:
            t = tensors[p.name]
            kind = f"{t.dtype.name}*"
            dims = ", ".join(map(str, t.dims))
            meaning = f"scratch [{dims}], contiguous" if t.scratch else f"first element of {p.name} [{dims}]"
        elif p.code == POINTER:
            kind, meaning = "unsigned*", "counter of units of work: zero before the first launch, one for each launch in flight"
        elif p.code == STRIDE:
            meaning = "in elements"
        else:
            meaning = "length of a dim" if p.name in cuda.dims else "scalar"
        parameters.append(ParameterDescription(p.name, kind, p.offset, meaning))
    return LaunchDescription(
        symbol(cuda.name),
        cuda.arch,
        cuda.threads,
        cuda.cluster,
        cuda.shared_bytes,
        _show_units(cuda),
        cuda.cta_per_unit,
        tuple(parameters),
        maps,
    )


def _show_units(cuda: Cuda) -> str | None:
    """Show the number of units of work, with what is declared before the roles and the consts put in."""
    checked = cuda.checked
    if checked.tiles is None:
        return None
    values: dict[str, Expr] = {}
    for statement in checked.declarations:
        if isinstance(statement, Assign):
            values[statement.targets[0]] = specialise(statement.value, values)
    return show(specialise(checked.tiles.count, values))
