"""From a checked kernel to CUDA: `lower` gives the text, `compile_cuda` a cubin, `launch` runs it. Imports of CUDA packages are lazy."""

from .compile import Compiled, Resources, compile_cuda, find_nvcc
from .kernel import Cuda, TensorMap, lower

__all__ = ["Compiled", "Cuda", "Resources", "TensorMap", "compile_cuda", "find_nvcc", "lower"]
