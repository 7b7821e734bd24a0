"""float32 on a GPU: products of f32 operands in parts, and attention."""

from __future__ import annotations

import pytest
import torch

import cuir
from cuir.ops.meaning.tiles import split_operands
from cuir.runtime.compiled import compile
from cuir.syntax.types import F32
from tests.gpu.isolation import run_isolated

PRODUCT = """\
@kernel(arch="sm_90a")
def product(A: Global[f32, M, K], B: Global[f32, N, K], V: Global[f32, N, E], S: Global[f32, M, N], C: Global[f32, M, E], *,
            PARTS: const, K: const, E: const, R: const = 64, BN: const = 32, LOADED: const = False):
    sA, sB, sV = shared(f32, [R, cdiv(K, 32) * 32]), shared(f32, [BN, cdiv(K, 32) * 32]), shared(f32, [BN, cdiv(E, 32) * 32])
    full = mbarrier(1)
    work = tiles(1)
    with role("loader", warps=1):
        for t in work:
            full.expect(nbytes(sA) + nbytes(sB) + nbytes(sV))
            copy_async(A[0 : R, 0 : cdiv(K, 32) * 32], sA, full)
            copy_async(B[0 : BN, 0 : cdiv(K, 32) * 32], sB, full)
            copy_async(V[0 : BN, 0 : cdiv(E, 32) * 32], sV, full)
    with role("math", warpgroups=1):
        for t in work:
            full.wait(0)
            if LOADED:
                x = mma(load(sA[:, 0 : K]), sB[:, 0 : K].T, parts=PARTS)
            else:
                x = mma(sA[:, 0 : K], sB[:, 0 : K].T, parts=PARTS)
            store(S[0 : R, 0 : BN], x)
            store(C[0 : R, 0 : E], mma(x, sV[:, 0 : E], parts=PARTS))
"""


def operands(rows: int, keys: int, k: int, e: int, device: str) -> dict[str, torch.Tensor]:
    """Arguments of `product`."""
    g = torch.Generator().manual_seed(rows + keys + k + e)
    a, b, v = (torch.randn(*shape, generator=g).to(device) for shape in ((rows, k), (keys, k), (keys, e)))
    return {"A": a, "B": b, "V": v, "S": torch.empty(rows, keys, device=device), "C": torch.empty(rows, e, device=device)}


def exact(a: torch.Tensor, b: torch.Tensor, parts: int) -> torch.Tensor:
    """The product of what operands are taken as, in float64."""
    x, y = split_operands(a.cpu(), b.cpu(), parts)
    return x.double() @ y.double()


def product_is_right(parts: int, rows: int, keys: int, k: int, e: int, loaded: bool) -> None:
    """The operands are rounded as in the interpreter: what is left is the sums' error, which cut off 22 bits behind the first, and not that of another rounding."""
    inputs = operands(rows, keys, k, e, "cuda")
    consts = {"PARTS": parts, "K": k, "E": e, "R": rows, "BN": keys, "LOADED": loaded}
    compile(cuir.parse(PRODUCT), consts=consts)(**inputs)
    torch.cuda.synchronize()
    for result, a, b in ((inputs["S"], inputs["A"], inputs["B"].T), (inputs["C"], inputs["S"], inputs["V"])):
        off = (result.cpu().double() - exact(a, b, parts)).norm() / exact(a, b, parts).norm()
        assert off < 1e-6, float(off)


def attention_is_right(parts: int, dim: int, value_dim: int, m: int, n: int) -> None:
    """Causal attention of grouped heads: within twice of what PyTorch makes in float32, or what TF32 rounds; ten launches give the same bits."""
    g = torch.Generator().manual_seed(dim + m)
    q, k, v = (torch.randn(2, h, length, d, generator=g).cuda() for h, length, d in ((4, m, dim), (2, n, dim), (2, n, value_dim)))
    attention = cuir.attention(
        lambda b, h, q_idx, kv_idx: q_idx >= kv_idx, dtype=F32, head_dim=dim, value_dim=value_dim, consts={"PARTS": parts}, verify="off"
    )
    actual = [attention(q, k, v, return_lse=True) for _ in range(10)]
    keys, values = (x.repeat_interleave(2, 1) for x in (k, v))
    mask = torch.ones(m, n, device="cuda", dtype=torch.bool).tril()

    def plain(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.softmax((q @ k.mT * dim**-0.5).masked_fill(~mask, -torch.inf), -1) @ v

    expected = plain(q.double(), keys.double(), values.double())
    ours = (plain(q, keys, values) - expected).norm() / expected.norm()
    off = (actual[0][0] - expected).norm() / expected.norm()
    assert off <= (2 * ours + 2.0**-22 if parts == 2 else 6e-4), (float(off), float(ours))
    assert all(torch.equal(x, y) for second in actual[1:] for x, y in zip(actual[0], second, strict=True))


@pytest.mark.gpu
@pytest.mark.parametrize("loaded", [False, True], ids=["shared", "loaded"])
@pytest.mark.parametrize("shape", [(64, 32, 64, 64), (128, 64, 128, 40), (64, 8, 24, 8)], ids=str)
@pytest.mark.parametrize("parts", [1, 2])
def test_product(parts: int, shape: tuple[int, int, int, int], loaded: bool) -> None:
    run_isolated(product_is_right, parts, *shape, loaded)


@pytest.mark.gpu
@pytest.mark.parametrize(
    "case",
    [(64, 64, 1000, 1000), (128, 128, 512, 700), (80, 48, 300, 300), (192, 128, 257, 513), (256, 256, 300, 200), (7, 1, 100, 100)],
    ids=str,
)
@pytest.mark.parametrize("parts", [1, 2])
def test_attention(parts: int, case: tuple[int, int, int, int]) -> None:
    run_isolated(attention_is_right, parts, *case)
