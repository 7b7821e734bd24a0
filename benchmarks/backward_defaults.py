"""Backward pass that a call gets, beside the alternatives, on a Hopper GPU.

It covers variants, head dims and lengths.

    python -m benchmarks.backward_defaults --out rows.jsonl         # all; --model hd64 --length 1024 4096 for some, --seconds 120 for as many as fit
    cuir bench backward --show --out rows.jsonl                     # no GPU: the table, where "cuir" is what a call gets, and a peer an alternative

Passes are timed as repeated ones, in turns with a cold L2 cache, every gradient is compared with float64. The one that
a call gets is `cuir`. Alternatives:

* added: dQ is summed in f32, with the order of a block's last products that a call has.
* reordered: what a call gets with the other order (LATER).
* spread: heads of a group are separate work.
* apart: dQ by a separate kernel.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.recorded import as_row, command, record
from cuir.attn.kernels.attention_kernel import attention
from cuir.attn.kernels.autograd import BackwardInputs, Gradients, choose_gradients
from cuir.attn.kernels.backward_kernels import RequestedGradients, has_few_keys
from cuir.cli.command_inputs import read_variant
from cuir.performance.suites.cell_benchmark import Cell, Timing
from cuir.performance.suites.contest import contest
from cuir.performance.suites.result_rows import Entry
from cuir.performance.suites.suites import MODELS, cell
from cuir.performance.timing.problem import compute_expected_gradients, count_kept_pairs, make_tensors
from cuir.performance.timing.timing_protocol import Call
from cuir.text.diagnostics import CuirError

VARIANTS = ("full", "causal", "sliding_window", "prefix_lm", "causal_document", "softcap_causal", "alibi_causal")
OF_MODELS = ("llama2-7b", "qwen2.5-72b", "hd64", "hd64-grouped", "hd96", "hd256")
LENGTHS = (1024, 4096, 16384)
ALL = (True, True, True)


def reorder_products(function: Any, requested: RequestedGradients) -> Gradients | None:
    """Return the passes with the other order of a block's last products; None for kernels with one order."""
    gradients = Gradients(function, requested)
    part = gradients.plan.by_keys
    if part is None or not gradients.plan.adds or "LATER" not in part.step.consts:
        return None
    part.step = replace(part.step, consts={**part.step.consts, "LATER": not part.step.consts["LATER"]})
    gradients.plan = replace(gradients.plan, steps={**gradients.plan.steps, part.kernel: part.step})
    return gradients


def forms(function: Any, default: Gradients, grouped: bool) -> dict[str, Gradients]:
    """Return what a call gets, and the alternatives, by name."""
    alternatives = {"added": RequestedGradients(), "apart": RequestedGradients(separate_queries=True)} | (
        {"spread": RequestedGradients(spread=True)} if grouped else {}
    )
    by_name = {"cuir": default} | {
        name: function.gradients(requested) for name, requested in alternatives.items() if requested != default.requested
    }
    with_order = reorder_products(function, default.requested)
    return by_name | ({"reordered": with_order} if with_order is not None else {})


class Problem:
    """Tensors of a cell, their forward pass, and the forms of its backward pass."""

    def __init__(self, at: Cell, device: str = "cuda", backend: str = "auto"):
        self.spec, self.scale = read_variant(at.variant, at.arguments), at.shape.D**-0.5
        problem = make_tensors(at.shape, torch.float16, device)
        self.q, self.k, self.v = (problem[n] for n in "QKV")
        self.do = torch.randn(*self.q.shape[:3], at.shape.DV, dtype=torch.float16, device=device)
        # not verified: results are judged by this benchmark
        function = attention(self.spec, dtype=torch.float16, head_dim=at.shape.D, value_dim=at.shape.DV, verify="off")
        self.ready = function.ready(self.q, self.k, self.v, None, backend)
        few = partial(has_few_keys, function.settings, function.transferred, self.ready.device_arguments, at.shape.lengths, self.q.device)
        self.forms = forms(function, choose_gradients(function, ALL, (), at.shape.lengths, few), at.shape.H != at.shape.HK)

    def calls(self) -> dict[str, Call]:
        """Return the forms as calls."""
        o, lse = self.ready(self.q, self.k, self.v)[:2]
        inputs = self.q, self.k, self.v, o, lse, self.do

        def call(of: Gradients) -> tuple[torch.Tensor | None, ...]:
            return (
                of.replay(self.ready, self.scale, *inputs)
                or of.of(self.ready, BackwardInputs(*inputs), self.scale, keep=self.ready.kernel is not None)[0]
            )

        return {name: partial(call, of) for name, of in self.forms.items()}


def row(at: Cell, rounds: int) -> dict[str, Any]:
    """Measure a cell."""
    problem = Problem(at)
    expected = compute_expected_gradients(problem.spec, problem.q, problem.k, problem.v, problem.do, problem.scale)
    flops = (6.0 * at.shape.D + 4.0 * at.shape.DV) * count_kept_pairs(problem.spec, problem.q, problem.k)

    def judge(grads: Any) -> tuple[float, str]:
        return max(expected.errors(grads)), expected.judge(grads)

    def figures(ms: float) -> Entry:
        return {"tflops": round(flops / ms / 1e9, 2)}

    rows = contest(problem.calls(), judge, figures, Timing(rounds))
    return as_row(at, flops, max(expected.half_errors), max(expected.bounds), rows)


def compile_ahead(cells: Sequence[Cell]) -> None:
    """Compile the kernels of all cells into the cache; each is a process of nvcc.

    A form that does not compile is reported here, and again in its row.
    """
    kernels = {(c.variant, c.model): c for c in cells}

    def compile_forms(at: Cell) -> None:
        for name, form in Problem(at).forms.items():
            try:
                form.compile_kernels(torch.device("cuda"))
            except CuirError as error:
                print(f"{at.name}, {name}: {error}", file=sys.stderr)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(compile_forms, kernels.values()))


def main(arguments: list[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--variant", nargs="*", default=list(VARIANTS))
    parser.add_argument("--model", nargs="*", default=list(OF_MODELS), choices=list(MODELS))
    parser.add_argument("--length", type=int, nargs="*", default=list(LENGTHS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=math.inf, help="no cell begins after them")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args(arguments)
    cells = [cell(v, m, n) for n in options.length for v in options.variant for m in options.model]
    compile_ahead(cells)
    words = command("benchmarks.backward_defaults", sys.argv[1:] if arguments is None else arguments)
    head = {"suite": "backward", "pass": "backward", "command": words}
    record(options.out, head, cells, lambda at: row(at, options.rounds), options.seconds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
