"""The main job's last step on a GPU: numbers checked against float64, times beside PyTorch's kernels."""

from __future__ import annotations

from importlib.resources import files

import pytest

import corpus
from cuir import check, parse, timing
from cuir.spec_loading import as_specification
from cuir.transfer import transfer
from cuir.types import F16

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize(("variant", "peer"), [
    ("full", "scaled_dot_product_attention"),
    ("causal", "scaled_dot_product_attention (is_causal)"),
    ("prefix_lm", "scaled_dot_product_attention (dense mask)"),
    ("softcap", "FlexAttention (compiled)"),
])  # fmt: skip
def test_compare(monkeypatch: pytest.MonkeyPatch, variant: str, peer: str) -> None:
    monkeypatch.setattr(timing, "LENGTH", 1024)
    monkeypatch.setattr(timing, "HEADS", 4)
    origin = parse((files("corpus") / "kernels" / "flash_fwd_sm90.cuir").read_text(encoding="utf-8"))
    transferred = transfer(origin, as_specification(corpus.variant(variant), variant))
    found = timing.compare(check(transferred.program, consts={"T": F16, "D": 128}), transferred)
    assert peer in [r["what"] for r in found["rows"]] and found["rows"][0]["what"] == "this kernel"
    assert all(r["milliseconds"] > 0 and r["tflops"] > 0 for r in found["rows"])
    assert found["error"] <= 1.5 * found["yardstick"] + 1e-6
