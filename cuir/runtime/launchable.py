"""Early refusal of kernels that check, and yet cannot be lowered or launched; and register spills.

Imports no PyTorch, since `cuir check` uses it.
"""

from __future__ import annotations

import contextlib

from ..arguments.tile_count import count_tiles
from ..checking.checked import Checked
from ..checking.const_defaults import describe_consts
from ..checking.kernel_results import ResultKey
from ..lowering import Cuda
from ..text.diagnostics import CuirError, Diagnostic
from .nvcc import Resources, compile_cuda, read_cached_resources

NOTHING_TO_COMPILE_WITH = ("U503", "U504")


_LOWERED = ResultKey[Cuda]("lowered")


def require_launchable(checked: Checked) -> Cuda:
    """Return the lowered kernel.

    Raises CuirError L0xx for what the lowering refuses.
    """
    from ..lowering import lower

    scalars = {s.name: 1 for s in checked.scalars}
    with contextlib.suppress(ZeroDivisionError):  # only these lengths may divide by zero
        count_tiles(checked, dict.fromkeys(checked.dims, 1), scalars)
    return find_lowered(checked) or checked.results.store(_LOWERED, lower(checked))


def find_lowered(checked: Checked) -> Cuda | None:
    """Return the lowered kernel if `require_launchable` has lowered it."""
    return checked.results.find(_LOWERED)


def find_spills(cuda: Cuda, compile: bool) -> str:
    """Return the warning of register spills by ptxas; "" if there are none or they are unknown.

    compile: compile the kernel if it was not compiled before and there is an nvcc, which takes some seconds. Raises
    CuirError L010 if nvcc refuses it.
    """
    resources = read_cached_resources(cuda)
    if resources is None and compile:
        try:
            resources = compile_cuda(cuda).resources
        except CuirError as error:
            if error.diagnostics[0].code not in NOTHING_TO_COMPILE_WITH:
                raise
    description = "" if resources is None else describe_spills(cuda, resources)
    return f"warning: {description}" if description else ""


def find_large_tiles(cuda: Cuda) -> list[Diagnostic]:
    """Return a warning for each role whose tiles exceed the registers of a thread.

    The registers that tiles take are an estimate of the lowering.
    """
    hint = "smaller tiles, more warpgroups, or parts of a row that are read from shared memory one after the other"
    return [
        Diagnostic(
            "M307",
            f"a thread of role `{t.role}` has {t.limit} registers, and its tiles take about {t.count} here: the rest spills to memory",
            t.span,
            hint=hint,
            severity="warning",
        )
        for t in cuda.tile_registers
        if t.count > t.limit
    ]


def describe_spills(cuda: Cuda, resources: Resources) -> str:
    """Describe register spills: the function, bytes a thread, and what to try; "" if there are none."""
    if not resources.spill_stores + resources.spill_loads:
        return ""
    roles = ", ".join(f"{r.name} {r.registers}" for r in cuda.checked.roles if r.registers is not None)
    role_registers = f"; its roles have {roles}" if roles else ""
    tiles = {n: v for n, v in cuda.checked.consts.items() if type(v) is int and n not in cuda.checked.dims}
    return (
        f"`{cuda.name}`: tiles do not fit the registers, {resources.spill_stores:,} bytes of stores and {resources.spill_loads:,} bytes of loads spill to memory "
        f"with {resources.registers} registers a thread{role_registers}: try smaller tiles, or more warpgroups for them"
        + (f" (consts: {describe_consts(tiles)})" if tiles else "")
    )
