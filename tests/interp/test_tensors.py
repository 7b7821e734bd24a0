"""Accesses to tensors in device memory: one written rule for all pairs of them, and what one access alone may do wrong."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import cuir
from cuir.arguments.aliasing import Place
from cuir.arguments.binding import TORCH
from tests.explore.programs import check_text, explore_program, fault, tensors
from tests.gpu.test_exchange import LEAST, sum_addends
from tests.interp.conftest import Runner

KINDS = ("read", "write", "add", "bulk read", "bulk write", "bulk add")
HOW = ("same worker", "ordered", "unordered", "other CTA", "CTA of the cluster, ordered", "CTA of the cluster, unordered")
FENCES = ("", "fence_async()", "fence_async(tensors=True)")
TRIED = ("in_order", "adversarial:reverse", "adversarial:engines_first")
HEAD = """\
@kernel(arch="sm_90a"{cluster})
def k(T: Global[f32, 16, 32], Y: Global[f32, 2, 16, 32]):
    s0, s1 = shared(f32, [16, 32]), shared(f32, [16, 32])
    full0, full1, go = mbarrier(1), mbarrier(1), mbarrier(1)
"""
UNITS = "    work = tiles(2)\n"


def lines(kind: str, n: int) -> list[str]:
    """One access to all of T, waited for as far as a kernel can."""
    return {
        "read": [f"store(Y[{n}, :, :], load(T[:, :]))"],
        "write": ["store(T[:, :], full(f32, [16, 32], 1.0))"],
        "add": ["store(T[:, :], full(f32, [16, 32], 1.0), add=True)"],
        "bulk read": [f"full{n}.expect(nbytes(s{n}))", f"copy_async(T[:, :], s{n}, full{n})", f"full{n}.wait(0)"],
        "bulk write": [f"store(s{n}, zeros(f32, [16, 32]))", "fence_async()", f"store_async(s{n}, T[:, :])", "store_wait()"],
        "bulk add": [f"store(s{n}, zeros(f32, [16, 32]))", "fence_async()", f"store_async(s{n}, T[:, :], add=True)", "store_wait()"],
    }[kind]


def block(indent: int, head: str, body: list[str]) -> str:
    return " " * indent + head + ":\n" + "".join(f"{' ' * (indent + 4)}{line}\n" for line in body)


def program(first: str, second: str, how: str, fence: str) -> str:
    a, b = [*lines(first, 0), *([fence] if fence else [])], lines(second, 1)
    text = HEAD.format(cluster=", cluster=2" if "cluster" in how else "")
    if how == "same worker":
        return text + block(4, 'with role("w", warps=1)', [*a, *b])
    if how == "other CTA":
        inner = block(12, "if t == 0", a) + block(12, "else", b)
        return text + UNITS + '    with role("w", warps=1):\n        for t in work:\n' + inner
    if "cluster" in how:
        across = how.endswith(" ordered")
        sides = block(8, "if cta_rank() == 0", [*a, *(["go.arrive(cluster=True)"] if across else [])])
        return text + '    with role("w", warps=1):\n' + sides + block(8, "else", [*(["go.wait(0)"] if across else []), *b])
    ordered = how == "ordered"
    return (
        text
        + block(4, 'with role("a", warps=1)', [*a, *(["go.arrive()"] if ordered else [])])
        + block(4, 'with role("b", warps=1)', [*(["go.wait(0)"] if ordered else []), *b])
    )


def rule(first: str, second: str, how: str, fence: str) -> str:
    """The code that a pair of accesses to one element deserves."""
    kinds = {kind.removeprefix("bulk ") for kind in (first, second)}
    if kinds in ({"read"}, {"add"}):
        return ""  # reads, and additions, do not conflict with each other
    if "unordered" in how or how == "other CTA":
        return "R402"
    if first in ("bulk write", "bulk add"):
        return "R402"  # over when the kernel ends
    if kinds == {"write"} and "cluster" in how:
        return "R402"  # barriers order CTAs in tensors that a kernel accesses in more than one way
    if first in ("write", "add") and second.startswith("bulk") and fence != "fence_async(tensors=True)":
        return "R403"  # another proxy: fence_async() is for shared memory
    return ""


@pytest.mark.sweep
@pytest.mark.parametrize("how", HOW)
def test_every_pair_of_accesses(how: str) -> None:
    wrong, result = [], set()
    for first, second in itertools.product(KINDS, repeat=2):
        for fence in FENCES if how in ("same worker", "ordered", "CTA of the cluster, ordered") else FENCES[2:]:
            checked = check_text(program(first, second, how, fence))
            want = rule(first, second, how, fence)
            result.add(want)
            codes = {fault(checked, schedule, grid=2 if how == "other CTA" else 1) for schedule in TRIED}
            observed = explore_program(checked, grid=2 if how == "other CTA" else 1)
            text = observed.diagnostics[0].code if observed.diagnostics else ""
            if codes != {want} or text != want:
                wrong.append((first, second, fence, want, codes, text))
    assert not wrong
    assert len(result) > 1


# ---- more than two accesses: any unordered pair counts, whatever came between
ROWS = 48
WORKERS = 3


@dataclass(frozen=True)
class Some:
    """An access to rows of T [48, 32] from `start` on, all or every second one; what lies outside does not count."""

    mode: str
    whole: bool
    start: int
    n: int

    def text(self, out: str, shift: str = "0") -> str:
        at, n = f"{shift} + ({self.start})", self.n
        place = f"T[{at} : {at} + {n}, :]" if self.whole else f"T[{at} + 2 * rows({n}), cols(32)]"
        if self.mode == "read":
            return f"store(Y[{out}, 0 : {n}, :], {f'load({place})' if self.whole else place})"
        return f"store({place}, full(f32, [{n}, 32], 1.0){', add=True' if self.mode == 'add' else ''})"

    def rows(self, shift: int = 0) -> frozenset[int]:
        return frozenset(shift + self.start + i * (1 if self.whole else 2) for i in range(self.n)) & frozenset(range(ROWS))

    def conflicts(self, second: Some, shift: int = 0, second_shift: int = 0) -> bool:
        return {self.mode, second.mode} not in ({"read"}, {"add"}) and bool(self.rows(shift) & second.rows(second_shift))


SOME = st.builds(
    Some, st.sampled_from(("read", "write", "add")), st.booleans(), st.sampled_from((-8, 0, 8, 16, 24, 40)), st.sampled_from((16, 32))
)
SIGNAL = st.tuples(st.integers(0, WORKERS - 1), st.integers(0, WORKERS - 1))


@given(st.lists(st.tuples(st.integers(0, WORKERS - 1), SOME) | SIGNAL, min_size=3, max_size=12))
@settings(max_examples=50, deadline=None)
def test_any_unordered_pair_of_workers(events: list[tuple[int, Some | int]]) -> None:
    """Accesses of three workers, which signal one another: right if all that conflict are ordered by a path of signals."""
    texts: list[list[str]] = [[] for _ in range(WORKERS)]
    expected_values: list[set[int]] = [set() for _ in range(WORKERS)]  # accesses that happened before
    finished: list[Some] = []
    signals, right = 0, True
    for w, description in events:
        if isinstance(description, Some):
            texts[w].append(description.text(str(w)))
            right &= not any(description.conflicts(old) for n, old in enumerate(finished) if n not in expected_values[w])
            expected_values[w].add(len(finished))
            finished.append(description)
        elif description != w:
            texts[w].append(f"go[{signals}].arrive()")
            texts[description].append(f"go[{signals}].wait(0)")
            expected_values[description] |= expected_values[w]
            signals += 1
    head = f'@kernel(arch="sm_90a")\ndef k(T: Global[f32, {ROWS}, 32], Y: Global[f32, {WORKERS}, 32, 32]):\n    go = mbarrier(1, stages={max(1, signals)})\n'
    body = "".join(block(8, f"if w == {w}", lines) for w, lines in enumerate(texts) if lines)
    checked = check_text(head + f'    with role("r", warps={WORKERS}) as w:\n' + (body or "        sync()\n"))
    assert {fault(checked, schedule) for schedule in (*TRIED, "random:1")} == {"" if right else "R402"}


@given(st.lists(st.tuples(SOME, st.sampled_from((0, 8, 16, 24))), min_size=1, max_size=3), st.sampled_from((1, 2, 32)), st.integers(2, 4))
@settings(max_examples=50, deadline=None)
def test_any_pair_of_ctas(boxes: list[tuple[Some, int]], lanes: int, grid: int) -> None:
    """Each CTA does these accesses, `step` rows further on than the CTA before: right if no two CTAs conflict, in one batch or in several."""
    right = not any(
        a.conflicts(b, t * step, u * pace)
        for (a, step), (b, pace) in itertools.product(boxes, repeat=2)
        for t in range(grid)
        for u in range(grid)
        if t != u
    )
    head = f'@kernel(arch="sm_90a")\ndef k(T: Global[f32, {ROWS}, 32], Y: Global[f32, {grid}, 32, 32]):\n    work = tiles({grid})\n    with role("r", warps=1):\n'
    checked = check_text(head + block(8, "for t in work", [a.text("t", f"t * {step}") for a, step in boxes]))
    code = ""
    try:
        cuir.run(checked, tensors(checked), grid=grid, lanes=lanes)
    except cuir.CuirError as error:
        code = error.diagnostics[0].code
    assert code == ("" if right else "R402")


# ---- an engine that still reads
LATE = HEAD.format(cluster="") + '    with role("w", warps=1):\n'
COPIED = {
    "bulk copy": ["full0.expect(nbytes(s0))", "copy_async(T[:, :], s0, full0)", "full0.wait(0)"],
    "cp.async": ["copy_async(T[:, :], s0)", "copy_commit()", "copy_wait(0)"],
    "rows by cp.async": ["copy_async(T[rows(16), cols(32)], s0)", "copy_commit()", "copy_wait(0)"],
}


@pytest.mark.parametrize("copy", COPIED)
def test_the_source_of_a_copy_in_flight_is_not_stored_to(copy: str) -> None:
    """An ordinary store to elements that a copy of the same worker may not have read yet."""
    *issue, wait = COPIED[copy]
    store = ["store(T[rows(16), cols(32)], zeros(f32, [16, 32]))"]
    for schedule in TRIED:
        assert fault(LATE + "".join(f"        {x}\n" for x in [*issue, wait, *store]), schedule) == ""
        assert fault(LATE + "".join(f"        {x}\n" for x in [*issue, *store, wait]), schedule) == "R402"


def test_a_multicast_reads_until_it_has_landed_everywhere() -> None:
    """CTA 0 waits for its own copy of what it multicasts, then stores to the source: CTA 1's may not have been read yet."""
    join = ["go.arrive(cluster=True)", "go.wait(0)"]
    before = ["full0.expect(nbytes(s0))", "if cta_rank() == 0:", "    copy_async(T[:, :], s0, full0, cluster=True)", "full0.wait(0)"]
    after = ["if cta_rank() == 0:", "    store(T[:, :], zeros(f32, [16, 32]))"]
    head = HEAD.format(cluster=", cluster=2").replace("mbarrier(1), mbarrier(1), mbarrier(1)", "mbarrier(1), mbarrier(1), mbarrier(2)")
    for between, code in ((join, ""), ([], "R402")):
        text = head + block(4, 'with role("w", warps=1)', [*before, *between, *after])
        assert {fault(text, schedule) for schedule in TRIED} == {code}
        assert explore_program(text).ok == (not code)


