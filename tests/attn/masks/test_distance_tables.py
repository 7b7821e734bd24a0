"""Terms of scores that depend on a distance alone: which become tables, the kernels' results, changed data."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

import corpus
import cuir
from cuir import Specification, flex_attention
from cuir.attn.masks import distance_tables
from cuir.attn.splicing.captured_arguments import compute_captured_arguments
from cuir.attn.splicing.splice import transfer
from cuir.spec.specification import Lengths
from cuir.testing import assert_attention_matches

H, M, N = 3, 70, 130
HEADS, TABLE, LENGTH = torch.tensor([0.5, -1.0, 2.0]), torch.linspace(-1.0, 1.0, 3 * 32).view(3, 32), 40
BATCHES = torch.tensor([0.1, 0.7])
Mod = Callable[..., Any]


def buckets(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    """Return buckets of distances like T5's."""
    difference = (q - k).abs()
    far = 16 + (torch.log(torch.clamp(difference, min=1).float() / 16) / math.log(LENGTH / 16) * 15.0).int()
    return s + TABLE[h, torch.where(difference < 16, difference, torch.clamp(far, max=31))]


def waves(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return s + torch.cos(0.37 * (q - k))


def roots(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return s - HEADS[h] * torch.sqrt((k - q + 7).abs().float())


def of_batches(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return 2.0 * torch.tanh(s * torch.sin((q - k) * BATCHES[b]) / 2.0)


def twice(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return s * torch.cos(0.1 * (q - k)) + torch.erf((k - q) * 0.02)


TABLES: dict[Mod, list[str]] = {
    buckets: ["by_distance[0, h, q - k + (N - 1)]"],
    waves: ["by_distance[0, 0, q - k + (N - 1)]"],
    roots: ["by_distance[0, h, q - k + (N - 1)]"],
    of_batches: ["by_distance[b, 0, q - k + (N - 1)]"],
    twice: ["by_distance[0, 0, q - k + (N - 1)]", "by_distance2[0, 0, q - k + (N - 1)]"],
}
WORKED_OUT: dict[str, Mod] = {
    "few instructions": lambda s, b, h, q, k: s + torch.exp(-(((q - k) / 50.0) ** 2)),
    "a read of a distance": lambda s, b, h, q, k: s + TABLE[h, torch.clamp(q - k, 0, 31)],
    "of places": lambda s, b, h, q, k: s + torch.cos(0.1 * q) * torch.cos(0.1 * k),
    "of a sum": lambda s, b, h, q, k: s + torch.cos(0.1 * (q + k)),
    "of the query besides": lambda s, b, h, q, k: s + torch.cos(0.1 * (2 * q - k)),
    "of the products": lambda s, b, h, q, k: torch.cos(s + (q - k)),
}


def kernel(mod: Mod, **more: Any) -> Any:
    return transfer(corpus.kernels()["flash_fwd_sm90"], Specification("rule", None, mod), **more)


@pytest.mark.parametrize("mod", TABLES)
def test_what_becomes_a_table(mod: Mod) -> None:
    result = kernel(mod)
    assert all(read in result.text for read in TABLES[mod]) and result.text.count("by_distance") == 2 * len(TABLES[mod])
    assert "by_distance" not in kernel(mod, tables=False).text


@pytest.mark.parametrize("name", WORKED_OUT)
def test_what_is_worked_out(name: str) -> None:
    assert "by_distance" not in kernel(WORKED_OUT[name]).text


def test_what_learns_is_worked_out() -> None:
    """Its table would be made anew in each step."""
    table = torch.zeros(3, requires_grad=True)
    assert "by_distance" not in kernel(lambda s, b, h, q, k: s + torch.cos(table[h] * (q - k))).text


def tensors(seed: int = 0) -> list[torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    return [torch.randn(2, H, n, 64, generator=g).half() for n in (M, N, N)]


def dense(mod: Mod, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    at = [torch.arange(n).view([-1 if i == d else 1 for i in range(4)]) for d, n in enumerate((2, H, M, N))]
    return mod((q.double() @ k.double().mT / 8.0).float(), *at).double().softmax(-1) @ v.double()


@pytest.mark.sweep(4)
@pytest.mark.parametrize("mod", TABLES)
def test_numbers(mod: Mod) -> None:
    assert_attention_matches(mod, M=M, N=N, B=2, H=H, gradients=False)


@pytest.mark.parametrize("mod", [buckets, of_batches])
def test_a_program_from_elsewhere_has_its_tables_by_their_names(mod: Mod) -> None:
    spec, result, at = Specification("rule", None, mod), kernel(mod), Lengths(2, H, H, 5, 9)
    program = cuir.parse(result.text)
    ours = compute_captured_arguments(program, program.kernels()[result.kernel], spec, at)
    assert torch.equal(ours["by_distance"], result.arguments(at)["by_distance"])


@pytest.mark.thorough("a whole verification of a right program, whose numbers have their tests here")
@pytest.mark.parametrize("mod", [buckets, of_batches])
def test_verification_makes_its_own(mod: Mod) -> None:
    spec, program = Specification("rule", None, mod), cuir.parse(kernel(mod).text)
    report = cuir.verify(program, spec, consts={"T": cuir.f16, "D": 64}, level="quick")
    assert report.ok, report.diagnostics


def test_written_data_and_other_lengths() -> None:
    weights = torch.tensor([1.0, 2.0, 3.0])

    def mod(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        return s - weights[h] * torch.sqrt((q - k).abs().float())

    q, k, v = tensors()
    before = flex_attention(q, k, v, mod, backend="interpret")
    weights[1] = -1.0
    after, expected = flex_attention(q, k, v, mod, backend="interpret"), dense(mod, q, k, v)
    assert (after.double() - expected).norm() <= 1e-3 * expected.norm() and not torch.equal(before[:, 1], after[:, 1])
    short = flex_attention(q[:, :, :9], k, v, mod, backend="interpret")
    assert (short.double() - expected[:, :, :9]).norm() <= 1e-3 * expected.norm()


def test_a_table_that_is_too_long_is_worked_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distance_tables, "MOST", 100)
    factor = 0.5

    def mod(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        return roots(s, b, h, q, k) * factor

    assert_attention_matches(mod, M=M, N=N, B=2, H=H, seed=1, gradients=False)


def test_gradients_do_without() -> None:
    assert_attention_matches(waves, M=M, N=N, B=2, H=H, seed=2)
