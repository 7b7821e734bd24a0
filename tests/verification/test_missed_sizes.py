"""Kernels whose faults need a size that small problems lack: columns and tables beyond 65,536, odd blocks of many, two dims of several blocks, 64 heads.

Any grid: faults that show only with one unit of work a CTA, with several, or with shares that assume a number of CTAs; all refused at level quick.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cuir import CuirError, FunctionSpecification, check, parse
from cuir.interp import run
from cuir.verification import VerifyReport, verify
from cuir.verification.schedules import MANY, list_other_grids
from cuir.verification.spec_dispatch import AnyCase, check_case
from cuir.verification.step_counts import make_counted_cases
from cuir.verification.user_sizes import make_user_cases
from cuir.verification.values.cases import Draw


@dataclass(frozen=True)
class Missed:
    """A kernel with `{}` for what was wrong. part: a word in the names of the problems that show it."""

    text: str
    wrong: str
    right: str
    reference: Callable[..., Any]
    part: str
    inputs: Callable[..., Any] | None = None
    sizes: Callable[..., Any] | None = None


def first_maximum(x: torch.Tensor) -> torch.Tensor:
    N = x.shape[1]
    return torch.where(x == x.amax(-1, keepdim=True), torch.arange(N), N).amin(-1).to(torch.int32)


def table_gradient(dy: torch.Tensor, ID: torch.Tensor, V: int) -> dict[str, torch.Tensor]:
    keep = ID >= 0
    return {"dE": dy.new_zeros(V, dy.shape[1]).index_add(0, ID[keep].long(), dy[keep])}


def mean_of_kept(x: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    retained = (keep != 0)[..., None]
    return torch.where(retained, x.float() if x.dtype == torch.float16 else x, 0.0).sum(1) / retained.sum(1).clamp(min=1)


def attention_of_lengths(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, LEN: torch.Tensor, scale: float) -> torch.Tensor:
    o = torch.zeros_like(q)
    for b, n in enumerate(LEN.tolist()):
        if n > 0:
            s = torch.einsum("hd,hnd->hn", q[b], k[b, :, :n]) * scale
            o[b] = torch.einsum("hn,hnd->hd", s.softmax(-1), v[b, :, :n])
    return o


def slopes(x: torch.Tensor) -> torch.Tensor:
    H = x.shape[1]
    p = 2 ** (H.bit_length() - 1)
    s = [2.0 ** (-8.0 * (h + 1) / p) if h < p else 2.0 ** (-4.0 * (2 * (h - p) + 1) / p) for h in range(H)]
    distance = torch.arange(x.shape[-1], dtype=x.dtype)
    return (x + torch.tensor(s, dtype=x.dtype)[:, None, None] * distance).softmax(-1)


def lengths(sizes: Mapping[str, int], generator: torch.Generator) -> dict[str, torch.Tensor]:
    n = torch.randint(sizes["N"] + 1, (sizes["B"],), generator=generator)
    n[0] = sizes["N"]
    return {"LEN": n}


PROGRAMS = {
    "places of columns": Missed(
        """
@kernel(arch="sm_90a")
def k(X: Global[f32, M, N], I: Global[i32, M]):
    work = tiles(cdiv(M, 16))
    with role("all", warps=1):
        for t in work:
            r = t * 16 + rows(16)
            top, place = full(f32, [16, 1], -inf), full(f32, [16, 1], 0.0)
            for n in range(cdiv(N, 256)):
                c = n * 256 + cols(256)
                x = where(c < N, X[r, c], -inf)
                new = row_max(x)
                here = {0} - row_max(where((x == new) & (c < N), {0} - cast(c, f32), 0.0))
                place = where((new > top) | (n == 0), here, place)
                top = max(top, new)
            store(I[r], cast(place, i32))
""",
        "65535.0",
        "8388608.0",
        first_maximum,
        "N rises",
        sizes=lambda drawn: {"N": max(1, drawn["N"])},
    ),
    "rows of a table": Missed(
        """
@kernel(arch="sm_90a")
def k(dY: Global[f32, T, D], ID: Global[i32, T], dE: Global[f32, V, D]):
    work = tiles(cdiv(T, 64) * cdiv(D, 64))
    with role("all", warps=4) as w:
        for u in work:
            t, c = u // cdiv(D, 64) * 64 + w * 16 + rows(16), u % cdiv(D, 64) * 64 + cols(64)
            e = where(t < T, ID[t], -1)
            store(dE[where(e < 0, -1, {0}), c], dY[t, c], add=True)
