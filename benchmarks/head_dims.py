"""Forward passes by head dim on a Hopper GPU, in bf16 or 8 bits, beside cuDNN and FlashAttention-3.

    python -m benchmarks.head_dims                                        # full and causal, 4k and 16k, 16k tokens in all
    python -m benchmarks.head_dims --dims 192x128 256 --length 4096 --all # every start of the kernel's space, not the first alone
    python -m benchmarks.head_dims --dtype f8e4m3 --dims 64 128 256       # 8-bit inputs, O in bf16, scales of 1
    python -m benchmarks.head_dims --table rows.jsonl                     # no GPU: the table of what was measured

Settings are those of calls that nobody tuned. Sustained: contenders take turns of 100 ms each
(cuir/performance/timing/timing_protocol.py), results are compared with float64. TFLOP/s count 2 (D + DV) operations for each unmasked
pair. FlashAttention-3 is optional, as the packages tokenspeed-fa3 (`flash_attn_interface`) and fa3-fwd
(`fa3_fwd_interface`). No peer takes head dims above 256, and of 8 bits FlashAttention-3 alone those of 64, 128 and 256.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import torch

import corpus
import cuir
from benchmarks.old_and_new import as_they_come, transfer_expert
from cuir.arguments.binding import TORCH
from cuir.attn.kernels.card_kernels import DEFAULT, WIDEST
from cuir.attn.kernels.experts import find_forward
from cuir.attn.tracing.splice_names import VALUE_SCALE
from cuir.checking.checked import Const
from cuir.performance.search.space import Space, find_violation
from cuir.syntax.types import BF16, DTYPES, F8E4M3, DType

DIMS = ("32", "80", "96", "128", "192x128", "192", "256", "320", "512", "576x512")
TOKENS = 16384
OFF = {BF16: 1e-2, F8E4M3: 0.1}  # relative, of the rows that are looked at
INTERFACES = {
    "flash_attn_interface": (64, 128, 192, 256),
    "fa3_fwd_interface": (32, 64, 80, 96, 128, 192, 256),
}  # and the head dims that they take
Dims = tuple[int, int]


def parse_dims(text: str) -> Dims:
    """Parse `192x128` or `80`."""
    keys, _, values = text.partition("x")
    return int(keys), int(values or keys)


def settings(program: Any, dims: Dims, all_starts: bool, dtype: DType = BF16) -> list[dict[str, Const]]:
    """Return the starts of the kernel's space for these head dims that fit.

    The first of them is the setting of a call that nobody tuned for; others are left out unless `all_starts`.
    """
    fixed: dict[str, Const] = {"T": dtype, "D": dims[0], "DV": dims[1]}
    name = find_forward(fixed, DEFAULT)
    space = Space.parse(corpus.spaces()[name].read_text(encoding="utf-8"), f"{name}.tune.json")
    starts = [{**start, **fixed} for start in space.restrict(program, None).narrow(fixed).starts]
    fitting = [consts for consts in starts if find_violation(program, None, consts) is None]
    return fitting if all_starts else fitting[:1]


def peers(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> dict[str, Callable[[], Any]]:
    """Return calls that compute O [B, H, M, DV] of q, k, v [B, H, length, head dim]."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    def cudnn() -> torch.Tensor:
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)

    narrow = q.dtype.itemsize == 1
    calls: dict[str, Callable[[], Any]] = {"cudnn": cudnn} if max(q.shape[3], v.shape[3]) <= WIDEST and not narrow else {}
    dims, turned = (q.shape[3], v.shape[3]), [x.transpose(1, 2).contiguous() for x in (q, k, v)]  # FlashAttention has heads inside
    for name, supported_dims in INTERFACES.items():
        if narrow and (name != "flash_attn_interface" or dims[0] not in (64, 128, 256)):
            continue
        if importlib.util.find_spec(name) is not None and dims[0] in supported_dims and (dims[0] == dims[1] or name == "fa3_fwd_interface"):
            calls["fa3"] = partial(importlib.import_module(name).flash_attn_func, *turned, causal=causal)
            break
    return calls


def rows_of(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, rows: torch.Tensor, causal: bool) -> torch.Tensor:
    """Compute O of some queries of one head in float64."""
    q, k, v = (x.double() for x in (q, k, v))
    scores = q[rows] @ k.T * q.shape[-1] ** -0.5
    if causal:
        scores = scores.masked_fill(torch.arange(k.shape[0], device=k.device)[None] > rows[:, None], -torch.inf)
    return torch.softmax(scores, -1) @ v


