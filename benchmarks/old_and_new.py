"""Comparison of the CUDA text of two commits: which texts differ, their resources, and speed in turns.

It shows whether a change of the lowering costs anything.

    git archive OLD | tar x -C old
    PYTHONPATH=old python benchmarks/old_and_new.py write old.jsonl   # the text as the old commit emits it
    python -m benchmarks.old_and_new differ old.jsonl                 # against that of this commit; --compile: instructions, registers, spills
    python -m benchmarks.old_and_new time old.jsonl --rounds 7        # on a GPU, what differs alone
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch

import corpus
import cuir
from cuir.syntax.types import F16

SETTINGS: tuple[dict[str, int], ...] = ({"D": 128}, {"D": 128, "BM": 192, "BN": 80}, {"D": 64, "BM": 192, "BN": 128})
LENGTHS = (1024, 4096)  # 16k tokens of Llama2-7B's 32 heads
CARRIED = (
    "source",
    "threads",
    "cluster",
    "shared_bytes",
    "counter",
)  # of a lowered kernel; the rest must be as it was for the text to be launched

Text = dict[str, Any]


def transfer_expert(variant: str, name: str = "flash_fwd_sm90") -> Any:
    """Return an expert kernel with a variant, whose parameters keep their defaults."""
    path = files("corpus") / "kernels" / f"{name}.cuir"
    return cuir.transfer(cuir.parse(path.read_text(encoding="utf-8"), f"{name}.cuir"), corpus.variant(variant)())


def texts(variants: Sequence[str]) -> Iterator[tuple[str, str, dict[str, Any], Any, Any]]:
    """Yield (name, variant, consts, the transferred program, the lowered kernel) of variants and settings."""
    for variant in variants:
        program = transfer_expert(variant)
        for setting in SETTINGS:
            consts: dict[str, Any] = {"T": F16, **setting}
            name = " ".join([variant, *(f"{k}={v}" for k, v in setting.items())])
            yield name, variant, consts, program, cuir.lower(cuir.check(cuir.parse(program.text), program.kernel, consts))


def write(out: Path, variants: Sequence[str]) -> None:
    """Write the texts to a file."""
    with out.open("w", encoding="utf-8") as file:
        for name, _, _, _, cuda in texts(variants):
            file.write(
                json.dumps(
                    {
                        "name": name,
                        "tensors": list(cuda.tensors),
                        "scalars": list(cuda.scalars),
                        "dims": list(cuda.dims),
                        **{f: getattr(cuda, f) for f in CARRIED},
                    }
                )
                + "\n"
            )


def read(path: Path) -> dict[str, Text]:
    """Read the texts of a file by name."""
    return {row["name"]: row for row in map(json.loads, path.read_text(encoding="utf-8").splitlines())}


def old_kernel(new: Any, old: Text) -> Any:
    """Return the kernel with the old text. Raises ValueError if a launch would pass different arguments."""
    for field in ("tensors", "scalars", "dims"):
        if list(getattr(new, field)) != old[field]:
            raise ValueError(f"{old['name']}: {field} were {old[field]}, now {list(getattr(new, field))}")
    return replace(new, **{f: old[f] for f in CARRIED}, spans=())


def differ(path: Path, variants: Sequence[str], compile: bool) -> None:
    """Print a line for each text that differs, and with `compile` the report of ptxas on both."""
    from cuir.runtime.nvcc import compile_cuda

    old, same = read(path), 0
    for name, _, _, _, cuda in texts(variants):
        if old[name]["source"] == cuda.source:
            same += 1
        elif compile:
            before, now = (compile_cuda(k).resources for k in (old_kernel(cuda, old[name]), cuda))
            print(
                f"{name}: registers {before.registers} -> {now.registers}, bytes of spills {before.spill_stores + before.spill_loads} -> {now.spill_stores + now.spill_loads}"
            )
        else:
            print(f"{name}: another text")
    print(f"{same} texts are the same")


def time_texts(path: Path, variants: Sequence[str], lengths: Sequence[int], rounds: int) -> Iterator[Mapping[str, object]]:
    """Yield for each text that differs and each length the quotient of old and new milliseconds.

    It is the median of all rounds in turns; above 1 the new text is faster.
    """
    from cuir.performance.search.candidate_runs import PreparedProblem
    from cuir.performance.timing.problem import Shape
    from cuir.performance.timing.timing_protocol import time_in_turns
    from cuir.runtime.compiled import CompiledKernel
    from cuir.runtime.nvcc import compile_cuda

    old = read(path)
    differing = [t for t in texts(variants) if old[t[0]]["source"] != t[4].source]
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # into the cache; each is a process of nvcc
        list(pool.map(compile_cuda, [k for name, *_, cuda in differing for k in (cuda, old_kernel(cuda, old[name]))]))
    for name, _, consts, program, cuda in differing:
        kernels: dict[str, Callable[..., object]] = {
            "old": CompiledKernel(compile_cuda(old_kernel(cuda, old[name]))),
            "new": CompiledKernel(compile_cuda(cuda)),
        }
        for length in lengths:
            case = PreparedProblem(program, Shape(max(1, 16384 // length), 32, 32, length, length, int(consts["D"])), torch.float16)
            arguments = case.arguments(cuda.checked.consts)
            wrong = {n: why for n, k in kernels.items() if (why := case.judge(k, cuda.checked.consts))}
            times, failed = time_in_turns({n: partial(k, **arguments) for n, k in kernels.items()}, rounds)
            if wrong or failed:
                yield {"name": name, "length": length, "wrong": wrong, "failed": failed}
                continue
            ratios = [a / b for a, b in zip(times["old"], times["new"], strict=True)]
            yield {
                "name": name,
                "length": length,
                "old / new": round(statistics.median(ratios), 4),
                "least": round(min(ratios), 4),
                "most": round(max(ratios), 4),
                "milliseconds": round(statistics.median(times["new"]), 5),
            }


def as_they_come(rows: Iterable[Mapping[str, object]], out: Path | None) -> None:
    """Print rows as lines of JSON, and append each to a file at once, so that an interruption loses none."""
    for row in rows:
        print(json.dumps(row), flush=True)
        if out is not None:
            with out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("do", choices=["write", "differ", "time"])
    parser.add_argument("file", type=Path)
    parser.add_argument("--variant", nargs="+", default=sorted(corpus.variants()))
    parser.add_argument("--length", nargs="+", type=int, default=LENGTHS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--out", type=Path, help="lines of JSON, as they come")
    options = parser.parse_args()
    if options.do == "write":
        write(options.file, options.variant)
    elif options.do == "differ":
        differ(options.file, options.variant, options.compile)
    else:
        from cuir.performance.timing.gpu import explain_missing_gpu

        if reason := explain_missing_gpu():
            print(f"nothing measured: {reason}", file=sys.stderr)
            return 1
        as_they_come(time_texts(options.file, options.variant, options.length, options.rounds), options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
