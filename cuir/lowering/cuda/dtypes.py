"""C++ types of elements in registers and in memory, and the conversions between them."""

from __future__ import annotations

from ...syntax.types import BF16, BOOL, DTYPES, F16, F32, I32, DType

CTYPE = {d: "float" if d.is_float else {I32: "int", BOOL: "bool"}[d] for d in DTYPES.values()}  # in registers
# In memory. A dtype without a CUDA type is a struct of the targets that have it, named as the dtype.
MEMORY = {d: {F32: "float", I32: "int", BOOL: "bool", F16: "__half", BF16: "__nv_bfloat16"}.get(d, f"cuir::{d}") for d in DTYPES.values()}


def from_memory(dtype: DType, text: str) -> str:
    """Return the text of an element of memory converted to its type in registers."""
    return f"cuir::to_float({text})" if dtype.narrow else text


def to_memory(dtype: DType, text: str) -> str:
    """Return the text of a number converted to the type in which it is stored."""
    return f"{MEMORY[dtype]}({text})" if dtype.narrow else text
