"""Description of the GPU of this machine."""

from __future__ import annotations

import pytest
import torch

from cuir import CuirError
from cuir.performance.timing.gpu import explain_missing_gpu, require_gpu, versions


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_no_gpu_is_said() -> None:
    assert "no CUDA device" in explain_missing_gpu()
    with pytest.raises(CuirError) as error:
        require_gpu()
    assert error.value.diagnostics[0].code == "U501"


def test_another_generation_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (10, 0))
    assert explain_missing_gpu("sm_90a") == "kernels are for sm_90a, this device has compute capability 10.0" and not explain_missing_gpu()


def test_versions_name_what_a_figure_depends_on() -> None:
    assert {"date", "device", "driver", "torch", "cuda"} <= set(versions())
