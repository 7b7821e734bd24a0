"""Programs that a model wrote for structures beyond masks and scores, timed on a Hopper GPU.

    python -m benchmarks.of_structures --from fa3=benchmarks/results/eval-lifted-structures-2026-11-25.tar.xz fa2=benchmarks/results/eval-lifted-fa2-structures-2026-11-26.tar.xz --out rows.jsonl
    python -m benchmarks.of_structures --table rows.jsonl               # no GPU: the table of what was measured

Each is made from a lifted expert kernel, and stands beside PyTorch's compiled formula of the structure. The programs
are those that `cuir eval` accepted: of each structure the first sample's. Q, K and V are 2 x 16 heads x 4096 x 128,
f16, all inputs random and normal; each output of a program is compared with float64. Full attention on the same Q, K
and V, by our expert kernel (`cuir`) and by compiled FlexAttention (`flex`), is timed for reference: neither can express
these structures. TFLOP/s count 4 D operations for each query and key, for all contenders, whatever a structure needs
besides. Contenders take turns with a cold L2 cache. Structures that a mask or a score expresses are timed as
`benchmarks.of_models` does.
"""

from __future__ import annotations

import argparse
import inspect
import json
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import torch

import cuir
from benchmarks import of_models
from benchmarks.of_models import CONSTS, DIM, compile_ahead, read_accepted
from benchmarks.recorded import as_row, command, open_transcripts, record
from cuir.arguments.binding import TORCH
from cuir.attn.kernels.attention_kernel import attention
from cuir.checking.checked import Checked
from cuir.checking.checker import check
from cuir.cli.command_inputs import read_specification, read_variant
from cuir.performance.suites.cell_benchmark import Cell, Timing
from cuir.performance.suites.contest import contest
from cuir.performance.suites.peers import contenders
from cuir.performance.suites.result_rows import Entry
from cuir.performance.timing.problem import Shape
from cuir.performance.timing.timing_protocol import Call
from cuir.spec.function_specification import FunctionSpecification

SHAPE = Shape(2, 16, 16, 4096, 4096, DIM)
EXTRA_DIM = 256  # of a dim that Q, K and V do not have
RATIO, ROUNDING = 1.2, 2e-5  # of PyTorch's error in half precision, relative in the norm; and of results that it computes exactly
Launch = Callable[[Checked, dict[str, Any]], object]


class Problem:
    """Inputs of a structure, and its results in float64."""

    def __init__(self, spec: FunctionSpecification, program: Checked, shape: Shape, device: str):
        """Draw the inputs that the signature of a program for the structure names."""
        sizes = {"B": shape.B, "H": shape.H, "HK": shape.HK, "M": shape.M, "N": shape.N, "D": shape.D}
        self.spec, self.device, self.scale = spec, device, shape.D**-0.5
        g = torch.Generator(device).manual_seed(0)
        self.shapes = {t.name: [sizes.get(d, EXTRA_DIM) if isinstance(d, str) else d for d in t.dims] for t in program.tensors}
        self.dtypes = {t.name: TORCH[t.dtype] for t in program.tensors}
        self.outputs = [t.name for t in program.outputs]
        self.arguments: dict[str, Any] = {
            n: torch.randn(shape_of, generator=g, device=device).to(self.dtypes[n])
            for n, shape_of in self.shapes.items()
            if n not in self.outputs
        }
        self.arguments |= {s.name: self.scale if s.name == "scale" else 0.5 for s in program.scalars}
        with torch.device(device):
            self.exact = spec.exact(self.arguments, self.outputs)
            half = spec.yardstick(self.arguments, self.outputs, self.exact, torch.float16)
        self.half_errors = {n: self._off(n, half[n]) for n in self.exact}
        self.bounds = {n: RATIO * error + ROUNDING for n, error in self.half_errors.items()}

    def _off(self, name: str, output: torch.Tensor) -> float:
        """Return the relative error of an output, in the norm, where float64 gives a number."""
        exact = self.exact[name]
        finite = exact.isfinite()
        error = torch.where(finite, output.double() - exact, 0.0).norm() / (torch.where(finite, exact, 0.0).norm() + 1e-30)
        return float(error)

    def judge(self, outputs: Any) -> tuple[float, str]:
        """Return the largest error of a program's outputs, and why it is wrong, "" if it is right.

        A single tensor is full attention's, which is not judged.
        """
        if isinstance(outputs, torch.Tensor):
            return 0.0, ""
        off = {n: self._off(n, outputs[n]) for n in self.exact}
        wrong = [f"{n} is off by {e:.2e}, allowed {self.bounds[n]:.2e}" for n, e in off.items() if not e <= self.bounds[n]]
        return max(off.values()), "; ".join(wrong)

    def formula(self) -> Call:
        """Return the structure's function, compiled by PyTorch, in half precision."""
        half = {n: x.half() if isinstance(x, torch.Tensor) and x.is_floating_point() else x for n, x in self.arguments.items()}
        by_lower = {n.lower(): x for n, x in half.items()}
        arguments = {n: by_lower[n.lower()] for n in inspect.signature(self.spec.reference).parameters}
        compiled = torch.compile(self.spec.reference)

        def call() -> dict[str, torch.Tensor]:
            with torch.device(self.device):
                result: Any = compiled(**arguments)
            return dict(result)

        return call

    def program_call(self, text: str, launch: Launch | None = None) -> Call:
        """Return a call of a program. launch: runs a checked kernel, in place of the compiled one."""
        program = cuir.parse(text, f"{self.spec.name}.cuir")
        run: Callable[..., object] = (
            cuir.compile(program, consts=CONSTS) if launch is None else partial(launch, check(program, None, CONSTS))
        )
        outputs = {n: torch.empty(self.shapes[n], dtype=self.dtypes[n], device=self.device) for n in self.outputs}

        def call() -> dict[str, torch.Tensor]:
            run(**self.arguments, **outputs) if launch is None else run({**self.arguments, **outputs})
            return outputs

        return call


