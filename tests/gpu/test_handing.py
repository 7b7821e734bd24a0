"""Products in flight under several names."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import HealthCheck, given, seed, settings

from cuir.checking.checked import Checked
from cuir.lowering import lower
from cuir.runtime.compiled import CompiledKernel
from cuir.runtime.nvcc import compile_cuda
from tests.gpu.isolation import run_isolated
from tests.lowering.handing import ANEW, DIFFER, NEXT, TURN, bodies, finish, program, repair, results

DRAWS = 20
TRIPS = (0, 2)  # what a random kernel was made right for


def draw(number: int, count: int) -> list[Checked]:
    """Random kernels that hand products on, every other one with a wait for a copy. Few need such a wait: drawing goes on until there are enough."""
    kernels: dict[bool, list[Checked]] = {True: [], False: []}

    def enough() -> bool:
        return min(map(len, kernels.values())) >= count // 2

    for attempt in range(DRAWS):
        if enough():
            break

        @seed(number + attempt * 1000)
        @settings(max_examples=12 * count, database=None, deadline=None, suppress_health_check=list(HealthCheck))
        @given(bodies)
        def collect(parts: list[list[str]]) -> None:
            if not enough():
                checked, _ = repair(finish(parts))
                kernels[any("a product in flight" in c for c in lower(checked).choices)].append(checked)

        collect()
    return [*kernels[True][: count // 2], *kernels[False][: count // 2]]


def agree(number: int, count: int) -> int:
    """Count the kernels that agree: those of tests/lowering/handing.py, and `count` random ones.

    Raises AssertionError with the text of one that does not.
    """
    kernels = [program(body) for body in (DIFFER, NEXT, TURN, ANEW)] + draw(number, count)
    with ThreadPoolExecutor(4) as pool:
        binaries = list(pool.map(lambda checked: CompiledKernel(compile_cuda(lower(checked))), kernels))
    for checked, kernel in zip(kernels, binaries, strict=True):
        for n in TRIPS:
            expected, z = results(checked, n), torch.full((4, 64, 8), 0.25).cuda()
            kernel(Z=z, n=n)
            torch.testing.assert_close(
                z.cpu(), expected, rtol=1e-4, atol=1e-3, msg=lambda m, c=checked, n=n: f"n={n}: {m}\n{c.origin.span.source.text}"
            )
    return len(kernels)


EACH = 8


@pytest.mark.gpu
@pytest.mark.parametrize("seed", range(3))
def test_the_gpu_does_what_the_interpreter_does(seed: int) -> None:
    assert run_isolated(agree, seed, EACH, seconds=300) == 4 + EACH
