"""Types of CuIR values and the facts about dtypes."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

PANEL_BYTES = 128  # width of a swizzled panel of shared memory
TENSOR_LANES, TENSOR_COLUMNS = 128, 512  # tensor memory of a CTA; a cell has 32 bits
TENSOR_MEMORY = 2**20  # offset from which arrays lie in tensor memory, column after column
COLUMN_BYTES, LEAST_COLUMNS = 4 * TENSOR_LANES, 32  # of a column; columns of an allocation


@dataclass(frozen=True)
class DType:
    """A type of elements, and the facts that depend on it; a target's tables have more (lowering/targets)."""

    name: str
    itemsize: int  # bytes
    is_float: bool
    torch: str  # PyTorch's name
    largest: str = ""  # the greatest finite number
    overflows: float = math.inf  # from here on a number in a program's text is no finite one
    saturates: bool = False  # greater numbers become the largest one; else infinity
    narrow: bool = False  # floats are computed on as f32, and rounded when they are made

    def __repr__(self) -> str:
        return self.name

    __str__ = __repr__


F16 = DType("f16", 2, True, "float16", "65504", 65520.0, narrow=True)
BF16 = DType("bf16", 2, True, "bfloat16", "3.39e38", 3.3961775e38, narrow=True)
F8E4M3 = DType("f8e4m3", 1, True, "float8_e4m3fn", "448", 464.0, saturates=True, narrow=True)
F8E5M2 = DType("f8e5m2", 1, True, "float8_e5m2", "57344", 61440.0, saturates=True, narrow=True)
F32 = DType("f32", 4, True, "float32", "3.4028235e38", 3.4028236e38)
I32, BOOL = DType("i32", 4, False, "int32"), DType("bool", 1, False, "bool")
DTYPES = {d.name: d for d in (F16, BF16, F8E4M3, F8E5M2, F32, I32, BOOL)}


@dataclass(frozen=True)
class Scalar:
    """A worker-uniform scalar: i32, f32 or bool."""

    dtype: DType

    def __str__(self) -> str:
        return self.dtype.name


@dataclass(frozen=True)
class TileType:
    """A register tile of rank 2; `[R, 1]` holds a value per row, `[1, C]` one per column."""

    dtype: DType
    rows: int
    cols: int

    def __str__(self) -> str:
        return f"Tile[{self.dtype}, [{self.rows}, {self.cols}]]"


@dataclass(frozen=True)
class GlobalView:
    """A whole tensor or a box of one.

    `dims` are the kept dims, ints where known (slices), names for whole dims.
    """

    dtype: DType
    dims: tuple[str | int, ...]

    def __str__(self) -> str:
        return f"Global[{', '.join([self.dtype.name, *map(str, self.dims)])}]"


@dataclass(frozen=True)
class SharedView:
    """A whole array in shared or tensor memory, or a view of one; all dims are known.

    `.T` flips `transposed` (a descriptor bit). `columns`: of the array that it lies in. `in_tensor_memory`: rows are its
    lanes.
    """

    dtype: DType
    dims: tuple[int, ...]
    columns: int = field(compare=False)
    transposed: bool = False
    in_tensor_memory: bool = False

    @property
    def panelled(self) -> bool:
        """True if it lies in an array whose rows are whole panels."""
        return self.columns * self.dtype.itemsize % PANEL_BYTES == 0

    def __str__(self) -> str:
        memory = "TensorMemory" if self.in_tensor_memory else "Shared"
        return f"{memory}[{', '.join([self.dtype.name, *map(str, self.dims)])}]{'.T' if self.transposed else ''}"


@dataclass(frozen=True)
class SharedLayout:
    """An array in shared memory: rows of `cols` elements; leading dims flatten into stages of `rows` rows.

    If a row is a whole number of 128-byte panels, the array is *panelled*: each stage is `panels` panels of `rows` x
    128 bytes, 128-byte swizzled, 1024-byte aligned. Else, and if a stage is a single row, it is plain row-major with
    rows padded to 16 bytes.
    """

    name: str
    dtype: DType
    dims: tuple[int, ...]
    offset: int  # bytes from the start of the CTA's shared memory; from TENSOR_MEMORY on in tensor memory

    @property
    def panelled(self) -> bool:
        return self.rows > 1 and self.dims[-1] * self.dtype.itemsize % PANEL_BYTES == 0

    @property
    def rows(self) -> int:
        return self.dims[-2] if len(self.dims) >= 2 else 1

    @property
    def panels(self) -> int:
        return self.dims[-1] * self.dtype.itemsize // PANEL_BYTES

    @property
    def row_bytes(self) -> int:
        """Bytes that one row occupies, padding included."""
        return -(-self.dims[-1] * self.dtype.itemsize // 16) * 16

    @property
    def nbytes(self) -> int:
        total = self.row_bytes
        for dim in self.dims[:-1]:
            total *= dim
        return total

    @property
    def type(self) -> SharedView:
        return SharedView(self.dtype, self.dims, self.dims[-1])


@dataclass(frozen=True)
class BarrierType:
    """A barrier or a ring; `stages` is None for a single barrier, or one picked out of a ring."""

    kind: str  # "mbarrier" | "named_barrier"
    stages: int | None

    def __str__(self) -> str:
        return self.kind if self.stages is None else f"{self.kind}[{self.stages}]"


@dataclass(frozen=True)
class Void:
    """The type of a call without a value."""

    def __str__(self) -> str:
        return "nothing"


@dataclass(frozen=True)
class ErrorType:
    """The type of an expression that was already reported, which silences errors that follow from it."""

    def __str__(self) -> str:
        return "<error>"


Type = Scalar | TileType | GlobalView | SharedView | BarrierType | Void | ErrorType
