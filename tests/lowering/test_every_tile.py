"""Every tile that the checker takes lowers: of any shape, dtype and primitive, but for the operands of products that docs/language.md names.

Programs whose values are read many times each: lowering works every value out once, so its time and text grow with the program, not with the paths through it.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cuir.checking.checker import check
from cuir.lowering import lower
from cuir.lowering.ir.build_ir import build
from cuir.lowering.passes.pipeline import PASSES
from cuir.lowering.validate import validate
from cuir.syntax.parser import parse
from cuir.text.diagnostics import CuirError
from tests.lowering.tile_ir import program
from tests.strategies.typed import arguments

TEXT = """
@kernel(arch="{arch}")
def f(X: Global[f32, M, N], I: Global[i32, M, N], Y: Global[f32, M, N], n: i32):
    s = shared({dtype}, [{rows}, {cols}])
    with role("one", {workers}=1):
        x = {load}
        {body}
        store(Y[rows(1), cols(1)], row_max(col_max(cast(y, f32))))
"""
ROWS = {"warpgroups": (1, 64, 128, 192), "warps": (1, 16, 32, 48)}
COLUMNS = (1, 8, 16, 24, 32, 64, 72, 128)
DTYPES = ("f32", "f16", "bf16", "i32", "bool", "f8e4m3")
UNARY = ("-x", "abs(x)", "exp2(x)", "tanh(x)", "log2(x)", "bit(x, x)", "x // 3", "x + x", "max(x, x)", "where(x > x, x, x)", "warp_any(x)")
REDUCTIONS = (
    "row_max(x)",
    "row_sum(x)",
    "col_max(x)",
    "col_sum(x)",
    "row_sum(col_sum(x))",
    "where(warp_any(x > x), col_max(x) + 1.0, 0.0)",
)
CASTS = tuple(f"cast(x, {d})" for d in DTYPES)
THROUGH_MEMORY = ("load(s)", "load(s.T)", "cast(load(s), f16)", "cast(load(s.T), f16)", "cast(load(s.T), f32)")
LOOP = "x\n        for i in range(n):\n            y = y + col_sum(y) + row_sum(y)"
BODIES = [f"y = {e}" for e in (*UNARY, *REDUCTIONS, *CASTS, LOOP)] + [
    f"store(s, x{mask})\n        y = {e}" for e in THROUGH_MEMORY for mask in ("", ", mask=rows(1) < n")
]


def lowers(arch: str, workers: str, rows: int, cols: int, dtype: str, body: str) -> bool:
    """Lower a program, if it checks. Returns if it does."""
    load = {"f32": "X", "i32": "I"}.get(dtype, "X") + f"[rows({rows}), cols({cols})]"
    load = f"cast({load}, {dtype})" if dtype not in ("f32", "i32") else load
    try:
        checked = check(parse(TEXT.format(arch=arch, workers=workers, rows=rows, cols=cols, dtype=dtype, load=load, body=body)))
    except CuirError:
        return False
    lower(checked)
    return True


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_what_checks_lowers(data: st.DataObject) -> None:
    workers = data.draw(st.sampled_from(sorted(ROWS)))
    rows, cols = data.draw(st.sampled_from(ROWS[workers])), data.draw(st.sampled_from(COLUMNS))
    lowers(
        data.draw(st.sampled_from(["sm_75", "sm_80", "sm_89", "sm_90a"])),
        workers,
        rows,
        cols,
        data.draw(st.sampled_from(DTYPES)),
        data.draw(st.sampled_from(BODIES)),
    )


@pytest.mark.sweep
@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_89", "sm_90a", "sm_100a"])
@pytest.mark.parametrize(("workers", "rows", "cols"), [("warpgroups", 1, 64), ("warpgroups", 192, 1), ("warps", 48, 24), ("warps", 1, 1)])
def test_reductions_and_transposes_lower_on_every_card(arch: str, workers: str, rows: int, cols: int) -> None:
    for body in (*(f"y = {e}" for e in REDUCTIONS), f"y = {LOOP}", "store(s, x)\n        y = load(s)"):
        assert lowers(arch, workers, rows, cols, "f32", body), body


@pytest.mark.parametrize(
    ("dtype", "body", "words"),
    [
        ("f16", "y = mma(x, x)", "register tile as the right operand"),
        ("f32", "store(s, x)\n        y = mma(s.T, s, parts=1)", "transposed left operand"),
    ],
)
def test_operands_of_products_that_do_not_lower_say_so(dtype: str, body: str, words: str) -> None:
    with pytest.raises(CuirError, match=words) as caught:
        lowers("sm_90a", "warpgroups", 64, 64, dtype, body)
    assert caught.value.diagnostics[0].code == "L002"


def test_the_transpose_of_a_view_is_a_left_operand_once_it_is_loaded() -> None:
    """The hint names what docs/language.md says."""
    assert lowers("sm_90a", "warpgroups", 64, 64, "f16", "store(s, x)\n        y = mma(load(s.T), s)")


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
