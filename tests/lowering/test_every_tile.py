"""Every tile that the checker takes lowers: of any shape, dtype and primitive, but for the operands of products that docs/language.md names."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cuir.checking.checker import check
from cuir.lowering import lower
from cuir.syntax.parser import parse
from cuir.text.diagnostics import CuirError

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
        data.draw(st.sampled_from(["sm_80", "sm_90a"])),
        workers,
        rows,
        cols,
        data.draw(st.sampled_from(DTYPES)),
        data.draw(st.sampled_from(BODIES)),
    )


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_100a"])
@pytest.mark.parametrize(("workers", "rows", "cols"), [("warpgroups", 1, 64), ("warpgroups", 192, 1), ("warps", 48, 24), ("warps", 1, 1)])
def test_reductions_and_transposes_lower_on_every_card(arch: str, workers: str, rows: int, cols: int) -> None:
    for body in (*(f"y = {e}" for e in REDUCTIONS), f"y = {LOOP}", "store(s, x)\n        y = load(s)"):
        assert lowers(arch, workers, rows, cols, "f32", body), body


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("y = mma(x, x)", "register tile as the right operand"),
        ("store(s, x)\n        y = mma(s.T, s)", "transposed left operand"),
    ],
)
def test_operands_of_products_that_do_not_lower_say_so(body: str, words: str) -> None:
    with pytest.raises(CuirError, match=words) as caught:
        lowers("sm_90a", "warpgroups", 64, 64, "f16", body)
    assert caught.value.diagnostics[0].code == "L002"


def test_the_transpose_of_a_view_is_a_left_operand_once_it_is_loaded() -> None:
    """The hint names what docs/language.md says."""
    assert lowers("sm_90a", "warpgroups", 64, 64, "f16", "store(s, x)\n        y = mma(load(s.T), s)")
