"""From a checked kernel to CUDA: `lower` gives the text, of which cuir/runtime makes a kernel that is called."""

from .emission import Cuda, TensorMap, lower

__all__ = ["Cuda", "TensorMap", "lower"]
