"""What `import cuir` costs and loads, measured in a fresh process."""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
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
    for _ in range(3):  # other load on the machine stretches the first ones
        seconds, loaded = json.loads(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
        if seconds < 0.2:
            break
    assert seconds < 0.2
    assert not {m.partition(".")[0] for m in loaded} & set(HEAVY)


def test_commands_about_programs_load_no_pytorch() -> None:
    commands = [
        ["--help"],
        ["--version"],
        ["explain", "T111"],
        ["explain"],
        ["corpus"],
        ["show", "gemm"],
        ["check", "gemm"],
        ["check", "nothing"],
        ["ops"],
        ["ops", "mma"],
        ["ops", "nothing"],
        ["check", "flash_fwd_sm90", "--json"],
        ["lower", "gemm", "--json"],
    ]
    code = (
        "import json, sys\nfrom cuir.cli import run\n"
        f"codes = [run(argv) for argv in {commands!r}]\n"
        "print('LOADED', json.dumps([codes, [m for m in ('torch', 'numpy', 'litellm', 'cuir.interp') if m in sys.modules]]))"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    codes, loaded = json.loads(output.rpartition("LOADED ")[2])
    assert codes == [2 if "nothing" in argv else 0 for argv in commands]
    assert loaded == []


def test_flex_loads_neither_compiler_nor_verification() -> None:
    """A second process launches cached kernels: it needs none of what makes or judges them."""
    code = "import sys, cuir.flex\nprint(*sys.modules)"
    loaded = set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split())
    unneeded = (
        "torch._dynamo",
        "xdsl",
        "cuir.interp",
        "cuir.explore",
        "cuir.lowering.compiler",
        "cuir.lowering.ir",
        "cuir.verification.stages",
    )
    assert "cuir.flex.front" in loaded and not loaded & set(unneeded)


@pytest.mark.parametrize("package", ["cuir.lowering", "cuir.verification"])
def test_lazy_packages_have_their_names(package: str) -> None:
    module = importlib.import_module(package)
    assert all(getattr(module, name) is not None for name in module.__all__)
    with pytest.raises(AttributeError, match="no attribute 'chekc'"):
        _ = module.chekc


def test_dir_holds_the_public_names_alone() -> None:
    assert dir(cuir) == sorted(cuir.__all__)
    starred: dict[str, object] = {}
    exec("from cuir import *", starred)
    assert set(starred) - {"__builtins__"} == set(cuir.__all__)


def test_type_checkers_see_every_public_name() -> None:
    tree = ast.parse(Path(cuir.__file__).read_text(encoding="utf-8"))
    guarded = next(n for n in tree.body if isinstance(n, ast.If) and isinstance(n.test, ast.Name) and n.test.id == "TYPE_CHECKING")
    observed = {
        alias.asname or alias.name: "." * n.level + (n.module or "")
        for n in guarded.body
        if isinstance(n, ast.ImportFrom)
        for alias in n.names
    }
    assert observed.keys() == set(cuir.__all__)
    assert all(observed[name] == f".{home}" for name, home in cuir._MODULE_OF.items())


@pytest.mark.parametrize("name", cuir.__all__)
def test_public_names_exist(name: str) -> None:
    assert getattr(cuir, name) is not None
    assert name in dir(cuir)


def test_no_module_is_called_like_a_public_function() -> None:
    files = [
        p for p in Path(cuir.__file__).parent.rglob("*.py") if p.parent.name != "commands"
    ]  # of the command line: named as its commands
    modules = {p.stem if p.stem != "__init__" else p.parent.name for p in files}
    assert not modules & {n for n in cuir.__all__ if isinstance(getattr(cuir, n), FunctionType)}


def test_the_version_is_that_of_the_package() -> None:
    assert cuir.__version__ == importlib.metadata.version("cubridge")


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'chekc'"):
        _ = cuir.chekc  # type: ignore[attr-defined]
