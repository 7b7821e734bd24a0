"""`cuir verify` in tasks: the report of one process, keys that hang on content alone, and a journal to resume from."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import corpus
from corpus.computes import COMPUTES
from cuir.campaigns.local_executor import LocalExecutor
from cuir.cli.gpu_stage import Verified
from cuir.cli.verification_tasks import make_plan, run_verification_jobs
from cuir.text.diagnostics import CuirError

COMBINE = ("verify", "decode_paged", "-k", "combine", "--json")


def strip_seconds(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: strip_seconds(v) for k, v in value.items() if k != "seconds"}
    return [strip_seconds(v) for v in value] if isinstance(value, list) else value


@pytest.mark.usefixtures("few_problems")
def test_tasks_give_the_report_of_one_process(cuir: Callable, tmp_path: Path) -> None:
    """Also when the command resumes."""
    path = tmp_path / "journal.jsonl"
    plain, kept = cuir(*COMBINE), cuir(*COMBINE, "--journal", path)
    assert plain.code == kept.code == 0 and strip_seconds(plain.json) == strip_seconds(kept.json)
    lines = path.read_bytes().splitlines(keepends=True)
    assert len(lines) > 5 and json.loads(lines[0])["verify"] == "decode_paged"
    path.write_bytes(b"".join(lines[:-2]) + lines[-2][:20])
    again = cuir(*COMBINE, "--journal", path)
    assert strip_seconds(again.json) == strip_seconds(plain.json)
    assert [strip_seconds(json.loads(line)) for line in path.read_bytes().splitlines()] == [strip_seconds(json.loads(n)) for n in lines]
    other = cuir("verify", "decode_paged", "-k", "decode", "--json", "--journal", path)
    assert other.code == 2 and other.json["diagnostics"][0]["code"] == "U122" and "--journal" in other.json["diagnostics"][0]["hint"]


@pytest.mark.sweep(4)
@pytest.mark.parametrize("wait", ["mma_wait(acc)", ""], ids=["right", "faulty"])
def test_explored_launches_are_those_of_one_process(cuir: Callable, tmp_path: Path, wait: str) -> None:
    """Also when the command resumes; a fault ends the list, and is found again by the driver with its schedule."""
    program, path, schedules = tmp_path / "gemm.cuir", tmp_path / "journal.jsonl", [tmp_path / "a.json", tmp_path / "b.json"]
    program.write_text(corpus.programs()["gemm"].read_text(encoding="utf-8").replace("mma_wait(acc)", wait), encoding="utf-8")
    call = ("verify", program, "--against", COMPUTES["gemm"]["gemm"].specification, "-c", "BM=64,BN=64", "--exhaustive", "--json")
    plain, kept = (cuir(*call, "--out", s, *more) for s, more in zip(schedules, ((), ("--journal", path))))
    expected = {**strip_seconds(plain.json), "written": None}
    assert plain.code == kept.code == (0 if wait else 1) and {**strip_seconds(kept.json), "written": None} == expected
    assert wait or schedules[0].read_bytes() == schedules[1].read_bytes()
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    path.write_text("".join([*lines[:2], *lines[3:]]), encoding="utf-8")
    assert {**strip_seconds(cuir(*call, "--journal", path).json), "written": None} == expected
    assert [json.loads(n)["id"] for n in path.read_text(encoding="utf-8").splitlines()[1:]] == [json.loads(n)["id"] for n in lines[1:]]


@pytest.mark.thorough
def test_a_fault_is_told_as_by_one_process(cuir: Callable, tmp_path: Path) -> None:
    path = tmp_path / "gemm.cuir"
    path.write_text(corpus.programs()["gemm"].read_text(encoding="utf-8").replace("mma_wait(acc)", ""), encoding="utf-8")
    call = ("verify", path, "--against", COMPUTES["gemm"]["gemm"].specification, "-c", "BM=64,BN=64", "--json")
    plain, tasks = cuir(*call), cuir(*call, "--jobs", "2")
    assert plain.code == tasks.code == 1 and strip_seconds(plain.json) == strip_seconds(tasks.json)


def make_task_of(folder: Path, mask: str) -> Any:
    (folder / "mine.py").write_text(f"def mask_mod(b, h, q_idx, kv_idx):\n    return {mask}\n", encoding="utf-8")
    verified = Verified("flash_fwd", f"{folder}/mine.py:mask_mod", (), "", "flash_fwd", {"D": 64}, "quick")
    return make_plan(verified, None, 20, LocalExecutor(), None, lambda count, total: None).make(0, [0])


def test_a_key_hangs_on_content_not_on_paths(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    first, second = (make_task_of(tmp_path / n, "q_idx >= kv_idx") for n in ("a", "b"))
    other = make_task_of(tmp_path / "b", "q_idx > kv_idx")
    assert first.key == second.key != other.key and first.arguments != second.arguments
    with pytest.raises(CuirError, match="are others on this node"):
        run_verification_jobs(*second.arguments)
