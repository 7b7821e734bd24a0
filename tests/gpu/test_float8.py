"""8-bit floats on a GPU: products of the tensor core, and casts."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import pytest
import torch

import corpus
import cuir
from cuir.attn.verification.problems import Case
from cuir.checking.checked import Checked
from cuir.ops.meaning.tiles import narrow_sum_error
from cuir.runtime.compiled import compile
from cuir.spec.specification import Lengths
from cuir.syntax.types import DTYPES
from cuir.verification import on_gpu
from tests.gpu.isolation import run_isolated

PRODUCT = """\
@kernel(arch="sm_90a")
def product(A: Global[T, M, K], B: Global[T, N, K], C: Global[f32, M, N], *, T: const, BN: const = 64, BK: const = 128):
    sA, sB = shared(T, [64, BK]), shared(T, [BN, BK])
    full, empty = mbarrier(1), mbarrier(1)
    work = tiles(cdiv(M, 64) * cdiv(N, BN))
    with role("loader", warps=1):
        i = 0
        for t in work:
            m, n = t // cdiv(N, BN) * 64, t % cdiv(N, BN) * BN
            for k in range(cdiv(K, BK)):
                empty.wait(i % 2 ^ 1)
                full.expect(nbytes(sA) + nbytes(sB))
                copy_async(A[m : m + 64, k * BK : k * BK + BK], sA, full)
                copy_async(B[n : n + BN, k * BK : k * BK + BK], sB, full)
                i = i + 1
    with role("math", warpgroups=1):
        i = 0
        for t in work:
            m, n = t // cdiv(N, BN) * 64, t % cdiv(N, BN) * BN
            acc = zeros(f32, [64, BN])
            for k in range(cdiv(K, BK)):
                full.wait(i % 2)
                acc = mma_async(sA, sB.T, acc)
                mma_wait(acc)
                empty.arrive()
                i = i + 1
            store(C[m : m + 64, n : n + BN], acc)
"""
PRODUCT_SHAPES = (  # rows, columns, inner dim, columns of the second product, halves, who multiplies
    (64, 64, 128, 128, "f16", "warps=1"),
    (64, 64, 128, 128, "bf16", "warpgroups=1"),
    (64, 32, 48, 80, "bf16", "warps=1"),
    (128, 16, 16, 16, "f16", "warpgroups=1"),
)
CASTS = """\
@kernel(arch="sm_90a")
def casts(X: Global[f32, M, 64], Y: Global[T, M, 64], Z: Global[f32, M, 64], *, T: const):
    s = shared(T, [64, 64])
    work = tiles(cdiv(M, 64))
    with role("all", warpgroups=1):
        for t in work:
            y = cast(load(X[t * 64 : t * 64 + 64, :]), T)
            sync()
            store(s, y)
            sync()
            store(Y[t * 64 : t * 64 + 64, :], load(s))
            store(Z[t * 64 : t * 64 + 64, :], cast(y, f32) * 2.0)
"""
PANELS = CASTS.replace("64]", "128]")
WIDENED = """\
@kernel(arch="sm_90a")
def widened(X: Global[T, M, 128], Y: Global[W, M, 128], *, T: const, W: const):
    s = shared(T, [64, 128])
    full = mbarrier(1)
    work = tiles(cdiv(M, 64))
    with role("load", warps=1):
        for t in work:
            full.expect(nbytes(s))
            copy_async(X[t * 64 : t * 64 + 64, :], s, full)
    with role("all", warpgroups=1):
        for t in work:
            full.wait(0)
            store(Y[t * 64 : t * 64 + 64, :], cast(load(s), W))
