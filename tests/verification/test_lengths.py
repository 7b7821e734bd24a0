"""Lengths of problems: every loop turns more than once and every dim has more than one step, however the subscript is written; what no problem shows is said."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch

import corpus
from cuir.checking.checker import check
from cuir.spec.function_specification import FunctionSpecification
from cuir.spec.loading import as_any
from cuir.syntax.parser import parse
from cuir.syntax.types import F16
from cuir.verification import VerifyReport, verify
from cuir.verification.function_problems import make_draws
from cuir.verification.lengths import make_all_draws, make_first_draws
from cuir.verification.tile_steps import find_steps, find_tiles

SUMS = """
@func
def block(i):
    return i * 64 + cols(64)

@kernel(arch="sm_80")
def sums(X: Global[f32, B, H, M, N], S: Global[f16, B, H, M]):
    work = tiles(cdiv(M, 16) * H * B)
    with role("all", warps=1):
        for t in work:
            b, h, q = t // H % B, t % H, t // (H * B) * 16 + rows(16)
            acc = zeros(f32, [16, 1])
            for j in range(cdiv(N, 64)):
                acc = acc + row_sum(X[b, h, q, j * 64 + cols(64)])
            store(S[b, h, q], cast(acc, f16))
"""
LOOP = "            for j in range(cdiv(N, 64)):\n                acc = acc + row_sum(X[b, h, q, j * 64 + cols(64)])\n"
SINGLE = """            for j in range(cdiv(N, 16)):
                for r in range(16):
                    n = j * 16 + r
                    if n < N:
                        acc = acc + where(q < M, X[b, h, q, n + cols(1)], 0.0)
