"""Kernels of a CUDA or PTX file, called with tensors of the CPU, and the report of what ran."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from ...runtime.garbage_collection import without_collections
from ...text.diagnostics import CuirError, Diagnostic
from ...text.source import Source
from ..machine.findings import Findings
from ..machine.knowledge import Knowledge
from ..machine.lane_machine import SCHEDULES, Launch, Machine, SharedState
from ..machine.program import GLOBAL_BASE, Program, make_symbols
from ..module import Function, Module, read_module
from .compile_ptx import Build, choose_kernel, compile_to_ptx
from .device_memory import (
    Allocation,
    find_span,
    make_constants,
    make_memory,
    make_shadow,
    make_state,
    pack_parameters,
    place_tensors,
    place_variables,
)
from .earlier_stores import EarlierLaunch, mark_earlier_stores
from .structs import Argument, fill_structs, list_inner_tensors
from .tensor_maps import TensorMap

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
        warnings: What the manual asks for and no card that we know of needs.
    """

    kernel: str
    ctas: int
    schedule: str
    instructions: int
    lane_instructions: int
    coverage: float
    findings: tuple[Diagnostic, ...]
    warnings: tuple[Diagnostic, ...] = ()

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
        self.programs: dict[str, Program] = {}
        self.reset()

    def reset(self) -> None:
        """Give the variables in global memory the values that they have before the first launch."""
        self.state = make_state(self.module, self.symbols)

    @property
    def names(self) -> list[str]:
        """The mangled names of the kernels."""
        return [f.name for f in self.module.functions.values() if f.is_entry]

    def __getitem__(self, name: str) -> LoadedKernel:
        return self.choose(name)

    def choose(self, name: str | None) -> LoadedKernel:
        """Return a kernel by its name or a part of it; None for the only one. Raises CuirError O122, O124."""
        return LoadedKernel(self, name if name in self.names else choose_kernel(self.names, name, self.path)[0])

    def __repr__(self) -> str:
        return f"LoadedModule({self.path.name}: {', '.join(self.names)[:150]})"

    def find_program(self, kernel: str) -> Program:
        """Return a kernel, bound once. Raises CuirError O123 for an instruction that is not known."""
        if kernel not in self.programs:
            self.programs[kernel] = Program(self.module, kernel, self.symbols)
        return self.programs[kernel]


class KernelCall:
    """Launch of a kernel as `KernelCall(grid, block, *arguments, shared=BYTES)`; what it holds may run several times.

    Attributes:
        grid: CTAs along x, y, z.
        block: Threads of a CTA along x, y, z.
        arguments: Tensors for pointers, numbers, `Struct` or bytes for structs; None is a null pointer.
        shared: Bytes of dynamic shared memory.
        cluster: CTAs of a cluster along x, y, z, where the kernel does not state them.
        kernel: Name of the kernel, where the file has several.
        overlaps: Whether it may begin before the end of the launch before it (programmatic dependent launch).
    """

    def __init__(
        self,
        grid: Extent,
        block: Extent,
        *arguments: Argument,
        shared: int = 0,
        cluster: Extent | None = None,
        kernel: str | None = None,
        overlaps: bool = False,
    ):
        self.grid, self.block, self.cluster, self.overlaps = _extend(grid), _extend(block), cluster, overlaps
        self.arguments, self.shared, self.kernel = arguments, shared, kernel

    def __repr__(self) -> str:
        return f"KernelCall({self.grid}, {self.block}, {len(self.arguments)} arguments, shared={self.shared})"


