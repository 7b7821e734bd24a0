"""Settings of the whole suite: one thread a worker, Hypothesis without deadlines, `gpu` tests skipped without a Hopper GPU."""

from __future__ import annotations

import functools
import gc

import pytest
import torch
from hypothesis import HealthCheck, settings

torch.set_num_threads(1)
gc.disable()  # until all tests are collected: imports and parametrised cases make objects that stay
SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]
settings.register_profile(
    "cuir", max_examples=20, deadline=None, suppress_health_check=SLOW
)  # for minutes; `--hypothesis-profile=thorough` for hours. See tests/strategies/effort.py
settings.register_profile("thorough", max_examples=1000, deadline=None, suppress_health_check=SLOW)
settings.load_profile("cuir")


@functools.cache
def _no_gpu() -> str:
    if not torch.cuda.is_available():
        return "no CUDA device: torch.cuda.is_available() is False"
    major, minor = torch.cuda.get_device_capability()
    return "" if major == 9 else f"needs compute capability 9.0 (Hopper), found {major}.{minor}"


def pytest_collection_finish() -> None:
    """What is there by now stays: collections of garbage need not walk through it again and again."""
    gc.collect()
    gc.freeze()
    gc.enable()
    gc.set_threshold(20_000, 20, 50)  # interpreted runs make many small objects that die by themselves


def pytest_sessionfinish() -> None:
    """pytest collects garbage five times when it ends, for warnings that nobody awaits: through millions of objects that end with the process."""
    gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = _no_gpu()
    for item in items:
        if reason and item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason=reason))
