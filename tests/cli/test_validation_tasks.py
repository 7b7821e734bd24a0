"""`cuir lower --validate` in tasks: the verdicts of one process, also on faulty passes and programs, and a journal to resume from."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from cuir.cli.validation_tasks import hash_values
from cuir.lowering.ir import ops
from cuir.lowering.passes import pipeline
from tests.cli.commands.test_lower import break_type, larger, make_broken_pass
from tests.cli.test_verification_tasks import strip_seconds
from tests.strategies.faulty import faulty_file

SMALL = ("lower", "gemm", "-c", "T=f16,BM=64,BN=64", "-d", "M=70,N=40,K=40", "--validate", "--json")
ROLES = ("lower", "flash_fwd", "-c", "T=f16,D=64,BN=64", "-d", "B=1,H=1,HK=1,M=40,N=70", "--validate", "--json")


@pytest.mark.sweep(4)
@pytest.mark.parametrize(
    ("call", "broken", "code"),
    [
        (SMALL, None, ""),
        (SMALL, larger, "L012"),
        (SMALL, break_type, "L012"),
        (("lower", faulty_file("D401_swapped_parity"), "--validate", "--json"), None, "L013"),
        pytest.param((*ROLES, "--without", "insert_synchronisation"), None, "L012", marks=pytest.mark.thorough("7 seconds")),
        pytest.param(ROLES, None, "", marks=pytest.mark.thorough("7 seconds")),
    ],
    ids=["right", "wrong", "invalid", "deadlock", "unsynchronised", "roundings"],
)
def test_tasks_give_the_verdicts_of_one_process(
    cuir: Callable,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    call: tuple[str, ...],
    broken: Callable[[ops.Kernel], None] | None,
    code: str,
) -> None:
    if broken is not None:
        passes = (*pipeline.PASSES[:3], make_broken_pass("broken", broken), *pipeline.PASSES[3:])
        monkeypatch.setattr(pipeline, "PASSES", passes)
    path = tmp_path / "journal.jsonl"
    plain, kept = cuir(*call), cuir(*call, "--journal", path)
    assert [d["code"] for d in plain.json["diagnostics"]] == [code] * bool(code)
    assert kept.code == plain.code and strip_seconds(kept.json) == strip_seconds(plain.json)
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    path.write_text("".join(lines[:1] + lines[2:]), encoding="utf-8")
    assert strip_seconds(cuir(*call, "--journal", path).json) == strip_seconds(plain.json)
    assert [json.loads(n)["id"] for n in path.read_text(encoding="utf-8").splitlines()[1:]] == [json.loads(n)["id"] for n in lines[1:]]


def test_a_hash_tells_any_bit_but_those_of_nan() -> None:
    x = torch.tensor([1.0, torch.nan, 0.0])
    other_nan = x.clone()
    other_nan.view(torch.int32)[1] += 1
    assert hash_values(x) == hash_values(other_nan)
    for values in ([1.0, torch.nan, -0.0], [1.0, 0.0, 0.0], [torch.nan, 1.0, 0.0]):
        assert hash_values(torch.tensor(values)) != hash_values(x)
    assert hash_values(torch.tensor([1, 2], dtype=torch.int32)) != hash_values(torch.tensor([1, 3], dtype=torch.int32))