# ---- one access that gives an element two values
SCATTER = """\
@kernel(arch="sm_90a")
def k(X: Global[DT, N, C], I: Global[i32, N], Y: Global[DT, M, C], *, DT: const, C: const):
    with role("w", warpgroups=1):
        x = load(X[0 : 64, :])
        at = I[rows(64)]
        store(Y[at, cols(C)], x)
"""


def scatter(execute: Runner, at: torch.Tensor, x: torch.Tensor, text: str = SCATTER) -> tuple[str, str]:
    dtype = next(d for d, t in TORCH.items() if t == x.dtype)
    ran = execute(text, {"X": x, "I": at.to(torch.int32), "Y": torch.zeros(64, x.shape[1], dtype=x.dtype)}, {"DT": dtype, "C": x.shape[1]})
    return ran.code, ran.error.diagnostics[0].message if ran.error else ""


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.int32], ids=str)
def test_rows_of_a_scatter_that_collide(execute: Runner, dtype: torch.dtype) -> None:
    x = torch.arange(64 * 8).reshape(64, 8).to(dtype)
    at = torch.randperm(64, generator=torch.Generator().manual_seed(1))
    assert scatter(execute, at, x) == ("", "")
    at[40] = at[7]
    code, message = scatter(execute, at, x)
    assert code == "R402" and "rows 7 and 40 " in message and f"`Y[{int(at[7])}, 0]`" in message, message
    x[40] = x[7]
    assert scatter(execute, at, x) == ("", "")  # the same value twice
    x[40, 5] = x[7, 5] + 1
    assert f"`Y[{int(at[7])}, 5]`" in scatter(execute, at, x)[1]


