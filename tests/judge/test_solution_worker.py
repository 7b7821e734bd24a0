"""The solution's side of the judge: which replaced functions are its own doing."""

from __future__ import annotations

import functools
import time

import torch

from cuir.judge.solution_worker import is_kept


def test_what_a_solution_puts_in_place_of_a_function_is_seen() -> None:
    @functools.wraps(time.perf_counter)
    def quick() -> float:
        return 0.0

    assert is_kept(time.perf_counter, time.perf_counter) and vars(quick)["__wrapped__"] is time.perf_counter
    assert not is_kept(time.perf_counter, quick) and not is_kept(time.perf_counter, None)
    assert not is_kept(torch.allclose, torch.is_tensor)


def test_what_the_compiler_puts_around_a_function_at_its_import_is_no_fault() -> None:
    import torch._dynamo

    assert torch.manual_seed is not torch.random.manual_seed and is_kept(torch.random.manual_seed, torch.manual_seed)
