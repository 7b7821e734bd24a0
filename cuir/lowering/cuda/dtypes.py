"""What C++ calls an element in registers and in memory, and how one becomes the other."""

from __future__ import annotations

from ...syntax.types import BF16, BOOL, DTYPES, F16, F32, I32, DType

CTYPE = {d: "float" if d.is_float else {I32: "int", BOOL: "bool"}[d] for d in DTYPES.values()}  # of a value in registers
# Of an element in memory; one that CUDA has no type for is a struct of the targets that have it, named as the dtype is.
MEMORY = {d: {F32: "float", I32: "int", BOOL: "bool", F16: "__half", BF16: "__nv_bfloat16"}.get(d, f"cuir::{d}") for d in DTYPES.values()}


def from_memory(dtype: DType, text: str) -> str:
    """An element of memory, as registers hold it."""
    return f"cuir::to_float({text})" if dtype.narrow else text


def to_memory(dtype: DType, text: str) -> str:
    """A number that is stored as an element."""
    return f"{MEMORY[dtype]}({text})" if dtype.narrow else text
