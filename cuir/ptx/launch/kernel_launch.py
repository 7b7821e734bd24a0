"""Kernels of a CUDA or PTX file, called with tensors of the CPU, and the report of what ran."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...text.diagnostics import CuirError, Diagnostic
from ...text.source import Source
from ..machine.findings import Findings
from ..machine.knowledge import Knowledge
from ..machine.lane_machine import SCHEDULES, Counts, Launch, Machine, SharedState
from ..machine.program import Program, make_symbols
from ..module import Function, Module, read_module
from .compile_ptx import Build, choose_kernel, compile_to_ptx
from .device_memory import make_constants, make_memory, make_shadow, make_state, pack_parameters, place_tensors, place_variables
from .structs import Argument, fill_structs, list_inner_tensors

MOST_CTAS = 16  # of a cluster
MOST_THREADS = 1 << 15  # threads that run together; the CTAs of a larger grid run in batches
Extent = int | Sequence[int]


@dataclass(frozen=True)
class Report:
    """What a launch ran, and what it found.

    Attributes:
        ctas: CTAs that ran.
        instructions: Instructions that ran, each for a set of threads; `lane_instructions` counts the threads.
        coverage: Share of the kernel's instructions that ran; what did not run is not judged.
        findings: Broken rules.
    """

    kernel: str
    ctas: int
    schedule: str
    instructions: int
    lane_instructions: int
    coverage: float
    findings: tuple[Diagnostic, ...]

    def __bool__(self) -> bool:
        return not self.findings

    def __repr__(self) -> str:
        found = f"{len(self.findings)} findings" if self.findings else "nothing found"
        return f"Report({self.kernel}: {self.ctas} CTAs under {self.schedule}, {self.lane_instructions:,} lane instructions, {self.coverage:.0%} of the code; {found})"


class LoadedModule:
    """The kernels of a file; `module["name"]` is one of them.

    Variables in global memory keep their values from launch to launch.
    """

    def __init__(self, module: Module, path: Path):
        self.module, self.path = module, path
        in_global, in_const = make_symbols(list(module.variables.values()))
        self.symbols = in_global | in_const
        self.state = make_state(module, self.symbols)
        self.programs: dict[str, Program] = {}

    @property
    def names(self) -> list[str]:
        """The mangled names of the kernels."""
        return [f.name for f in self.module.functions.values() if f.is_entry]

    def __getitem__(self, name: str) -> LoadedKernel:
        mangled = name if name in self.names else choose_kernel(self.names, name, self.path)[0]
        return LoadedKernel(self, mangled)

    def __repr__(self) -> str:
        return f"LoadedModule({self.path.name}: {', '.join(self.names)[:150]})"

    def find_program(self, kernel: str) -> Program:
        """Return a kernel, bound once. Raises CuirError O123 for an instruction that is not known."""
        if kernel not in self.programs:
            self.programs[kernel] = Program(self.module, kernel, self.symbols)
        return self.programs[kernel]


@dataclass(frozen=True)
class LoadedKernel:
    """A kernel that is called as `kernel(grid, block, *arguments)`."""

    module: LoadedModule
    name: str

    def __call__(
        self,
        grid: Extent,
        block: Extent,
        *arguments: Argument,
        shared: int = 0,
        schedule: str = "together",
        detect: bool = True,
        raises: bool = True,
        cluster: Extent | None = None,
    ) -> Report:
        """Run the kernel; tensors take what it writes.

        Raises CuirError with all findings, if there are any. Without `raises` the report holds them.

        Args:
            grid: CTAs along x, y, z.
            block: Threads of a CTA along x, y, z.
            arguments: Tensors for pointers, numbers, `Struct` or bytes for structs; None is a null pointer.
            shared: Bytes of dynamic shared memory.
            schedule: "together", "first", "last", or "random:SEED"; it replays a run.
            detect: Whether races and reads of unwritten memory are found.
            cluster: CTAs of a cluster along x, y, z, where the kernel does not state them.
        """
        function = self.module.module.functions[self.name]
        sizes = _extend(grid), _extend(block)
        if schedule.partition(":")[0] not in SCHEDULES:
            raise CuirError.of("U111", f"no such schedule: {schedule!r}", None, "together, first, last, random:SEED")
        threads = int(np.prod(sizes[1]))
        if function.threads is not None and threads > int(np.prod(function.threads)):
            raise CuirError.of("U401", f"`{self.name}` takes at most {int(np.prod(function.threads))} threads a CTA, found {threads}")
        program = self.module.find_program(self.name)
        variables = place_variables(self.module.module, self.module.symbols, self.module.state)
        end = max((a.start + a.size for a in variables), default=0)
        names = [v.name for v in function.parameters] + ["?"] * len(arguments)
        inner = list_inner_tensors(arguments)
        tensors, addresses, size = place_tensors([*arguments, *inner], [*names, *["?"] * len(inner)], end)
        parameters = pack_parameters(function, fill_structs(arguments, addresses[len(arguments) :]), addresses)
        launch = Launch(*sizes, shared, parameters, schedule, detect, choose_cluster(function, sizes[0], cluster))
        knowledge: list[Knowledge] = []
        memory = make_memory([*variables, *tensors], size, make_shadow(size, knowledge))
        constants = make_constants(self.module.module, self.module.symbols, self.module.state)
        findings = Findings(f'schedule="{schedule}", grid {sizes[0]}, block {sizes[1]}')
        source = Source(f"{self.module.path.name} (PTX)", self.module.module.text)
        state = SharedState(memory, constants, findings, source, knowledge)
        count, width = int(np.prod(sizes[0])), -(-threads // 32) * 32
        ctas = int(np.prod(launch.cluster))
        step = max(1, MOST_THREADS // (width * ctas)) * ctas
        try:
            with np.errstate(all="ignore"):
                for first in range(0, count, step):
                    Machine(program, launch, range(first, min(first + step, count)), state).run()
        except CuirError:
            if raises or not findings.diagnostics:
                raise
        for a in (*variables, *tensors):
            if a.host is not None and a.host.flags.writeable:
                a.host[:] = memory.bytes[a.start : a.start + a.size]
        if findings.diagnostics and raises:
            raise CuirError(findings.diagnostics)
        return _make_report(self.name, program, count, schedule, state.counts, findings)


def _make_report(name: str, program: Program, ctas: int, schedule: str, counts: Counts, findings: Findings) -> Report:
    """Make the report of a launch."""
    ran = sum(program.blocks[n].last - program.blocks[n].first for n in counts.ran)
    share = ran / max(1, len(program.instructions))
    return Report(name, ctas, schedule, counts.instructions, counts.lanes, share, tuple(findings.diagnostics))


def choose_cluster(function: Function, grid: tuple[int, int, int], asked: Extent | None) -> tuple[int, int, int]:
    """Return the CTAs of a cluster. Raises CuirError U401 if they are not those of the kernel, or do not divide the grid."""
    cluster = _extend(asked) if asked is not None else function.cluster or (1, 1, 1)
    if function.cluster not in (None, cluster):
        raise CuirError.of("U401", f"`{function.name}` runs in clusters of {function.cluster}, found {cluster}")
    if int(np.prod(cluster)) > MOST_CTAS or any(g % c for g, c in zip(grid, cluster)):
        raise CuirError.of("U401", f"a cluster has at most {MOST_CTAS} CTAs and divides the grid, found {cluster} of {grid}")
    return cluster


def _extend(size: Extent) -> tuple[int, int, int]:
    """Return a size along x, y, z. Raises CuirError U401 if it has no or too many numbers."""
    numbers = (size,) if isinstance(size, int) else tuple(int(n) for n in size)
    if not 1 <= len(numbers) <= 3 or min(numbers) < 1:
        raise CuirError.of("U401", f"a grid or block has one to three positive sizes, found {size}")
    x, y, z = (*numbers, 1, 1)[:3]
    return x, y, z


def load(
    path: str | Path,
    arch: str | None = None,
    include: Sequence[str | Path] = (),
    defines: Mapping[str, str] | None = None,
    flags: Sequence[str] = (),
) -> LoadedModule:
    """Load a CUDA source, which nvcc compiles for an architecture, or a PTX file.

    Raises CuirError U503, U504 (nothing to compile with), O121 (nvcc refuses the source), O123 (unreadable PTX).

    Args:
        path: A .cu file with an architecture, or a .ptx file.
        arch: Name of the architecture, as nvcc's -arch takes it.
        include: Folders of headers.
        defines: Macros.
        flags: Further flags of nvcc.
    """
    place = Path(path)
    if place.suffix == ".ptx":
        return LoadedModule(read_module(place.read_text(encoding="utf-8")), place)
    if arch is None:
        raise CuirError.of("U401", f"`{place.name}` is compiled for an architecture: name it by arch=")
    build = Build(arch, tuple(str(i) for i in include), defines or {}, flags=tuple(flags))
    return LoadedModule(read_module(compile_to_ptx(place, build)), place)
