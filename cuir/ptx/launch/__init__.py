"""Launches of kernels in the machine for PTX: compilation, arguments, memory of the device, and the report."""

from .kernel_launch import KernelCall as KernelCall
from .kernel_launch import LoadedKernel as LoadedKernel
from .kernel_launch import LoadedModule as LoadedModule
from .kernel_launch import Report as Report
from .kernel_launch import load as load
from .structs import Struct as Struct
from .tensor_maps import TensorMap as TensorMap
from .tensor_maps import tensor_map as tensor_map
