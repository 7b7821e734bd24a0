"""Speed of the interpreter, all detection on, beside eager float32 PyTorch attention: `make bench`.

Both run the same problem in the same run. A tile is a 128 x 128 block of Q K^T with its P V; blocks that a causal
kernel does not visit are not counted. One thread. The best of `--rounds` runs is shown, and the first. Eager PyTorch
computes every block; its tiles a second count the blocks that the mask needs, so that rows compare.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import time
from collections.abc import Callable
from importlib.resources import files
from typing import Any

import torch

LENGTH, DIM = 1024, 128
Row = dict[str, Any]


def measure(variant: str, heads: int, rounds: int, tiles: dict[str, int]) -> Row:
    """Measure one problem (B=1, H=HK=heads, M=N=1024, D=128, f16).

    The row has seconds, tiles a second, eager PyTorch's, and the peak memory of the process.
    """
    torch.set_num_threads(1)
    import corpus
    import cuir
    from cuir.spec.specification import lengths_of
    from cuir.syntax.types import F16

    text = (files("corpus") / "kernels" / "flash_fwd_sm90.cuir").read_text(encoding="utf-8")
    transferred = cuir.transfer(cuir.parse(text, "flash_fwd_sm90.cuir"), corpus.variant(variant)())
    start = time.perf_counter()
    checked = cuir.check(cuir.parse(transferred.text), consts={"T": F16, "D": DIM, **tiles})
    parsed = time.perf_counter() - start
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, heads, LENGTH, DIM, generator=generator).to(torch.float16) for _ in range(3))
    out, lse = torch.empty_like(q), torch.empty(1, heads, LENGTH)
    arguments = {
        "Q": q,
        "K": k,
        "V": v,
        "O": out,
        "LSE": lse,
        "scale": DIM**-0.5,
        **transferred.arguments(lengths_of(q, k), consts=checked.consts),
    }
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    reports = [cuir.run(checked, arguments) for _ in range(rounds)]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    expected, eager = eager_seconds(q, k, v, variant == "causal", rounds)
    blocks = reports[0].blocks
    seconds = [r.seconds for r in reports]
    return {
        "variant": variant,
        "heads": heads,
        "tiles": blocks,
        "tiles_per_second": blocks / min(seconds),
        "first_run": blocks / seconds[0],
        "seconds": min(seconds),
        "eager_tiles_per_second": blocks / eager,
        "check_seconds": parsed,
        "memory_mib": peak / 1024,
        "memory_added_mib": (peak - before) / 1024,
        "error": float((out.float() - expected).abs().max()),
        "splits": reports[0].splits,
    }


def eager_seconds(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, rounds: int) -> tuple[torch.Tensor, float]:
    """Compute softmax(Q K^T + mask) V in float32; return it and its best time."""
    q, k, v = q.float(), k.float(), v.float()
    mask = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)

    def attention() -> torch.Tensor:
        s = torch.matmul(q, k.mT).mul_(DIM**-0.5)
        if causal:
            s.masked_fill_(mask, -torch.inf)
        return torch.softmax(s, -1) @ v

    return attention(), best(attention, rounds)


def best(function: Callable[[], object], rounds: int) -> float:
    """Return the best time of some calls."""
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return min(times)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--heads", default="8,16,32,64", help="numbers of heads, to see that time and memory grow linearly")
    parser.add_argument("--variants", default="causal,full")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tiles", default="BM=128,BN=128", help="consts of the kernel")
    parser.add_argument("--json", action="store_true", help="rows as JSON")
    options = parser.parse_args()
    consts = {name: int(value) for name, value in (part.split("=") for part in options.tiles.split(","))}
    jobs = [(variant, int(heads), options.rounds, consts) for variant in options.variants.split(",") for heads in options.heads.split(",")]
    rows: list[Row] = []
    if not options.json:
        print(
            f"{'variant':10s} {'heads':>5s} {'tiles':>6s} {'tiles/s':>8s} {'first':>6s} {'eager':>6s} {'parse+check':>11s} {'memory':>9s} {'error':>8s}"
        )
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:  # a process each, so that peaks of memory are their own
        for row in pool.imap(_measure, jobs):
            rows.append(row)
            if not options.json:
                print(
                    f"{row['variant']:10s} {row['heads']:5d} {row['tiles']:6.0f} {row['tiles_per_second']:8.0f} {row['first_run']:6.0f}"
                    f" {row['eager_tiles_per_second']:6.0f} {row['check_seconds']:9.3f} s {row['memory_mib']:5.0f} MiB {row['error']:8.1e}",
                    flush=True,
                )
    if options.json:
        print(json.dumps(rows, indent=2))


def _measure(job: tuple[str, int, int, dict[str, int]]) -> Row:
    """Measure a problem in a worker process."""
    return measure(*job)


if __name__ == "__main__":
    main()
