"""assert_cuda_matches: a CUDA kernel on the CPU, checked under several schedules, and against a PyTorch function."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

from ..ops.limits import list_architectures
from ..ptx.launch import KernelCall, LoadedModule, load
from ..text.diagnostics import CuirError
from ..verification.cuda_numbers import OutputJudge
from ..verification.cuda_runs import CudaCheck, list_schedules
from .session_settings import make_failure, session


def assert_cuda_matches(
    source: str | Path | LoadedModule,
    launch: Callable[[], KernelCall | Sequence[KernelCall]],
    function: Callable[..., object] | None = None,
    *,
    kernel: str | None = None,
    arch: str | None = None,
    include: Sequence[str | Path] = (),
    schedules: int | Sequence[str] | None = None,
    tolerance: float | None = None,
) -> None:
    """Assert that launches of a CUDA kernel break no rule, and write what a PyTorch function gives.

    Needs nvcc for a CUDA source, and no GPU. What the manual forbids and no GPU minds is a Python warning.

    Args:
        source: a .cu or .ptx file, or what `cuir.cuda.load` returns.
        launch: returns a KernelCall, or a list of them, with new tensors for each schedule.
        function: takes the arguments of the launches in order, each tensor once, with floats in float64. It returns
            what they write, None for what is not compared, or writes to its arguments.
        kernel: the kernel, if the file has several.
        arch: the architecture to compile for.
        include: folders of headers.
        schedules: their number (the default is that of `--cuir-schedules`), or their names.
        tolerance: allowed error as a share of the largest element of a row, instead of twice PyTorch's own error and
            the rounding.

    Raises:
        MismatchError: (an AssertionError) a race, a deadlock, a missing fence, a bad address, or wrong numbers.
        CuirError: the call is wrong.
    """
    __tracebackhide__ = True
    module = source if isinstance(source, LoadedModule) else load(source, arch or list_architectures("wgmma")[0], include)
    names = list_schedules(session.schedules if schedules is None else schedules) if isinstance(schedules, int | None) else schedules
    report = CudaCheck(module, launch, OutputJudge(function, tolerance) if function is not None else None, kernel).run(names)
    if not report.ok:
        found = next((n.message for d in report.findings[:1] for n in d.notes if n.message.startswith("replay: ")), "")
        schedule = found.partition('"')[2].partition('"')[0]
        title = f"a kernel of `{module.path.name}` goes wrong, schedule {schedule}"
        raise make_failure(
            title, CuirError((*report.findings, *report.warnings)), f"assert_cuda_matches(..., schedules=({schedule!r},))"
        ) from None
    for d in report.warnings:
        warnings.warn(d.render(), stacklevel=2)
