"""flex_attention on a GPU: numbers, kernels that are shared, masks of PyTorch, errors, cost of a warm call."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.gpu import flex_cases as cases
from tests.gpu.isolation import run_isolated

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize(
    "case",
    [
        cases.numbers,
        cases.largest_scores,
        cases.shared_keys,
        cases.verified_once,
        cases.block_masks_of_pytorch,
        cases.one_kernel,
        cases.errors,
        cases.reads_outside,
        cases.compiled,
        cases.captured,
        cases.side_streams,
        cases.warm_calls,
        cases.packed_sequences,
        cases.packed_sequences_in_a_graph,
        cases.learned,
        cases.captured_state,
        cases.captured_names,
        cases.captured_float64,
        cases.nested_made_apart,
    ],
)
def test_flex(case: Callable[[], object]) -> None:
    run_isolated(case, seconds=600)


def test_a_warm_call_is_cheap() -> None:
    """At most 15 us of host time beyond the kernel's own call, where the mods are the same objects."""
    cost = run_isolated(cases.host_cost, seconds=300)
    print({name: f"{us:.1f} us" for name, us in cost.items()})
    for name in ("causal", "documents", "alibi causal", "explicit"):
        assert cost[name] - cost["kernel"] <= 15.0, name


@pytest.mark.parametrize("dim", [64, 128])
def test_time_to_the_first_result(dim: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a process of its own, from a new specification on: at most 30 s; in a second process, from the cache folder, at most 2 s."""
    monkeypatch.setenv("CUIR_CACHE", str(tmp_path))
    new, expected_values = (run_isolated(cases.first_result, dim, seconds=300) for _ in range(2))
    print(
        f"head dim {dim}: first process {new['first']:.1f} s, second process {expected_values['first']:.2f} s, warm {expected_values['second'] * 1e3:.1f} ms"
    )
    assert new["first"] <= 30.0 and expected_values["first"] <= 2.0
