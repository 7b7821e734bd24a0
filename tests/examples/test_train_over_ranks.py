"""The example that trains a language model over several processes: the losses are those of one."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh

from examples.train_over_ranks import train_over_ranks
from examples.train_tiny_lm import Sizes, dense, read_text, train
from tests.distributed.ranks import run_ranks

SIZES = Sizes(layers=1, heads=2, dim=16, batch=1, length=40, steps=3, rate=1e-2)
NEAR = 1e-3


def train_rank(folder: Path, method: str) -> list[float]:
    return train_over_ranks(read_text(folder, longest=30), SIZES, init_device_mesh("cpu", (2,)), method, block=4)


@pytest.mark.thorough
def test_two_processes_have_the_losses_of_one(tmp_path: Path) -> None:
    words, rng = ["the", "warp", "waits", "for", "a", "copy"], random.Random(0)
    (tmp_path / "page.md").write_text("\n\n".join(" ".join(rng.choices(words, k=8)) for _ in range(200)), encoding="utf-8")
    expected = torch.tensor(train(dense, read_text(tmp_path, longest=30), SIZES, "cpu").losses)
    assert expected[-1] < expected[0] - 0.3
    for method in ("heads", "ring"):
        for losses in run_ranks(2, train_rank, tmp_path, method):
            assert isinstance(losses, list), losses
            assert (torch.tensor(losses) - expected).abs().max() < NEAR, method
