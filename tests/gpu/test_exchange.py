"""Data handed from CTA to CTA of a cluster in a tensor, on a GPU."""

from __future__ import annotations

import pytest
import torch

from cuir.checking.checker import check
from cuir.interp import run
from cuir.runtime.compiled import compile
from cuir.syntax.parser import parse
from tests.gpu.isolation import run_isolated

EXCHANGE = """\
@kernel(arch="sm_90a", cluster=CLUSTER)
def exchange(X: Global[f32, U, 2, 64, 64], T: Global[f32, U, 2, 64, 64], Y: Global[f32, U, 2, 64, 64], *, CLUSTER: const = 2, ROUNDS: const = 5):
    there, own, full = mbarrier(CLUSTER), mbarrier(1, stages=2), mbarrier(1)
    s = shared(f32, [64, 64])
    work = tiles(U)
    with role("w", warpgroups=1):
        i = 0
        r = cta_rank()
        for t in work:
            x = load(X[t, r, 0 : 64, :])
            y = zeros(f32, [64, 64])
            for j in range(ROUNDS):
                store(T[t, r, 0 : 64, :], x * cast(j + 1, f32))
                fence_async(tensors=True)
                there.arrive(cluster=True)
                there.wait(0)
                full.expect(nbytes(s))
                copy_async(T[t, CLUSTER - 1 - r, 0 : 64, :], s, full)
                full.wait(i % 2)
                own[i % 2].arrive()
                own[i % 2].wait(i // 2 % 2)
                y = y + load(s) * 2.0 + load(T[t, CLUSTER - 1 - r, 0 : 64, :])
                there.arrive(cluster=True)
                there.wait(1)
                i += 1
            store(Y[t, r, 0 : 64, :], y)
"""


def arguments(units: int, device: str) -> dict[str, torch.Tensor]:
    x = torch.randint(-100, 100, (units, 2, 64, 64), generator=torch.Generator().manual_seed(units)).float().to(device)
    return {"X": x, "T": torch.zeros_like(x), "Y": torch.zeros_like(x)}


def compute_expected(x: torch.Tensor, rounds: int) -> torch.Tensor:
    """Return the expected Y: integers, so exactly."""
    return 3.0 * x.flip(1) * sum(range(1, rounds + 1))


def right() -> None:
    for rounds, units in ((1, 1), (5, 3), (64, 500)):
        checked = check(parse(EXCHANGE, "exchange.cuir"), None, {"ROUNDS": rounds})
        kernel = compile(checked)
        for _ in range(3):
            inputs = arguments(units, "cuda")
            kernel(**inputs)
            torch.cuda.synchronize()
            assert torch.equal(inputs["Y"], compute_expected(inputs["X"], rounds)), (rounds, units)
        if units <= 3:
            simulated = {n: t.cpu() for n, t in arguments(units, "cuda").items()}
            run(checked, simulated)
            assert torch.equal(simulated["Y"], inputs["Y"].cpu())


@pytest.mark.gpu
def test_exchange() -> None:
    run_isolated(right, seconds=200)


@pytest.mark.parametrize("schedule", ["in_order", "adversarial:reverse", "random:1"])
def test_it_is_right_in_the_interpreter(schedule: str) -> None:
    inputs = arguments(3, "cpu")
    run(check(parse(EXCHANGE, "exchange.cuir")), inputs, schedule=schedule)
    assert inputs["Y"].equal(compute_expected(inputs["X"], 5))
