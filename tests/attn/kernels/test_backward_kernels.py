"""The number of keys that a query visits: masks with a closed form, block lists of data, no mask."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.recorded import read_rows
from cuir.attn.kernels.attention_kernel import attention
from cuir.attn.kernels.backward_kernels import FEW, deals_heads, has_few_keys, mean_visited_keys, split_by_keys, split_by_queries
from cuir.attn.kernels.experts import origin_of
from cuir.cli.command_inputs import read_variant
from cuir.performance.search.space import find_violation
from cuir.performance.timing.problem import Shape
from cuir.spec import Specification
from cuir.spec.specification import lengths_of
from cuir.syntax.types import BF16

IDS = torch.arange(1000) // 130
MASKS = {
    "none": None,
    "causal": lambda b, h, q, k: q >= k,
    "window": lambda b, h, q, k: (q >= k) & (q - k < 150),
    "documents": lambda b, h, q, k: IDS[q] == IDS[k],
    "hash": lambda b, h, q, k: (q * 7 + k * 3) % 512 < 9,
}


def call(mask: Any, n: int) -> tuple[Any, ...]:
    result = attention(mask if mask is not None else (lambda s, b, h, q, k: s * 2), head_dim=64, verify="off")
    q = torch.zeros(1, 2, n, 64, dtype=torch.float16)
    ready = result.ready(q, q, q, None, "interpret")
    return result.settings, ready.data, ready.device_arguments, lengths_of(q, q)


@pytest.mark.sweep(4)
@pytest.mark.parametrize("n", [256, 1000])
@pytest.mark.parametrize("name", MASKS)
def test_visited_keys_are_those_of_the_blocks_with_a_pair(name: str, n: int) -> None:
    actual = mean_visited_keys(*call(MASKS[name], n))
    at = torch.arange(n)
    retained = MASKS[name](0, 0, at[:, None], at) if MASKS[name] is not None else torch.ones(n, n, dtype=torch.bool)
    room = -n % 128
    tiles = torch.nn.functional.pad(retained, (0, room, 0, room)).view(-(-n // 128), 128, -(-n // 128), 128).any(3).any(1)
    expected = 128 * float(tiles.float().sum(1).mean())
    assert (
        actual is not None and expected - 64 <= actual <= expected + 128
    )  # blocks of the list's own size; tiles that stick out count in part


def test_data_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    settings, data, result, at = call(MASKS["documents"], 256)
    first = mean_visited_keys(settings, data, result, at)
    result[data.lists.count].zero_()
    assert mean_visited_keys(settings, data, result, at) == first


class Late:
    """A number that is not there yet."""

    def __init__(self, number: torch.Tensor):
        self.number, self.arrived, self.waited = number, False, False

    def has_arrived(self) -> bool:
        return self.arrived

    def value(self) -> float:
        self.waited = not self.arrived
        return float(self.number)


def test_other_data_does_not_wait_for_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until its blocks are counted it gets what the last data of these lengths had; only the first of all waits."""
    monkeypatch.setattr("cuir.attn.kernels.backward_kernels.Counting", Late)
    ids = torch.arange(1000) // 130
    settings, data, result, at = call(lambda b, h, q, k: ids[q] == ids[k], 256)
    settings.counted.clear()  # what other tests counted for this mask
    first = mean_visited_keys(settings, data, result, at)
    assert first is not None and result.counting.waited
    ids.fill_(0)
    *_, second, _ = call(lambda b, h, q, k: ids[q] == ids[k], 256)
    assert second is not result and mean_visited_keys(settings, data, second, at) == first and not second.counting.waited
    monkeypatch.setattr("cuir.attn.kernels.backward_kernels.capturing", lambda: True)
    assert mean_visited_keys(settings, data, second, at) == first
    monkeypatch.setattr("cuir.attn.kernels.backward_kernels.capturing", lambda: False)
    second.counting.arrived = True
    assert mean_visited_keys(settings, data, second, at) == 256 and not second.counting.waited and settings.counted[at] == 256