"""
MOVED = WIDENED.replace("    full = ", "    w = shared(W, [64, 128])\n    full = ").replace(
    "store(Y[t * 64 : t * 64 + 64, :], cast(load(s), W))",
    "store(w, cast(load(s), W))\n            store(Y[t * 64 : t * 64 + 64, :], load(w))",
)

BESIDE_HALVES = """\
@kernel(arch="sm_90a")
def beside(A: Global[T, R, K], B: Global[W, C, K], V: Global[W, C, N], X: Global[f32, R, C], Y: Global[f32, R, C], Z: Global[f32, R, C], O: Global[f32, R, N], P: Global[f32, R, N], *,
           T: const, W: const, R: const, C: const, K: const, N: const, SLAB: const):
    sA, sW, sB, sV = shared(T, [R, 128]), shared(T, [R, 128]), shared(W, [C, 128]), shared(W, [C, 128])
    full = mbarrier(1)
    work = tiles(1)
    with role("load", warps=1):
        for t in work:
            full.expect(nbytes(sA) + nbytes(sB) + nbytes(sV))
            copy_async(A[0 : R, 0 : 128], sA, full)
            copy_async(B[0 : C, 0 : 128], sB, full)
            copy_async(V[0 : C, 0 : 128], sV, full)
    with role("math", WORKERS):
        for t in work:
            full.wait(0)
            a = load(sA[:, 0 : K])
            store(X[0 : R, :], mma(a, sB[:, 0 : K].T))                     # loaded for the product alone
            store(Y[0 : R, :], mma(sA[:, 0 : K], sB[:, 0 : K].T))
            s = mma(load(sA[:, 0 : K]) * 2.0, sB[:, 0 : K].T)              # as an accumulator lies
            store(Z[0 : R, :], s)
            store(O[0 : R, :], mma(cast(s, T), sV[:, 0 : N]))
            for r in range(0, R, SLAB):
                store(sW[r : r + SLAB, 0 : C], cast(mma(load(sA[r : r + SLAB, 0 : K]) * 2.0, sB[:, 0 : K].T), T))
            p = zeros(f32, [R, N])
            for i in range(3):                                             # its columns stay as lanes get them
                p = mma(sW[:, 0 : C], sV[:, 0 : N], p * 0.5)
            store(P[0 : R, :], p)
"""

# Two warps transpose what a copy brings, and a warpgroup multiplies by it what it computes.
INTERLEAVED = """\
@kernel(arch="sm_90a")
def product(A: Global[f32, 64, K], V: Global[T, K, N], O: Global[f32, 64, N], *, T: const, K: const = 128, N: const = 128):
    sV, sT = shared(T, [K, 128]), shared(T, [N, 128])
    full, done = mbarrier(1), mbarrier(2)
    work = tiles(1)
    with role("load", warps=1):
        for t in work:
            full.expect(nbytes(sV))
            copy_async(V[0 : K, 0 : 128], sV, full)
    with role("transpose", warps=2) as w:
        for t in work:
            x = zeros(f32, [16, 8])
            full.wait(0)
            transpose_interleaved(sV[w * 64 : w * 64 + 64, 0 : N], sT[:, w * 64 : w * 64 + 64])
            fence_async()
            done.arrive()
    with role("math", warpgroups=1):
        for t in work:
            x = load(A[0 : 64, 0 : K])
            p = interleave(cast(x, T))
            done.wait(0)
            acc = zeros(f32, [64, N])
            for i in range(2):
                acc = mma_async(p, sT[:, 0 : K].T, acc)
                mma_wait(acc)
                x = x * 2.0
                p = interleave(cast(x, T))
            store(O[0 : 64, :], acc)
"""


def interleaved_operands(dtype: str, device: str) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Arguments of INTERLEAVED for 96 columns, and the sums that it must give."""
    g = torch.Generator().manual_seed(96)
    stored = getattr(torch, DTYPES[dtype].torch)
    a, v = torch.randn(64, 128, generator=g), torch.randn(128, 96, generator=g).to(stored)
    expected = (a.to(stored).double() + (2 * a).to(stored).double()) @ v.double()
    return {"A": a.to(device), "V": _in_wide_rows(v, device), "O": torch.empty(64, 96, device=device)}, expected


def interleaved_is_right(dtype: str) -> None:
    inputs, expected = interleaved_operands(dtype, "cuda")
    compile(cuir.check(cuir.parse(INTERLEAVED), consts={"T": DTYPES[dtype], "N": 96}))(**inputs)
    error = (inputs["O"].cpu().double() - expected).abs().max()
    assert error <= narrow_sum_error(256) * expected.abs().max(), float(error)


