"""What `import cuir` costs and loads, measured in a fresh process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import FunctionType

import pytest

import cuir

HEAVY = ("litellm", "hypothesis", "typer", "rich", "matplotlib", "cutlass_library", "transformers")


def test_import_is_fast_and_loads_nothing_heavy() -> None:
    code = (
        "import json, sys, time, torch\n"
        "before = set(sys.modules); start = time.perf_counter()\n"
        "import cuir\n"
        "seconds = time.perf_counter() - start\n"
        "print(json.dumps([seconds, sorted(set(sys.modules) - before)]))"
    )
    best, loaded = min(
        json.loads(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout) for _ in range(2)
    )
    assert best < 0.2
    assert not {m.partition(".")[0] for m in loaded} & set(HEAVY)


def test_commands_about_programs_load_no_backend() -> None:
    code = (
        "import sys\nfrom cuir.cli import run\ncode = run(['explain', 'T111'])\n"
        "print('LOADED', code, [m for m in ('torch', 'litellm', 'cuir.lowering', 'cuir.interp') if m in sys.modules])"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "LOADED 0 []" in shown


@pytest.mark.parametrize("name", cuir.__all__)
def test_public_names_exist(name: str) -> None:
    assert getattr(cuir, name) is not None
    assert name in dir(cuir)


def test_no_module_is_called_like_a_public_function() -> None:
    modules = {p.stem if p.stem != "__init__" else p.parent.name for p in Path(cuir.__file__).parent.rglob("*.py")}
    assert not modules & {n for n in cuir.__all__ if isinstance(getattr(cuir, n), FunctionType)}


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'chekc'"):
        _ = cuir.chekc  # type: ignore[attr-defined]
