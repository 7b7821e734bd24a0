"""PyTorch's own flex_attention is the reference here: without Dynamo, which takes longer to read a mod than all else to compute it."""

from __future__ import annotations

import pytest
from torch.nn.attention import flex_attention


@pytest.fixture(autouse=True)
def eager_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flex_attention, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True, raising=False)