# ---- attention
CASES = (
    Case("whole tiles", Lengths(2, 4, 2, 256, 384)),
    Case("ragged", Lengths(1, 4, 2, 400, 500), "strided", 3),
    Case("growing maxima", Lengths(1, 4, 2, 300, 900), "growing", 4),
    Case("one key", Lengths(2, 4, 4, 33, 1), "spikes", 5),
    Case("no keys", Lengths(1, 2, 1, 40, 0)),
)
SETTINGS: dict[str, dict[str, int]] = {  # of starts of the kernel's space
    "64": {"D": 64, "BM": 192, "BN": 128},
    "96": {"D": 96, "BM": 128, "BN": 192},
    "128": {"D": 128, "BM": 128, "BN": 192},
    "256": {"D": 256, "BM": 128, "BN": 96, "LOADED": 1, "AHEAD": False, "STAGED": False},
}


def attention_is_right(setting: str, dtype: str) -> None:
    """The kernel beside the interpreter and float64, within the error that the tensor core's sums have; launches give the same bits."""
    program = cuir.parse(corpus.kernels()["flash_fwd_f8_sm90"].read_text(encoding="utf-8"), "flash_fwd_f8_sm90.cuir")
    checked = cuir.check(program, consts={"T": DTYPES[dtype], **SETTINGS[setting]})
    kernel = compile(checked)

    def launch(arguments: Mapping[str, Any]) -> None:
        kernel(**arguments)
        torch.cuda.synchronize()

    for case in CASES:
        print(case, on_gpu.compare(program, checked, corpus.variant("causal")(), case, launch).as_json(), flush=True)


def scaled_calls_are_right(device: str = "cuda", backend: str = "auto") -> None:
    """Calls with scales of all, of heads and of blocks, beside float64 of the numbers that they stand for; a later call replays the launch."""
    g = torch.Generator(device).manual_seed(8)
    q, k, v = (torch.randn(2, h, n, 128, device=device, generator=g) * size for h, n, size in ((4, 300, 3), (2, 500, 1), (2, 500, 7)))
    mask = cuir.create_block_mask(lambda b, h, i, j: j <= i + 200, None, None, 300, 500, device=device)
    kept = torch.arange(500, device=device) <= torch.arange(300, device=device)[:, None] + 200
    for per in ("tensor", "head", "block"):
        pairs = [cuir.quantize_fp8(x, of) for x, of in ((q, per), (k, per), (v, "head" if per == "block" else per))]  # type: ignore[arg-type]
        wide = [x.double() * _spread_scale(s, x) for x, s in pairs]
        (q8, qs), (k8, ks), (v8, vs) = pairs
        scores = wide[0] @ wide[1].repeat_interleave(2, 1).mT * 128**-0.5
        expected = scores.masked_fill(~kept, -torch.inf).softmax(-1) @ wide[2].repeat_interleave(2, 1)
        for factor in (1.0, 2.0):
            o = cuir.flex_attention(
                q8, k8, v8, None, mask, enable_gqa=True, q_scale=qs, k_scale=ks, v_scale=vs * factor, backend=backend, verify="off"
            )
            error = float((o.double() - factor * expected).norm() / (factor * expected).norm())
            print(per, factor, error, flush=True)
            assert error < 0.04, (per, factor, error)


def gradients_are_right(device: str = "cuda", backend: str = "auto", length: int = 4096) -> None:
    """Training calls beside float64: heads of a group, masks, a mod, and gradients of 1, whose sums lose most to the 14 bits of the tensor core."""
    problems = (
        (64, 64, None, "normal"),
        (128, 128, None, "ones"),
        (128, 128, lambda b, h, i, j: j <= i, "normal"),
        (72, 40, None, "capped"),
    )
    for D, DV, mod, kind in problems:
        g = torch.Generator(device).manual_seed(D)
        n = length if kind == "ones" else min(length, 700)
        shapes = ((4, D), (2, D), (2, DV), (4, DV))
        q, k, v, do = (torch.randn(1, h, n, d, device=device, generator=g).bfloat16() for h, d in shapes)
        do = torch.ones_like(do) if kind == "ones" else do
        mask = None if mod is None else cuir.create_block_mask(mod, None, None, n, n, device=device)
        score = (lambda s, b, h, i, j: 5 * torch.tanh(s / 5)) if kind == "capped" else None
        leaves = [x.requires_grad_() for x in (q, k, v)]
        o = cuir.fp8_attention(*leaves, score, mask, backend=backend, verify="off")
        results = [o, *torch.autograd.grad(o, leaves, do)]
        wide = [x.detach().double().requires_grad_() for x in (q, k, v)]
        s = wide[0] @ wide[1].repeat_interleave(2, 1).mT * D**-0.5
        s = s if score is None else score(s, 0, 0, 0, 0)
        if mod is not None:
            s = s.masked_fill(torch.ones(n, n, dtype=torch.bool, device=device).triu(1), -torch.inf)
        exact = s.softmax(-1) @ wide[2].repeat_interleave(2, 1)
        errors = [
            float((x.detach().double() - y.detach()).norm() / y.detach().norm())
            for x, y in zip(results, [exact, *torch.autograd.grad(exact, wide, do.double())], strict=True)
        ]
        print(D, DV, kind, errors, flush=True)
        assert max(errors) < 0.08, (D, DV, kind, errors)


