"""Lowering of checked kernels to CUDA C++ by way of a tile IR.

`lower` returns the text; `cuir/runtime` compiles it and launches the kernel.
"""

from .compiler import lower
from .lowered import Cuda, TensorMap
from .stage_files import Lowering, Stage

__all__ = ["Cuda", "Lowering", "Stage", "TensorMap", "lower"]