""",
        "e & 65535",
        "e",
        table_gradient,
        "V to its end",
        lambda sizes, generator: {"ID": torch.randint(-1, sizes["V"], (sizes["T"],), generator=generator)},
        lambda drawn: {"V": max(1, drawn["V"])},
    ),
    "count of tokens": Missed(
        """
@kernel(arch="sm_90a")
def k(X: Global[f16, B, N, D], KEEP: Global[i32, B, N], Y: Global[f32, B, D]):
    work = tiles(B * cdiv(D, 32))
    with role("all", warpgroups=1):
        for t in work:
            b, c = t // cdiv(D, 32), t % cdiv(D, 32) * 32 + cols(32)
            total, count = zeros(f32, [1, 32]), zeros(f32, [1, 1])
            for i in range(cdiv(N, 64)):
                n = i * 64 + rows(64)
                kept = KEEP[b, n] != 0
                total = total + col_sum(where(kept, cast(X[b, n, c], f32), 0.0))
                count = {0}
            store(Y[b, c], total / max(count, 1.0))
""",
        "cast(cast(count + col_sum(cast(kept, f32)), f16), f32)",
        "count + col_sum(cast(kept, f32))",
        mean_of_kept,
        "N to its end",
        lambda sizes, generator: {
            "KEEP": (torch.arange(sizes["N"]) < torch.randint(sizes["N"] + 1, (sizes["B"], 1), generator=generator)).int()
        },
    ),
    "groups of blocks": Missed(
        """
@kernel(arch="sm_80")
def k(X: Global[f32, M, N], Y: Global[f32, M, N]):
    work = tiles(cdiv(M, 16) * cdiv(N, 32))
    with role("all", warps=1):
        for t in work:
            down, across = cdiv(M, 16), cdiv(N, 32)
            group = t // (6 * across)
            size = {0}
            i, j = (group * 6 + t % (6 * across) % size) * 16, t % (6 * across) // size * 32
            store(Y[i + rows(16), j + cols(32)], X[i + rows(16), j + cols(32)] * 2.0)
""",
        "6 if down >= 6 else down",
        "min(6, down - group * 6)",
        lambda x: x * 2.0,
        "across",
    ),
    "pairs of blocks": Missed(
        """
@func
def block(b, h, q, n, top, total, acc):
    k = n * 64 + rows(64)
    on = k < LEN[b]
    s = where(on, row_sum(cast(K[b, h, where(on, k, -1), cols(64)], f32) * q) * (scale * 1.4426950408889634), -inf)
    new = max(top, col_max(s))
    p, a = exp2(s - new), exp2(top - new)
    v = cast(V[b, h, where(on, k, -1), cols(64)], f32)
    return new, total * a + col_sum(p), acc * a + col_sum(p * v)

@kernel(arch="sm_90a")
def k(Q: Global[f16, B, H, 64], K: Global[f16, B, H, N, 64], V: Global[f16, B, H, N, 64], LEN: Global[i32, B], O: Global[f16, B, H, 64], scale: f32):
    work = tiles(B * H)
    with role("all", warps=1):
        for t in work:
            b, h = t // H, t % H
            q = cast(Q[b, h, cols(64)], f32)
            top, total, acc = full(f32, [1, 1], -inf), zeros(f32, [1, 1]), zeros(f32, [1, 64])
            blocks = cdiv(LEN[b], 64)
            pairs = blocks // 2 if blocks >= 13 else 0
            for n in range(pairs):
                top, total, acc = block(b, h, q, 2 * n, top, total, acc)
                top, total, acc = block(b, h, q, 2 * n + 1, top, total, acc)
            for n in range(2 * pairs, {0}):
                top, total, acc = block(b, h, q, n, top, total, acc)
            store(O[b, h, cols(64)], cast(acc * where(total == 0.0, 0.0, 1.0 / total), f16))
""",
        "blocks if blocks < 13 else 2 * pairs",
        "blocks",
        attention_of_lengths,
        " of N and",
        lengths,
    ),
    "slopes of many heads": Missed(
        """