@dataclass(frozen=True)
class PlacedCall:
    """Launch whose parameters and allocations are in place.

    Attributes:
        parameters: Their bytes.
        size: Bytes of global memory.
    """

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared: int
    cluster: Extent | None
    parameters: bytes
    allocations: tuple[Allocation, ...]
    size: int


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
            grid, block, arguments, shared, cluster: As of `KernelCall`.
            schedule: "together", "first", "last", or "random:SEED"; it replays a run.
            detect: Whether races and reads of unwritten memory are found.
        """
        run = KernelRun(self, KernelCall(grid, block, *arguments, shared=shared, cluster=cluster), schedule, detect)
        try:
            run.execute()
        except CuirError:
            if raises or not run.findings.diagnostics:
                raise
        if run.findings.diagnostics and raises:
            raise CuirError(run.findings.diagnostics)
        return run.make_report()


class KernelRun:
    """A launch in the machine, whose findings can be read at any time: also behind an interruption.

    Attributes:
        program: The kernel.
        findings: Broken rules so far.
    """

    def __init__(self, kernel: LoadedKernel, call: KernelCall | PlacedCall, schedule: str = "together", detect: bool = True):
        """Place arguments in memory. Raises CuirError U111, U401 for what does not fit, O123 for an unknown instruction."""
        module, name = kernel.module, kernel.name
        function = module.module.functions[name]
        if schedule.partition(":")[0] not in SCHEDULES:
            raise CuirError.of("U111", f"no such schedule: {schedule!r}", None, "together, first, last, random:SEED")
        threads = int(np.prod(call.block))
        if function.threads is not None and threads > int(np.prod(function.threads)):
            raise CuirError.of("U401", f"`{name}` takes at most {int(np.prod(function.threads))} threads a CTA, found {threads}")
        self.name, self.program, self.schedule = name, module.find_program(name), schedule
        variables = place_variables(module.module, self.program.named, module.symbols, module.state)
        self.arguments: tuple[Argument, ...] = ()
        self.addresses: list[int] = []
        placed = (
            call if isinstance(call, PlacedCall) else self._place(function, call, max((a.start + a.size for a in variables), default=0))
        )
        cluster = choose_cluster(function, call.grid, call.cluster)
        self.launch = Launch(call.grid, call.block, call.shared, placed.parameters, schedule, detect, cluster)
        self.allocations = [*variables, *placed.allocations]
        knowledge: list[Knowledge] = []
        self.memory = make_memory(self.allocations, placed.size, make_shadow(placed.size, knowledge))
        constants = make_constants(module.module, module.symbols, module.state)
        self.findings = Findings(f'schedule="{schedule}", grid {call.grid}, block {call.block}')
        source = Source(f"{module.path.name} (PTX)", module.module.text)
        self.state = SharedState(self.memory, constants, self.findings, source, knowledge)
        self.ctas, self.width = int(np.prod(call.grid)), -(-threads // 32) * 32

    def _place(self, function: Function, call: KernelCall, first: int) -> PlacedCall:
        """Place tensors behind the variables, and pack the arguments. Raises CuirError U401."""
        inner = list_inner_tensors(call.arguments)
        self.arguments = (*call.arguments, *inner)
        names = [*(v.name for v in function.parameters), *["?"] * len(self.arguments)]
        tensors, self.addresses, size = place_tensors(self.arguments, names, first)
        arguments = fill_structs(call.arguments, self.addresses[len(call.arguments) :])
        packed = pack_parameters(function, arguments, self.addresses)
        return PlacedCall(call.grid, call.block, call.shared, call.cluster, packed, tuple(tensors), size)

    def overlap(self, earlier: KernelRun) -> None:
        """Let this launch begin before the end of an earlier one, whose stores its threads must wait for."""
        mark_earlier_stores(self.state, self.allocations, EarlierLaunch(earlier.program, earlier.state, earlier.allocations))

    def execute(self, progress: Callable[[float], None] = lambda share: None) -> None:
        """Run all CTAs; tensors take what they wrote. Raises CuirError with all findings if the run cannot go on.

        progress: takes the share of the CTAs that have run.
        """
        try:
            self._run_machines(self.launch, self.state, progress)
            if self.findings.doubtful and not self._depends_on_unwritten():
                self.findings.drop_doubtful()
        finally:
            for a in self.allocations:
                self.memory.keep(a)

    def execute_some(self, parts: Sequence[range]) -> None:
        """Run some CTAs alone, for a kernel whose CTAs do not wait for each other; otherwise as `execute`."""
        try:
            with np.errstate(all="ignore"):
                for part in parts:
                    Machine(self.program, self.launch, part, self.state).run()
            self.findings.drop_doubtful()  # all CTAs would have to run to tell
        finally:
            for a in self.allocations:
                self.memory.keep(a)

    def find_written(self, a: Allocation) -> np.ndarray:
        """Return which bytes of an allocation the kernel has written, as 0 and 1. The launch must detect."""
        shadow = self.memory.shadow
        assert shadow is not None
        entries = shadow.written[shadow.find_span(a.start, a.size)] > 0
        return np.repeat(entries, 1 << shadow.shift)[: a.size]

    def _run_machines(self, launch: Launch, state: SharedState, progress: Callable[[float], None]) -> None:
        """Run the CTAs, as many at once as a machine takes."""
        cluster = int(np.prod(launch.cluster))
        step = max(1, MOST_THREADS // (self.width * cluster)) * cluster
        with np.errstate(all="ignore"), without_collections():
            for first in range(0, self.ctas, step):
                progress(first / self.ctas)
                Machine(self.program, launch, range(first, min(first + step, self.ctas)), state).run()

    def _depends_on_unwritten(self) -> bool:
        """Return whether the kernel writes something else if other bytes lie in shared memory that nothing has written.

        Kernels compute rows beyond the end of a tensor from what lies there, and leave the results out.
        """
        knowledge: list[Knowledge] = []
        memory = make_memory(self.allocations, self.memory.size, make_shadow(self.memory.size, knowledge))
        state = SharedState(memory, self.state.constants, Findings(), self.state.ptx_source, knowledge, fill=1)
        try:
            self._run_machines(replace(self.launch, detect=False), state, lambda share: None)
        except CuirError:
            return True
        return not np.array_equal(memory.bytes, self.memory.bytes)

    def list_written(self) -> list[int]:
        """Return the arguments, by their index, that are tensors of which the kernel wrote an element.

        Tensors of structs stand behind the arguments. The launch must detect.
        """
        shadow, written = self.memory.shadow, list[int]()
        assert shadow is not None
        for index, (value, address) in enumerate(zip(self.arguments, self.addresses)):
            tensor = value.tensor if isinstance(value, TensorMap) else value
            if isinstance(tensor, torch.Tensor) and tensor.numel():
                low, high = find_span(tensor)
                first = address - GLOBAL_BASE
                if (shadow.written[shadow.find_span(first, high - low)] > 0).any():
                    written.append(index)
        return written

    def list_ran(self) -> set[int]:
        """Return the instructions, by their numbers in the program, that ran."""
        blocks = (self.program.blocks[n] for n in self.state.counts.ran)
        return {i for b in blocks for i in range(b.first, b.last)}

    def make_report(self) -> Report:
        """Make the report of what ran."""
        counts, ran = self.state.counts, self.list_ran()
        share = len(ran) / max(1, len(self.program.instructions))
        told = tuple(self.findings.diagnostics), tuple(self.findings.warnings)
        return Report(self.name, self.ctas, self.schedule, counts.instructions, counts.lanes, share, *told)


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
    instantiate: str = "",
) -> LoadedModule:
    """Load a CUDA source, which nvcc compiles for an architecture, or a PTX file.

    Raises CuirError U503, U504 (nothing to compile with), O121 (nvcc refuses the source), O123 (unreadable PTX).

    Args:
        path: A .cu file with an architecture, or a .ptx file.
        arch: Name of the architecture, as nvcc's -arch takes it.
        include: Folders of headers.
        defines: Macros.
        flags: Further flags of nvcc.
        instantiate: Text to append to the source, such as an explicit instantiation of a template.
    """
    place = Path(path)
    if place.suffix == ".ptx":
        return LoadedModule(read_module(place.read_text(encoding="utf-8")), place)
    if arch is None:
        raise CuirError.of("U401", f"`{place.name}` is compiled for an architecture: name it by arch=")
    build = Build(arch, tuple(str(i) for i in include), defines or {}, instantiate=instantiate, flags=tuple(flags))
    return LoadedModule(read_module(compile_to_ptx(place, build)), place)
