"""The emitted text of every elementwise operation gives what the language says, also where the compiler fuses and instructions are not exact."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cuir.lowering import lower
from tests.gpu import test_floats
from tests.lowering.host import GXX, on_cpu


@pytest.mark.skipif(GXX is None, reason="no g++ on the PATH")
@pytest.mark.parametrize(("contract", "noise"), [("off", False), ("fast", True)])
def test_every_operation(tmp_path: Path, contract: str, noise: bool) -> None:
    checked = test_floats.kernel()
    call = on_cpu(lower(checked), tmp_path, contract, noise)
    for seed in range(3):
        inputs, result = test_floats.inputs(seed), test_floats.outputs()
        arrays: list[np.ndarray | float | int] = []
        for t in checked.tensors:
            x = {**inputs, **result}[t.name]
            arrays += [x, x.shape[1]]
        arrays += [test_floats.NUMBERS[s.name] for s in checked.scalars]
        call(*arrays, *(result["F"].shape[0], result["I"].shape[0], result["SF"].shape[0], result["SI"].shape[0]))
        assert test_floats.wrong(inputs, result) == []
