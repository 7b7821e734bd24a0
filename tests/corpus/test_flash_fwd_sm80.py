"""The expert kernel for sm_80 against float64 in the interpreter: any head dims, lengths and settings, under drawn schedules."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

import corpus
import cuir
from cuir.checking.checker import check
from cuir.interp import Schedule, run
from cuir.syntax.parser import parse
from cuir.syntax.types import BF16, F16, F32

PROGRAM = parse(corpus.kernels()["flash_fwd_sm80"].read_text(encoding="utf-8"), "flash_fwd_sm80.cuir")
DIMS = [(16, 16), (32, 64), (48, 80), (64, 64), (96, 40), (112, 128), (192, 128), (248, 56), (256, 256)]
SETTINGS: list[dict[str, int | bool]] = [
    {"BM": 64, "BN": 32},
    {"BM": 128, "BN": 64, "STAGES": 1},
    {"BM": 64, "BN": 32, "STAGES": 3},
    {"BM": 64, "BN": 64, "QREGS": True, "STAGES": 1},
    {"BM": 96, "BN": 48, "WARPS": 2, "QREGS": True},
    {"BM": 128, "BN": 64, "WARPS": 8, "DYNAMIC": False},
]


def compute_expected(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> tuple[torch.Tensor, torch.Tensor]:
    """O and LSE of causal attention in float64; a query without a key has O = 0 and LSE = -inf."""
    (M, N), group = (q.shape[2], k.shape[2]), q.shape[1] // k.shape[1]
    k, v = (x.double().repeat_interleave(group, 1) for x in (k, v))
    kept = torch.arange(N)[None] <= torch.arange(M)[:, None] + N - M
    s = (q.double() @ k.mT * scale).masked_fill(~kept, -torch.inf)
    lse = s.logsumexp(-1)
    return torch.exp(s - lse.masked_fill(lse == -torch.inf, 0.0)[..., None]) @ v, lse


@given(
    st.sampled_from(DIMS),
    st.sampled_from(SETTINGS),
    st.sampled_from(
        [(F16, torch.float16, 2e-3, 0), (BF16, torch.bfloat16, 1.6e-2, 0), (F32, torch.float32, 4e-3, 1), (F32, torch.float32, 4e-6, 2)]
    ),
    st.tuples(st.integers(1, 2), st.integers(1, 2), st.integers(1, 2), st.integers(0, 150), st.integers(0, 200)),
    st.integers(0, 99),
)
def test_any_problem_is_right_under_any_schedule(
    dims: tuple[int, int],
    setting: dict[str, int | bool],
    dtype: tuple[cuir.DType, torch.dtype, float, int],
    lengths: tuple[int, int, int, int, int],
    seed: int,
) -> None:
    (D, DV), (name, torch_dtype, bound, parts), (B, HK, group, M, N) = dims, dtype, lengths
    if parts:  # numbers take twice the room
        setting = {**setting, "BM": 32, "BN": 16, "WARPS": 2}
    elif D + DV > 448 and setting["BN"] == 64:  # two stages have no room
        setting = {**setting, "STAGES": 1}
    g, H = torch.Generator().manual_seed(seed), HK * group
    q, k, v = (torch.randn(B, h, n, d, generator=g).to(torch_dtype) for h, n, d in ((H, M, D), (HK, N, D), (HK, N, DV)))
    o, lse = torch.full((B, H, M, DV), torch.nan, dtype=torch_dtype), torch.full((B, H, M), torch.nan)
    checked = check(PROGRAM, None, {"T": name, "D": D, "DV": DV, "PARTS": parts, **setting})
    arguments = {"Q": q, "K": k, "V": v, "O": o, "LSE": lse, "scale": D**-0.5}
    run(checked, arguments, grid=2, schedule=Schedule.parse(f"random:{seed}"))
    expected, expected_lse = compute_expected(q, k, v, D**-0.5)
    assert M * N == 0 or (o.double() - expected).abs().max() < bound * max(1.0, float(expected.abs().max()))
    torch.testing.assert_close(lse.double(), expected_lse, atol=2e-3 if parts == 1 else 1e-4, rtol=1e-5)
