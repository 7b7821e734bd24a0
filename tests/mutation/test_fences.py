"""A fence for tensors that becomes one for shared memory alone."""

from __future__ import annotations

from cuir import parse
from cuir.mutation import mutants
from tests.explore.programs import check_text, fault
from tests.gpu.test_exchange import EXCHANGE, arguments


def test_a_fence_of_shared_memory_alone() -> None:
    results = [m for m in mutants(parse(EXCHANGE, "k.cuir"), "exchange") if m.operator == "fence of shared memory alone"]
    assert [m.fault for m in results] == [5] and "fence_async()" in results[0].text and not results[0].equivalent
    dims = dict(zip("U", arguments(1, "cpu")["X"].shape))
    assert fault(check_text(results[0].text), "in_order", dims) == "R403"
    assert fault(check_text(EXCHANGE), "in_order", dims) == ""
