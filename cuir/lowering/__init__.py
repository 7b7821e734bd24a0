"""Lowering of checked kernels to CUDA C++ by way of a tile IR.

`lower` returns the text, `lower_ir` that of an IR file; `cuir/runtime` compiles it and launches the kernel. The compiler is imported when it is first
needed: a launch of a cached kernel reads the result's classes alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .lowered import Cuda, CudaText, TensorMap

if TYPE_CHECKING:
    from .compiler import lower, lower_ir
    from .validate import Lowering, Stage


def __getattr__(name: str) -> Any:
    if name in ("lower", "lower_ir"):
        from . import compiler

        return getattr(compiler, name)
    if name in ("Lowering", "Stage"):
        from . import validate

        return getattr(validate, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = ["Cuda", "CudaText", "Lowering", "Stage", "TensorMap", "lower", "lower_ir"]