def _spread_scale(scale: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    if scale.dim() == 3:
        scale = scale.repeat_interleave(128, 2)[:, :, : x.shape[2]]
    return scale.double().reshape(*scale.shape, *(1,) * (4 - scale.dim()))


def operands(dtype: str, m: int, n: int, k: int, device: str) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Arguments of `product`, and the sums that it must give."""
    g = torch.Generator().manual_seed(m + n + k)
    stored = getattr(torch, DTYPES[dtype].torch)
    a, b = (torch.randn(r, k, generator=g).to(stored) for r in (m, n))
    return {"A": a.to(device), "B": b.to(device), "C": torch.empty(m, n, device=device)}, a.double() @ b.double().T


def numbers(device: str) -> torch.Tensor:
    """Draw numbers of all magnitudes that matter to 8 bits, halfway cases, and some beyond the largest."""
    g = torch.Generator().manual_seed(8)
    x = torch.randn(64, 64, generator=g) * 2.0 ** torch.randint(-18, 18, (64, 64), generator=g)
    x[0, :9] = torch.tensor([0.0, -0.0, 448.0, 464.0, 1e9, -1e9, torch.inf, -torch.inf, torch.nan])
    return x.to(device)


def round_to(x: torch.Tensor, dtype: str) -> torch.Tensor:
    """Rounded to the dtype: what is greater than its largest number becomes that."""
    t = DTYPES[dtype]
    return x.clamp(-float(t.largest), float(t.largest)).to(getattr(torch, t.torch))


def all_numbers(dtype: str, device: str) -> torch.Tensor:
    """Each number of the dtype, NaN and infinities among them, 32 times."""
    return torch.arange(64 * 128, dtype=torch.int32).to(torch.uint8).view(getattr(torch, DTYPES[dtype].torch)).view(64, 128).to(device)


def compare_widened(dtype: str) -> None:
    x = all_numbers(dtype, "cuda")
    for text, wide in itertools.product((WIDENED, MOVED), ("f16", "bf16", "f32")):
        y = torch.empty(64, 128, dtype=getattr(torch, DTYPES[wide].torch), device="cuda")
        compile(cuir.check(cuir.parse(text), consts={"T": DTYPES[dtype], "W": DTYPES[wide]}))(X=x, Y=y)
        torch.testing.assert_close(y.float(), x.float(), rtol=0, atol=0, equal_nan=True)


def product_is_right(dtype: str) -> None:
    """Hopper's tensor core sums 8-bit products with some 14 bits (DeepSeek-V3's report, section 3.3.2): see `narrow_sum_error`."""
    for m, n, k in ((64, 64, 128), (200, 100, 1024)):
        inputs, expected = operands(dtype, m, n, k, "cuda")
        compile(cuir.check(cuir.parse(PRODUCT), consts={"T": DTYPES[dtype]}))(**inputs)
        error = (inputs["C"].cpu().double() - expected).abs().max()
        limit = narrow_sum_error(k) * expected.abs().max()
        print(f"{dtype} {m}x{n}x{k}: largest error {float(error):.4g}, limit {float(limit):.4g}")
        assert error <= limit, (m, n, k, float(error), float(limit))


def casts_are_right(dtype: str) -> None:
    """Through an array of whole panels, too, which is read two numbers at a time."""
    for text, x in ((CASTS, numbers("cuda")), (PANELS, numbers("cuda").repeat(1, 2))):
        y, z = torch.empty_like(x, dtype=getattr(torch, DTYPES[dtype].torch)), torch.empty_like(x)
        compile(cuir.check(cuir.parse(text), consts={"T": DTYPES[dtype]}))(X=x, Y=y, Z=z)
        expected = round_to(x, dtype).float()
        torch.testing.assert_close(y.float(), expected, rtol=0, atol=0, equal_nan=True)
        torch.testing.assert_close(z, expected * 2, rtol=0, atol=0, equal_nan=True)


def make_widened_case(
    case: tuple[int, int, int, int, str, str], dtype: str, device: str
) -> tuple[Checked, dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """A kernel of products of halves by 8-bit floats, its arguments, and what its outputs must be, in float64."""
    rows, c, k, n, half, workers = case
    g = torch.Generator().manual_seed(rows + c)
    narrow, t = getattr(torch, DTYPES[dtype].torch), getattr(torch, DTYPES[half].torch)
    a, b, v = torch.randn(rows, k, generator=g).to(t), torch.randn(c, k, generator=g).to(narrow), torch.randn(c, n, generator=g).to(narrow)
    consts = {"T": DTYPES[half], "W": DTYPES[dtype], "R": rows, "C": c, "K": k, "N": n, "SLAB": 16 if workers.startswith("warps") else 64}
    checked = cuir.check(cuir.parse(BESIDE_HALVES.replace("WORKERS", workers)), consts=consts)
    inputs = {name: _in_wide_rows(x, device) for name, x in (("A", a), ("B", b), ("V", v))}
    s = a.double() @ b.double().T
    o = (2 * s).to(torch.float32).to(t).double() @ v.double()
    expected = {"X": s, "Y": s, "Z": 2 * s, "O": o, "P": 1.75 * o}
    return checked, inputs | {name: torch.empty(x.shape, device=device) for name, x in expected.items()}, expected


def beside_is_right(
    case: tuple[int, int, int, int, str, str], dtype: str, inputs: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]
) -> None:
    for name, x in expected.items():
        error = float((inputs[name].cpu().double() - x).norm() / x.norm())
        assert error < (1e-5 if name in "XYZ" else 1e-3 if case[4] == "f16" else 6e-3), (name, case, dtype, error)


def beside_halves(dtype: str) -> None:
    """Products of halves by 8-bit floats, which are exact: left operands in registers and in shared memory, right ones by rows and by columns, of a warp and of a warpgroup."""
    for case in PRODUCT_SHAPES:
        checked, inputs, expected = make_widened_case(case, dtype, "cuda")
        compile(checked)(**inputs)
        beside_is_right(case, dtype, inputs, expected)


def _in_wide_rows(x: torch.Tensor, device: str) -> torch.Tensor:
    """A matrix in rows of 128 numbers, as copies want them."""
    whole = torch.ones(x.shape[0], 128, device=device).to(x.dtype)
    whole[:, : x.shape[1]] = x.to(device)
    return whole[:, : x.shape[1]]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["f8e4m3", "f8e5m2"])
def test_product(dtype: str) -> None:
    run_isolated(product_is_right, dtype)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["f8e4m3", "f8e5m2"])
def test_casts(dtype: str) -> None:
    run_isolated(casts_are_right, dtype)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["f8e4m3", "f8e5m2"])
def test_widened(dtype: str) -> None:
    run_isolated(compare_widened, dtype)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["f8e4m3", "f8e5m2"])
def test_beside_halves(dtype: str) -> None:
    run_isolated(beside_halves, dtype, seconds=300)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["f8e4m3", "f8e5m2"])
def test_interleaved_product(dtype: str) -> None:
    run_isolated(interleaved_is_right, dtype)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["f8e4m3", "f8e5m2"])
@pytest.mark.parametrize("setting", SETTINGS)
def test_attention(setting: str, dtype: str) -> None:
    run_isolated(attention_is_right, setting, dtype, seconds=600)


@pytest.mark.gpu
def test_scaled_calls() -> None:
    run_isolated(scaled_calls_are_right, seconds=600)


@pytest.mark.gpu
def test_gradients_of_training_calls() -> None:
    run_isolated(gradients_are_right, seconds=600)
