"""The examples of FlexAttention's tutorial, with the import changed, on a GPU.

The files of the tutorial on training and serving, on a GPU: compiled steps in CUDA graphs, too.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from cuir import create_block_mask, flex_attention
from tests.attn.api.test_tutorial import EXAMPLES, B, D, H, S
from tests.gpu.flex_cases import Mod, check
from tests.gpu.isolation import run_isolated
from tests.page_blocks import find_block, reader_folder, run_python

pytestmark = pytest.mark.gpu


def right(part: int, parts: int) -> list[str]:
    """Each example of a part, its tensors on the GPU, against float64; the names of those that ran."""
    names = sorted(EXAMPLES)[part::parts]
    for name in names:
        torch.manual_seed(0)
        with torch.device("cuda"):
            score, mask = EXAMPLES[name]()
            q, k, v = (torch.randn(B, H, S, D).half() for _ in range(3))
            block_mask = create_block_mask(mask, B, H, S, S, device="cuda") if mask else None
            check(q, k, v, score, mask, block_mask, pairwise=True)
        print(name, "is right")
    return names


def run_grouped_queries() -> None:
    with torch.device("cuda"):
        q, (k, v) = torch.randn(B, 4, S, D).half(), (torch.randn(B, 2, S, D).half() for _ in range(2))
        mask = create_block_mask(_causal, B=None, H=None, Q_LEN=S, KV_LEN=S, device="cuda", _compile=True)
        check(q, k, v, None, _causal, mask, enable_gqa=True)


def run_compiled() -> None:
    """Compile as the tutorial does; under torch.compile as without it."""
    with torch.device("cuda"):
        score: Mod = EXAMPLES["soft_cap"]()[0]  # type: ignore[assignment]
        q, k, v = (torch.randn(1, H, S, D).half() for _ in range(3))
        mask = create_block_mask(_causal, None, None, S, S, device="cuda")
        result = torch.compile(flex_attention, dynamic=False)(q, k, v, score, mask, verify="off")
        torch.testing.assert_close(result, flex_attention(q, k, v, score, mask, verify="off"))


def _causal(b: object, h: object, q_idx: torch.Tensor, kv_idx: torch.Tensor) -> torch.Tensor:
    return q_idx >= kv_idx


PARTS = 11


@pytest.mark.parametrize("part", range(PARTS))
def test_examples(part: int) -> None:
    assert run_isolated(right, part, PARTS, seconds=300) == sorted(EXAMPLES)[part::PARTS]


@pytest.mark.parametrize("case", [run_grouped_queries, run_compiled])
def test_calls_of_the_tutorial(case: Callable[[], None]) -> None:
    run_isolated(case, seconds=300)


def right_of_serve_and_train(name: str) -> str:
    """Run a file, and what holds behind it."""
    block = find_block("docs/tutorials/serve_and_train.md", "file", name)
    with tempfile.TemporaryDirectory() as folder, reader_folder(block.page, Path(folder)):
        run_python(block)
    return name


@pytest.mark.parametrize("name", ["fit.py", "pack.py", "generate.py", "replay.py"])
def test_files_run(name: str) -> None:
    assert run_isolated(right_of_serve_and_train, name, seconds=400) == name
