"""From a checked kernel to CUDA, by way of a tile IR: `lower` gives the text, of which cuir/runtime makes a kernel that is called."""

from .compiler import lower, lowering_stages
from .kernel import Cuda, TensorMap

__all__ = ["Cuda", "TensorMap", "lower", "lowering_stages"]