def measure_rows(
    dims: Sequence[Dims], lengths: Sequence[int], rounds: int, all_starts: bool, dtype: DType = BF16
) -> Iterator[dict[str, Any]]:
    """Yield a row for each head dim, length and mask: TFLOP/s of each contender, errors and failures."""
    from cuir.performance.timing.timing_protocol import median_ms, time_in_turns
    from cuir.runtime.compiled import CompiledKernel
    from cuir.runtime.nvcc import compile_cuda

    kernels: dict[tuple[Dims, str, str], Any] = {}
    for mask in ("full", "causal"):
        for d in dims:
            program = transfer_expert(mask, find_forward({"T": dtype, "D": d[0], "DV": d[1]}, DEFAULT))
            for consts in settings(program.program, d, all_starts, dtype):
                name = " ".join(f"{n}={v}" for n, v in consts.items() if n not in ("T", "D", "DV"))
                kernels[d, mask, name] = cuir.lower(cuir.check(cuir.parse(program.text), program.kernel, consts))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        compiled_kernels = dict(zip(kernels, pool.map(compile_cuda, kernels.values()), strict=True))
    for d in dims:
        for length in lengths:
            for mask in ("full", "causal"):
                heads, batch, causal = 32 if d[0] <= 128 else 16, max(1, TOKENS // length), mask == "causal"
                g = torch.Generator("cuda").manual_seed(1)
                q, k, v = (
                    torch.randn(batch, heads, length, e, device="cuda", dtype=torch.bfloat16, generator=g).to(TORCH[dtype])
                    for e in (d[0], *d)
                )
                scales = {VALUE_SCALE: torch.ones(1, 1, device="cuda")} if dtype == F8E4M3 else {}
                calls = peers(q, k, v, causal)
                for (dd, m, name), compiled in compiled_kernels.items():
                    if (dd, m) == (d, mask):
                        o = torch.empty(batch, heads, length, d[1], device="cuda", dtype=torch.bfloat16)
                        calls[f"ours {name}"] = partial(CompiledKernel(compiled), Q=q, K=k, V=v, O=o, scale=d[0] ** -0.5, **scales)
                rows = torch.tensor([0, 1, length // 2 + 3, length - 1], device="cuda")
                expected, wrong = rows_of(q[0, 3], k[0, 3], v[0, 3], rows, causal), {}
                for name, call in calls.items():
                    output = call()
                    output = output[0] if isinstance(output, tuple) else output
                    head_output = output[0, :, 3] if name == "fa3" else output[0, 3]
                    off = float((head_output[rows].double() - expected).norm() / expected.norm())
                    if not off < OFF[dtype]:
                        wrong[name] = off
                times, failed = time_in_turns(calls, rounds, partial(median_ms, milliseconds=100.0))
                pairs = length * (length + 1) // 2 if causal else length * length
                work = 2 * sum(d) * pairs * heads * batch / 1e9
                rates = {name: round(work / statistics.median(samples), 1) for name, samples in times.items()}
                yield {"dims": d, "length": length, "mask": mask, "tflops": rates, "wrong": wrong, "failed": failed}


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Format ours (the first setting), the peers, and the quotient with the better one."""
    lines = ["| head dims | length | mask | ours | FlashAttention-3 | cuDNN | ours / better peer |", "|---|--:|---|--:|--:|--:|--:|"]
    for row in rows:
        rates = row["tflops"]
        ours = next(rate for name, rate in rates.items() if name.startswith("ours"))
        best = max(rates.get("fa3", 0.0), rates.get("cudnn", 0.0))
        dims = row["dims"][0] if row["dims"][0] == row["dims"][1] else f"{row['dims'][0]} / {row['dims'][1]}"
        ratio = f"{ours / best:.2f}" if best else ""
        lines.append(
            f"| {dims} | {row['length']} | {row['mask']} | {ours:.0f} | {rates.get('fa3', 0):.0f} | {rates.get('cudnn', 0):.0f} | {ratio} |"
        )
    return "\n".join(lines)


def format_settings(rows: Sequence[Mapping[str, Any]]) -> str:
    """Format settings, or head dims, that were timed in turns: a row for each, the fastest first."""
    lines = ["| pass | shape | setting or head dim | rate |", "|---|---|---|--:|"]
    for row in rows:
        of_settings = "dims" in row
        shape = ", ".join(f"{name} {row[name]}" for name in ("mask", "length", "batch", "heads", "keys", "page") if name in row)
        rates, unit = (row["tflops"], "TFLOP/s") if "tflops" in row else (row["gb_s"], "GB/s")
        for setting, rate in sorted(rates.items(), key=lambda found: -found[1]):
            name = f"{row['dims'][0]}: {setting}" if of_settings else setting
            lines.append(f"| {row.get('pass', 'forward')} | {shape} | {name} | {rate:.0f} {unit} |")
    return "\n".join(lines)


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dims", nargs="+", type=parse_dims, default=[parse_dims(d) for d in DIMS])
    parser.add_argument("--length", nargs="+", type=int, default=[4096, 16384])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dtype", choices=[t.name for t in OFF], default="bf16")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--out", type=Path, help="lines of JSON, as they come")
    parser.add_argument("--table", type=Path, help="of lines that were written before")
    options = parser.parse_args()
    if options.table is not None:
        print(table([json.loads(line) for line in options.table.read_text(encoding="utf-8").splitlines()]))
        return 0
    from cuir.performance.timing.gpu import explain_missing_gpu

    if reason := explain_missing_gpu():
        print(f"nothing measured: {reason}", file=sys.stderr)
        return 1
    as_they_come(measure_rows(options.dims, options.length, options.rounds, options.all, DTYPES[options.dtype]), options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
