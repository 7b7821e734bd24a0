"""Lowering of checked kernels to CUDA C++ by way of a tile IR.

`lower` returns the text; `cuir/runtime` compiles it and launches the kernel. The compiler is imported when it is first
needed: a launch of a cached kernel reads the result's classes alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .lowered import Cuda, TensorMap

if TYPE_CHECKING:
    from .compiler import lower
    from .validate import Lowering, Stage


def __getattr__(name: str) -> Any:
    if name == "lower":
        from .compiler import lower

        return lower
    if name in ("Lowering", "Stage"):
        from . import validate

        return getattr(validate, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = ["Cuda", "Lowering", "Stage", "TensorMap", "lower"]
