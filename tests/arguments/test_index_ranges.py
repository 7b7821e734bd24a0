"""Index arithmetic beyond 32 bits: refused at the launch, for the lengths at which it may happen, and for no others."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import corpus
from corpus.computes import COMPUTES
from cuir.arguments.index_ranges import LONGEST, require_index_ranges
from cuir.checking.checker import check
from cuir.interp import run
from cuir.lowering import lower
from cuir.syntax.parser import parse
from cuir.syntax.types import F16
from cuir.text.diagnostics import CuirError

FLAT = """
@kernel(arch="sm_80")
def flat(X: Global[f32, L], Y: Global[f32, M, N], first: i32, *, ROWS: const = 16):
    work = tiles(cdiv(M, ROWS))
    with role("all", warps=1):
        seen = 0
        for t in work:
            q = t * ROWS + rows(16)
            for j in range(cdiv(N, 64)):
                c = j * 64 + cols(64)
                store(Y[q, c], X[WHERE] + zeros(f32, [16, 64]))
                seen += 1
"""


def read_refusal(position: str, dims: Mapping[str, int], **scalars: int) -> str:
    """Return the message about a launch that is refused, without its tensors."""
    try:
        require_index_ranges(check(parse(FLAT.replace("WHERE", position), "flat.cuir")), {"L": 1000, **dims}, {"first": 0, **scalars})
    except CuirError as error:
        assert error.diagnostics[0].code == "U420" and error.diagnostics[0].hint
        return error.diagnostics[0].message
    return ""


@pytest.mark.parametrize(
    ("position", "dims", "says"),
    [
        ("q * N + c", {"M": 60_000, "N": 40_000}, "`q * N` may be 2,399,960,000"),
        ("q * N + c", {"M": 40_000, "N": 40_000}, ""),
        ("first + q * N + c", {"M": 40_000, "N": 40_000}, ""),
        ("(q * N + c) // 4", {"M": 60_000, "N": 40_000}, "`q * N`"),
        ("q % 7 * N + c", {"M": 10**9, "N": 10**6}, ""),
        ("min(q, 5) * N + c", {"M": 10**9, "N": 10**6}, ""),
        ("(q & 7) * N + c", {"M": 10**9, "N": 10**6}, ""),
        ("q // 64 * 64 + c", {"M": 2 * 10**9, "N": 64}, ""),
        ("0 - q * N - c", {"M": 60_000, "N": 40_000}, "`q * N`"),
        ("(seen + q) % 10 + c", {"M": 10**9, "N": 10**9}, ""),  # of a counter nothing is known
        ("q * M + c", {"M": 10**6, "N": 1}, "`q * M`"),
        ("c", {"M": LONGEST + 1, "N": 1}, "the dim `M` of `Y` is"),
        ("c", {"M": LONGEST, "N": 1}, ""),
        ("q * 0 + c", {"M": 0, "N": LONGEST}, ""),
    ],
)
def test_launches_are_refused_where_an_index_may_wrap(position: str, dims: Mapping[str, int], says: str) -> None:
    result = read_refusal(position, dims)
    assert (says in result and result) if says else not result, result


def test_scalars_count_with_their_values() -> None:
    assert not read_refusal("first * 1000 + c", {"M": 1, "N": 1}, first=2_000_000) and "first * 1000" in read_refusal(
        "first * 1000 + c", {"M": 1, "N": 1}, first=3_000_000
    )
    assert "-3,000,000,000" in read_refusal("first * 1000 + c", {"M": 1, "N": 1}, first=-3_000_000)


@pytest.mark.parametrize(
    ("count", "says"),
    [("M * N", "the number of units of work, or a part of it, is 10,000,000,000"), ("M * N // N", "units of work"), ("M + N", "")],
)
def test_units_of_work_are_counted_in_32_bits(count: str, says: str) -> None:
    text = FLAT.replace("WHERE", "c").replace("cdiv(M, ROWS)", count)
    checked = check(parse(text))
    arguments = {"first": 0}
    declared = check(parse(text.replace(f"work = tiles({count})", f"many = {count}\n    work = tiles(many)")))
    try:
        require_index_ranges(declared, {"L": 1, "M": 100_000, "N": 100_000}, arguments)
    except CuirError as error:
        assert says and error.diagnostics[0].code == "U420"
    else:
        assert not says
    if not says:
        require_index_ranges(checked, {"L": 1, "M": 100_000, "N": 100_000}, arguments)
        return
    with pytest.raises(CuirError, match=f"U420.*{says}"):
        require_index_ranges(checked, {"L": 1, "M": 100_000, "N": 100_000}, arguments)


def test_a_run_is_refused_before_anything_is_made() -> None:
    """Tensors of one element, as wide as they say: the run must not touch them."""
    checked = check(parse(FLAT.replace("WHERE", "q * N + c")))
    wide = torch.empty(1).expand(60_000, 40_000)
    with pytest.raises(CuirError, match=r"U4(06|19)"):
        run(checked, {"X": torch.ones(8), "Y": wide, "first": 0})


EXACT = """
@kernel(arch="sm_80")
def exact(X: Global[f32, L], Y: Global[f32, M, N], first: i32):
    work = tiles(M)
    with role("all", warps=1):
        for t in work:
            a = EXPR
            store(Y[t, 0], X[a])
