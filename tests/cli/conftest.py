"""Fixtures of the command line: run it in this process; exit code, stdout and stderr."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cuir.cli import run as run_command
from tests.cli.programs import GOOD


@dataclass
class CapturedOutput:
    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        data: dict[str, Any] = json.loads(self.out)
        return data


@pytest.fixture
def cuir(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., CapturedOutput]:
    """`cuir("check", "x.cuir")`: one command line. Nothing it prints may be a stack trace."""
    monkeypatch.delenv("CUIR_DEBUG", raising=False)

    def call(*argv: str) -> CapturedOutput:
        capsys.readouterr()
        code = run_command([str(a) for a in argv])
        output = CapturedOutput(code, *capsys.readouterr())
        assert "Traceback" not in output.out + output.err
        assert code != 70, output.err
        return output

    return call


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Progress is shown, as if stderr were a terminal."""
    monkeypatch.setattr("cuir.cli.live_view.is_terminal", lambda: True)


@pytest.fixture
def good(tmp_path: Path) -> Path:
    """A right program in a file."""
    path = tmp_path / "copy.cuir"
    path.write_text(GOOD, encoding="utf-8")
    return path
