"""Programs whose values are read many times each: lowering works every value out once, so its time and text grow with the program, not with the paths through it."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from cuir.lowering import lower
from cuir.lowering.ir.build_ir import build
from cuir.lowering.passes.pipeline import PASSES
from cuir.lowering.validate import validate
from tests.lowering.tile_ir import program
from tests.strategies.arguments import arguments

HEAD = """
@kernel(arch="sm_90a")
def k(X: Global[f32, N, 64], Z: Global[f32, N, 64], n: i32):
    with role("all", warpgroups=1):
        x = load(X[0:64, :])
"""
N = 40
CHAINS = {
    "columns": ["c = cols(64)", *["c = c + c"] * N, "store(Z[0:64, :], where(c < n, 1.0, x))"],
    "rows": ["c = rows(64) + n", *["c = c * n + c"] * N, "store(Z[0:64, :], where(cols(64) < c, 1.0, x))"],
    "masks": [
        "c = (cols(64) < n) & (rows(64) < n)",
        "d = rows(64) <= cols(64)",
        *["d = (c & d) | (~c & d)", "c = (d & c) | (d & (cols(64) < n + 1))"] * (N // 2),
        "store(Z[0:64, :], where(c, 1.0, x))",
    ],
    "votes": [
        "y = row_max(x)",
        *["y = y + y * 2.0"] * N,
        "t = warp_any(y > 3.0)",
        "z = where(t, y, 0.0)",
        *["z = z + z * 3.0"] * N,
        "store(Z[0:64, :], x + where(t, z, 1.0))",
    ],
    "starts": ["s = n * 64", *["s = s + s"] * N, "for i in range(3):", "    s = s + s", "store(Z[s : s + 64, :], x)"],
    "divisors": ["s = n", *["s = s // 3 + s // n"] * N, "store(Z[s : s + 64, :], x)"],
    "slopes": [
        "s = cast(n, f32)",
        *["s = s * s + s"] * N,
        "for i in range(4):",
        "    x = x + s * cast(cols(64), f32)",
        "    x = exp2(x - row_max(x))",
        "store(Z[0:64, :], x)",
    ],
    "sums": ["y = row_sum(x)", *["y = y + y"] * N, "store(Z[0:64, :], x / y)"],
}


@contextmanager
def within(seconds: int) -> Iterator[None]:
    def late(*_: object) -> None:
        raise TimeoutError(f"not done after {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("name", CHAINS)
def test_a_value_read_twice_is_worked_out_once(name: str) -> None:
    checked = program(HEAD + "\n".join(f"        {line}" for line in CHAINS[name]) + "\n")
    with within(30):  # a tenth of a second each; 2^40 steps would be a day
        emitted = lower(checked)
    assert len(emitted.source) < 2000 * len(CHAINS[name])


@pytest.mark.parametrize(
    "lines",
    [
        ["z = where(t, y, 0.0)", "w = row_sum(x * z)", "store(Z[0:64, :], x * (where(t, w, 2.0) + z))"],
        ["z = where(t, y, x)", "store(Z[0:64, :], z)"],
    ],
)
def test_choices_of_one_vote_of_other_shapes_than_what_they_are_made_of(lines: list[str]) -> None:
    head = ["y = row_max(x)", "t = warp_any(y > 3.0)"]
    checked = program(HEAD + "\n".join(f"        {line}" for line in [*head, *lines]) + "\n")
    assert validate(build(checked), PASSES, arguments(checked, {"N": 100})) is None
