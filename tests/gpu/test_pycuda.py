"""The loader by PyCUDA on a GPU: the bits of the default loader, on torch's context and on PyCUDA's own; streams, graphs, errors, the command line."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable

import pytest

from tests.gpu import pycuda_cases as cases
from tests.gpu.isolation import run_isolated

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(importlib.util.find_spec("pycuda") is None, reason="PyCUDA is not installed: pip install cubridge[pycuda]"),
]


@pytest.mark.parametrize("name", ["flash_fwd", "flash_bwd", "flash_fwd_cluster", "gemm_clusters", "decode_paged", "flash_fwd_warps"])
def test_results_have_the_bits_of_the_default_loader(name: str) -> None:
    run_isolated(cases.same_bits, name, seconds=300.0)


@pytest.mark.parametrize(
    "case",
    [
        cases.scalars_and_scratch,
        cases.streams_of_torch,
        cases.graphs_of_torch,
        cases.prepared,
        cases.another_context,
        cases.errors_of_a_call,
        cases.refusals,
        cases.command_line,
        cases.example,
    ],
)
def test_calls(case: Callable[[], None]) -> None:
    run_isolated(case, seconds=300.0)


def test_a_context_of_pycuda_gives_the_bits_of_the_default_loader() -> None:
    assert run_isolated(cases.own_context_digest) == run_isolated(cases.default_digest)


@pytest.mark.parametrize("name", ["call.py", "launch.py"])
def test_the_programs_of_the_page_run(name: str) -> None:
    run_isolated(cases.page, name)
