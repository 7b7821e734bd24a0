"""C++ expressions for addresses: shared views, boxes of tensors, single elements, gathers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from xdsl.ir import SSAValue

from ...syntax.types import PANEL_BYTES, SharedLayout
from ..ir import ops
from ..ir.ir_types import ElementT, SharedT, TensorT, dtype_of, is_scalar
from ..select.number_ways import PANEL
from .operator_text import MEMORY, strip, summand
from .print_scope import Scope
from .writer import identifier


@dataclass(frozen=True)
class SharedRef:
    """A view of a shared array of up to two dims: its start, and the array that holds its rows and panels."""

    alloc: SharedLayout
    address: str  # bytes, in the shared window
    offset: str  # bytes from the start of the CTA's arrays
    within: tuple[tuple[str, int], ...]  # bytes from the start of the array: a sum of indices times factors
    rows: int  # of memory: before .T
    cols: int
    transposed: bool
    inside: str = ""  # bytes from the start of a panel, plus sign in front: of views that begin within one

    def at(self, row: str, byte: str) -> str:
        """Return the address of a byte of a row."""
        if self.alloc.panelled:
            return f"cuir::at<{self.alloc.rows}>({self.address}, {row}, {byte}{self.inside})"
        return f"{self.address} + {row} * {self.alloc.row_bytes} + {byte}"

    @property
    def panels(self) -> int:
        """Number of panels of 128 bytes."""
        return self.cols * self.alloc.dtype.itemsize // PANEL_BYTES


@dataclass(frozen=True)
class Box:
    """A box of a tensor: start and size of every dim, outermost first."""

    tensor: str
    starts: tuple[str, ...]
    sizes: tuple[int, ...]  # 1 where an index drops the dim

    @property
    def rows(self) -> int:
        """Number of rows: the product of all sizes but the last."""
        total = 1
        for s in self.sizes[:-1]:
            total *= s
        return total


class _Sum:
    """A sum of texts and integers."""

    def __init__(self) -> None:
        self.constant = 0
        self.terms: list[tuple[str, int]] = []

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


class Places:
    """Places as one scope sees them.

    `scalar` returns the text of a scalar.
    """

    def __init__(self, scope: Scope, scalar: Callable[[SSAValue], str]):
        self.scope, self.kernel, self.scalar = scope, scope.kernel, scalar

    # ---- shared memory
    def shared(self, value: SSAValue) -> SharedRef:
        """Resolve a view of shared memory, or a whole array."""
        assert isinstance(value.type, SharedT)
        place = value.owner
        if isinstance(place, ops.Shared):
            array, parts = place, [(None, d) for d in value.type.sizes]
        else:
            assert isinstance(place, ops.At) and isinstance(place.array.owner, ops.Shared)
            array, parts = place.array.owner, place.parts  # type: ignore[assignment]
        alloc = self.kernel.shared[array.symbol.data]
        address = _Sum()
        stride = alloc.rows * alloc.row_bytes
        for (start, _), dim in reversed(list(zip(parts[:-2], alloc.dims[:-2], strict=True))):
            if start is not None:
                self._add_scaled(address, start, stride)
            stride *= dim
        rows = 1
        if len(parts) > 1:
            start, size = parts[-2]
            rows = 1 if size == -1 else int(size)
            if start is not None:
                self._add_scaled(address, start, PANEL_BYTES if alloc.panelled else alloc.row_bytes)
        start, size = parts[-1]
        inside = ""
        if start is not None:
            if alloc.panelled:
                self._add_panel(address, start, alloc)
                inside = "" if PANEL in place.attributes else self._make_inside(start, alloc)
            else:
                self._add_scaled(address, start, alloc.dtype.itemsize)
        within = address.products()
        address.add(alloc.offset)
        offset = address.text()
        return SharedRef(alloc, f"smem_address + {offset}", offset, within, rows, int(size), bool(value.type.transposed.data), inside)

    def _add_scaled(self, total: _Sum, index: SSAValue, factor: int) -> None:
        """Add an index times a number of bytes to a sum."""
        constant = ops.constant_value(index)
        total.add(int(constant) if constant is not None else self.scalar(index), factor)

    def _add_panel(self, total: _Sum, start: SSAValue, alloc: SharedLayout) -> None:
        """Add the offset of the panel in which a column lies to a sum."""
        width, size = PANEL_BYTES // alloc.dtype.itemsize, alloc.rows * PANEL_BYTES
        constant = ops.constant_value(start)
        if constant is not None:
            total.add(int(constant) // width * size)
        else:
            total.add(f"({self.scalar(start)} / {width})", size)

    def _make_inside(self, start: SSAValue, alloc: SharedLayout) -> str:
        """Return the bytes between the start of a panel and a column within it, plus sign in front."""
        return f" + {self.scalar(start)} % {PANEL_BYTES // alloc.dtype.itemsize} * {alloc.dtype.itemsize}"

    # ---- boxes of tensors
    def box(self, value: SSAValue) -> Box:
        """Resolve a box of a tensor."""
        place = value.owner
        assert isinstance(value.type, TensorT)
        if isinstance(place, ops.Tensor):
            tensor, parts = place.symbol.data, [(None, d if isinstance(d, int) else 0) for d in value.type.sizes]
        else:
            assert isinstance(place, ops.At) and isinstance(place.array.owner, ops.Tensor)
            tensor, parts = place.array.owner.symbol.data, place.parts  # type: ignore[assignment]
        starts, sizes = [], []
        for start, size in parts:
            starts.append("0" if start is None else strip(self.scalar(start)))
            sizes.append(1 if size == -1 else int(size))
        return Box(tensor, tuple(starts), tuple(sizes))

    def box_indices(self, box: Box, row: str, column: str) -> list[str]:
        """Return the index texts of an element of a box, by flattened row and column."""
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

    # ---- elements
    def elements(self, value: SSAValue) -> tuple[str, list[SSAValue]]:
        """Return the array of a place of single elements, and its indices."""
        place = value.owner
        assert isinstance(place, ops.At) and isinstance(value.type, ElementT)
        assert isinstance(place.array.owner, (ops.Tensor, ops.Shared))
        return place.array.owner.symbol.data, list(place.starts)

    def element(self, value: SSAValue) -> str:
        """Return the element at scalar indices; an f16 or bf16 one as a float."""
        name, indices = self.elements(value)
        if name in self.kernel.shared:
            return f"cuir::get<{MEMORY[dtype_of(value)]}>({self.shared_element(name, indices)})"
        return self.kernel.make_tensor_read(name, self.kernel.make_offset(name, [self.scalar(i) for i in indices]))

    def shared_element(self, name: str, indices: Sequence[SSAValue]) -> str:
        """Return the address of an element of a shared array."""
        alloc, text = self.kernel.shared[name], self.scalar
        row = "0"
        for index, dim in zip(indices[:-1], alloc.dims[:-1], strict=True):
            row = text(index) if row == "0" else f"({row} * {dim} + {text(index)})"
        col = f"{text(indices[-1])} * {alloc.dtype.itemsize}"
        if alloc.panelled:
            stage = f"({row}) / {alloc.rows} * {alloc.rows * alloc.row_bytes}"
            return f"cuir::at<{alloc.rows}>(smem_address + {alloc.offset} + {stage}, ({row}) % {alloc.rows}, {col})"
        return f"smem_address + {alloc.offset} + ({row}) * {alloc.row_bytes} + {col}"

    def gather(self, op: ops.Perform, text: Callable[[SSAValue], str]) -> str:
        """Return the element at index tiles, 0 outside of the tensor."""
        name, indices = self.elements(op.arg("place"))
        texts = [text(i) for i in indices]
        tensor = self.kernel.tensors[name]
        if tensor.dtype.itemsize == 4:
            return self.kernel.make_guarded_read(name, texts, [is_scalar(i) for i in indices])
        read = self.kernel.make_tensor_read(name, self.kernel.make_offset(name, texts, [is_scalar(i) for i in indices]))
        return f"({self.kernel.make_bounds_test(name, texts)} ? {read} : {self.zero(name)})"

    def zero(self, tensor: str) -> str:
        """Return the literal 0 of a tensor's dtype."""
        return "0.f" if self.kernel.tensors[tensor].dtype.is_float else "0"


# ---- names of tensors
def stride(tensor: str, i: int) -> str:
    """Return the name of the stride of a tensor's dim."""
    return f"{identifier(tensor)}_stride{i}"
