"""Inputs of a judgement: kinds that the reference takes, with the signs, labels and sums of the file's own."""

from __future__ import annotations

import contextlib

import torch

from cuir.judge.input_draws import KINDS, draw_inputs, mix_draws
from cuir.judge.references import SizedProblem


def make(function, draw) -> SizedProblem:  # type: ignore[no-untyped-def]
    def seeded(seed: int) -> list[object]:
        torch.manual_seed(seed)
        return list(draw())

    return SizedProblem("small", {}, [], function, contextlib.nullcontext, seeded)


def test_signs_labels_and_sums_stay() -> None:
    def draw() -> list[torch.Tensor]:
        return [torch.rand(8, 16), torch.randint(0, 2, (8, 16)).float() * 2 - 1, torch.randn(8, 16).softmax(-1), torch.arange(8)]

    kinds = set()
    for drawn in draw_inputs(make(lambda x, y, p, i: x * y + p + i[:, None], draw), KINDS, (1,)):
        x, labels, shares, numbers = (v for v in drawn.values if isinstance(v, torch.Tensor))
        kinds.add(drawn.kind)
        assert bool((x >= 0).all()) and set(labels.unique().tolist()) == {-1.0, 1.0} and numbers.tolist() == list(range(8))
        assert torch.allclose(shares.sum(-1), torch.ones(8))
    assert {"given", "large", "zero", "constant", "infinite"} <= kinds


def test_kinds_that_the_reference_does_not_take_are_left_out() -> None:
    drawn = draw_inputs(make(lambda x: 1 / x.sum(-1), lambda: [torch.randn(8, 16)]), KINDS, (1,))
    assert "zero" not in {d.kind for d in drawn}


def test_zeros_and_symmetry_of_the_files_own_inputs_stay() -> None:
    def draw() -> list[torch.Tensor]:
        x = torch.randn(12, 12)
        return [torch.randn(12, 12).triu(), x + x.mT]

    problem = make(lambda x, y: x @ y, draw)
    for drawn in draw_inputs(problem, KINDS, (1,)):
        upper, symmetric = (v for v in drawn.values if isinstance(v, torch.Tensor))
        assert torch.equal(upper, upper.triu()) and torch.equal(symmetric, symmetric.mT), drawn
    mixed = mix_draws(problem, problem.draw(1), problem.draw(2))[1]
    assert isinstance(mixed, torch.Tensor) and torch.equal(mixed, mixed.mT)


def test_mixed_inputs_begin_as_one_draw_and_end_as_another() -> None:
    problem = make(lambda x: x * 2, lambda: [torch.randn(9, 4)])
    (first,), (second,), (mixed,) = problem.draw(1), problem.draw(2), mix_draws(problem, problem.draw(1), problem.draw(2))
    assert isinstance(first, torch.Tensor) and isinstance(second, torch.Tensor) and isinstance(mixed, torch.Tensor)
    assert torch.equal(mixed[:4], first[:4]) and torch.equal(mixed[4:], second[4:])
