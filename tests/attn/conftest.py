"""PyTorch's own flex_attention is the reference here: without Dynamo, which takes longer to read a mod than all else to compute it."""

from __future__ import annotations

import gc
from collections import OrderedDict
from collections.abc import Callable, Iterator
from functools import partial

import pytest
from torch.nn.attention import flex_attention

from cuir.attn.api import prepared_calls
from cuir.attn.kernels import attention_kernel
from tests.attn.launches import Launches


@pytest.fixture
def collect() -> Iterator[Callable[[], int]]:
    """Collects what the test itself has made, all of which is young, as nothing else collects meanwhile. To walk through all that a run of the suite holds by then takes seconds."""
    gc.disable()
    yield partial(gc.collect, 0)
    gc.enable()


@pytest.fixture(autouse=True)
def eager_reference() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:  # the fixture `monkeypatch` would give each test its own results
        patch.setattr(flex_attention, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True, raising=False)
        yield


@pytest.fixture
def launches() -> Iterator[Launches]:
    result = Launches()
    with pytest.MonkeyPatch.context() as patch:  # of nothing that cached results depend on
        patch.setattr("cuir.runtime.compiled.compile", result.compile)
        patch.setattr(attention_kernel, "need_gpu", lambda device, arch: None)
        patch.setattr(attention_kernel, "_SETTINGS", {})
        for name in ("_ATTENTIONS", "_TRACED", "_WARM"):
            patch.setattr(prepared_calls, name, OrderedDict())
        yield result
