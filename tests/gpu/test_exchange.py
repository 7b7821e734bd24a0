"""Data handed from CTA to CTA of a cluster in a tensor, on a GPU.

Atomic additions of subnormal numbers on a GPU, beside the interpreter. `python -m pytest tests/gpu/test_exchange.py -q`.

Lanes of one worker that depend on each other through memory.

Products in flight under several names.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, seed, settings

import cuir
from cuir.arguments.binding import TORCH
from cuir.checking.checked import Checked
from cuir.checking.checker import check
from cuir.interp import run
from cuir.lowering import lower
from cuir.runtime.compiled import CompiledKernel, compile
from cuir.runtime.nvcc import compile_cuda
from cuir.syntax.nodes import Program
from cuir.syntax.parser import parse
from cuir.syntax.types import DTYPES
from tests.gpu.isolation import run_isolated
from tests.lowering.handing import ANEW, DIFFER, NEXT, TURN, bodies, finish, program, repair, results

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


SUMS = """\
@kernel(arch="sm_90a")
def k(X: Global[DTYPE, M, 64], T: Global[DTYPE, 16, 64]):
    s = shared(DTYPE, [16, 64])
    with role("w", warps=1):
        for i in range(M // 16):
            HOW
"""
ADDS = {
    "scatter": "store(T[rows(16), cols(64)], X[i * 16 + rows(16), cols(64)], add=True)",
    "box": "store(T[:, :], load(X[i * 16 : i * 16 + 16, :]), add=True)",
    "bulk": "store_wait()\nstore(s, load(X[i * 16 : i * 16 + 16, :]))\nfence_async()\nstore_async(s, T[:, :], add=True)",
    "store": "store(T[rows(16), cols(64)], X[i * 16 + rows(16), cols(64)])",
}
LEAST = 2.0**-126


FORMS = [how for how in ADDS if how != "store"]


def sum_addends(how: str, dtype: str, addends: list[float], before: float = 0.0, device: str = "cpu") -> torch.Tensor:
    """The sum of the addends, each of an addition of its own, on a tensor that holds `before`; one element of it, of which all are alike."""
    text = SUMS.replace("DTYPE", dtype).replace("HOW", ADDS[how].replace("\n", "\n            "))
    stored = TORCH[DTYPES[dtype]]
    x = torch.tensor(addends, dtype=stored).repeat_interleave(16)[:, None].repeat(1, 64).to(device)
    total = torch.full((16, 64), before, dtype=stored, device=device)
    run = cuir.run if device == "cpu" else on_device
    run(cuir.parse(text), {"X": x, "T": total})
    total = total.cpu()
    assert torch.equal(total.view(torch.int8), total[0, 0].expand(16, 64).contiguous().view(torch.int8))
    return total[0, 0]


def on_device(program: Program, arguments: dict[str, Any]) -> None:
    cuir.compile(program)(**arguments)


SUMMED = ([1e-40] * 4, [LEAST / 2] * 4, [LEAST, LEAST], [1.5 * LEAST, -LEAST], [-1e-40, 1.0], [2.0**-24] * 3, [2.0**-133] * 3)


def differences(dtype: str) -> list[str]:
    """Collect the sums whose bits on the GPU differ from the interpreter's."""
    results = []
    for how in FORMS:
        for addends in SUMMED:
            for before in (0.0, 1e-40, -1.0):
                local, remote = sum_addends(how, dtype, list(addends), before), sum_addends(how, dtype, list(addends), before, "cuda")
                if local != remote:
                    results.append(f"{how} {dtype} {addends} on {before}: {remote.item()} on the GPU, {local.item()} in the interpreter")
    return results


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_sums_of_subnormal_numbers(dtype: str) -> None:
    assert run_isolated(differences, dtype, seconds=300.0) == []


TEXT = """
@kernel(arch="sm_90a")
def shifted(X: Global[f32, M, 64], Y: Global[f32, M, 64], Z: Global[f32, M, 64]):
    buf = shared(f32, [128, 64])
    work = tiles(cdiv(M, 128))
    with role("all", warpgroups=1):
        for t in work:
            for u in range(8):
                store(buf[0 : 64], load(X[t * 128 : t * 128 + 64, :]))
                store(buf[64 : 128], load(X[t * 128 + 64 : t * 128 + 64 + 64, :]))
                x = load(buf[40 : 40 + 64]) + buf[3, 5]
                store(buf[24 : 24 + 64], x)
                y = load(buf[8 : 8 + 64])
                store(Y[t * 128 : t * 128 + 64, :], y)
                store(Z[t * 128 + 32 : t * 128 + 32 + 64, :], y)
                z = load(Z[t * 128 + 40 : t * 128 + 40 + 64, :])
                store(Y[t * 128 + 64 : t * 128 + 64 + 64, :], z)
"""

ROWS = """
@kernel(arch="sm_90a")
def chained(X: Global[f16, M, 64], G: Global[f16, 64, 64], Y: Global[f32, M, 64], n: i32):
    h, g = shared(f16, [128, 64]), shared(f16, [64, 64])
    full = mbarrier(1)
    work = tiles(cdiv(M, 128))
    with role("load", warps=1):
        full.expect(nbytes(g))
        copy_async(G[0:64, :], g, full)
    with role("all", warpgroups=2) as w:
        full.wait(0)
        for t in work:
            mine = h[w * 64 : w * 64 + 64]
            x = cast(load(X[t * 128 + w * 64 : t * 128 + w * 64 + 64, :]), f32)
            for i in range(n):
                store(mine, cast(x, f16))
                fence_async()
                p = mma_async(mine, g)
                mma_wait(p)
                x = p + 1.0
            store(Y[t * 128 + w * 64 : t * 128 + w * 64 + 64, :], x)
"""


def rows() -> None:
    """Rows of shared memory that each warp writes and the tensor core reads for it: bit by bit, 20 times. G moves columns, so that all numbers are whole and small."""
    checked = check(parse(ROWS, "chained.cuir"))
    x = torch.randint(-9, 10, (4096, 64), generator=torch.Generator().manual_seed(0)).half()
    inputs = {"X": x, "G": torch.eye(64, dtype=torch.float16).roll(3, 1), "Y": torch.zeros(4096, 64), "n": 50}
    run(checked, inputs)
    kernel = cuir.compile(checked)
    for _ in range(20):
        y = kernel(X=x.cuda(), G=inputs["G"].cuda(), n=50)
        assert torch.equal(y.cpu(), inputs["Y"])


def agree() -> None:
    """Bit by bit, 20 times."""
    checked = check(parse(TEXT, "shifted.cuir"))
    x = torch.randn(1024, 64, generator=torch.Generator().manual_seed(0))
    inputs = {"X": x, "Y": torch.zeros_like(x), "Z": torch.zeros_like(x)}
    run(checked, inputs)
    kernel = cuir.compile(checked)
    for _ in range(20):
        y, z = torch.full_like(x, torch.nan).cuda(), torch.zeros_like(x).cuda()
        kernel(X=x.cuda(), Y=y, Z=z)
        assert torch.equal(y.cpu(), inputs["Y"]) and torch.equal(z.cpu(), inputs["Z"])


@pytest.mark.gpu
def test_the_gpu_does_what_the_interpreter_does() -> None:
    run_isolated(agree, seconds=120)


@pytest.mark.gpu
def test_rows_of_warps() -> None:
    run_isolated(rows, seconds=120)


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


def agree_of_handing(number: int, count: int) -> int:
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
def test_the_gpu_does_what_the_interpreter_does_of_handing(seed: int) -> None:
    assert run_isolated(agree_of_handing, seed, EACH, seconds=300) == 4 + EACH
