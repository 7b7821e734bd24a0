"""Forward passes in float32 on a Hopper GPU, beside compiled FlexAttention at the same precision.

    python -m benchmarks.float32 --out rows.jsonl      # float32's accuracy and TF32; head dims 64 and 128, full and causal, 1k, 4k and 8k, 8k tokens of 16 heads
    python -m benchmarks.shown rows.jsonl              # no GPU: table and plot of what was measured

Settings are those of calls that nobody tuned; the errors of both are against float64. Contenders take turns of 50 ms
each (cuir/performance/timing/timing_protocol.py). TFLOP/s count 4 D operations for each unmasked pair. Errors are relative, in the norm
of some rows. FlexAttention is compiled with dynamic shapes, once for each head dim, mask and precision.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import torch

import corpus
import cuir
from benchmarks.head_dims import rows_of
from benchmarks.old_and_new import as_they_come
from cuir.checking.checked import Const
from cuir.performance.search.space import Space, find_violation
from cuir.syntax.types import F32
from cuir.text.markdown import table

TOKENS, HEADS = 8192, 16
PRECISIONS = {"float32": (2, "highest"), "TF32": (1, "high")}  # PARTS of our kernel, and what PyTorch calls it
MASKS = ("full", "causal")
EXPERT = corpus.expert("f32")


def transfer_mask(mask: str) -> Any:
    """Return the expert kernel with a variant of the corpus."""
    return cuir.transfer(cuir.parse(corpus.kernels()[EXPERT].read_text(encoding="utf-8"), f"{EXPERT}.cuir"), corpus.variant(mask)())


def setting(program: Any, dim: int, parts: int) -> dict[str, Const]:
    """Return the setting of a call that nobody tuned for."""
    fixed: dict[str, Const] = {"T": F32, "D": dim, "DV": dim, "PARTS": parts}
    space = Space.parse(corpus.spaces()[EXPERT].read_text(encoding="utf-8"), f"{EXPERT}.tune.json")
    starts = [{**start, **fixed} for start in space.restrict(program, None).narrow(fixed).starts]
    return next(consts for consts in starts if find_violation(program, None, consts) is None)


def causal_mask(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    """Causal mask."""
    return q_idx >= kv_idx


def measure_rows(dims: Sequence[int], lengths: Sequence[int], rounds: int) -> Iterator[dict[str, Any]]:
    """Yield a row for each precision, head dim, mask and length: TFLOP/s, errors and failures."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    from cuir.performance.timing.timing_protocol import median_ms, time_in_turns
    from cuir.runtime.compiled import CompiledKernel
    from cuir.runtime.nvcc import compile_cuda

    lowered: dict[tuple[str, int, str], Any] = {}
    for mask in MASKS:
        variant = transfer_mask(mask)
        for precision, (parts, _) in PRECISIONS.items():
            for dim in dims:
                lowered[precision, dim, mask] = cuir.lower(
                    cuir.check(cuir.parse(variant.text), variant.kernel, setting(variant.program, dim, parts))
                )
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        compiled_kernels = dict(zip(lowered, pool.map(compile_cuda, lowered.values()), strict=True))
    for precision, (_, name) in PRECISIONS.items():
        torch.set_float32_matmul_precision(name)
        torch._dynamo.reset()
        for dim in dims:
            for mask in MASKS:
                flex, kernel = torch.compile(flex_attention, dynamic=True), CompiledKernel(compiled_kernels[precision, dim, mask])
                for length in lengths:
                    g = torch.Generator("cuda").manual_seed(1)
                    q, k, v = (torch.randn(TOKENS // length, HEADS, length, dim, device="cuda", generator=g) for _ in range(3))
                    causal = mask == "causal"
                    block_mask = create_block_mask(causal_mask, None, None, length, length, device="cuda") if causal else None
                    calls = {
                        "ours": partial(kernel, Q=q, K=k, V=v, O=torch.empty_like(q), scale=dim**-0.5),
                        "flex": partial(flex, q, k, v, block_mask=block_mask),
                    }
                    rows = torch.arange(0, length, max(1, length // 64), device="cuda")
                    expected, errors = rows_of(q[0, 3], k[0, 3], v[0, 3], rows, causal), {}
                    for contender, call in calls.items():
                        output = call()
                        output = output[0] if isinstance(output, tuple) else output
                        errors[contender] = float((output[0, 3][rows].double() - expected).norm() / expected.norm())
                    first = calls["ours"]()[0].clone()
                    times, failed = time_in_turns(calls, rounds, partial(median_ms, milliseconds=50.0))
                    pairs = length * (length + 1) // 2 if causal else length * length
                    work = 4 * dim * pairs * HEADS * (TOKENS // length) / 1e9
                    rates = {contender: round(work / statistics.median(samples), 1) for contender, samples in times.items() if samples}
                    yield {
                        "precision": precision,
                        "head dim": dim,
                        "mask": mask,
                        "length": length,
                        "tflops": rates,
                        "errors": {contender: float(f"{e:.2e}") for contender, e in errors.items()},
                        "same bits": bool(torch.equal(calls["ours"]()[0], first)),
                        "failed": failed,
                    }


def format_rows(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Format the measurements: the command, and a line for each row.

    A contender that failed has a dash; one whose second call gave different bits is marked.
    """

    def rate(row: Mapping[str, Any], contender: str) -> str:
        return f"{row['tflops'][contender]:.1f} ({row['errors'][contender]:.1e})" if contender in row["tflops"] else "-"

    def quotient(row: Mapping[str, Any]) -> str:
        rates = row["tflops"]
        return f"{rates['ours'] / rates['flex']:.2f}" if {"ours", "flex"} <= rates.keys() else "-"

    columns = ["precision", "head dim", "mask", "length", "ours", "compiled FlexAttention", "ours / FlexAttention", "a second call"]
    lines = [
        [
            *(str(row[name]) for name in columns[:4]),
            rate(row, "ours"),
            rate(row, "flex"),
            quotient(row),
            "the same bits" if row["same bits"] else "other bits",
        ]
        for row in rows
    ]
    failed = [
        f"* {row['precision']}, head dim {row['head dim']}, {row['mask']}, {row['length']}: {contender}: {why}"
        for row in rows
        for contender, why in row["failed"].items()
    ]
    unit = f"TFLOP/s, {TOKENS} tokens of {HEADS} heads, contenders in turns; in brackets the relative error against float64."
    return [
        "# float32",
        "",
        unit,
        "",
        "    python -m benchmarks.float32 --out FILE",
        "",
        *table(columns, lines),
        *(["", *failed] if failed else []),
        "",
    ]


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dims", nargs="+", type=int, default=[64, 128])
    parser.add_argument("--length", nargs="+", type=int, default=[1024, 4096, 8192])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, help="lines of JSON, as they come")
    options = parser.parse_args()
    from cuir.performance.timing.gpu import explain_missing_gpu

    if reason := explain_missing_gpu():
        print(f"nothing measured: {reason}", file=sys.stderr)
        return 1
    as_they_come(measure_rows(options.dims, options.length, options.rounds), options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
