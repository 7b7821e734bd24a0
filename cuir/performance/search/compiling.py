"""Parallel compilation of many settings of a program into the disk cache."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Any

from ...campaigns.campaign import Executor
from ...campaigns.local_executor import LocalExecutor
from ...campaigns.tasks import Json, Task
from ...checking.checked import Const
from ...checking.const_defaults import PlainConsts
from ...text.diagnostics import CuirError
from .space import from_plain, plain

MEMORY_OF_A_JOB = 3 << 30  # bytes of nvcc for one kernel at most


@dataclass(frozen=True)
class BuildResult:
    """Result of compiling one setting.

    Attributes:
        refused: Why there is no cubin; empty if there is one.
        spills: Bytes of spills.
        serialised: Number of warnings of ptxas about products that lose overlap.
        registers: Registers of a thread.
        seconds: Time of the compilation.
        exponentials: Exponentials in the machine code between consecutive waits for products, if there is a disassembler.
        warnings: Texts of ptxas about products.
    """

    refused: str = ""
    spills: int = 0
    serialised: int = 0
    registers: int = 0
    seconds: float = 0.0
    exponentials: tuple[int, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def clean(self) -> bool:
        """True if the setting compiles without spills and serialised products."""
        return not self.refused and not self.spills and not self.serialised

    def describe_flaw(self) -> str:
        """Return the first flaw as a message; empty if there is none."""
        if self.refused:
            return self.refused
        return (
            f"{self.spills} bytes of spills"
            if self.spills
            else f"{self.serialised} warnings of serialised products"
            if self.serialised
            else ""
        )


def default_jobs() -> int:
    """Return the number of compilers to run: one a core, as far as memory permits."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(1, min(os.cpu_count() or 1, memory // MEMORY_OF_A_JOB))


Job = tuple[str, str | None, Mapping[str, Const]]  # a program's text, its kernel, consts


def compile_all(work: Sequence[Job], jobs: int | None = None, executor: Executor | None = None) -> Iterator[tuple[int, BuildResult]]:
    """Compile programs with settings, and yield (index, result) in the order of completion.

    jobs: number of processes (default: one a core, as far as memory permits). executor: where to compile instead.

    Raises: CuirError U503 or U504 if nothing can be compiled here.
    """
    if not work:
        return
    from ...runtime.nvcc import find_compiler, include_dir

    find_compiler()
    include_dir()
    tasks = [Task(str(i), build, (text, kernel, plain(consts))) for i, (text, kernel, consts) in enumerate(work)]
    with closing((executor or LocalExecutor(jobs or default_jobs())).run(tasks)) as results:
        for result in results:
            if result.error is not None:
                raise result.error
            yield int(result.key), read_build(result.value)


def read_build(data: Any) -> BuildResult:
    """Return a result of `build`."""
    return BuildResult(**{**data, "exponentials": tuple(data["exponentials"]), "warnings": tuple(data["warnings"])})


def build(text: str, kernel: str | None, consts: PlainConsts) -> Json:
    """Compile a program with a setting, as a task: into the cache of the machine that runs it."""
    from ...checking.checker import check
    from ...lowering import lower
    from ...runtime.nvcc import compile_cuda
    from ...syntax.parser import parse

    try:
        resources = compile_cuda(lower(check(parse(text), kernel, from_plain(consts)))).resources
    except CuirError as error:
        return asdict(BuildResult(refused=f"{error.diagnostics[0].code}: {error.diagnostics[0].message}"))
    spills, serialised = resources.spill_stores + resources.spill_loads, len(resources.serialised)
    found = BuildResult("", spills, serialised, resources.registers, resources.seconds, resources.exponentials, resources.warnings)
    return asdict(found)
