"""From a checked kernel to CUDA, by way of a tile IR: `lower` gives the text, of which cuir/runtime makes a kernel that is called."""

from .compiler import lower
from .lowered import Cuda, TensorMap
from .stages import Lowering, Stage

__all__ = ["Cuda", "Lowering", "Stage", "TensorMap", "lower"]
