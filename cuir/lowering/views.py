"""Places in memory: addresses of shared views, boxes of tensors with their tensor maps, gathers and scatters. Owns no statement."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..checking.checked import SharedAlloc
from ..checking.views import Drop, Range, panel_cols, root_name, view_of
from ..syntax.nodes import Expr, Literal, Name, Subscript
from ..syntax.types import PANEL_BYTES, GlobalView, Scalar, SharedView, TileType
from .values import strip, summand, unsupported

if TYPE_CHECKING:
    from .role import RoleEmitter


@dataclass(frozen=True)
class SharedRef:
    """A view of a shared array of up to two dims: where it starts, and the array that its rows and panels lie in."""

    alloc: SharedAlloc
    address: str  # bytes, in the shared window
    offset: str  # bytes from the start of the CTA's arrays
    within: tuple[tuple[str, int], ...]  # bytes from the start of the array: a sum of indices times factors
    rows: int  # of memory: before .T
    cols: int
    transposed: bool

    def at(self, row: str, byte: str) -> str:
        """Address of a byte of a row."""
        if self.alloc.panelled:
            return f"cuir::at<{self.alloc.rows}>({self.address}, {row}, {byte})"
        return f"{self.address} + {row} * {self.alloc.row_bytes} + {byte}"

    @property
    def panels(self) -> int:
        return self.cols * self.alloc.dtype.itemsize // PANEL_BYTES


@dataclass(frozen=True)
class Box:
    """A box of a tensor: start and size of every dim, outermost first."""

    tensor: str
    starts: tuple[str, ...]
    sizes: tuple[int, ...]  # 1 where an index drops the dim

    @property
    def rows(self) -> int:
        total = 1
        for s in self.sizes[:-1]:
            total *= s
        return total


class _Sum:
    """A sum of texts and integers."""

    def __init__(self, *terms: str | int):
        self.constant = 0
        self.terms: list[tuple[str, int]] = []
        for t in terms:
            self.add(t)

    def add(self, term: str | int, factor: int = 1) -> None:
        if isinstance(term, int):
            self.constant += term * factor
        else:
            self.terms.append((term, factor))

    def products(self) -> tuple[tuple[str, int], ...]:
        return (*self.terms, *([("1", self.constant)] if self.constant else []))

    def text(self) -> str:
        parts = [t if f == 1 else f"{t} * {f}" for t, f in self.terms] + ([str(self.constant)] if self.constant or not self.terms else [])
        return " + ".join(parts)


class Views:
    """Emits places for one role."""

    def __init__(self, role: RoleEmitter):
        self.role, self.kernel = role, role.kernel

    # ---- shared memory
    def shared(self, expr: Expr) -> SharedRef:
        view_type = self.kernel.checked.type_of(expr)
        assert isinstance(view_type, SharedView)
        alloc = self.kernel.checked.shared[root_name(expr) or ""]
        view = view_of(expr, len(alloc.dims))
        assert view is not None
        parts = list(view.parts)
        if alloc.panelled and alloc.rows % 8:
            raise unsupported(f"`{alloc.name}` has stages of {alloc.rows} rows; swizzled panels hold multiples of 8", alloc.span)
        address = _Sum(0)
        stage_bytes = alloc.rows * alloc.row_bytes
        stride = stage_bytes
        for part, dim in reversed(list(zip(parts[:-2], alloc.dims[:-2], strict=True))):
            if isinstance(part, Drop) or part.start is not None:
                self._scaled(address, part.index if isinstance(part, Drop) else part.start, stride)  # type: ignore[arg-type]
            stride *= dim
        rows = 1
        if len(parts) > 1:
            row = parts[-2]
            rows = 1 if isinstance(row, Drop) else row.size or alloc.dims[-2]
            start = row.index if isinstance(row, Drop) else row.start
            if start is not None:
                self._scaled(address, start, PANEL_BYTES if alloc.panelled else alloc.row_bytes)
        last = parts[-1]
        if isinstance(last, Drop):
            raise unsupported("a view of shared memory without columns", expr.span)
        if last.start is not None:
            if alloc.panelled:
                self._panel(address, last.start, alloc)
            else:
                self._scaled(address, last.start, alloc.dtype.itemsize)
        within = address.products()
        address.add(alloc.offset)
        offset = address.text()
        return SharedRef(alloc, f"smem_address + {offset}", offset, within, rows, last.size or alloc.dims[-1], view.transposed)

    def _scaled(self, total: _Sum, index: Expr, factor: int) -> None:
        if isinstance(index, Literal):
            total.add(int(index.value), factor)
        else:
            total.add(self.role.scalars.scalar(index), factor)

    def _panel(self, total: _Sum, start: Expr, alloc: SharedAlloc) -> None:
        width, size = panel_cols(alloc.dtype), alloc.rows * PANEL_BYTES
        if isinstance(start, Literal):
            total.add(int(start.value) // width * size)
        else:
            total.add(f"({self.role.scalars.scalar(start)} / {width})", size)

    # ---- boxes of tensors
    def box(self, expr: Expr) -> Box:
        root = expr.value if isinstance(expr, Subscript) else expr
        assert isinstance(root, Name)
        tensor = self.kernel.tensors[root.id]
        view = view_of(expr, len(tensor.dims))
        assert view is not None
        starts, sizes = [], []
        for part, dim in zip(view.parts, tensor.dims, strict=True):
            if isinstance(part, Drop):
                starts.append(strip(self.role.scalars.scalar(part.index)))
                sizes.append(1)
            else:
                starts.append("0" if part.start is None else strip(self.role.scalars.scalar(part.start)))
                size = part.size if part.size is not None else dim
                if not isinstance(size, int):
                    raise unsupported(f"a box as long as the run-time dim `{dim}`", expr.span, "slice it: x : x + c")
                sizes.append(size)
        if not isinstance(view.parts[-1], Range):
            raise unsupported("a box whose columns are no slice of the innermost dim", expr.span, "slice the last dim")
        return Box(root.id, tuple(starts), tuple(sizes))

    def box_indices(self, box: Box, row: str, column: str) -> list[str]:
        """Index texts of an element of a box, by flattened row and column."""
        indices = [f"({summand(box.starts[-1])} + {column})" if box.starts[-1] != "0" else f"({column})"]
        inner = 1
        outer = [i for i, s in enumerate(box.sizes[:-1]) if s > 1]
        for i in range(len(box.sizes) - 2, -1, -1):
            start, size = box.starts[i], box.sizes[i]
            if size == 1:
                indices.append(f"({start})")
                continue
            part = row if inner == 1 else f"{row} / {inner}"
            if i != outer[0]:
                part = f"{part} % {size}"
            indices.append(f"({summand(start)} + {part})")
            inner *= size
        return indices[::-1]

    # ---- gathers and scatters
    def gather(self, expr: Subscript, text: Callable[[Expr], str]) -> str:
        """The element at index tiles, 0 outside of the tensor."""
        assert isinstance(expr.value, Name)
        if expr.value.id in self.kernel.checked.shared:
            raise unsupported("a gather from shared memory", expr.span, "load the view")
        tensor = self.kernel.tensors[expr.value.id]
        indices = [text(i) for i in expr.indices]  # type: ignore[arg-type]
        uniform = [isinstance(self.kernel.checked.type_of(i), Scalar) for i in expr.indices]  # type: ignore[arg-type]
        read = self.kernel.tensor_read(tensor.name, self.kernel.index(tensor.name, indices, uniform))
        return f"({self.kernel.inside(tensor.name, indices)} ? {read} : {self.zero(tensor.name)})"

    def zero(self, tensor: str) -> str:
        return "0.f" if self.kernel.tensors[tensor].dtype.is_float else "0"

    def is_tile_place(self, expr: Expr) -> bool:
        return isinstance(self.kernel.checked.type_of(expr), TileType)

    def is_scalar_place(self, expr: Expr) -> bool:
        return isinstance(self.kernel.checked.type_of(expr), Scalar)

    def is_box(self, expr: Expr) -> bool:
        return isinstance(self.kernel.checked.type_of(expr), GlobalView)
