"""Programs that a model wrote for variants, from a lifted expert kernel, timed on a Hopper GPU.

    python -m benchmarks.of_models --from fa3=benchmarks/results/eval-lifted-eight-2026-11-25.tar.xz fa2=benchmarks/results/eval-lifted-fa2-eight-2026-11-25.tar.xz --out rows.jsonl
    cuir bench paper --show --out rows.jsonl                            # no GPU: the table of what was measured

Peers are our kernel for Hopper and FlexAttention. The programs are those that `cuir eval` accepted, from its
transcripts: of each variant the first sample's (--sample 1 for the second's). The cells are those of `cuir bench paper`
(three models, 1k to 8k, head dim 128), f16; contenders take turns with a cold L2 cache, every result is compared with
float64. A program that computes a variant only for some parameters is wrong for others, and its row says so.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import torch

import cuir
from benchmarks.recorded import as_row, command, open_transcripts, record
from cuir.attn.kernels.attention_kernel import attention
from cuir.attn.splicing.captured_arguments import compute_captured_arguments
from cuir.checking.checked import Const
from cuir.cli.command_inputs import read_variant
from cuir.performance.suites.cell_benchmark import Cell, Timing
from cuir.performance.suites.contest import contest
from cuir.performance.suites.peers import contenders
from cuir.performance.suites.result_rows import Entry
from cuir.performance.suites.suites import suite
from cuir.performance.timing.problem import compute_expectation, count_kept_pairs, make_tensors
from cuir.performance.timing.timing_protocol import Call
from cuir.syntax.types import F16
from cuir.text.diagnostics import CuirError

DIM = 128
CONSTS: dict[str, Const] = {"T": F16, "D": DIM}


def read_accepted(transcripts: Path, sample: int = 0) -> dict[str, str]:
    """Return the accepted program's text by variant, of one sample; variants without one are left out."""
    texts = {}
    for path in sorted(transcripts.glob(f"*-{sample}.jsonl")):
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        right = [line["verdict"]["text"] for line in lines if line["kind"] == "exchange" and line["verdict"]["ok"]]
        if right:
            texts[update_name(lines[0]["task"]["to"])] = right[-1]
    return texts


def update_name(specification: str) -> str:
    """Return the present name of a recorded specification: each structure was a file of benchmarks/structures."""
    path = Path(specification)
    return f"benchmarks/structures.py:{path.stem}" if path.parent.name == "structures" else specification


def program_call(text: str, name: str, cell: Cell, problem: Mapping[str, torch.Tensor], scale: float) -> Call:
    """Return a call of a program that computes O and LSE.

    Raises CuirError as `cuir.compile` does, and X132 for a parameter that the variant does not have.
    """
    program = cuir.parse(text, name)
    (kernel,) = program.kernels().values()
    spec, q = read_variant(cell.variant, cell.arguments), problem["Q"]
    compiled = cuir.compile(program, consts=CONSTS)
    captured: Mapping[str, Any] = compute_captured_arguments(program, kernel, spec, cell.shape.lengths, q.device, compiled.checked.consts)
    out = {"O": torch.empty_like(q), "LSE": torch.empty(q.shape[:-1], device=q.device)}

    def call() -> tuple[torch.Tensor, torch.Tensor]:
        compiled(**problem, **out, scale=scale, **captured)
        return out["O"], out["LSE"]

    return call


def row(cell: Cell, programs: Mapping[str, str], rounds: int) -> dict[str, Any]:
    """Return the cell's row: ours, FlexAttention, and the programs by their origin."""
    spec, scale = read_variant(cell.variant, cell.arguments), DIM**-0.5
    problem = make_tensors(cell.shape, torch.float16, "cuda")
    expected = compute_expectation(spec, problem["Q"], problem["K"], problem["V"], scale)
    flops = 4.0 * DIM * count_kept_pairs(spec, problem["Q"], problem["K"])
    function = attention(spec, dtype=torch.float16, head_dim=DIM, verify="off")  # results are judged by this benchmark
    calls: dict[str, Call] = {"cuir": lambda: function(*problem.values()), **contenders(["flex"], spec, problem, scale)}
    later: dict[str, list[Call]] = {name: [] for name in programs}

    def first(name: str) -> Any:
        if not later[name]:  # a failure to compile goes into the row
            later[name].append(program_call(programs[name], f"{cell.variant}.cuir", cell, problem, scale))
        return later[name][0]()

    calls |= {name: partial(first, name) for name in programs}

    def judge(outputs: Any) -> tuple[float, str]:
        o, lse = outputs if isinstance(outputs, tuple) else (outputs, None)
        return expected.error(o), expected.judge(o, lse)

    def figures(ms: float) -> Entry:
        return {"tflops": round(flops / ms / 1e9, 2)}

    rows = contest(calls, judge, figures, Timing(rounds))
    return as_row(cell, flops, expected.half_error, expected.bound, rows)


def compile_ahead(text: str) -> str:
    """Compile a program into the cache; return why it does not compile, "" if it does."""
    try:
        cuir.compile(cuir.parse(text, "program.cuir"), consts=CONSTS)
    except CuirError as error:
        return str(error)
    return ""


def main(arguments: list[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--from", dest="origins", nargs="+", required=True, metavar="NAME=FOLDER", help="transcripts, and what their programs are called"
    )
    parser.add_argument("--sample", type=int, default=0)
    parser.add_argument("--variant", nargs="*", default=[], help="left out: all")
    parser.add_argument("--length", type=int, nargs="*", default=[], help="left out: all")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=math.inf, help="no cell begins after them")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args(arguments)
    texts = {
        name: read_accepted(open_transcripts(Path(folder)), options.sample)
        for name, _, folder in (origin.partition("=") for origin in options.origins)
    }
    with ThreadPoolExecutor(8) as pool:  # each is a process of nvcc
        for why in pool.map(compile_ahead, [text for by_variant in texts.values() for text in by_variant.values()]):
            if why:
                print(why, file=sys.stderr)
    cells = [
        c
        for c in suite("paper").cells()
        if c.variant in (options.variant or (c.variant,)) and c.shape.N in (options.length or (c.shape.N,))
    ]
    words = command("benchmarks.of_models", sys.argv[1:] if arguments is None else arguments)
    head = {"suite": "paper", "pass": "forward", "command": words}

    def programs(cell: Cell) -> dict[str, str]:
        return {name: by_variant[cell.variant] for name, by_variant in texts.items() if cell.variant in by_variant}

    record(options.out, head, [c for c in cells if programs(c)], lambda cell: row(cell, programs(cell), options.rounds), options.seconds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
