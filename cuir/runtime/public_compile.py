"""The function `cuir.compile`: compile a kernel, and warn if its registers spill.

Callers that choose among settings use `compiled.compile`, which does not warn.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping

from ..checking.checked import Checked, Const
from ..lowering import Cuda
from ..syntax.nodes import Program
from . import compiled
from .compiled_kernel import CompiledKernel
from .launchable import describe_spills
from .loader import DRIVER


def compile(
    program: Program | Checked | Cuda | str | os.PathLike[str],
    *,
    kernel: str | None = None,
    consts: Mapping[str, Const] | None = None,
    loader: str = DRIVER,
) -> CompiledKernel:
    """Check (a program), lower and compile a kernel; cached on disk.

    program: a parsed program, the path of a file, a checked or a lowered kernel. kernel: its name, if there are
    several. consts: const parameters by name. loader: compiles, loads and launches: "driver" (nvcc, and the CUDA
    driver API through cuda-bindings) or "pycuda" (a `PyCudaKernel`). Warns of registers that spill to memory. Raises
    CuirError with every error of the program, U503 without nvcc, or U510 without PyCUDA.
    """
    compiled_kernel = compiled.compile(program, kernel=kernel, consts=consts, loader=loader)
    if spilled := describe_spills(compiled_kernel.compiled.cuda, compiled_kernel.compiled.resources):
        warnings.warn(spilled, stacklevel=2)
    return compiled_kernel