@kernel(arch="sm_80")
def k(X: Global[f32, B, H, M, N], Y: Global[f32, B, H, M, N]):
    work = tiles(B * H * cdiv(M, 16))
    with role("all", warps=1):
        for t in work:
            r, h, b = t % cdiv(M, 16) * 16 + rows(16), t // cdiv(M, 16) % H, t // (cdiv(M, 16) * H)
            p = 1
            for i in range({0}):
                p = p * 2 if p * 2 <= H else p
            near = exp2(-8.0 * cast(h + 1, f32) / cast(p, f32))
            far = exp2(-4.0 * cast(2 * (h - p) + 1, f32) / cast(p, f32))
            slope = near if h < p else far
            top, total = full(f32, [16, 1], -inf), zeros(f32, [16, 1])
            for j in range(cdiv(N, 64)):
                c = j * 64 + cols(64)
                x = where(c < N, X[b, h, r, c] + cast(c, f32) * slope, -inf)
                new = max(top, row_max(x))
                total = total * exp2((top - new) * 1.4426950408889634) + row_sum(exp2((x - new) * 1.4426950408889634))
                top = new
            for j in range(cdiv(N, 64)):
                c = j * 64 + cols(64)
                store(Y[b, h, r, c], exp2((X[b, h, r, c] + cast(c, f32) * slope - top) * 1.4426950408889634) / total)