"""
LOOPS = {  # the same sum, in other words
    "t * 64 in the subscript": LOOP,
    "through a name": LOOP.replace("                acc", "                base = j * 64\n                acc").replace(
        "j * 64 + cols(64)]", "base + cols(64)]"
    ),
    "through a function": LOOP.replace("j * 64 + cols(64)", "block(j)"),
    "a range with a step": LOOP.replace("range(cdiv(N, 64))", "range(0, N, 64)").replace("j * 64", "j"),
    "a range from elsewhere": LOOP.replace("range(cdiv(N, 64))", "range(b + 3, b + 3 + cdiv(N, 64))").replace("j * 64", "(j - b - 3) * 64"),
    "a number of the unit": LOOP.replace("j * 64", "(t + j * 2 - t) // 2 * 64"),
    "columns one by one": SINGLE,
    "a wide turn of narrow loads": LOOP.replace("cdiv(N, 64)", "cdiv(N, 256)").replace(
        "                acc = acc + row_sum(X[b, h, q, j * 64 + cols(64)])\n",
        "                for p in range(4):\n                    acc = acc + row_sum(X[b, h, q, j * 256 + p * 64 + cols(64)])\n",
    ),
}


def reference(X: torch.Tensor) -> torch.Tensor:
    return X.sum(-1)


def verify_text(text: str, sizes: Callable[[Mapping[str, int]], dict[str, int]] | None = None, **more: Any) -> VerifyReport:
    return verify(parse(text, "sums.cuir"), FunctionSpecification("sums", reference, sizes=sizes, **more), shrink=False, seeded=0)  # type: ignore[arg-type]


@pytest.mark.sweep
@pytest.mark.parametrize(
    "loop",
    [pytest.param(n, marks=pytest.mark.thorough("columns one by one take long")) if LOOPS[n] is SINGLE else n for n in LOOPS],
)
def test_right_kernels_pass_in_any_words(loop: str) -> None:
    report = verify_text(SUMS.replace(LOOP, LOOPS[loop]))
    assert report.ok and not report.left_open, report.left_open or report.as_markdown()


@pytest.mark.parametrize("loop", LOOPS)
def test_steps_are_found_in_any_words(loop: str) -> None:
    checked = check(parse(SUMS.replace(LOOP, LOOPS[loop])))
    spec = FunctionSpecification("sums", reference)
    wide = {"a wide turn of narrow loads": 256, "columns one by one": 16}.get(loop, 64)
    assert find_steps(checked, spec) == {"B": 0, "H": 0, "M": 16, "N": wide}
    result = make_draws(checked, spec, "quick")
    assert max(d.sizes["N"] for d in result) > 8 * wide and max(d.sizes["M"] for d in result) > 8 * 16
    assert max(d.sizes["B"] for d in result) > 4 and max(d.sizes["H"] for d in result) > 8
    assert any(wide < d.sizes["N"] < 3 * wide for d in result) and {1, wide + 1} <= {d.sizes["N"] for d in result}


def after(loop: str, change: str) -> str:
    """The kernel with another number of the block in its loop over blocks: `change` of `j`."""
    head = next(line for line in LOOPS[loop].splitlines(keepends=True) if line.strip().startswith("for j"))
    inner = (
        LOOPS[loop]
        .replace(head, "")
        .replace("j *", "w *")
        .replace("(j -", "(w -")
        .replace("block(j)", "block(w)")
        .replace(", j +", ", w +")
    )
    return SUMS.replace(LOOP, f"{head}                w = {change}\n{inner}")


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("loop", "change"),
    [
        *((n, "j & 7") for n in LOOPS if n not in ("a range from elsewhere", "a range with a step", "a number of the unit")),
        *(("t * 64 in the subscript", change) for change in ("j * 0", "j if j < 2 else 1", "j % 8")),
    ],
)
def test_blocks_that_are_wrong_after_the_first_or_the_eighth_are_refused(loop: str, change: str) -> None:
    report = verify_text(after(loop, change))
    assert not report.ok and report.diagnostics[0].code == "V301", report.as_markdown()


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("b, h, q = t // H % B,", "b, h, q = t // H % B % 4,"),
        ("b, h, q = t // H % B,", "b, h, q = t // H % B & 3,"),
        (", t % H,", ", t % H & 7,"),
        (", t % H,", ", min(t % H, 4),"),
        (
            "            acc = zeros(f32, [16, 1])\n            for j in range(cdiv(N, 64)):\n",
            "            for j in range(cdiv(N, 64)):\n                acc = zeros(f32, [16, 1])\n",
        ),
        ("range(cdiv(N, 64))", "range(min(8, cdiv(N, 64)))"),
        ("range(cdiv(N, 64))", "range(max(1, N // 64))"),
        ("t // (H * B) * 16 + rows(16)", "min(7, t // (H * B)) * 16 + rows(16)"),
    ],
)
def test_other_faults_of_long_dims_are_refused(old: str, new: str) -> None:
    assert old in SUMS
    text = SUMS.replace(old, new).replace("            store(S[b", "            acc = acc + 0.0\n            store(S[b")
    if "for j" in old:
        text = text.replace("    with role", "    zero = 0\n    with role").replace(
            "        for t in work:\n", "        acc = zeros(f32, [16, 1])\n        for t in work:\n"
        )
    report = verify_text(text)
    assert not report.ok and report.diagnostics[0].code in ("V301", "V302", "V201", "R402"), report.as_markdown()


LONG = """
@kernel(arch="sm_80")
def sums(X: Global[f32, B, H, M, N], S: Global[f32, B, H, M]):
    work = tiles(M * H * B)
    with role("all", warps=1):
        for t in work:
            total = 0.0
            for n in range(N):
                total += X[t // H % B, t % H, t // (H * B), n]
            for k in range(N - 200):
                total += EXTRA
            store(S[t // H % B, t % H, t // (H * B)], total)
"""


@pytest.mark.thorough
def test_problems_grow_until_a_loop_turns() -> None:
    """A loop that begins after two hundred elements is met, and its fault."""
    right = verify_text(LONG.replace("EXTRA", "0.0"))
    assert right.ok and not right.left_open, right.left_open or right.as_markdown()
    wrong = verify_text(LONG.replace("EXTRA", "1.0"))
    assert not wrong.ok and wrong.diagnostics[0].code == "V301"


@pytest.mark.thorough
def test_what_no_admitted_length_reaches_is_said() -> None:
    report = verify_text(SUMS, lambda drawn: {"N": min(drawn["N"], 50)})
    line = 1 + SUMS.splitlines().index(next(x for x in SUMS.splitlines() if "for j" in x))
    assert report.ok and report.short == [line] and report.steps == ["N"]
    assert (
        f"line {line} of sums.cuir made more than one turn" in report.left_open
        and "longer than one step of the kernel through N" in report.left_open
    )
    result = report.as_json()
    assert result["short_loops"] == [line] and result["single_steps"] == ["N"]


SPANS = """
@kernel(arch="sm_80")
def sums(X: Global[f32, B, H, M, N], L: Global[i32, B], S: Global[f16, B, H, M]):
    work = tiles(cdiv(M, 16) * H * B)
    with role("all", warps=1):
        for t in work:
            b, h, q = t // H % B, t % H, t // (H * B) * 16 + rows(16)
            acc = zeros(f32, [16, 1])
            for j in range(cdiv(L[b], 64)):
                k = j * 64 + cols(64)
                acc = acc + row_sum(where(k < L[b], X[b, h, q, k], 0.0))
            store(S[b, h, q], cast(acc, f16))
"""


@pytest.mark.thorough
def test_trips_that_data_decide_are_counted_too() -> None:
    def spans(X: torch.Tensor, L: torch.Tensor) -> torch.Tensor:
        return torch.where(torch.arange(X.shape[-1]) < L[:, None, None, None], X, 0.0).sum(-1)

    def lengths(most: Callable[[int], int]) -> Callable[..., dict[str, torch.Tensor]]:
        return lambda sizes, generator: {"L": torch.randint(most(sizes["N"]) + 1, (sizes["B"],), generator=generator, dtype=torch.int32)}

    program = parse(SPANS, "spans.cuir")
    free = verify(program, FunctionSpecification("spans", spans, lengths(lambda n: n)), seeded=0)
    assert free.ok and not free.short, free.left_open
    short = verify(program, FunctionSpecification("spans", spans, lengths(lambda n: min(n, 60))), seeded=0)
    assert short.ok and short.short == [9] and "line 9 of spans.cuir" in short.left_open


def test_extents_of_index_tiles() -> None:
    text = """
@kernel(arch="sm_80")
def sums(X: Global[f32, A, B, C, N], Y: Global[f32, A, B, C, N]):
    work = tiles(A)
    with role("all", warps=1):
        for t in work:
            i = t * 4 + rows(32) // 8
            store(Y[i, rows(32) % 8, 0, cols(16)], X[i, rows(32) % 8, 0, cols(16)])
"""
    assert find_tiles(check(parse(text))) == {"A": 4, "B": 8, "C": 0, "N": 16}


def test_steps_of_the_corpus() -> None:
    gemm = parse(corpus.programs()["gemm"].read_text(encoding="utf-8"), "gemm.cuir")
    checked = check(gemm, "gemm", {"T": F16})
    assert find_steps(checked, as_any(corpus.specification("gelu_gemm"), "gelu_gemm")) == {"M": 128, "K": 64, "N": 256}


PAIRS = """\
@kernel(arch="sm_90a")
def sums(X: Global[f32, M, N], Y: Global[f32, M]):
    work = tiles(cdiv(M, 64))
    with role("all", warpgroups=1):
        for t in work:
            i, z, n = t * 64 + rows(64), zeros(f32, [64, 1]), cdiv(N, 64)
            for j in range(n // 2):
                z = z + row_sum(X[i, j * 128 + cols(64)]) + row_sum(X[i, j * 128 + 64 + cols(64)])
            if n % 2 == 1:
                z = z + row_sum(X[i, LAST + cols(64)])
            store(Y[i], z)
"""


@pytest.mark.usefixtures("no_schedules")
@pytest.mark.parametrize(("last", "right"), [("(n - 1) * 64", True), ("N // 64 * 64", False)])
def test_a_dim_is_an_odd_multiple_of_its_divisors(last: str, right: bool) -> None:
    """Both names of the last block agree but for whole blocks, and whole tiles are an even number of blocks."""
    assert verify_text(PAIRS.replace("LAST", last)).ok == right


def test_the_first_problems_are_those_of_all() -> None:
    checked, spec = check(parse(PAIRS.replace("LAST", "(n - 1) * 64"))), FunctionSpecification("sums", lambda X: X.sum(-1))
    every = make_all_draws(checked, spec, "quick")
    assert make_first_draws(checked, spec, "quick", 3) == every[:3] and len(every) > 3
