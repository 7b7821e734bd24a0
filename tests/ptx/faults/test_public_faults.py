"""Faults of public kernels, rebuilt small: found before their fix, where the fix is, and nothing behind it.

Each .cu of this folder is in our own words, after a public thread that is named here; -DFIXED adds the fix. A fault that
the thread reports of a later GPU stands here where it needs nothing that sm_90 lacks.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from cuir.cuda import KernelCall, LoadedModule, load, tensor_map
from cuir.text.diagnostics import Diagnostic
from cuir.text.source import Span
from cuir.verification.cuda_runs import CudaCheck

FOLDER = Path(__file__).parent
SCHEDULES = ("together", "first", "last", "random:1", "random:2")
pytestmark = pytest.mark.nvcc


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def zeros(*shape: int) -> torch.Tensor:
    return torch.zeros(*shape)


def integers(*shape: int) -> torch.Tensor:
    return torch.zeros(*shape, dtype=torch.int32)


@dataclass(frozen=True)
class Fault:
    """A public fault.

    Attributes:
        thread: Repository and number of the issue or pull request.
        what: What the thread says is wrong.
        codes: Findings, one of which each schedule has.
        launch: Launches that show it.
        expected: What the last argument of the last launch holds then; None where the fixed kernel's results are not of interest.
    """

    thread: str
    what: str
    codes: str
    launch: Callable[[], KernelCall | list[KernelCall]]
    expected: Callable[..., torch.Tensor] | None = None
    arch: str = "sm_90a"

    @property
    def name(self) -> str:
        return self.thread.rpartition("/")[2].replace(".cpp", "").replace("#", "_").replace("-", "_").lower()


def start_pair(
    first: str, second: str, middle: torch.Tensor, inputs: tuple[object, ...], out: torch.Tensor, grid: int, block: int
) -> list[KernelCall]:
    """Return a launch that writes `middle`, and one that reads it and may begin before the end of the first."""
    x = inputs[0]
    assert isinstance(x, torch.Tensor)
    return [
        KernelCall(grid, block, x, middle, kernel=first),
        KernelCall(grid, block, *inputs[1:], out, kernel=second, overlaps=True),
    ]


def quantise() -> list[KernelCall]:
    x, q, y = draw(2, 128), torch.zeros(2, 128, dtype=torch.int8), integers(2, 128)
    return start_pair("flashinfer_3361_quantise", "flashinfer_3361_multiply", q, (x, q), y, 2, 128)


def subtract_sums() -> list[KernelCall]:
    x, sums, listed, y = draw(2, 64, 32), zeros(2, 64), torch.tensor([1, 0], dtype=torch.int32), zeros(2, 64)
    return start_pair("flash_attention_2756_sums", "flash_attention_2756_subtract", sums, (x, x, sums, listed), y, 2, 64)


def visit_groups() -> KernelCall:
    x = draw(3, 16, 16)
    return KernelCall(1, 64, tensor_map(x[0], (8, 16)), torch.zeros(128, dtype=torch.uint8), x, zeros(3, 32), 3, 2)


FAULTS = [
    Fault(
        "NVIDIA/cutlass#3643",
        "arrivals at a peer's mbarrier have the scope of a CTA, and a peer's copy is never waited for",
        "R401",
        lambda: KernelCall(2, 64, torch.arange(128, dtype=torch.int32), integers(64)),
        lambda x, y: 2 * (x[:64] + x[64:]),
    ),
    Fault(
        "flashinfer-ai/flashinfer#2623",
        "a phase that nobody waits for: the kernel hangs (the report names a missing wait; where it lacks is our guess)",
        "D401",
        lambda: KernelCall(1, 96, draw(6, 64), draw(6, 64), zeros(2, 64), 2, 3),
    ),
    Fault(
        "flashinfer-ai/flashinfer#2957",
        "one slot between a thread that copies and those that read: a parity confuses two phases",
        "R401",
        lambda: KernelCall(1, 128, draw(3, 128), zeros(3, 128), 3),
        lambda x, y, n: x.flip(1),
    ),
    Fault("flashinfer-ai/flashinfer#3361", "ordinary stores, then copies of the dependent launch: no proxy fence", "R403", quantise),
    Fault("Dao-AILab/flash-attention#2756", "one way of the dependent launch lacks the wait for the launch before", "R402", subtract_sums),
    Fault(
        "Dao-AILab/flash-attention#2761",
        "roles unpack a word in two ways and disagree on whether there is work",
        "D401",
        lambda: KernelCall(2, 96, draw(4, 64), zeros(2, 64), torch.tensor([2 << 16, (2 << 16) + 1], dtype=torch.int32), 4),
    ),
    Fault(
        "tile-ai/tilelang#2613",
        "a tile of two warpgroups is filled anew while products read it",
        "R401",
        lambda: KernelCall(1, 256, draw(3, 4096).half().view(torch.int32), zeros(256), 3),
    ),
    Fault(
        "tile-ai/tilelang#2566",
        "in a loop of one step, bytes are announced and nobody arrives",
        "D401",
        lambda: KernelCall(1, 96, draw(64), zeros(64)),
        lambda x, y: 2 * x,
    ),
    Fault(
        "vllm-project/vllm#26026",
        "warps without work arrive at a named barrier twice before the others came once",
        "S406",
        lambda: KernelCall(1, 160, torch.tensor([0, 0, 3], dtype=torch.int32), integers(3), 3),
    ),
    Fault(
        "MoonshotAI/FlashKDA#25",
        "no proxy fence before the store of a state where the loop has no step",
        "R403",
        lambda: KernelCall(1, 64, draw(64), draw(64), 0),
    ),
    Fault(
        "deepseek-ai/DeepEP#657",
        "the wait for stores keeps one group too many: a copy overwrites what a store reads",
        "R401",
        lambda: KernelCall(1, 32, draw(5, 64), zeros(5, 64), 5),
        lambda x, y, n: x,
    ),
    Fault(
        "deepseek-ai/DeepEP#642",
        "a flag is polled, and a copy loads the numbers: no proxy fence",
        "R403",
        lambda: KernelCall(2, 64, draw(64), zeros(64), integers(1), zeros(64)),
    ),
    Fault(
        "deepseek-ai/DeepGEMM#343",
        "the tensor map of a group is written where copies of the group before may read it",
        "R402",
        visit_groups,
        lambda box, in_memory, x, y, groups, steps: x.reshape(groups, -1, 32).sum(1),
    ),
    Fault(
        "lablup/mlxcel#923",
        "the epilogue stores where cp.async of a last tile may land",
        "R401",
        lambda: KernelCall(1, 64, draw(3, 256), zeros(256), 3),
        arch="sm_80",
    ),
    Fault(
        "NVIDIA/Fuser#3438",
        "a barrier without cp.async.wait_all before it",
        "R401",
        lambda: KernelCall(1, (32, 4), draw(32), draw(4, 32), zeros(4, 32)),
        lambda w, x, y: w * x,
        arch="sm_80",
    ),
    Fault(
        "triton-lang/triton#11730",
        "no barrier of the cluster at the end: a CTA ends before a peer reads its memory",
        "R401",
        lambda: KernelCall(4, 32, integers(1) + 7, integers(128)),
    ),
    Fault(
        "ggml-org/llama.cpp#27870",
        "some warps come to a barrier more",
        "R401 M401",
        lambda: KernelCall(1, 256, draw(3, 256), zeros(3, 256), 3),
        arch="sm_80",
    ),
    Fault(
        "ggml-org/llama.cpp#28376",
        "lanes read what other lanes kept, with no __syncwarp between",
        "R401",
        lambda: KernelCall(1, 32, torch.arange(60, dtype=torch.int32) % 2, integers(60), 60, 1),
        arch="sm_80",
    ),
    Fault(
        "NVIDIA/cudnn-frontend#426",
        "one lane arrives for what all lanes of its warp stored",
        "R401",
        lambda: KernelCall(1, 96, draw(64), zeros(64)),
        lambda x, y: x.flip(0),
    ),
    Fault(
        "uccl-project/mKernel#18",
        "a store is waited for at a fixed step, which is too late for some lengths",
        "R401",
        lambda: KernelCall(1, 64, draw(3, 3, 64), zeros(3, 64), 3, 3),
    ),
    Fault(
        "inclusionAI/humming#56",
        "a multicast overwrites memory that the epilogue of the peer uses",
        "R401 D401",
        lambda: KernelCall(2, 64, draw(3, 64), zeros(6, 64), 3),
    ),
    Fault(
        "tile-ai/tilelang#2927",
        "the parity of a wait counts steps, and each step has its own mbarrier",
        "R401 D401",
        lambda: KernelCall(1, 64, draw(4, 64), zeros(4, 64)),
        lambda x, y: x.flip(1),
    ),
    Fault(
        "risc0/risc0#3803",
        "the grid is rounded up, and no bound is checked",
        "M402",
        lambda: KernelCall(1, 128, integers(90), 90),
        arch="sm_80",
    ),
    Fault(
        "gittensor-ai-lab/sparkinfer#705",
        "the next token's sums overwrite those that warps read",
        "R401",
        lambda: KernelCall(1, 128, draw(3, 128), zeros(3, 128), 3),
        arch="sm_80",
    ),
    Fault(
        "ggml-org/llama.cpp#28358",
        "lanes beyond the row write zeros over its scales",
        "R401",
        lambda: KernelCall(1, 32, draw(64), zeros(64)),
        arch="sm_80",
    ),
    Fault(
        "Dao-AILab/quack#146",
        "a named barrier counts one loading warp, where four arrive",
        "R401 D401",
        lambda: KernelCall(1, 160, draw(128), zeros(128)),
        lambda x, y: x.flip(0),
    ),
]


@functools.cache
def compile_fault(name: str, arch: str, fixed: bool) -> LoadedModule:
    return load(FOLDER / f"{name}.cu", arch=arch, defines={"FIXED": ""} if fixed else {})


def check(fault: Fault, schedule: str, fixed: bool) -> tuple[Diagnostic, ...]:
    return CudaCheck(compile_fault(fault.name, fault.arch, fixed), fault.launch).run([schedule]).findings


def list_spans(d: Diagnostic) -> Iterator[Span]:
    """The places that a finding shows, and the calls that they were inlined through."""
    for span in (d.span, *(n.span for n in d.notes)):
        while span is not None:
            yield span
            span = span.via


def find_fix(name: str) -> set[int]:
    """The lines that -DFIXED changes, each with the line before it and the line behind it."""
    lines = (FOLDER / f"{name}.cu").read_text(encoding="utf-8").splitlines()
    found: set[int] = set()
    start = 0
    for number, line in enumerate(lines, 1):
        if line.startswith(("#ifdef FIXED", "#ifndef FIXED")):
            start = number
        if line.startswith("#endif"):
            found |= set(range(start - 1, number + 2))
    return found


@pytest.mark.sweep
@pytest.mark.parametrize("fault", FAULTS, ids=[f.thread for f in FAULTS])
def test_a_public_fault_is_found_where_its_fix_is_under_every_schedule(fault: Fault) -> None:
    fix = find_fix(fault.name)
    assert fix
    for schedule in SCHEDULES:
        found = [d for d in check(fault, schedule, fixed=False) if d.code in fault.codes]
        assert found, schedule
        told = {s.line for d in found for s in list_spans(d) if s.source.name == f"{fault.name}.cu"}
        assert told & fix, (schedule, told, fix)


@pytest.mark.sweep
@pytest.mark.parametrize("fault", FAULTS, ids=[f.thread for f in FAULTS])
def test_nothing_is_found_behind_the_fix(fault: Fault) -> None:
    for schedule in SCHEDULES:
        assert not check(fault, schedule, fixed=True), schedule


RESULTS = [f for f in FAULTS if f.expected is not None]


@pytest.mark.sweep
@pytest.mark.parametrize("fault", RESULTS, ids=[f.thread for f in RESULTS])
def test_the_fixed_kernel_computes_what_it_should(fault: Fault) -> None:
    call = fault.launch()
    assert isinstance(call, KernelCall) and fault.expected is not None
    tensors = [a for a in call.arguments if isinstance(a, torch.Tensor)]
    before = [a.clone() if isinstance(a, torch.Tensor) else a for a in call.arguments]
    kernel = compile_fault(fault.name, fault.arch, True).choose(None)
    kernel(call.grid, call.block, *call.arguments, schedule="random:3")
    torch.testing.assert_close(tensors[-1], fault.expected(*before).to(tensors[-1].dtype))


def test_the_page_lists_each_fault() -> None:
    page = (FOLDER.parents[2] / "docs" / "cuda.md").read_text(encoding="utf-8")
    assert [f.thread for f in FAULTS if f"{f.thread}" not in page] == []
