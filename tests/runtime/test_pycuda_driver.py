"""PyCUDA itself without a GPU, where it is installed: its compiler, its modules and its launches over a driver that writes down what it gets."""

from __future__ import annotations

import functools
import importlib.util
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.gpu.isolation import run_isolated
from tests.runtime import pycuda_cases as cases

SOURCE = Path(__file__).with_name("pretend_driver.c")
TOOLS = ("gcc", "nm")
WRITE = 'case "$*" in *" -o "*) ;; *) echo {} > kernel.cubin;; esac'  # as PyCUDA runs nvcc, which names no output


def find_reason_to_skip() -> str:
    """Say why these tests cannot run; "" if they can."""
    if importlib.util.find_spec("pycuda") is None:
        return "PyCUDA is not installed: pip install cubridge[pycuda]"
    if importlib.util.find_spec("cuda") is None or importlib.util.find_spec("cuda.bindings") is None:
        return "cuda-bindings is not installed: pip install cubridge[pycuda]"
    if torch.cuda.is_available():
        return "a GPU is there, and a driver that pretends would hide it: tests/gpu/test_pycuda.py"
    absent = [tool for tool in TOOLS if shutil.which(tool) is None]
    return f"no {' and no '.join(absent)} on the PATH" if absent else ""


pytestmark = pytest.mark.skipif(find_reason_to_skip() != "", reason=find_reason_to_skip())


@functools.cache
def list_driver_functions() -> list[str]:
    """List the functions of the driver that PyCUDA links."""
    spec = importlib.util.find_spec("pycuda")
    assert spec is not None and spec.origin is not None
    (library,) = Path(spec.origin).parent.glob("_driver*.so")
    listed = subprocess.run(["nm", "-D", "--undefined-only", str(library)], capture_output=True, text=True, check=True).stdout
    return re.findall(r"\bU (cu[A-Z]\w*)", listed)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the driver that pretends; what it does not have answers that it is not supported."""
    folder = tmp_path_factory.mktemp("driver")
    text = SOURCE.read_text(encoding="utf-8")
    rest = set(list_driver_functions()) - set(re.findall(r"^int (cu\w+)\(", text, re.M))
    source = folder / "driver.c"
    source.write_text(text + "".join(f"int {name}(void) {{ return NOT_SUPPORTED; }}\n" for name in sorted(rest)), encoding="utf-8")
    command = ["gcc", "-shared", "-fPIC", "-w", "-Wl,-soname,libcuda.so.1", "-o", str(folder / "libcuda.so.1"), str(source), "-ldl"]
    subprocess.run(command, check=True, capture_output=True)
    return folder


@pytest.fixture
def run(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pretend: Callable[[str], Any]) -> Callable[..., None]:
    """Run a case over that driver. body: what nvcc does, None for the one that is there."""

    def make(case: Callable[..., None], *args: Any, body: str | None = WRITE.format("cubin")) -> None:
        if body is None:
            monkeypatch.setenv("CUIR_CACHE", str(tmp_path / "cache"))
        else:
            pretend(f'{body}\nwhile [ $# -gt 0 ]; do [ "$1" = -o ] && echo cubin > "$2"; shift; done')
        log = tmp_path / "launches"
        log.write_text("")
        monkeypatch.setenv("CUIR_PRETEND_LOG", str(log))
        monkeypatch.setenv("LD_LIBRARY_PATH", str(library))
        run_isolated(case, *args)

    return make


@pytest.mark.parametrize("name", ["mixed", "flash_fwd_sm90", "flash_fwd_cluster"])
def test_the_driver_gets_what_it_gets_of_the_default_loader(run: Callable[..., None], name: str) -> None:
    run(cases.same_launches, name)


@pytest.mark.parametrize(
    "case",
    [cases.own_context, cases.results_are_allocated, cases.primary_context, cases.tensors_of_torch, cases.errors_of_a_call, cases.page],
)
def test_calls(run: Callable[..., None], case: Callable[[], None]) -> None:
    run(case)


def test_a_cubin_that_the_driver_refuses(run: Callable[..., None]) -> None:
    run(cases.refused_by_the_driver, body=WRITE.format("refuse"))


def test_a_message_of_the_compiler(run: Callable[..., None]) -> None:
    run(cases.refused_by_the_compiler, body='echo "kernel.cu(3): error: expected a monkey" >&2; exit 2')


@pytest.mark.nvcc
def test_nvcc_makes_the_same_machine_code(run: Callable[..., None]) -> None:
    run(cases.compiled_as_on_the_default_way, body=None)
