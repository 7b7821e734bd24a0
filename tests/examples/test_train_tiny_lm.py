"""The example that trains a language model with PyTorch's attention and with ours: a few steps at tiny sizes in the interpreter."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from examples.train_tiny_lm import Attention, Sizes, both, dense, main, plot, read_text, report, train

SIZES = Sizes(layers=1, heads=2, dim=16, batch=1, length=70, steps=5, rate=1e-2)
NEAR = 1e-3


def with_a_wrong_gradient(*arguments: Any) -> Callable[[], Attention]:
    """The same attention, whose queries are given the wrong sign of their gradient."""
    right = dense(*arguments)()

    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return right(2 * q.detach() - q, k, v)

    return lambda: attention


def test_the_loss_curves_lie_on_one_another(tmp_path: Path) -> None:
    words, rng = ["the", "warp", "waits", "for", "a", "copy", "and", "then", "reads", "its", "tile", "of", "keys"], random.Random(0)
    paragraphs = (" ".join(rng.choices(words, k=8)) for _ in range(2000))
    (tmp_path / "page.md").write_text("\n\n".join(paragraphs), encoding="utf-8")  # the project's pages change, and losses with them
    text = read_text(tmp_path, longest=30)
    assert all(len(documents.unique()) > SIZES.batch for _, _, documents in (text.window(SIZES, i) for i in range(SIZES.steps)))
    curves = both(text, SIZES, "cpu")
    expected, mine = (torch.tensor(c.losses) for c in curves.values())
    assert list(curves) == ["PyTorch, dense", "cuir"] and (expected - mine).abs().max() < NEAR
    assert mine[-1] < mine[0] - 0.5
    second = torch.tensor(train(with_a_wrong_gradient, text, SIZES, "cpu").losses)
    assert second[0] == expected[0] and (second - expected).abs().max() > 2 * NEAR
    assert f"the last are {expected[-1]:.4f} and {mine[-1]:.4f}" in report(curves)
    plot(curves, tmp_path / "curves.png")
    assert (tmp_path / "curves.png").stat().st_size > 0


def test_the_command_prints_what_it_was_asked_for(capsys: Any) -> None:
    curves = main(["--steps", "1", "--length", "40"])
    assert len(curves["cuir"].losses) == 1
    assert "steps=1" in capsys.readouterr().out
