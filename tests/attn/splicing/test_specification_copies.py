"""Specifications with other tensors in the places of those that their mods capture, and what is read outside of these in verification."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import cuir
from cuir import Specification, attention
from cuir.attn.splicing.captured_arguments import compute_captured_arguments, sources_of
from cuir.attn.splicing.specification_copies import Bounded, bound_reads, rebuild_mods
from cuir.spec.specification import Lengths


def test_other_tensors() -> None:
    ids, sizes = torch.arange(9) // 3, [torch.tensor(2), 4]
    spec = Specification("other", lambda b, h, q, k: (ids[q] == ids[k]) & (q - k <= sizes[0]) & (k - q <= sizes[1]))
    same, second = rebuild_mods(spec, lambda x: x), rebuild_mods(spec, lambda x: x * 0)
    at = Lengths(1, 1, 1, 9, 9)
    assert torch.equal(same.mask(at), spec.mask(at)) and not torch.equal(second.mask(at), spec.mask(at))
    q, k = torch.arange(9)[:, None], torch.arange(9)
    assert torch.equal(second.mask(at)[0, 0], (q - k <= 0) & (k - q <= 4))


@given(st.lists(st.integers(-9, 9), min_size=2, max_size=2), st.integers(1, 4), st.integers(1, 4))
def test_reads_outside_of_a_tensor_are_zero(at: list[int], rows: int, cols: int) -> None:
    x = torch.arange(1, rows * cols + 1).view(rows, cols)
    spec = bound_reads(Specification("read", lambda b, h, q, k: x[q][k] > 0))
    assert spec.mask_mod is not None
    item = x.as_subclass(Bounded)
    i, j = at
    expected = int(x[i, j]) if 0 <= i < rows and 0 <= j < cols else 0
    assert int(item[torch.tensor(i), torch.tensor(j)]) == int(item[torch.tensor(i)][torch.tensor(j)]) == expected
    assert bool(spec.mask_mod(0, 0, torch.tensor(i), torch.tensor(j))) == (expected > 0)


@given(st.lists(st.integers(1, 5), min_size=2, max_size=2), st.integers(1, 40), st.integers(1, 9), st.integers(1, 3))
def test_a_launch_has_room_for_the_elements_that_its_heads_read(shape: list[int], H: int, B: int, stride: int) -> None:
    """And no dim is longer than that: a table [1, 1, M, N] must not grow by all heads and batches."""
    table, bias = torch.rand(shape) + 1, torch.rand(1, 1, 6, 7)
    spec = bound_reads(Specification("room", score_mod=lambda s, b, h, q, k: s + table[b, h * stride] + bias[b, h, q, k]))
    program, at = attention(spec, head_dim=64).program, Lengths(B, H, 1, 3, 4)
    inputs = compute_captured_arguments(program, program.kernels()["flash_fwd"], spec, at)
    room = inputs["table"]
    assert isinstance(room, torch.Tensor) and room.shape == (max(shape[0], B), max(shape[1], (H - 1) * stride + 1))
    assert torch.equal(room[: shape[0], : shape[1]], table) and float(room.sum() - table.sum()) == pytest.approx(0, abs=1e-4)
    assert isinstance(inputs["bias"], torch.Tensor) and inputs["bias"].shape == bias.shape


@pytest.mark.thorough
@pytest.mark.usefixtures("few_problems")
def test_tables_of_fewer_heads_and_batches_than_verification_tries() -> None:
    slopes, ends, sink = torch.tensor([0.1, 0.02]), torch.tensor([[30, 9], [70, 50]]).t(), torch.tensor([0.5, 2.0])
    spec = Specification("two", lambda b, h, q, k: k < ends[b, h], lambda s, b, h, q, k: s + slopes[h] * (q - k), sink=sink)
    report = attention(spec, head_dim=64, consts={"BM": 64, "BN": 64}).report
    assert report is not None and report.ok


def test_a_mod_sees_the_shape_that_the_users_tensor_has() -> None:
    """Though verification tries more heads than it has: from the end, and by its length."""
    x, table = torch.arange(1.0, 6.0), torch.arange(1, 7).view(2, 3)

    def score(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        return s + x[-1] + x[len(x) - 1] * x.shape[0] + table[-1][-3] * table.numel() + table[h].size(0)

    spec = bound_reads(Specification("end", score_mod=score))
    assert spec.score_mod is not None and float(spec.score_mod(0.0, 0, torch.tensor(1), 0, 0)) == 5 + 25 + 24 + 3


@pytest.mark.thorough
@pytest.mark.usefixtures("few_problems")
def test_a_kernel_that_reads_from_the_end_is_verified() -> None:
    slopes, consts = torch.tensor([0.1, 0.02, -0.03]), {"BM": 64, "BN": 64}
    spec = Specification("end", score_mod=lambda s, b, h, q, k: s + slopes[-1] * (q - k) + slopes[len(slopes) - 2] * k)
    program = attention(spec, head_dim=64, consts=consts).program
    report = cuir.verify(program, spec, consts={"T": cuir.f16, "D": 64, "BM": 64, "BN": 64, **consts}, seeded=0)
    assert report.ok, report.summary()


@pytest.mark.thorough
@pytest.mark.usefixtures("few_problems")
def test_verification_tries_lengths_that_a_tensor_was_not_made_for() -> None:
    ids = torch.arange(20) // 7

    def mask(b: Any, h: Any, q: Any, k: Any) -> Any:
        return ids[q] == ids[k]

    spec = Specification("short", mask)
    consts = {"BM": 64, "BN": 64}
    program = attention(spec, head_dim=64, consts=consts).program
    report = cuir.verify(program, spec, consts={"T": cuir.f16, "D": 64, "BM": 64, "BN": 64, **consts}, seeded=0)
    assert report.ok, report.summary()


def test_what_a_mod_of_rows_detaches_has_no_gradient_in_the_reference() -> None:
    table, lengths = torch.randn(4, 3, generator=torch.Generator().manual_seed(0)).requires_grad_(), Lengths(1, 1, 1, 2, 8)
    spec = bound_reads(
        Specification("padded", score_mod=lambda s, b, h, q, k: s + torch.nn.functional.embedding(k % 4, table, padding_idx=1).sum()),
        learns=True,
    )
    assert spec.evaluated is not None
    (parameter,) = spec.evaluated.traced.parameters  # type: ignore[attr-defined]
    leaf = sources_of([parameter], spec, lengths)[parameter.name]
    (result,) = torch.autograd.grad(spec.scores(torch.zeros(1, 1, 2, 8), lengths).sum(), [leaf])
    assert torch.equal(result, torch.tensor([4.0, 0.0, 4.0, 4.0], dtype=result.dtype)[:, None].expand(4, 3))