""",
        "5",
        "7",
        slopes,
        "as users have: H=",
    ),
}


def find_fault(missed: Missed, fill: str) -> str:
    """The code of the first fault that problems of level quick show, of those whose names have the part; "" if none does."""
    program = parse(missed.text.format(fill), "missed.cuir")
    checked, spec = check(program), FunctionSpecification("missed", missed.reference, missed.inputs, missed.sizes)
    cases: list[AnyCase] = [*make_counted_cases(checked, spec, "quick"), *make_user_cases(checked, spec, "quick")]
    requests = [c for c in cases if missed.part in c.name]
    assert requests and all(isinstance(c, Draw) for c in requests)
    for case in requests:
        try:
            check_case(program, checked, spec, case, grid=2)
        except CuirError as error:
            return error.diagnostics[0].code
    return ""


@pytest.mark.sweep
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_fault_is_found_and_the_right_kernel_passes(name: str) -> None:
    missed = PROGRAMS[name]
    assert find_fault(missed, missed.wrong) in ("V301", "V302", "V303")
    assert find_fault(missed, missed.right) == ""


PIPE = """
@kernel(arch="sm_90a")
def twice(X: Global[f32, M, 32], Y: Global[f32, M, 32], *, STAGES: const = 2):
    s, out = shared(f32, [STAGES, 32, 32]), shared(f32, [32, 32])
    full, empty, more = mbarrier(1, stages=STAGES), mbarrier(1, stages=STAGES), mbarrier(1)
    work = tiles(cdiv(M, 32))
    with role("load", warps=1):
        i = 0
        for t in work:
            empty[i % STAGES].wait(i // STAGES % 2 ^ 1)
            full[i % STAGES].expect(nbytes(s[i % STAGES]))
            copy_async(X[t * 32 : t * 32 + 32, :], s[i % STAGES], full[i % STAGES])
            i += 1
    with role("compute", warps=1):
        i = 0
        for t in work:
            full[i % STAGES].wait(i // STAGES % 2)
            x = load(s[i % STAGES]) * 2.0
            empty[i % STAGES].arrive()
            store_wait()
            store(out, x)
            fence_async()
            store_async(out, Y[t * 32 : t * 32 + 32, :])
            i += 1
"""
LOADED = "            copy_async(X[t * 32 : t * 32 + 32, :], s[i % STAGES], full[i % STAGES])\n"
STORE = "            store_async(out, Y[t * 32 : t * 32 + 32, :])\n"
FAULTS: dict[str, tuple[list[tuple[str, str]], set[str]]] = {
    "the first unit waits for what the second one brings": (
        [(LOADED, LOADED + "            if i == 1:\n                more.arrive()\n"), (STORE, STORE + "            if i == 0:\n                more.wait(0)\n")],
        {"D401"},
    ),
    "the second unit waits for what the third one brings": (
        [(LOADED, LOADED + "            if i == 2:\n                more.arrive()\n"), (STORE, STORE + "            if i == 1:\n                more.wait(0)\n")],
        {"D401"},
    ),
    "a CTA without work waits for some": ([(STORE + "            i += 1\n", STORE + "            i += 1\n        if i < 1:\n            more.wait(0)\n")], {"D401"}),
    "parities start anew with each unit": ([("        i = 0\n        for t in work:\n", "        for t in work:\n            i = 0\n")], {"D401", "R401", "S402"}),
    "shared memory that the unit before still sends from": ([("            store_wait()\n", "")], {"R401"}),
    "a counter that assumes two CTAs": ([("        for t in work:\n", "        for t in work:\n            i = t // 2\n")], {"D401", "R401", "S402", "M401"}),
    "values of the unit before, in one CTA of three": (
        [("            x = load(s[i % STAGES]) * 2.0\n", "            x = load(s[i % STAGES]) * 2.0\n            if i > 0 and t % 3 == 2:\n                x = x + last\n            last = x * 0.0 + 1.0\n"),
         ("    with role(\"compute\", warps=1):\n        i = 0\n", "    with role(\"compute\", warps=1):\n        i = 0\n        last = zeros(f32, [32, 32])\n")],
        {"V201"},
    ),
    "the last unit of one of two CTAs is left out": ([(STORE, "            if t + 2 < cdiv(M, 32) or i < 2:\n    " + STORE)], {"V201", "V302"}),
}  # fmt: skip


def verify_text(text: str) -> VerifyReport:
    return verify(parse(text, "twice.cuir"), FunctionSpecification("twice", lambda X: X * 2.0), shrink=False, seeded=0)


@pytest.mark.sweep(4)
@pytest.mark.parametrize("dynamic", [False, True])
def test_right_kernels_pass_on_every_grid(dynamic: bool) -> None:
    report = verify_text(PIPE.replace("cdiv(M, 32))", "cdiv(M, 32), dynamic=True)") if dynamic else PIPE)
    assert report.ok, report.as_markdown()
    assert "grids that give a CTA no unit of work, one, and unequal shares" in report.stages[2].reason and not report.left_open


@pytest.mark.sweep(4)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", FAULTS)
def test_faults_of_some_grid_are_refused(name: str, dynamic: bool) -> None:
    changes, codes = FAULTS[name]
    text = PIPE.replace("cdiv(M, 32))\n", "cdiv(M, 32), dynamic=True)\n") if dynamic else PIPE
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    report = verify_text(text)
    assert not report.ok and report.diagnostics[0].code in codes, report.as_markdown()
    assert any(n.message.startswith(("found under the schedule", "in the case", "replay")) for n in report.diagnostics[0].notes)


@given(st.integers(0, 300))
def test_grids_give_none_one_two_and_unequal_shares(units: int) -> None:
    grids = list_other_grids(units)
    shares = {tuple(len(range(c, units, g)) for c in range(g)) for g in grids}
    assert all(g > 2 or g > units for g in grids) and len(grids) == len(set(grids)) <= 3
    if 0 < units <= MANY:
        assert any(set(s) == {0, 1} for s in shares)
    if 4 < units <= MANY:
        assert any(2 in s and set(s) <= {1, 2} for s in shares) and any(len(s) > 2 and len(set(s)) == 2 and 0 not in s for s in shares)


ALONE = """
@kernel(arch="sm_90a")
def twice(X: Global[f32, M, 32], Y: Global[f32, M, 32]):
    with role("all", warps=1):
        for i in range(cdiv(M, 32)):
            store(Y[i * 32 + rows(32), cols(32)], X[i * 32 + rows(32), cols(32)] * 2.0)
"""


def test_a_kernel_without_units_of_work_is_one_cta() -> None:
    report = verify_text(ALONE)
    assert report.ok and "launched as one CTA" in report.stages[2].reason
    checked, x = check(parse(ALONE)), torch.ones(40, 32)
    with pytest.raises(CuirError, match=r"U112.*launched as one CTA"):
        run(checked, {"X": x, "Y": torch.empty_like(x)}, grid=2)
    assert run(checked, {"X": x, "Y": torch.empty_like(x)}, grid=1).grid == 1
    assert run(checked, {"X": x, "Y": torch.empty_like(x)}, grid=lambda units: 7).grid == 1