def test_few_keys_of_a_slower_memory_are_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Adding dQ up costs bytes, and computing it apart products."""
    inputs = call(MASKS["causal"], 1000)
    keys, device = mean_visited_keys(*inputs), torch.device("cuda", 0)
    assert keys is not None
    for speed, few in ((1.0, True), (1e15, False), (3.35e12 * FEW * 64 / keys * 0.99, True), (3.35e12 * FEW * 64 / keys * 1.01, False)):
        monkeypatch.setattr("cuir.attn.kernels.backward_kernels.bandwidth", lambda _, speed=speed: speed)
        assert has_few_keys(*inputs, device) == few, speed
    assert not has_few_keys(*inputs, torch.device("cpu"))


def test_scores_that_cost_much_are_not_computed_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cuir.attn.kernels.backward_kernels.bandwidth", lambda _: 3.35e12)
    scores = {"none": None, "cheap": lambda s, b, h, q, k: s * 2 + (k - q), "tanh": lambda s, b, h, q, k: torch.tanh(s)}
    few: dict[str, list[bool]] = {name: [] for name in scores}
    for name, score in scores.items():
        spec = Specification(name, lambda b, h, q, k: q >= k, score)
        result = attention(spec, head_dim=64, verify="off")
        for n in (256, 320, 384, 768):
            q = torch.zeros(1, 1, n, 64, dtype=torch.float16)
            ready = result.ready(q, q, q, None, "interpret")
            few[name].append(has_few_keys(result.settings, ready.data, ready.device_arguments, lengths_of(q, q), torch.device("cuda", 0)))
    assert few == {"none": [True, True, True, False], "cheap": [True, True, False, False], "tanh": [False] * 4}


MEASURED = Path(__file__).parents[3] / "benchmarks/results"


BEHIND = {
    ("prefix_lm", "hd256", 4096): "many keys, and the kernel for wide heads takes prefixes badly",
    ("softcap_causal", "hd64-grouped", 1024): "heads that are shared out are 5 % ahead, also of so short sequences",
    ("sliding_window", "hd64", 1024): "timed with a block's last products in another order than today's, with which it is ahead",
}


@functools.cache
def on_an_h200(variant: str, parameters: tuple[tuple[str, Any], ...], dim: int, n: int, spread: bool) -> bool:
    """Return whether queries of a variant have few keys on an H200."""
    result = attention(read_variant(variant, [f"{n}={x}" for n, x in parameters]), head_dim=dim, verify="off")
    q = torch.zeros(1, 1, n, dim, dtype=torch.float16)
    ready = result.ready(q, q, q, None, "interpret")
    return has_few_keys(result.settings, ready.data, ready.device_arguments, lengths_of(q, q), torch.device("cuda", 0), spread)


@pytest.mark.sweep
@pytest.mark.parametrize("name", ["backward-defaults-h200-2026-11-26", "backward-defaults-again-h200-2026-11-26"])
def test_what_was_the_fastest_is_taken(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within 3 %, of the forms that were timed on an H200 (dQ apart, or added up with heads as they are or shared out), but for what is named."""
    monkeypatch.setattr("cuir.attn.kernels.backward_kernels.bandwidth", lambda _: 4.8e12)
    behind = set()
    for row in read_rows(MEASURED / f"{name}.jsonl.xz")[1:]:
        shape = Shape(*row["shape"])
        if shape.M > 4096:
            continue
        times = {n: c["tflops"] for n, c in row["contenders"].items() if n != "reordered"}
        forms = ("apart", "added", "spread") if shape.H != shape.HK else ("apart", "added")
        times[next(n for n in forms if n not in times)] = times.pop("cuir")
        result = attention(read_variant(row["variant"], [f"{n}={x}" for n, x in row["parameters"].items()]), head_dim=shape.D, verify="off")
        spread = deals_heads(result, shape.lengths)
        few = on_an_h200(row["variant"], tuple(row["parameters"].items()), shape.D, shape.M, spread)
        if times["apart" if few else "spread" if spread else "added"] < 0.97 * max(times.values()):
            behind.add((row["variant"], row["model"], shape.M))
    assert behind <= set(BEHIND)


@pytest.mark.parametrize(
    "dims",
    [
        (576, 512),
        (512, 576),
        (576, 576),
        (576, 384),
        *(
            pytest.param((D, DV), marks=pytest.mark.thorough("other head dims"))
            for D in range(8, 577, 71)
            for DV in range(8, 577, 71)
            if max(D, DV) > 256
        ),
    ],
    ids=str,
)
def test_settings_of_heads_in_halves_fit(dims: tuple[int, int]) -> None:
    for name, setting in (("flash_bwd_split_sm90", split_by_keys(*dims)), ("flash_bwd_dq_split_sm90", split_by_queries(*dims))):
        kernel = name.replace("_split_sm90", "")
        assert find_violation(origin_of(name), kernel, {"T": BF16, "D": dims[0], "DV": dims[1], **setting}) is None
