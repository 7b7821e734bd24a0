"""Progress of a first call: when it is shown, and that verification and compiling overlap."""

from __future__ import annotations

import io
import sys
import threading
from collections import OrderedDict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from cuir import create_block_mask, flex_attention
from cuir.attn.api import prepared_calls
from cuir.attn.capture.first_call_progress import Progress, is_shown
from cuir.attn.kernels import attention_kernel
from cuir.verification import Stage, VerifyReport


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("requests", "terminal", "expected"),
    [
        ("", True, True),
        ("", False, False),
        ("1", False, True),
        ("0", True, False),
    ],
)
def test_who_sees_it(requests: str, terminal: bool, expected: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUIR_PROGRESS", requests)
    monkeypatch.setattr(sys, "stderr", Terminal() if terminal else io.StringIO())
    assert is_shown() == expected
    with Progress("causal").step("compiling") as step:
        step.tell("nvcc")
    actual = sys.stderr.getvalue()  # type: ignore[attr-defined]
    assert bool(actual) == expected
    if expected:
        assert actual.count("\n") == (2 if terminal else 3) and "causal" in actual and "compiling: nvcc" in actual and "done in" in actual


def test_a_step_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUIR_PROGRESS", "1")
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with pytest.raises(ValueError, match="no"), Progress("causal").step("compiling"):
        raise ValueError("no")
    assert "compiling: failed" in sys.stderr.getvalue()  # type: ignore[attr-defined]


def test_steps_are_records_of_the_logger(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("CUIR_PROGRESS", "0")
    with caplog.at_level("INFO", logger="cuir"), Progress("causal").step("compiling") as step:
        step.tell("nvcc")
    assert [r.name for r in caplog.records] == ["cuir.flex"] * 2
    first, last = (r.getMessage() for r in caplog.records)
    assert first.startswith("causal:") and first.endswith("compiling") and "compiling: done in" in last


def test_verification_and_compiling_overlap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Each waits for the other to have begun."""
    monkeypatch.setenv("CUIR_PROGRESS", "1")
    monkeypatch.setenv("CUIR_CACHE", str(tmp_path))
    barrier = threading.Barrier(2, timeout=20)

    def compile(program: Any, consts: Any, run: Any) -> Any:
        run.begun.set()
        barrier.wait()

        def launch(arguments: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
            return arguments["O"], torch.zeros(1)

        return SimpleNamespace(launch=launch, spilled=0, make_replay=lambda varying, arguments: None)

    def verify(program: Any, spec: Any, kernel: str | None, consts: Any, level: str, progress: Any, processes: int) -> VerifyReport:
        barrier.wait()
        progress("mask: read out")
        return VerifyReport(spec.name, "flash_fwd", level, dict(consts), [Stage("mask", "the mask", "passed")])  # type: ignore[arg-type]

    monkeypatch.setattr("cuir.runtime.compiled.compile", compile)
    monkeypatch.setattr("cuir.verification.stages.verify", verify)
    monkeypatch.setattr(attention_kernel, "need_gpu", lambda device, arch: None)
    monkeypatch.setattr(attention_kernel, "_SETTINGS", {})
    for name in ("_ATTENTIONS", "_TRACED", "_WARM"):
        monkeypatch.setattr(prepared_calls, name, OrderedDict())
    q, k, v = (torch.randn(1, 2, 40, 64).half() for _ in range(3))

    def overlapping(b: Any, h: Any, q: Any, k: Any) -> Any:
        return q >= k

    flex_attention(q, k, v, None, create_block_mask(overlapping, None, None, 40, 40))
    text = capsys.readouterr().err
    for line in (
        "overlapping",
        "transfer to the expert kernel",
        "compiling: done in",
        "verifying (quick): mask: read out",
        "verifying (quick): done in",
    ):
        assert line in text
