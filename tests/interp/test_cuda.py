"""The interpreter on a GPU's tensors: the same meaning, the same faults."""

from __future__ import annotations

import pytest
import torch

import cuir
from cuir.interp import run
from cuir.syntax.types import F16

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize(
    "path", ["corpus/kernels/flash_fwd_sm90.cuir", "corpus/programs/flash_fwd_warps.cuir", "corpus/programs/causal_document.cuir"]
)
def test_same_results_as_on_the_cpu(root, path: str) -> None:
    B, H, HK, M, D = 2, 4, 2, 300, 64
    text = (root / path).read_text(encoding="utf-8")
    checked = cuir.check(cuir.parse(text, path), consts={"T": F16, "D": D})
    g = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(B, h, M, D, generator=g).to(torch.float16) for h in (H, HK, HK))
    arguments = {"Q": q, "K": k, "V": v, "O": torch.zeros_like(q), "LSE": torch.zeros(B, H, M), "scale": D**-0.5}
    if "document" in path:
        blocks = -(-M // 128)
        arguments["doc"] = torch.zeros(B, M, dtype=torch.int32)
        arguments["span"] = torch.tensor([[[0, 0, m] for m in range(blocks)]] * B, dtype=torch.int32)
    moved = {n: x.cuda() if isinstance(x, torch.Tensor) else x for n, x in arguments.items()}
    run(checked, arguments)
    run(checked, moved)
    for name in ("O", "LSE"):
        torch.testing.assert_close(moved[name].cpu(), arguments[name], rtol=2e-3, atol=2e-3)


def test_same_faults(pipe_text: str) -> None:
    text = pipe_text.replace("                full[s].wait(it // STAGES % 2)\n", "")
    checked = cuir.check(cuir.parse(text), consts={"R": 64})
    x, w, y = (torch.zeros(*shape, dtype=torch.float16, device="cuda") for shape in ((5, 64, 64), (64, 64), (3, 128, 64)))
    with pytest.raises(cuir.CuirError) as raised:
        run(checked, {"X": x, "W": w, "Y": y})
    assert raised.value.diagnostics[0].code == "R401"
