"""References in KernelBench's form, at the sizes of their files and at others."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from cuir.judge.references import LONG, RUN_ELEMENTS, SAMPLED_ELEMENTS, Reference
from cuir.text.diagnostics import CuirError

HEADS = """
import torch
from torch import nn

batch, heads, width = 64, 4, {width}

class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)

    def forward(self, x):
        return self.norm(x).reshape(batch, heads, -1).sum(-1)

def get_inputs():
    return [torch.randn(batch, width)]

def get_init_inputs():
    return [width]
"""


def load(tmp_path: Path, text: str) -> Reference:
    path = tmp_path / "mine.py"
    path.write_text(text, encoding="utf-8")
    return Reference(path)


def test_sizes_are_the_numbers_that_inputs_are_made_of(tmp_path: Path) -> None:
    reference = load(tmp_path, HEADS.format(width=512))
    assert reference.given == {"batch": 64, "width": 512}


def test_problems_are_smaller_than_the_given_one_and_the_reference_takes_them(tmp_path: Path) -> None:
    reference = load(tmp_path, HEADS.format(width=4096))
    problems, large, _ = reference.list_problems()
    assert large is not None and large.sizes == reference.given
    for p in problems:
        (x,) = p.draw(0)
        (y,) = p.evaluate([x])
        assert isinstance(x, torch.Tensor) and x.numel() <= RUN_ELEMENTS and y.shape == (p.sizes["batch"], 4)
    assert all(p.sizes["width"] % 4 == 0 for p in problems), "other widths have no four heads"
    assert max(int(p.sizes["width"]) for p in problems) >= LONG, "wider than a CTA"
    assert vars(reference.module)["width"] == 4096, "the file's own sizes are there again"


def test_a_given_problem_that_fills_a_gpu_is_cut(tmp_path: Path) -> None:
    problems, large, skipped = load(tmp_path, HEADS.format(width=1 << 26)).list_problems()
    assert problems and large is not None and large.draw(0)[0].numel() <= SAMPLED_ELEMENTS  # type: ignore[attr-defined]
    assert skipped and "width=67108864" in skipped[0]


def test_parameters_of_ones_and_zeros_are_varied(tmp_path: Path) -> None:
    problem = load(tmp_path, HEADS.format(width=64)).list_problems()[0][0]
    weight = problem.vary_parameters().state["norm.weight"]
    assert len(weight.unique()) > 8 and bool((problem.state["norm.weight"] == 1).all())


def test_what_is_no_reference_says_what_one_is(tmp_path: Path) -> None:
    with pytest.raises(CuirError, match="has no `get_inputs`") as raised:
        load(tmp_path, "def reference(x):\n    return x\n")
    assert "get_inputs" in (raised.value.diagnostics[0].hint or "")
