"""A build of a hanging kernel whose waits give up after some seconds and report where they were.

The places are lines of the program. A wait of a named barrier, a join of a CTA and a loop without end are not watched.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

import torch

from ..arguments.binding import Argument
from ..lowering import Cuda
from ..lowering.targets import target_of
from ..text.diagnostics import CuirError
from ..text.source import Span
from .nvcc import compile_cuda

RECORDS, WORDS = 256, 4
# One line, as the text that it replaces, so that the line map holds. Each warp reports once; the first to trap would
# silence the others, so all wait for them.
_WAIT = """
extern "C" { __device__ unsigned long long* cuir_reports; __device__ unsigned cuir_reported; }
DEV unsigned long long nanoseconds() { unsigned long long t; asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t)); return t; }
DEV void give_up(uint64_t* bar, int parity, int line, unsigned long long begin) {
  if (int(threadIdx.x % 32) == __ffs(__activemask()) - 1) {
    const unsigned n = atomicAdd(&cuir_reported, 1u);
    if (n < RECORDSu) {
      volatile unsigned long long* r = cuir_reports + n * WORDSu;
      r[1] = (unsigned long long)(blockIdx.x) << 32 | threadIdx.x; r[2] = *(volatile unsigned long long*)bar; r[3] = parity; r[0] = line;
      __threadfence_system();
    }
  }
  while (nanoseconds() - begin < 3 * LIMITull) {}
  __trap();
}
DEV void wait(uint64_t* bar, int parity, int line = __builtin_LINE()) {
  const unsigned long long begin = nanoseconds();
  while (!Bar::try_wait(bar, parity)) { if (nanoseconds() - begin > LIMITull) give_up(bar, parity, line, begin); }
  asm volatile("" ::: "memory");
}
"""
_WAIT_CLUSTER = """
DEV void wait_cluster(uint64_t* bar, int parity, int line = __builtin_LINE()) {
  const unsigned long long begin = nanoseconds();
  while (!try_wait_cluster(bar, parity)) { if (nanoseconds() - begin > LIMITull) give_up(bar, parity, line, begin); }
}
"""
_WATCHED = {"wait": _WAIT, "wait_cluster": _WAIT_CLUSTER}  # device functions of the target -> replacements


@dataclass(frozen=True)
class Stuck:
    """A warp whose wait did not end.

    line: of the CUDA text. parity: that it waits for; state: the 64 bits of the mbarrier, whose layout is the
    hardware's.
    """

    line: int
    cta: int
    thread: int
    parity: int
    state: int

    def as_json(self) -> dict[str, int]:
        return asdict(self)


def add_watchdog(cuda: Cuda, seconds: float) -> Cuda:
    """Return the kernel with waits on mbarriers that give up after `seconds`.

    Raises CuirError L002 for a kernel without such waits.
    """
    original_texts = {name: part.text for name, part in target_of(cuda.arch).all_parts.items() if name in _WATCHED}
    if not any(text in cuda.source for text in original_texts.values()):
        raise CuirError.of("L002", f"`{cuda.name}` waits on no mbarrier", cuda.checked.origin.span)
    source = cuda.source
    for name, text in original_texts.items():
        replacement = _WATCHED[name].replace("RECORDS", str(RECORDS)).replace("WORDS", str(WORDS)).replace("LIMIT", str(int(seconds * 1e9)))
        source = source.replace(text, " ".join(replacement.split("\n")).strip(), 1)
    return replace(cuda, source=source)


def find_hang(cuda: Cuda, arguments: Mapping[str, Argument], seconds: float = 2.0) -> list[Stuck]:
    """Launch the kernel, on tensors of a GPU, with waits that give up after `seconds`.

    Returns the warps whose waits did not end, none if the kernel ended. The context is lost if a wait gave up: for a
    separate process.
    """
    from .compiled_kernel import CompiledKernel
    from .driver_api import require_success
    from .launch import Launcher
    from .loader import DriverKernel

    kernel = CompiledKernel(compile_cuda(add_watchdog(cuda, seconds)))
    device = next(v.device for v in arguments.values() if isinstance(v, torch.Tensor))
    launcher = kernel._launchers[device] = Launcher(kernel.compiled, device)
    reports = torch.zeros(RECORDS, WORDS, dtype=torch.int64, pin_memory=True)  # on the host: outlives the context
    watched_kernel = launcher.kernel
    assert isinstance(watched_kernel, DriverKernel)
    place, pointer = (
        require_success(cuda, watched_kernel.cu.cuModuleGetGlobal(watched_kernel.module, b"cuir_reports")),
        ctypes.c_uint64(reports.data_ptr()),
    )
    require_success(cuda, watched_kernel.cu.cuMemcpyHtoD(place, pointer, ctypes.sizeof(pointer)))
    try:
        kernel.launch(arguments)
        torch.cuda.synchronize()
    except RuntimeError:  # the trap
        records = [r for r in reports.tolist() if r[0]]
        return [
            Stuck(line, cta_and_thread >> 32, cta_and_thread & 0xFFFFFFFF, parity, state & (1 << 64) - 1)
            for line, cta_and_thread, state, parity in records
        ]
    return []


def describe_stuck(stuck: list[Stuck], line_map: Mapping[int, Span], otherwise: Span) -> list[tuple[str, Span]]:
    """Describe the waiting warps by place, the most frequent first.

    `otherwise` is the place where tiles are handed out, which has no line in the map.
    """
    places: dict[tuple[Span, int], list[Stuck]] = {}
    for s in stuck:
        places.setdefault((line_map.get(s.line, otherwise), s.parity), []).append(s)
    parts = []
    for (span, parity), warps in sorted(places.items(), key=lambda item: -len(item[1])):
        example = warps[0]
        subject = f"{len(warps)} warps wait here" if len(warps) > 1 else "a warp waits here"
        for_tile = ", for the next tile" if span == otherwise else ""
        parts.append(
            (
                f"{subject}{for_tile}, for the end of a phase of parity {parity}: threads from {example.thread} on in CTA {example.cta}, mbarrier state {example.state:#018x}",
                span,
            )
        )
    return parts
