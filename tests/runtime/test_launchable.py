"""Spills of registers are a warning of verify, lower and compile, and kernels that cannot be launched are refused early."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest
import torch

import cuir
from cuir.checking.checker import check
from cuir.cli import run as run_command
from cuir.runtime.compiled import compile
from cuir.runtime.launchable import find_spills, require_launchable
from cuir.syntax.parser import parse
from cuir.verification import verify

WIDE = """\
@kernel(arch="sm_90a")
def spread(X: Global[f32, M, 96], Z: Global[f32, M, 96], Y: Global[f32, M, 96]):
    work = tiles(cdiv(M, ROWS))
    with role("all", warpgroups=GROUPS) as g:
        for t in work:
            r = t * ROWS + g * 64
            x = X[r + rows(64), cols(96)]
            z = Z[r + rows(64), cols(96)]
            top = row_max(x * z)
            store(Y[r + rows(64), cols(96)], (x - top) * (z - top))
"""


def spread(X: torch.Tensor, Z: torch.Tensor) -> torch.Tensor:
    top = (X * Z).amax(-1, keepdim=True)
    return (X - top) * (Z - top)


@pytest.mark.thorough
@pytest.mark.nvcc
@pytest.mark.parametrize(("groups", "fits"), [(1, True), (8, False)])
def test_tiles_that_do_not_fit_the_registers(groups: int, fits: bool) -> None:
    text = WIDE.replace("ROWS", str(groups * 64)).replace("GROUPS", str(groups))
    message = find_spills(require_launchable(check(parse(text))), compile=True)
    assert (message == "") == fits, message
    if not fits:
        assert (
            "`spread`: tiles do not fit the registers" in message and "with 64 registers a thread" in message and "smaller tiles" in message
        )
        report = verify(parse(text), spread)  # known from the compilation before
        assert report.ok and report.spills == message and message in report.left_open


@pytest.mark.nvcc
def test_compile_and_lower_warn_of_spills(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "wide.cuir"
    path.write_text(WIDE.replace("ROWS", "512").replace("GROUPS", "8"), encoding="utf-8")
    with pytest.warns(UserWarning, match=r"`spread`: tiles do not fit .* bytes of loads spill"):
        cuir.compile(path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compile(path)  # the search of settings
    assert run_command(["lower", str(path), "--cubin", str(tmp_path / "k.cubin"), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["resources"]["spill_loads"] > 0 and "`spread`" in data["warnings"][0]
    assert run_command(["lower", str(path), "--cubin", str(tmp_path / "k.cubin")]) == 0
    assert "warning: `spread`: tiles do not fit" in capsys.readouterr().err
    assert run_command(["lower", "gemm", "--json"]) == 0 and json.loads(capsys.readouterr().out)["warnings"] == []
