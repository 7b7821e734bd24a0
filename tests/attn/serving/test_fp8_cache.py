"""attention_with_kv_cache over caches of 8-bit floats, in the interpreter, against float64 of the numbers times their scales: of heads, of tokens, none; new tokens are rounded."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from cuir import CuirError, attention_with_kv_cache
from cuir.attn.kernels import decoding
from cuir.attn.serving.fp8_cache import quantise

E4M3 = torch.float8_e4m3fn


class Problem:
    """Sequences in pages in random order, or (page=0) one behind the other. scales: "heads", "tokens" or "". Slots without a token hold NaN, their scales too."""

    def __init__(
        self,
        lengths: list[int],
        page: int,
        scales: str,
        *,
        new: int = 0,
        M: int = 1,
        D: int = 64,
        dtype: torch.dtype = torch.float16,
        layout: str = "NHD",
    ):
        g = torch.Generator().manual_seed(page + D)
        B, HK, most = len(lengths), 2, max(lengths) + new
        MP, size = (-(-most // page), page) if page else (1, most + 3)
        NP = B * MP + 1 if page else B
        self.table = torch.randperm(NP, generator=g)[: B * MP].view(B, MP).int() if page else None
        self.q = torch.randn(B, M, 4, D, generator=g).to(dtype)
        self.lengths, self.layout = torch.tensor(lengths, dtype=torch.int32), layout
        shape = (NP, size, HK, D)
        self.caches, self.scales, self.exact, self.new = [], [], [], []
        for _ in "kv":
            tokens = [torch.randn(n + new, HK, D, generator=g).to(dtype) for n in lengths]
            heads = torch.rand(HK, generator=g) * 0.01 + 0.005 if scales else torch.ones(HK)
            cache = torch.full(shape, math.nan).to(E4M3)
            of_tokens = torch.full((NP, HK, size), math.nan)
            exact = []
            for b, x in enumerate(tokens):
                each = x.float().abs().amax(-1) / 448 if scales == "tokens" else heads.expand(len(x), HK)
                numbers = (x.float() / each[..., None]).clamp(-448, 448).to(E4M3)
                exact.append(numbers.double() * each[..., None].double())
                for t in range(lengths[b]):
                    at = b if self.table is None else int(self.table[b, t // size])
                    cache.view(torch.uint8)[at, t % size] = numbers[t].view(torch.uint8)
                    of_tokens[at, :, t % size] = each[t]
            self.exact.append(exact)
            self.new.append(torch.stack([x[n:] for x, n in zip(tokens, lengths)]) if new else None)
            self.caches.append(cache if layout == "NHD" else cache.transpose(1, 2).contiguous())
            self.scales.append({"heads": heads, "tokens": of_tokens, "": None}[scales])

    def call(self, **options: Any) -> Any:
        return attention_with_kv_cache(
            self.q,
            *self.caches,
            *self.new,
            cache_seqlens=self.lengths,
            page_table=self.table,
            layout=self.layout,
            k_scale=self.scales[0],
            v_scale=self.scales[1],
            return_lse=True,
            backend="interpret",
            **options,
        )  # type: ignore[misc, arg-type]

    def weigh(self, weigh: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        """O for weights [H, M, N] of scores."""
        return torch.stack([(weigh(s) @ v).transpose(0, 1) for s, v in self.scores()])

    def scores(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Return for each sequence its scores [H, M, N] and values [H, N, D]."""
        for b, (k, v) in enumerate(zip(*self.exact)):
            k, v = (x.repeat_interleave(2, 1).transpose(0, 1) for x in (k, v))
            yield self.q[b].double().transpose(0, 1) @ k.mT * self.q.shape[3] ** -0.5, v

    def compute_expected(self) -> tuple[torch.Tensor, torch.Tensor]:
        rows, sums = [], []
        for s, v in self.scores():
            rows.append((s.softmax(-1) @ v).transpose(0, 1))
            sums.append(s.logsumexp(-1))
        return torch.stack(rows), torch.stack(sums)


@pytest.mark.sweep
@pytest.mark.parametrize(
    "problem",
    [
        Problem([200, 17], 16, "heads"),
        Problem([90, 0], 64, "tokens", new=2),
        Problem([70, 5], 0, "tokens", D=128, layout="HND"),
        Problem([40, 3], 4, "", dtype=torch.bfloat16),
        Problem([130], 32, "heads", new=1, M=2, D=256, dtype=torch.bfloat16),
        Problem([60, 1], 16, "heads", D=16),  # head dims that fill no panel of sums
        Problem([70], 16, "tokens", M=9, D=48),
        Problem([33, 64], 64, "", D=80, dtype=torch.bfloat16),
        Problem([70, 20], 8, "heads", D=144),  # and of which the last warp has none
        Problem([40], 32, "tokens", D=208, dtype=torch.bfloat16),
    ],
)
def test_gives_what_float64_gives(problem: Problem) -> None:
    o, lse = problem.call()
    expected, wanted_lse = problem.compute_expected()
    coarse = 8 if problem.q.dtype == torch.bfloat16 else 1
    torch.testing.assert_close(o.double(), expected, atol=3e-3 * coarse, rtol=1e-2)
    torch.testing.assert_close(lse.double(), wanted_lse, atol=1e-3, rtol=1e-4)


def _with_sink(s: torch.Tensor) -> torch.Tensor:
    return torch.cat([s, torch.full_like(s[..., :1], 0.5)], -1).softmax(-1)[..., :-1]


