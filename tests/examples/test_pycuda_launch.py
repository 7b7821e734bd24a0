"""The example of PyCUDA without it: what it says, and the attention that it compares with. `tests/gpu/test_pycuda.py` runs it."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from cuir.runtime.pycuda_loader import import_pycuda
from examples.pycuda_launch import attend, main


@pytest.fixture
def absent(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    import_pycuda.cache_clear()
    monkeypatch.setitem(sys.modules, "pycuda", None)
    yield
    import_pycuda.cache_clear()


def test_without_pycuda_it_says_what_to_install(absent: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert main() == 2
    assert "cubridge[pycuda]" in capsys.readouterr().err


def test_the_attention_that_it_compares_with_is_that_of_pytorch() -> None:
    q, k, v = (np.random.default_rng(i).standard_normal((1, 2, 7, 4)) for i in range(3))
    expected = torch.nn.functional.scaled_dot_product_attention(*map(torch.from_numpy, (q, k, v)), is_causal=True, scale=0.5)
    np.testing.assert_allclose(attend(q, k, v, 0.5), expected.numpy(), atol=1e-12)
