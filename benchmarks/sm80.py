"""The kernels for sm_80 and sm_75, beside FlashAttention-2, FlexAttention and FlashInfer, on any GPU from sm_80 on.

    python -m benchmarks.sm80                                           # full and causal, d 64 to 256, 1k to 16k, 16k tokens in all
    python -m benchmarks.sm80 --backward                                # gradients of flex_attention beside those of FlashAttention-2
    python -m benchmarks.sm80 --rules                                   # masks and scores beside FlexAttention for sm_80, 8k keys
    python -m benchmarks.sm80 --decode                                  # few queries over caches in pages, beside FlashInfer
    python -m benchmarks.sm80 --packed                                  # packed sequences, beside FlashInfer and FlashAttention-2
    python -m benchmarks.sm80 --latent                                  # decoding over latent vectors (MLA), beside FlashInfer
    python -m benchmarks.sm80 --decode --arch sm_75                     # kernels for sm_75; --packed and --latent, too
    python -m benchmarks.sm80 --dims 128 --settings BN=64,STAGES=2 BN=64,STAGES=1 --peers fa2
    python -m benchmarks.sm80 --table rows.jsonl                        # no GPU: the table of what was measured

Settings are the first of `flash_fwd_sm80.tune.json` for the head dim unless some are named; above 128, tiles of equal
work (no mask) are dealt out statically, which is faster there. Contenders take turns, with a cold L2 cache before each
call (cuir/performance/timing/timing_protocol.py); results are compared with float64. TFLOP/s count 4 D operations for
each unmasked pair, 10 D of a backward pass. FlashAttention-2 is PyTorch's: scaled_dot_product_attention restricted to it.

With --backward and --rules ours is what a call of cuir.flex_attention runs, with CUIR_ARCH=sm_80. FlexAttention for
sm_80 is PyTorch's compiled for features of that architecture: Triton is told so by TRITON_OVERRIDE_ARCH, and ptxas
assembles the result, whose products are mma.sync, for the card. Its tiles are those that PyTorch chooses for the card.

--decode and --packed are cells of the suites of `cuir bench decode` and `varlen`, with CUIR_ARCH=sm_80. FlashInfer's
kernels for sm_80 are its backend fa2, compiled with FLASHINFER_CUDA_ARCH_LIST=8.0; for a newer card
FLASHINFER_NVCC names a command that calls nvcc with `code=sm_80` replaced by the card's, so that the code is still
compute_80's. GB/s are of the keys and values. For sm_75 these are 7.5 and `code=sm_75`. --latent has our kernel for
Hopper, too, where the card runs it.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch

import corpus
import cuir
from benchmarks import newest_peers
from benchmarks.head_dims import rows_of
from benchmarks.old_and_new import as_they_come
from cuir.attn.capture.capture_keys import make_capture_key
from cuir.attn.kernels.attention_kernel import make_attention
from cuir.attn.kernels.card_kernels import VARIABLE, KernelTarget, Kind, choose_target, find_arch
from cuir.attn.kernels.experts import Form
from cuir.attn.serving.per_sequence import rule
from cuir.checking.checked import Const
from cuir.performance.search.space import Space, label
from cuir.performance.suites import results
from cuir.performance.suites.cell_benchmark import OURS, Timing
from cuir.performance.suites.cell_benchmark import Cell as ServedCell
from cuir.performance.suites.contest import contest
from cuir.performance.suites.decode_suite import SECONDS, measure_decode
from cuir.performance.suites.packed_suite import DOCUMENTS, measure_varlen
from cuir.performance.suites.result_rows import Entry
from cuir.performance.timing.gpu import versions
from cuir.performance.timing.problem import Shape
from cuir.performance.timing.timing_protocol import median_ms, time_in_turns
from cuir.runtime.compiled_kernel import CompiledKernel
from cuir.spec.specification import Lengths, Specification
from cuir.syntax.types import F16

NAME, ARCH, TURING = "flash_fwd_sm80", "sm_80", "sm_75"
SERVED = ((32, 32), (64, 8))  # heads, key heads
CACHES = {1: (1024, 8192, 32768, 131072), 16: (1024, 4096, 32768), 128: (1024, 4096, 16384)}  # keys, by the batch
LATENTS = ((1, 128, 8192), (128, 128, 4096), (128, 16, 8192))  # batch, heads, vectors of each sequence
MOST_KEYS = 1 << 24  # of all key heads of a cell: 8 GB
DIMS, LENGTHS, MASKS = (64, 96, 128, 256), (1024, 4096, 16384), ("full", "causal")
PEERS = ("fa2", "flex")
TOKENS, OFF = 16384, 3e-3  # of a call; relative error of the rows that are looked at
Setting = Mapping[str, Const]
Row = dict[str, object]


class Cell(NamedTuple):
    """A head dim, a length and a mask."""

    dim: int
    length: int
    mask: str

    @property
    def heads(self) -> int:
        """Query and key heads."""
        return 32 if self.dim <= 128 else 16

    @property
    def tflop(self) -> float:
        """Operations for the unmasked pairs, in units of 10^12."""
        pairs = self.length * (self.length + 1) // 2 if self.mask == "causal" else self.length**2
        return 4e-12 * self.dim * pairs * self.heads * max(1, TOKENS // self.length)


def parse_setting(text: str) -> Setting:
    """Parse `BN=64,STAGES=2`."""
    return {name: json.loads(value.lower()) for name, _, value in (item.partition("=") for item in text.split(","))}


def choose_settings(dim: int, mask: str) -> list[Setting]:
    """Return the first setting of the kernel's space for a head dim, with the order of units that suits the mask."""
    program = cuir.parse(corpus.kernels()[NAME].read_text(encoding="utf-8"), f"{NAME}.cuir")
    space = Space.parse(corpus.spaces()[NAME].read_text(encoding="utf-8"), f"{NAME}.tune.json")
    start = space.restrict(program, None).narrow({"T": F16, "D": dim, "DV": dim}).starts[0]
    return [{**{n: v for n, v in start.items() if n not in ("D", "DV")}, "DYNAMIC": mask != "full" or dim <= 128}]