def row(cell: Cell, spec: FunctionSpecification, texts: Mapping[str, str], rounds: int) -> dict[str, Any]:
    """Return the row of a structure. A program that does not compile has its error in the row."""
    programs = {name: cuir.parse(text, f"{cell.variant}.cuir") for name, text in texts.items()}
    problem = Problem(spec, check(next(iter(programs.values())), None, CONSTS), cell.shape, "cuda")
    q, k, v = (problem.arguments[n] for n in "QKV")
    full = read_variant("full", [])
    function = attention(full, dtype=torch.float16, head_dim=cell.shape.D, verify="off")
    calls: dict[str, Call] = {"cuir": lambda: function(q, k, v), **contenders(["flex"], full, {"Q": q, "K": k, "V": v}, problem.scale)}
    later: dict[str, Call] = {}

    def first(name: str) -> Any:
        if name not in later:
            later[name] = problem.program_call(texts[name])
        return later[name]()

    calls |= {"compiled": problem.formula()} | {name: partial(first, name) for name in texts}
    flops = 4.0 * cell.shape.D * cell.shape.B * cell.shape.H * cell.shape.M * cell.shape.N

    def figures(ms: float) -> Entry:
        return {"tflops": round(flops / ms / 1e9, 2)}

    rows = contest(calls, problem.judge, figures, Timing(rounds))
    return as_row(cell, flops, max(problem.half_errors.values()), max(problem.bounds.values()), rows)


def table(rows: Iterable[Mapping[str, Any]]) -> str:
    """Format the rows: TFLOP/s, and the geometric means of quotients with contenders of the same turns."""
    rows = list(rows)
    names = list(dict.fromkeys(n for r in rows for n in r["contenders"]))
    lines = ["| structure | " + " | ".join(names) + " |", "|---|" + "--:|" * len(names)]
    for r in rows:
        cells = [str(c.get("tflops") or c.get("wrong") or c.get("failed") or "") for n in names for c in [r["contenders"].get(n, {})]]
        lines.append(f"| {r['variant']} | " + " | ".join(cells) + " |")
    lines.append("")
    for name in (n for n in names if n not in ("cuir", "flex", "compiled")):
        for peer in ("cuir", "flex", "compiled"):
            quotients = [
                r["contenders"][name]["tflops"] / r["contenders"][peer]["tflops"]
                for r in rows
                if all("tflops" in r["contenders"].get(n, {}) for n in (name, peer))
            ]
            if quotients:
                mean = math.exp(sum(map(math.log, quotients)) / len(quotients))
                lines.append(
                    f"{name} / {peer}: {mean:.2f} in the geometric mean of {len(quotients)} structures, smallest {min(quotients):.2f}  "
                )
    return "\n".join([*lines, ""])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--from", dest="origins", nargs="+", default=[], metavar="NAME=FOLDER", help="transcripts, and what their programs are called"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=math.inf, help="no structure begins after them")
    parser.add_argument("--out", type=Path, help="lines of JSON, as they come")
    parser.add_argument("--table", type=Path, help="of lines that were written before")
    options = parser.parse_args(arguments)
    if options.table is not None:
        lines = options.table.read_text(encoding="utf-8").splitlines()
        print(table(json.loads(line) for line in lines[1:]))
        return 0
    if not options.origins or options.out is None:
        parser.error("--from and --out are needed to measure, or --table FILE")
    texts = {
        name: read_accepted(open_transcripts(Path(folder))) for name, _, folder in (origin.partition("=") for origin in options.origins)
    }
    with ThreadPoolExecutor(8) as pool:  # each is a process of nvcc
        for why in pool.map(compile_ahead, [text for by_name in texts.values() for text in by_name.values()]):
            if why:
                print(why, file=sys.stderr)
    structures = {to.rpartition(":")[2]: to for by_name in texts.values() for to in by_name}

    def measure_cell(cell: Cell) -> dict[str, Any]:
        to = structures[cell.variant]
        of = {name: by_name[to] for name, by_name in texts.items() if to in by_name}
        spec = read_specification(to, ())
        return row(cell, spec, of, options.rounds) if isinstance(spec, FunctionSpecification) else of_models.row(cell, of, options.rounds)

    cells = [Cell(name, {}, "16 heads", SHAPE) for name in sorted(structures)]
    head = {
        "suite": "structures",
        "pass": "forward",
        "command": command("benchmarks.of_structures", sys.argv[1:] if arguments is None else arguments),
    }
    record(options.out, head, cells, measure_cell, options.seconds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
