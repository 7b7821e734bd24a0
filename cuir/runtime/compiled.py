"""The function `compile`: a program to a callable kernel, by the loader that a user names."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping

from ..checking.checked import Checked, Const
from ..lowering import Cuda
from ..syntax.caller_values import program_of
from ..syntax.nodes import Program
from .compiled_kernel import CompiledKernel
from .loader import DRIVER, PYCUDA, require_loader
from .nvcc import Compiled, Run, compile_cuda


def compile(
    program: Program | Checked | Cuda | str | os.PathLike[str],
    *,
    kernel: str | None = None,
    consts: Mapping[str, Const] | None = None,
    loader: str = DRIVER,
    run: Run | None = None,
) -> CompiledKernel:
    """Check (a program), lower and compile a kernel; cached on disk.

    Arguments and errors are those of `public_compile.compile`; run: see `compile_cuda`.
    """
    build, wrap = _choose_loader(require_loader(loader))
    if run is not None:
        build = functools.partial(compile_cuda, run=run)
    if isinstance(program, Checked):
        from ..lowering import lower

        return wrap(build(lower(program)), None)
    if isinstance(program, Cuda):
        return wrap(build(program), None)
    program = program_of(program, "compile")
    from ..checking.checker import check
    from . import kernel_cache
    from .launchable import require_launchable

    entry = kernel_cache.make_entry_path(program, kernel, consts, loader)
    compiled = kernel_cache.load(entry)
    if compiled is not None:
        return wrap(compiled, lambda: check(program, kernel, consts))
    compiled = build(require_launchable(check(program, kernel, consts)))
    kernel_cache.store(entry, compiled)
    return wrap(compiled, None)


def _choose_loader(loader: str) -> tuple[Callable[[Cuda], Compiled], Callable[[Compiled, Callable[[], Checked] | None], CompiledKernel]]:
    """Choose a loader's function that compiles, and the kernel that it makes of the result."""
    if loader == PYCUDA:
        from .pycuda_kernel import PyCudaKernel
        from .pycuda_loader import compile_with_pycuda, import_pycuda

        import_pycuda()
        return compile_with_pycuda, PyCudaKernel
    return compile_cuda, CompiledKernel