"""
_TERMS = st.recursive(
    st.sampled_from(["t", "first", "M", "N", "3", "64"]),
    lambda inner: st.builds(
        lambda f, a, b: f.format(a, b),
        st.sampled_from(
            [
                "({} + {})",
                "({} - {})",
                "({} * {})",
                "({} // max(1, {}))",
                "({} % max(1, {}))",
                "min({}, {})",
                "max({}, {})",
                "cdiv({}, max(1, {}))",
                "({1} if {0} > 5 else {0})",
            ]
        ),
        inner,
        inner,
    ),
    max_leaves=6,
)


@given(_TERMS, st.integers(1, 5), st.integers(1, 10**5), st.integers(-(10**5), 10**5))
def test_what_is_admitted_does_not_wrap(text: str, M: int, N: int, first: int) -> None:
    """Evaluated without a width: no part of an admitted expression lies outside of an i32 for any unit of work."""
    try:
        checked = check(parse(EXACT.replace("EXPR", text)))
        require_index_ranges(checked, {"L": 10, "M": M, "N": N}, {"first": first})
    except CuirError:
        return
    for t in range(M):
        names = {"t": t, "first": first, "M": M, "N": N, "min": min, "max": max, "cdiv": lambda a, b: -(-a // b)}
        assert -(2**31) <= eval(text, names) < 2**31  # the text is made above


@pytest.mark.sweep
@pytest.mark.parametrize(("name", "kernel"), [(n, k) for n in COMPUTES for k in COMPUTES[n]])
def test_the_corpus_serves_a_million_positions(name: str, kernel: str) -> None:
    program = parse((corpus.programs() | corpus.kernels())[name].read_text(encoding="utf-8"), f"{name}.cuir")
    params = {p.name for p in program.kernels()[kernel].params}
    checked = check(program, kernel, {n: v for n, v in {"T": F16, "D": 128, **COMPUTES[name][kernel].tested}.items() if n in params})
    lengths = {"B": 4, "H": 32, "HK": 8}
    require_index_ranges(checked, {d: lengths.get(d, 2**20) for d in checked.dims}, {s.name: 64 for s in checked.scalars})


def test_offsets_inside_of_tensors_are_computed_in_64_bits() -> None:
    """Every index but the innermost is multiplied by a stride of 64 bits; no product of two ints stands in an offset."""
    text = FLAT.replace("X: Global[f32, L]", "X: Global[f32, L, M, N]").replace("X[WHERE]", "X[t, q, c] + X[j, q + 1, c]")
    source = lower(check(parse(text))).source
    assert "const int64_t X_stride0" in source and "const int64_t X_stride1" in source and "const int64_t Y_stride0" in source
    reads = [line for line in source.splitlines() if ("X[" in line or "gather(X," in line) and not line.strip().startswith("//")]
    assert reads and all("X_stride0" in line and "X_stride1" in line for line in reads)
