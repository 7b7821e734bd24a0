"""The protocol of timing: medians of CUDA events with a cold L2 cache, contenders in turns. Owns no kernel."""

from __future__ import annotations

import datetime
import statistics
import subprocess
from collections.abc import Callable, Mapping
from typing import Any

import torch

Call = Callable[[], Any]
FLUSH_BYTES = 256 * 2**20  # five times the L2 cache of an H200


def median_ms(call: Call, milliseconds: float = 60.0) -> float:
    """Milliseconds of one call: the median over about `milliseconds` of calls, each after the L2 cache was overwritten (as triton.testing.do_bench)."""
    flush = torch.empty(FLUSH_BYTES, dtype=torch.int8, device="cuda")

    def timed(count: int) -> list[float]:
        events = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(count)]
        for start, stop in events:
            flush.zero_()
            start.record()
            call()
            stop.record()
        torch.cuda.synchronize()
        return [start.elapsed_time(stop) for start, stop in events]

    call()
    torch.cuda.synchronize()
    estimate = max(statistics.median(timed(3)), 1e-3)
    for _ in range(min(1000, max(1, int(25 / estimate)))):  # to the clocks that the card keeps up
        call()
    return statistics.median(timed(min(1000, max(5, int(milliseconds / estimate)))))


def in_turns(
    calls: Mapping[str, Call], rounds: int, measure: Callable[[Call], float] = median_ms
) -> tuple[dict[str, list[float]], dict[str, str]]:
    """Times all contenders once a round, as the card runs at its power limit and drifts. Returns times and why contenders failed, by name."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    failed: dict[str, str] = {}
    for _ in range(rounds):
        for name, call in calls.items():
            if name in failed:
                continue
            try:
                times[name].append(measure(call))
            except RuntimeError as error:
                if "CUDA error" in str(error):
                    raise  # the context is lost, and with it all that would follow
                failed[name] = reason(error)
    return {name: t for name, t in times.items() if t and name not in failed}, failed


def reason(error: BaseException) -> str:
    """Why a contender of PyTorch did not run, in a line."""
    if isinstance(error, torch.cuda.OutOfMemoryError):
        return "out of memory"
    lines = [line for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:160]


def versions() -> dict[str, str | None]:
    """Date, device, driver, versions: what a figure is worth nothing without."""
    cuda = torch.cuda.is_available()
    return {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
        "device": torch.cuda.get_device_name() if cuda else None,
        "driver": _driver() if cuda else None,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
    }


def _driver() -> str | None:
    try:
        asked = subprocess.run(
            ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"], capture_output=True, text=True, check=False, timeout=20
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return asked.stdout.strip().split("\n")[0] or None
