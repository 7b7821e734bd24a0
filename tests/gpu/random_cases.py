"""Random well-typed kernels: the GPU and the interpreter must agree. `test_random.py` runs each batch in a process of its own."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from hypothesis import HealthCheck, given, seed, settings

from cuir.api import CompiledKernel, compile
from cuir.check import check
from cuir.diagnostics import CuirError
from cuir.interp import run
from cuir.parser import parse
from tests.strategies.arguments import arguments
from tests.strategies.typed import Case, kernels

SHARE = 0.005  # of a tensor's elements that may differ: a rounding may turn a comparison, and a row sum with it
CLOSE = 2e-3  # relative: f16 weights, exp2 and tanh of the hardware, sums in another order


def cases(number: int, count: int) -> list[Case]:
    """`count` kernels that compute something, drawn from one seed."""
    found: list[Case] = []

    @seed(number)
    @settings(max_examples=6 * count, database=None, deadline=None, suppress_health_check=list(HealthCheck))
    @given(kernels())
    def collect(case: Case) -> None:
        if len(found) < count and len(case.text) > 1500 and case not in found:
            found.append(case)

    collect()
    return found


def differing(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """Share of the elements that differ."""
    f, w = found.double(), wanted.double()
    same = (f == w) | (f.isnan() & w.isnan())
    scale = w.abs().where(w.isfinite(), 0).amax(-1, keepdim=True)
    same |= (f - w).abs() <= CLOSE * torch.maximum(w.abs(), 0.05 * scale) + 1e-6
    return 1 - same.double().mean().item()


def agree(number: int, count: int = 8) -> dict[str, int]:
    """How many kernels of a seed agree, and how many the lowering refuses with a message."""

    def build(case: Case) -> tuple[Case, CompiledKernel | CuirError]:
        try:
            return case, compile(check(parse(case.text)))
        except CuirError as error:
            return case, error

    with ThreadPoolExecutor(4) as pool:
        built = list(pool.map(build, cases(number, count)))
    counts, wrong = {"agree": 0, "refused": 0}, []
    for case, kernel in built:
        if isinstance(kernel, CuirError):
            codes = [d.code for d in kernel.diagnostics]
            assert all(c.startswith("L00") for c in codes), str(kernel)
            counts["refused"] += 1
            print("refused", codes, kernel.diagnostics[0].message, flush=True)
            continue
        lengths = dict.fromkeys(kernel.checked.dims, case.M)
        given: dict[str, Any] = arguments(kernel.checked, lengths, seed=number)
        there = {n: v.cuda() if isinstance(v, torch.Tensor) else v for n, v in given.items()}
        run(kernel.checked, given)
        kernel(**there)
        torch.cuda.synchronize()
        shares = {t.name: differing(there[t.name].cpu(), given[t.name]) for t in kernel.checked.tensors if t.written}
        if max(shares.values()) > SHARE:
            print(f"FAIL M={case.M} {shares}\n{case.text}", flush=True)
            wrong.append(shares)
        else:
            counts["agree"] += 1
            print("ok", shares, flush=True)
    assert not wrong, wrong
    return counts