def test_values_are_the_same_if_their_bits_are(execute: Runner) -> None:
    at = torch.arange(64)
    at[9] = at[3]
    x = torch.full((64, 8), float("nan"))
    assert scatter(execute, at, x)[0] == ""
    x = torch.zeros(64, 8)
    x[9] = -0.0
    assert scatter(execute, at, x)[0] == "R402"


def test_what_is_not_stored_does_not_collide(execute: Runner) -> None:
    x = torch.randn(64, 8, generator=torch.Generator().manual_seed(1))
    at = torch.arange(64)
    at[20], at[21], at[40], at[41] = 100, 100, -3, -3  # outside
    assert scatter(execute, at, x)[0] == ""
    at[20] = at[21] = 5
    for mask, code in (("rows(64) < 20", ""), ("rows(64) >= 21", ""), ("rows(64) >= 20", "R402"), ("rows(64) > 5", "R402")):
        assert scatter(execute, at, x, SCATTER.replace("cols(C)], x)", f"cols(C)], x, mask={mask})"))[0] == code, mask
    assert scatter(execute, at, x, SCATTER.replace("cols(C)], x)", "cols(C)], x, add=True)"))[0] == ""


# ---- arguments of a call
DOUBLE = '@kernel(arch="sm_90a")\ndef k(X: Global[f32, 2, 16, 32], Y: Global[f32, 2, 16, 32]):\n    with role("w", warps=1):\n        store(Y[0, 0 : 16, :], load(X[0, 0 : 16, :]))\n'