@pytest.fixture
def rows_of_a_warp(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Settings as for long sequences. What the calls had of rows for each warp."""
    rows_found, rings = list[int](), decoding._rings_of_eight_bits

    def note_rows(fixed: Any, rows: int, many: bool) -> dict[str, int]:
        consts = rings(fixed, rows, many)
        rows_found.append(consts["ROWS"])
        return consts

    monkeypatch.setattr(decoding, "MANY", 0)
    monkeypatch.setattr(decoding, "_rings_of_eight_bits", note_rows)
    return rows_found


@pytest.mark.sweep
@pytest.mark.parametrize(
    "problem",
    [
        Problem([200, 17], 16, "heads", M=18),
        Problem([270, 0], 64, "tokens", M=17, D=128, dtype=torch.bfloat16),
        Problem([70, 5, 300], 0, "", M=32, D=48, layout="HND"),
        Problem([40, 290], 4, "heads", M=20, D=96),
    ],
)
@pytest.mark.parametrize(
    ("options", "weigh"), [({}, lambda s: s.softmax(-1)), ({"sink": 0.5}, _with_sink), ({"normalize": "sigmoid"}, torch.sigmoid)]
)
def test_warps_of_32_rows(
    problem: Problem, options: dict[str, Any], weigh: Callable[[torch.Tensor], torch.Tensor], rows_of_a_warp: list[int]
) -> None:
    """Each key is widened once for all of them, and sums are added up in two rounds."""
    o, _ = problem.call(verify="off", **options)
    assert rows_of_a_warp[-1] == 32
    expected = problem.weigh(weigh).nan_to_num()  # of a sequence without tokens
    assert (o.double() - expected).norm() <= 1e-3 * (8 if o.dtype == torch.bfloat16 else 1) * expected.norm()


@pytest.mark.sweep(4)
@pytest.mark.parametrize(
    ("options", "weigh"),
    [
        ({"normalize": "sigmoid"}, torch.sigmoid),
        ({"normalize": "relu"}, lambda s: s.relu() / s.shape[-1]),
        ({"sink": 0.5}, _with_sink),
    ],
)
def test_other_weights_than_a_softmax(options: dict[str, Any], weigh: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """The variant decides what the warps of a CTA leave for each other."""
    problem = Problem([200, 17], 16, "heads", M=2)
    o, _ = problem.call(verify="off", **options)
    torch.testing.assert_close(o.double(), problem.weigh(weigh), atol=3e-3, rtol=1e-2)


def test_numbers_and_scales_of_new_tokens() -> None:
    """The nearest numbers, the largest one beyond it; of a token whose numbers are all 0, a scale by which they stay 0."""
    x = torch.tensor([[[[1000.0, -3.0, 0.0]], [[0.0, 0.0, 0.0]]]])
    numbers, ours = quantise(x, torch.tensor([2.0]))
    assert ours is None and numbers.float().flatten().tolist() == [448.0, -1.5, 0.0, 0.0, 0.0, 0.0]
    numbers, ours = quantise(x, torch.empty(1, 1, 1))
    assert ours is not None and ours.flatten().tolist() == [torch.tensor(1000.0 / 448).item(), 1.0] and numbers[0, 0, 0, 0] == 448
    result = Problem([20, 3], 16, "tokens", new=1)
    result.call()
    assert result.table is not None and result.scales[0] is not None
    for b, n in enumerate((20, 3)):
        at, row = int(result.table[b, n // 16]), n % 16
        stored_rows = result.caches[0][at, row].double() * result.scales[0][at, :, row, None].double()
        torch.testing.assert_close(stored_rows, result.exact[0][b][n], atol=0, rtol=1e-6)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"k_scale": torch.ones(2)}, "U402"),
        ({"k_scale": 0.5, "v_scale": 0.5}, "U403"),
        ({"k_scale": torch.ones(2).half(), "v_scale": torch.ones(2)}, "U404"),
        ({"k_scale": torch.ones(4), "v_scale": torch.ones(4)}, "U408"),
        ({"k_scale": torch.ones(2), "v_scale": torch.ones(3, 2, 16)}, "U408"),
        ({"k_scale": torch.ones(3, 16, 2).mT, "v_scale": torch.ones(3, 16, 2).mT}, "U406"),
        ({"v_cache": torch.zeros(3, 16, 2, 64).half()}, "U404"),
        ({"q": torch.zeros(2, 1, 4, 64).to(E4M3)}, "U109"),
        ({"q": torch.zeros(2, 1, 4, 40).half(), "k_cache": torch.zeros(3, 16, 2, 40).to(E4M3)}, "U406"),
        (
            {
                "k_cache": torch.zeros(3, 16, 2, 64).half(),
                "v_cache": torch.zeros(3, 16, 2, 64).half(),
                "k_scale": torch.ones(2),
                "v_scale": torch.ones(2),
            },
            "U404",
        ),
    ],
)
def test_wrong_calls_are_told(change: dict[str, Any], code: str) -> None:
    inputs: dict[str, Any] = {
        "q": torch.zeros(2, 1, 4, 64).half(),
        "k_cache": torch.zeros(3, 16, 2, 64).to(E4M3),
        "v_cache": torch.zeros(3, 16, 2, 64).to(E4M3),
        "cache_seqlens": torch.tensor([3, 4], dtype=torch.int32),
        "page_table": torch.tensor([[0], [2]], dtype=torch.int32),
        "backend": "interpret",
    }
    with pytest.raises(CuirError) as caught:
        attention_with_kv_cache(**{**inputs, **change})
    assert caught.value.diagnostics[0].code == code
