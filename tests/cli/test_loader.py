"""`cuir run --loader`: what it goes with, and what it says of what is not there."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

import pytest

from cuir.runtime.pycuda_loader import import_pycuda

RUN = ("run", "gemm", "-d", "M=64,N=64,K=64")


@pytest.fixture
def absent(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("cuir.performance.timing.gpu.explain_missing_gpu", lambda: "")
    import_pycuda.cache_clear()
    monkeypatch.setitem(sys.modules, "pycuda", None)
    yield
    import_pycuda.cache_clear()


def test_without_pycuda_the_command_says_what_to_install(cuir: Callable, absent: None) -> None:
    for on in ((), ("--on", "gpu")):
        shown = cuir(*RUN, "--loader", "pycuda", *on, "--json")
        (found,) = shown.json["diagnostics"]
        assert shown.code == 2 and found["code"] == "U510" and "cubridge[pycuda]" in found["hint"]


def test_an_unknown_loader_is_refused_before_a_gpu_is_looked_for(cuir: Callable) -> None:
    (found,) = cuir(*RUN, "--loader", "cupy", "--json").json["diagnostics"]
    assert found["code"] == "U512"


@pytest.mark.parametrize(
    "other", [("--on", "interpreter"), ("--schedule", "in_order"), ("--grid", "1"), ("--trace", "t.json"), ("--exhaustive",)]
)
def test_a_loader_is_refused_beside_what_runs_no_compiled_kernel(cuir: Callable, other: tuple[str, ...]) -> None:
    shown = cuir(*RUN, "--loader", "driver", *other, "--json")
    (found,) = shown.json["diagnostics"]
    assert shown.code == 2 and found["code"] == "U100" and "--loader" in found["message"]


@pytest.mark.parametrize("typed", [("--loader", "pycuda"), ("--loader", "driver"), ("--on", "gpu"), ("--on", "gpu", "--loader", "pycuda")])
def test_without_a_gpu_that_is_said_first_with_the_options_to_leave_out(
    cuir: Callable, monkeypatch: pytest.MonkeyPatch, typed: tuple[str, ...]
) -> None:
    monkeypatch.setattr("cuir.performance.timing.gpu.explain_missing_gpu", lambda: "no CUDA device")
    shown = cuir(*RUN, *typed, "--json")
    (found,) = shown.json["diagnostics"]
    assert shown.code == 2 and found["code"] == "U501" and found["hint"].startswith(f"leave out {' '.join(typed)} to run it")
