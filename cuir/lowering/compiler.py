"""The `lower` entry point: a checked kernel to one CUDA C++ file by way of the tile IR and its passes."""

from __future__ import annotations

import gc
import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from ..checking.checked import Checked
from ..checking.checker import check
from ..syntax.caller_values import program_of
from ..syntax.frontend import read_text
from ..syntax.nodes import Program
from ..text.diagnostics import CuirError
from ..text.source import Source as Text
from ..text.source import Span
from .cuda.frame import KernelPrinter
from .ir.build_ir import build
from .ir.ir_text import read
from .ir.ops import Kernel
from .lowered import Cuda, CudaText
from .passes.pipeline import BUILD, continue_passes, optimise
from .select.explanation import Choice, explain_kernel

Source = Checked | Program | str | os.PathLike[str]


def lower(checked: Source, without: Collection[str] = ()) -> Cuda:
    """Emit CUDA C++ for a kernel; the same kernel always gives the same text.

    Args:
        checked: A checked kernel, a program, or the path of its file, whose consts have defaults.
        without: Names of passes to leave out (see `passes.pipeline`).

    Raises: CuirError (codes L0xx) naming the statement.
    """
    checked = to_checked(checked)
    with _pause_collection():
        kernel = build(checked)
        optimise(kernel, without)
        return Cuda.of(print_kernel(kernel), checked)


@contextmanager
def _pause_collection() -> Iterator[None]:
    """Collect no cyclic garbage for a while.

    The operations and values of an IR refer to one another, and become garbage all at once, behind the last pass. A
    collection before that finds nothing; it visits the IR, and at times all objects of the process.
    """
    is_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if is_enabled:
            gc.enable()


def lower_ir(path: str | os.PathLike[str], without: Collection[str] = ()) -> CudaText:
    """Emit the CUDA C++ of an IR file, as `lower` does of the program from which the file was written.

    The passes that follow the file's state run; a file that names no state has been through all of them.

    Args:
        path: A file that `cuir lower --stages` wrote.
        without: Names of passes to leave out, further to those that the file leaves out.

    Raises: CuirError U201 or U202 if it cannot be read, L014 for another text than that of an IR, and those of `lower`.
    """
    kernel, state = read(read_text(Path(path)), os.fspath(path))
    if state is not None:
        continue_passes(kernel, state, without)
    try:
        return print_kernel(kernel)
    except LookupError as error:  # a way is not selected, a value has no variable
        hint = f'`after 0 "{BUILD}"` as the first line says that no pass has run'
        raise CuirError.of("L014", f"expected IR that has been through all passes: {error}", _find_start(path), hint) from None


def _find_start(path: str | os.PathLike[str]) -> Span:
    return Span(Text(os.fspath(path), read_text(Path(path))), 1, 1, 1, 2)


def explain(source: Source, without: Collection[str] = ()) -> list[Choice]:
    """Return what the compiler chooses for each line of a program, and why.

    Args:
        source: A checked kernel, a program, or the path of its file, whose consts have defaults.
        without: Names of passes to leave out.
    """
    checked = to_checked(source)
    kernel = build(checked)
    optimise(kernel, without)
    assert kernel.places is not None
    find = kernel.places.find
    return explain_kernel(kernel, lambda op: find(op) or checked.origin.span)


def print_kernel(kernel: Kernel) -> CudaText:
    """Return the CUDA of IR that has been through the passes."""
    return KernelPrinter(kernel).emit()


def to_checked(source: Source) -> Checked:
    """Return a checked kernel as it is, and check a program or a file."""
    return source if isinstance(source, Checked) else check(program_of(source, "lower"))