def compile_kernel(mask: str, dim: int, setting: Setting) -> CompiledKernel | str:
    """Compile the kernel for a mask, or return why it cannot be."""
    program = cuir.parse(corpus.kernels()[NAME].read_text(encoding="utf-8"), f"{NAME}.cuir")
    try:
        return cuir.compile(cuir.transfer(program, corpus.variant(mask)()).program, consts={"T": F16, "D": dim, **setting})
    except cuir.CuirError as error:
        return str(error)


def warm_cache(mask: str, dim: int, setting: Setting) -> str:
    """Compile a kernel into the cache, and describe its resources."""
    kernel = compile_kernel(mask, dim, setting)
    return kernel if isinstance(kernel, str) else kernel.compiled.resources.summary()


def make_peer(name: str, cell: Cell, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Callable[[], object]:
    """Return a call of a kernel of PyTorch's, `fa2` or `flex`."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    def call_flash() -> torch.Tensor:
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=cell.mask == "causal")

    if name == "fa2":
        return call_flash
    blocks = create_block_mask(lambda b, h, i, j: i >= j, None, None, cell.length, cell.length) if cell.mask == "causal" else None
    return partial(torch.compile(flex_attention, dynamic=False), q, k, v, block_mask=blocks)


def measure_cell(cell: Cell, settings: Sequence[Setting], peers: Sequence[str], rounds: int, milliseconds: float) -> Row:
    """Return a row: TFLOP/s of each contender, errors and failures."""
    g = torch.Generator("cuda").manual_seed(cell.length + cell.dim)
    shape = (max(1, TOKENS // cell.length), cell.heads, cell.length, cell.dim)
    q, k, v = (torch.randn(shape, device="cuda", dtype=torch.float16, generator=g) for _ in range(3))
    o, lse = torch.empty_like(q), torch.empty(shape[:3], device="cuda")
    calls = {name: make_peer(name, cell, q, k, v) for name in peers}
    failed: dict[str, str] = {}
    for setting in settings:
        name, kernel = f"ours {label(setting)}", compile_kernel(cell.mask, cell.dim, setting)
        if isinstance(kernel, str):
            failed[name] = kernel
        else:
            calls[name] = partial(kernel, Q=q, K=k, V=v, O=o, LSE=lse, scale=cell.dim**-0.5)
    rows = torch.tensor([0, 1, cell.length // 2 + 3, cell.length - 1], device="cuda")
    expected, wrong = rows_of(q[0, 3], k[0, 3], v[0, 3], rows, cell.mask == "causal"), {}
    for name, call in calls.items():
        o.fill_(torch.nan)
        result = call()
        off = float(((result if isinstance(result, torch.Tensor) else o)[0, 3][rows].double() - expected).norm() / expected.norm())
        if not off < OFF:
            wrong[name] = off
    times, errors = time_in_turns(calls, rounds, partial(median_ms, milliseconds=milliseconds), family=lambda name: name.split()[0])
    rates = {name: round(cell.tflop / statistics.median(samples) * 1e3, 1) for name, samples in times.items()}
    return {**cell._asdict(), "tflops": rates, "wrong": wrong, "failed": {**failed, **errors}}


def as_row(cell: Cell, calls: Mapping[str, Callable[[], object]], options: argparse.Namespace, work: float, **more: object) -> Row:
    """Return a row of contenders that take turns; `work` is in units of 10^12 operations."""
    times, errors = time_in_turns(calls, options.rounds, partial(median_ms, milliseconds=options.milliseconds), family=lambda name: name)
    rates = {name: round(work / statistics.median(samples) * 1e3, 1) for name, samples in times.items()}
    return {**cell._asdict(), **more, "tflops": rates, "failed": errors}


def measure_backward(options: argparse.Namespace) -> Iterator[Row]:
    """Yield a row for each cell: gradients of a call of flex_attention, and of FlashAttention-2."""
    os.environ[VARIABLE] = ARCH
    for cell in (Cell(d, length, mask) for d in options.dims for mask in MASKS for length in options.lengths):
        g = torch.Generator("cuda").manual_seed(cell.length + cell.dim)
        shape = (max(1, TOKENS // cell.length), cell.heads, cell.length, cell.dim)
        q, k, v, do = (torch.randn(shape, device="cuda", dtype=torch.float16, generator=g) for _ in range(4))
        inputs = tuple(x.requires_grad_() for x in (q, k, v))
        blocks = cuir.create_block_mask(RULES["causal"][1], None, None, cell.length, cell.length) if cell.mask == "causal" else None
        outputs = {"ours": cuir.flex_attention(q, k, v, block_mask=blocks, verify="off"), "fa2": make_peer("fa2", cell, q, k, v)()}
        calls = {name: partial(torch.autograd.grad, o, inputs, do, retain_graph=True) for name, o in outputs.items()}
        ours, theirs = (call() for call in calls.values())
        off = {n: float((x - y).float().norm() / y.float().norm()) for n, x, y in zip(("dQ", "dK", "dV"), ours, theirs, strict=True)}
        yield as_row(cell, calls, options, 2.5 * cell.tflop, wrong={n: x for n, x in off.items() if not x < OFF})


# A score, and a mask, of 8192 tokens: documents have 1024, windows too
RULES: Mapping[str, tuple[Callable[..., torch.Tensor] | None, Callable[..., torch.Tensor]]] = {
    "causal": (None, lambda b, h, i, j: i >= j),
    "window": (None, lambda b, h, i, j: (i >= j) & (i - j < 1024)),
    "document": (None, lambda b, h, i, j: (i // 1024 == j // 1024) & (i >= j)),
    "prefix": (None, lambda b, h, i, j: (i >= j) | (j < 2048)),
    "alibi, causal": (lambda s, b, h, i, j: s - torch.exp2(-(h + 1) * 0.25) * (i - j), lambda b, h, i, j: i >= j),
    "soft cap, causal": (lambda s, b, h, i, j: 30.0 * torch.tanh(s / 30.0), lambda b, h, i, j: i >= j),
}


def measure_rules(options: argparse.Namespace) -> Iterator[Row]:
    """Yield a row for each rule and head dim: calls of flex_attention, and FlexAttention for sm_80."""
    os.environ[VARIABLE] = ARCH
    os.environ |= {"TRITON_OVERRIDE_ARCH": "sm80", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention
    from triton.backends.nvidia.compiler import CUDABackend

    major, minor = torch.cuda.get_device_capability()
    assemble = CUDABackend.make_cubin
    CUDABackend.make_cubin = lambda backend, text, metadata, chosen, _: assemble(backend, text, metadata, chosen, 10 * major + minor)
    length = 8192
    for dim, (name, (score, keep)) in ((d, item) for d in (64, 128) for item in RULES.items()):
        torch._dynamo.reset()
        q, k, v = (torch.randn((2, 32, length, dim), device="cuda", dtype=torch.float16) for _ in range(3))
        theirs = create_block_mask(keep, None, None, length, length)
        ours = cuir.create_block_mask(keep, None, None, length, length)
        calls = {
            "ours": partial(cuir.flex_attention, q, k, v, score, ours, verify="off"),
            "flex": partial(torch.compile(flex_attention, dynamic=False), q, k, v, score, theirs),
        }
        x, y = (call().float() for call in calls.values())
        off, pairs = float((x - y).norm() / y.norm()), 64 * length**2 * (1 - theirs.sparsity() / 100)
        yield as_row(Cell(dim, length, name), calls, options, 4e-12 * dim * pairs, wrong={"ours": off} if not off < OFF else {})


def list_caches() -> list[ServedCell]:
    """List the caches in pages, with one query and with four."""
    return [
        ServedCell(f"pages_{page}", {}, f"{heads}/{key_heads}", Shape(batch, heads, key_heads, queries, keys, 128))
        for queries in (1, 4)
        for heads, key_heads in SERVED
        for batch, lengths in CACHES.items()
        for keys in lengths
        if batch * keys * key_heads <= MOST_KEYS
        for page in ((64, 16) if keys in (4096, 8192) else (64,))
    ]


def list_packed(dims: Sequence[int]) -> list[ServedCell]:
    """List packed sequences, causal, 32k tokens in all."""
    return [
        ServedCell(f"causal_{documents}", {}, f"{heads}/{key_heads}", Shape(1, heads, key_heads, 32768, 32768, dim))
        for dim in dims
        for heads, key_heads in SERVED
        for documents in DOCUMENTS
    ]


def list_latents() -> list[ServedCell]:
    """List the caches of latent vectors, with one query and with two."""
    return [
        ServedCell("causal", {}, f"MLA, {heads} heads", Shape(batch, heads, 1, queries, keys, 576))
        for queries in (1, 2)
        for batch, heads, keys in LATENTS
    ]


def warm_cache_of_decoding(target: KernelTarget, kind: Kind, shape: Shape) -> str:
    """Compile the kernel of a call over a cache into the cache, and describe its resources."""
    latent = kind == "latent cache"
    form = Form(torch.float16, shape.D, newest_peers.LATENT if latent else shape.D, kind, (("CHUNK", 16),), target)
    spec = Specification("causal", rule(None, causal=True)) if latent else Specification("full")
    settings = make_attention(spec, make_capture_key(spec.mask_mod, None), form, "off").settings
    consts = settings.choose_untuned(Lengths(shape.B, shape.H, shape.HK, shape.M, shape.N))
    return f"{label(consts)} {cuir.compile(settings.check_program(consts)).compiled.resources.summary()}"


def warm_caches(arch: str, kind: Kind, cells: Sequence[ServedCell]) -> None:
    """Name an architecture for all calls to come, and compile the kernels of cells, in as many processes as there are CPUs."""
    os.environ[VARIABLE] = arch
    target = choose_target(torch.device("cuda"))  # processes that are forked cannot ask the GPU
    with ProcessPoolExecutor(os.cpu_count(), mp_context=multiprocessing.get_context("fork")) as pool:
        for summary in pool.map(partial(warm_cache_of_decoding, target, kind), dict.fromkeys(cell.shape for cell in cells)):
            print(summary, file=sys.stderr)


def measure_decoding(options: argparse.Namespace) -> Iterator[Row]:
    """Yield a head, and a row for each cache: a call of attention_with_kv_cache, and FlashInfer's kernels."""
    cells = list_caches()
    warm_caches(options.arch, "cache", cells)
    yield make_head("decode")
    for cell in cells:
        yield dict(measure_decode(cell, "f16", ("flashinfer",), time_for(options)))


def call_for(arch: str, call: Callable[[], object]) -> object:
    """Run a call with the kernels of an architecture."""
    before = os.environ[VARIABLE]
    try:
        os.environ[VARIABLE] = arch
        choose_target.cache_clear()
        return call()
    finally:
        os.environ[VARIABLE] = before
        choose_target.cache_clear()


def measure_latent_cell(cell: ServedCell, peers: Sequence[str], others: Sequence[str], timing: Timing, device: str = "cuda") -> Row:
    """Return a row: a call over latent vectors, the same with kernels of other architectures, and the peers."""
    problem = newest_peers.make_latent(newest_peers.Row("latent", "latent", cell.variant, cell.shape, ()), peers, device, torch.float16)
    ours = problem.calls[OURS]

    def figures(ms: float) -> Entry:
        rate = round(problem.work / ms, 1)
        return {"tflops": rate} if problem.unit == "tflops" else {"gbs": rate}

    entries = contest(
        {**problem.calls, **{f"{OURS}_{arch}": partial(call_for, arch, ours) for arch in others}},
        problem.judge,
        figures,
        timing,
        seconds=lambda name: SECONDS,
        prepared=problem.prepare,
    )
    return {**cell.as_json(), "dtype": "f16", "contenders": entries}


def measure_latents(options: argparse.Namespace) -> Iterator[Row]:
    """Yield a head, and a row for each cache of latent vectors: attention_with_kv_cache, and FlashInfer's kernel."""
    cells = list_latents()
    others = [arch for arch in dict.fromkeys((find_arch(torch.cuda.get_device_capability()), ARCH)) if arch and arch != options.arch]
    warm_caches(options.arch, "latent cache", cells)
    yield make_head("decode")
    for cell in cells:
        yield measure_latent_cell(cell, ("flashinfer",), others, time_for(options))


def measure_packed(options: argparse.Namespace) -> Iterator[Row]:
    """Yield a head, and a row for each mix of lengths: a call of varlen_attention, FlashInfer and FlashAttention-2."""
    os.environ[VARIABLE] = options.arch
    peers = ("flashinfer", "varlen_attn") if options.arch == ARCH else ("flashinfer",)
    yield make_head("varlen")
    for cell in list_packed([d for d in options.dims if d in (64, 128)]):
        yield dict(measure_varlen(cell, "f16", peers, time_for(options)))


def make_head(suite: str) -> Row:
    """Return the first line of results that are cells of a suite of `cuir bench`."""
    command = f"python -m benchmarks.sm80 {' '.join(sys.argv[1:])}"
    return {"suite": suite, **versions(), "dtype": "f16", "pass": suite, "command": command}


def time_for(options: argparse.Namespace) -> Timing:
    """Return how long contenders of a cell are timed."""
    return Timing(options.rounds, measure=partial(median_ms, milliseconds=options.milliseconds))


def measure(options: argparse.Namespace) -> Iterator[Row]:
    """Yield a row for each cell, after all kernels were compiled, in as many processes as there are CPUs."""
    settings = {(d, mask): options.settings or choose_settings(d, mask) for d in options.dims for mask in MASKS}
    jobs = [(mask, d, setting) for (d, mask), chosen in settings.items() for setting in chosen]
    with ProcessPoolExecutor(os.cpu_count(), mp_context=multiprocessing.get_context("fork")) as pool:
        for job, summary in zip(jobs, pool.map(warm_cache, *zip(*jobs, strict=True)), strict=True):
            print(job[0], job[1], label(job[2]), summary, file=sys.stderr)
    for (d, mask), chosen in settings.items():
        for length in options.lengths:
            yield measure_cell(Cell(d, length, mask), chosen, options.peers, options.rounds, options.milliseconds)


def format_table(rows: Sequence[Mapping[str, Mapping[str, float]]]) -> str:
    """Format the best of ours, the peers, and the quotient with FlashAttention-2, else FlexAttention, with its geometric mean."""
    lines = [
        "| head dim | length | mask | ours | FlashAttention-2 | FlexAttention | ours / the first peer |",
        "|--:|--:|---|--:|--:|--:|--:|",
    ]
    quotients = []
    for row in rows:
        rates = row["tflops"]
        ours = max(rate for name, rate in rates.items() if name.startswith("ours"))
        quotients.append(ours / rates["fa2" if "fa2" in rates else "flex"])
        flash, flex = (f"{rates[peer]:.0f}" if peer in rates else "" for peer in PEERS)
        lines.append(f"| {row['dim']} | {row['length']} | {row['mask']} | {ours:.0f} | {flash} | {flex} | {quotients[-1]:.2f} |")
    mean = math.exp(statistics.fmean(map(math.log, quotients)))
    return "\n".join([*lines, f"\ngeometric mean {mean:.3f}, least {min(quotients):.3f}"])


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dims", nargs="+", type=int, default=DIMS)
    parser.add_argument("--lengths", nargs="+", type=int, default=LENGTHS)
    parser.add_argument("--settings", nargs="+", type=parse_setting)
    parser.add_argument("--peers", nargs="*", choices=PEERS, default=PEERS)
    parser.add_argument("--backward", action="store_true", help="gradients, beside FlashAttention-2's")
    parser.add_argument("--rules", action="store_true", help="masks and scores, beside FlexAttention for sm_80")
    parser.add_argument("--decode", action="store_true", help="few queries over caches, beside FlashInfer's")
    parser.add_argument("--packed", action="store_true", help="packed sequences, beside FlashInfer's")
    parser.add_argument("--latent", action="store_true", help="few queries over latent vectors, beside FlashInfer's")
    parser.add_argument("--arch", choices=(ARCH, TURING), default=ARCH, help="of the kernels of --decode, --packed and --latent")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--milliseconds", type=float, default=100.0, help="of a contender's turn")
    parser.add_argument("--out", type=Path, help="lines of JSON, as they come")
    parser.add_argument("--table", type=Path, help="of lines that were written before")
    options = parser.parse_args()
    if options.arch != ARCH and not (options.decode or options.packed or options.latent):
        parser.error(f"--arch {options.arch} is for --decode, --packed and --latent; others measure kernels for {ARCH}")
    if options.table is not None:
        rows = [json.loads(line) for line in options.table.read_text(encoding="utf-8").splitlines()]
        print(results.markdown(*results.read(options.table)) if "suite" in rows[0] else format_table(rows))
        return 0
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() < (8, 0):
        print("nothing measured: no GPU of compute capability 8.0 or later", file=sys.stderr)
        return 1
    kinds = {
        "backward": measure_backward,
        "rules": measure_rules,
        "decode": measure_decoding,
        "packed": measure_packed,
        "latent": measure_latents,
    }
    measured = next((measured for name, measured in kinds.items() if getattr(options, name)), measure)
    as_they_come(measured(options), options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
