"""Kernels of a backward pass of several launches, interpreted or compiled for the current GPU."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass

from ..capture.call_inputs import need_warm
from ..capture.first_call_progress import Progress
from .autograd import Interpreted, Kernel
from .backward_kernels import Part, Step


@dataclass(frozen=True)
class StepKernels:
    """The kernels of a pass by the names of its steps, each made at its first use.

    Attributes:
        name: of the specification, for messages.
        parts: the kernels with replaced splice points, which are verified when all are compiled.
    """

    name: str
    steps: Mapping[str, Step]
    parts: tuple[Part, ...]

    @functools.cached_property
    def interpreted(self) -> Mapping[str, Kernel]:
        """The kernels in the interpreter."""
        return {name: Interpreted(step.checked) for name, step in self.steps.items()}

    @functools.cached_property
    def compiled(self) -> Mapping[str, Kernel]:
        """The kernels for the current GPU, compiled and verified."""
        from ...runtime.compiled import compile

        need_warm("compiling a kernel")
        progress = Progress(f"{self.name} backward")
        with progress.step("compiling"):
            kernels = {name: compile(step.program, kernel=step.kernel, consts=step.consts) for name, step in self.steps.items()}
        for part in self.parts:
            part.prove(progress)
        return kernels


__all__ = ["StepKernels"]