def test_a_written_tensor_shares_no_memory(execute: Runner) -> None:
    whole = torch.zeros(2, 16, 4, 32)
    views = [whole[:, :, i] for i in range(4)]
    assert execute(DOUBLE, {"X": views[0], "Y": views[1]}).code == ""  # interleaved rows
    assert execute(DOUBLE, {"X": views[0], "Y": views[0]}).code == "U419"
    long = torch.zeros(2 * 16 * 32 + 31)
    x = long[: 2 * 16 * 32].view(2, 16, 32)
    assert execute(DOUBLE, {"X": x, "Y": long[31:].view(2, 16, 32)}).code == "U419"
    assert execute(DOUBLE, {"X": torch.zeros(1, 1, 32).expand(2, 16, 32), "Y": torch.zeros(2, 16, 32)}).code == ""
    assert execute(DOUBLE, {"X": torch.zeros(2, 16, 32), "Y": torch.zeros(1, 16, 32).expand(2, 16, 32)}).code == "U419"
    assert execute(DOUBLE, {"X": torch.zeros(2, 16, 32), "Y": torch.zeros(16 * 33).as_strided((2, 16, 32), (16, 32, 1))}).code == "U419"


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_memory_is_shared_if_an_element_is(data: st.DataObject) -> None:
    """Against the sets of addresses."""
    lengths = st.lists(st.integers(1, 4), min_size=1, max_size=3)
    result, sets = [], []
    for _ in range(2):
        shape = data.draw(lengths)
        strides = [data.draw(st.integers(0, 9)) for _ in shape]
        start = data.draw(st.integers(0, 12))
        results = [start + sum(i * s for i, s in zip(index, strides)) for index in itertools.product(*map(range, shape))]
        result.append(Place(4 * start, tuple(shape), tuple(strides), 4))
        assert result[-1].overlaps_itself() == (len(set(results)) < len(results))
        sets.append(set(results))
    assert result[0].overlaps(result[1]) == result[1].overlaps(result[0]) == bool(sets[0] & sets[1])


# ---- subnormal numbers
@pytest.mark.parametrize("how", ("scatter", "box"))
def test_an_addition_of_f32_flushes_subnormal_numbers(how: str) -> None:
    """Subnormal numbers in tile, tensor and sum become zeros of their sign (PTX ISA, red.add.f32)."""
    assert sum_addends(how, "f32", [1e-40] * 4) == 0
    assert sum_addends(how, "f32", [LEAST / 2] * 4) == 0
    assert sum_addends(how, "f32", [1.0], before=1e-40) == 1
    assert sum_addends(how, "f32", [0.0], before=1e-40) == 0
    assert sum_addends(how, "f32", [LEAST, LEAST]) == 2 * LEAST
    assert sum_addends(how, "f32", [1.5 * LEAST, -LEAST]) == 0
    assert sum_addends(how, "f32", [-1e-40], before=-0.0).signbit()
    assert sum_addends(how, "f32", [torch.inf, 1e-40]) == torch.inf and sum_addends(how, "f32", [torch.nan, 1.0]).isnan()


@pytest.mark.parametrize("how", ("scatter", "box", "bulk"))
@pytest.mark.parametrize(("dtype", "least"), [("f16", 2.0**-24), ("bf16", 2.0**-133)])
def test_one_of_sixteen_bits_keeps_them(how: str, dtype: str, least: float) -> None:
    assert sum_addends(how, dtype, [least] * 3) == 3 * least


@pytest.mark.parametrize(("addends", "before"), [([1e-40] * 4, 0.0), ([LEAST / 2] * 4, 1e-40), ([1.5 * LEAST, -LEAST], 0.0)])
def test_a_bulk_addition_of_f32_keeps_them(addends: list[float], before: float) -> None:
    assert sum_addends("bulk", "f32", addends, before) == torch.tensor([before, *addends]).sum()


def test_a_store_keeps_them() -> None:
    assert sum_addends("store", "f32", [1e-40]) == torch.tensor(1e-40)
