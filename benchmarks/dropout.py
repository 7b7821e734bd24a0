"""Attention with dropout, forward and backward, on a Hopper GPU, beside PyTorch's.

    python -m benchmarks.dropout                                # full and causal, head dims 64 and 128, 1k to 16k, 16k tokens in all, bf16
    python -m benchmarks.dropout --length 4096 --dims 128 --rounds 5 --out rows.jsonl

The peer is scaled_dot_product_attention with its dropout_p; both run without dropout, too. Each row is the median of
rounds in which all contenders take turns of 100 ms; milliseconds, and the same without dropout. Outputs are compared
with float64 and the replayed mask once a row.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

TOKENS, HEADS = 16384, 32
OFF = 1e-2  # relative error of the queries that are compared


def milliseconds(call: Callable[[], Any], seconds: float = 0.1) -> float:
    """Time one call, as the mean of as many as fill a turn."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    call()
    end.record()
    end.synchronize()
    count = max(1, int(seconds * 1000 / max(1e-3, start.elapsed_time(end))))
    start.record()
    for _ in range(count):
        call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / count


def contenders(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, do: torch.Tensor, causal: bool, p: float, backward: bool
) -> dict[str, Callable[[], Any]]:
    """Return calls by name; those of a backward pass have run their forward pass."""
    from torch.nn.functional import scaled_dot_product_attention

    from cuir import create_block_mask, flex_attention

    mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, q.shape[2], k.shape[2], device=q.device) if causal else None
    calls: dict[str, Callable[[], Any]] = {}
    for name, dropout in (("dropout", p), ("plain", 0.0)):

        def ours(dropout: float = dropout) -> Any:
            return flex_attention(q, k, v, block_mask=mask, dropout_p=dropout)

        def run_pytorch(dropout: float = dropout) -> Any:
            return scaled_dot_product_attention(q, k, v, is_causal=causal, dropout_p=dropout)

        for contender, call in (("ours", ours), ("pytorch", run_pytorch)):
            if backward:
                calls[f"{contender} {name}"] = partial(torch.autograd.grad, call(), (q, k, v), do, retain_graph=True)
            else:
                calls[f"{contender} {name}"] = torch.no_grad()(call)
    return calls


def check(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, p: float) -> float:
    """Compare the last 64 queries of a head with float64 and the replayed mask; return the relative error."""
    from cuir import create_block_mask, draw_dropout_seed, dropout_mask, flex_attention

    M = q.shape[2]
    mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, M, M, device=q.device) if causal else None
    seed = draw_dropout_seed(q.device)
    with torch.no_grad():
        o = flex_attention(q, k, v, block_mask=mask, dropout_p=p, dropout_seed=seed)
    scores = q[0, 0, -64:].double() @ k[0, 0].double().T * q.shape[3] ** -0.5
    if causal:
        scores = scores.masked_fill(torch.ones_like(scores).bool().triu(M - 63), -torch.inf)
    mask_of_dropout = dropout_mask(seed, p, 1, 1, 64, M, query_start=M - 64)[0, 0]
    expected = (scores.softmax(-1) * mask_of_dropout / (1 - p)) @ v[0, 0].double()
    return float((o[0, 0, -64:].double() - expected).norm() / expected.norm())


def rows(lengths: list[int], dims: list[int], p: float, rounds: int) -> Any:
    """Measure all problems; yield their rows."""
    for dim in dims:
        for causal in (False, True):
            for length in lengths:
                shape = max(1, TOKENS // length), HEADS, length, dim
                q, k, v, do = (torch.randn(shape, dtype=torch.bfloat16, device="cuda") for _ in range(4))
                q, k, v = (x.requires_grad_() for x in (q, k, v))
                error = check(q, k, v, causal, p)
                for backward in (False, True):
                    calls = contenders(q, k, v, do, causal, p, backward)
                    for call in calls.values():
                        call()
                    times: dict[str, list[float]] = {name: [] for name in calls}
                    for _ in range(rounds):
                        for name, call in calls.items():
                            times[name].append(milliseconds(call))
                    yield {
                        "pass": "backward" if backward else "forward",
                        "mask": "causal" if causal else "full",
                        "head dim": dim,
                        "length": length,
                        "p": p,
                        "error": error,
                        "right": error <= OFF,
                        **{name: round(statistics.median(t), 4) for name, t in times.items()},
                    }


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--length", type=int, nargs="+", default=[1024, 2048, 4096, 8192, 16384])
    parser.add_argument("--dims", type=int, nargs="+", default=[64, 128])
    parser.add_argument("-p", type=float, default=0.1, help="the probability of dropout")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, help="rows, one JSON object a line")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("this needs a Hopper GPU", file=sys.stderr)
        return 1
    results = []
    print("pass      mask    dim length |  ours  plain | pytorch  plain | pytorch / ours, right")
    for row in rows(options.length, options.dims, options.p, options.rounds):
        results.append(row)
        times = [row[name] for name in ("ours dropout", "ours plain", "pytorch dropout", "pytorch plain")]
        print(
            f"{row['pass']:<9} {row['mask']:<7} {row['head dim']:>3} {row['length']:>6} | {times[0]:6.3f} {times[1]:6.3f} | {times[2]:7.3f} {times[3]:6.3f} | "
            f"{times[2] / times[0]:5.2f}, {row['right']} ({row['error']:.1e})",
            flush=True,
        )
    if options.out is not None:
        options.out.write_text("".join(json.dumps(row) + "\n" for row in results), encoding="utf-8")
    return 0 if all(row["right"] for row in results) else 1


if __name__ == "__main__":
    sys.exit(main())
