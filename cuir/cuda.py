"""CUDA kernels on a CPU: `cuir.cuda.load("k.cu", arch=...)["name"](grid, block, *tensors)` runs and checks one."""

from __future__ import annotations

from .ptx import machine as machine  # registers what instructions do
from .ptx.launch import KernelCall as KernelCall
from .ptx.launch import LoadedKernel as LoadedKernel
from .ptx.launch import LoadedModule as LoadedModule
from .ptx.launch import Report as Report
from .ptx.launch import Struct as Struct
from .ptx.launch import TensorMap as TensorMap
from .ptx.launch import load as load
from .ptx.launch import tensor_map as tensor_map
