"""Special values that meet: faults that show there alone are refused at level quick, right kernels with the same content pass."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cuir import FunctionSpecification, check, parse, verify
from cuir.checking.checked import Const
from cuir.syntax.types import F16, F32
from cuir.verification.function_problems import restrict_kinds, says_something
from cuir.verification.report import VerifyReport
from cuir.verification.values.cases import Draw
from cuir.verification.values.joint_extremes import Meeting, make_steep, meet, put_empty_rows
from tests.verification.small_kernels import rows

_TILED = """
@kernel(arch="sm_90a")
def kernel({parameters}):
    work = tiles(cdiv(M, 16))
    with role("all", warps=1):
        for t in work:
            r = t * 16 + rows(16)
{before}
            for j in range(cdiv(N, 64)):
                c = j * 64 + cols(64)
{body}
{after}
"""


def make_tiled(parameters: str, before: str, body: str, after: str) -> str:
    """A kernel of a warp for each 16 rows, which takes 64 columns at once."""

    def indent(text: str, depth: int) -> str:
        return "\n".join(" " * depth + line.strip() for line in text.strip().splitlines())

    return _TILED.format(parameters=parameters, before=indent(before, 12), body=indent(body, 16), after=indent(after, 12))


MIXED = "store(Y[r], (lse - picked) * (1.0 - max(smoothing, 0.0)) + part)"
SMOOTHED = make_tiled(
    "X: Global[f32, M, N], LABEL: Global[i32, M], Y: Global[f32, M], smoothing: f32",
    """top, total = full(f32, [16, 1], -inf), zeros(f32, [16, 1])
    picked, plain = zeros(f32, [16, 1]), zeros(f32, [16, 1])""",
    """x = X[r, c]
    z = where(c < N, x, -inf)
    new = max(top, row_max(z))
    ref = where(new == -inf, 0.0, new)
    total = total * exp2((top - ref) * 1.4426950408889634) + row_sum(exp2((z - ref) * 1.4426950408889634))
    picked = picked + row_sum(where(c == LABEL[r], x, 0.0))
    plain = plain + row_sum(x)
    top = new""",
    f"""lse = top + log2(total) * 0.6931471805599453
    part = (lse - plain / cast(N, f32)) * max(smoothing, 0.0)
    {MIXED}""",
)
LARGEST = make_tiled(
    "X: Global[f32, M, N], AT: Global[i32, M]",
    "best, at = full(f32, [16, 1], -inf), zeros(f32, [16, 1])",
    """x = where(c < N, X[r, c], -1e30)
    most = row_max(x)
    at = where(most > best, -row_max(where(x == most, -cast(c, f32), -inf)), at)
    best = max(best, most)""",
    "store(AT[r], cast(at, i32))",
)
ADDED = make_tiled(
    "A: Global[f32, M, N], B: Global[f32, M, N], Y: Global[f32, M, N]",
    "",
    """a, b = A[r, c], B[r, c]
    far = -abs(a - b)
    store(Y[r, c], max(a, b) + log1p(exp2(far * 1.4426950408889634)))""",
    "",
)
LEAST = make_tiled(
    "A: Global[f32, M, N], B: Global[f32, M, N], Y: Global[f32, M, N]",
    "",
    """a, b = A[r, c], B[r, c]
    store(Y[r, c], b + min(a - b, 0.0))""",
    "",
)
DECAYED = make_tiled(
    "X: Global[f32, M], AC: Global[f32, M], Y: Global[f32, M]",
    "y = zeros(f32, [16, 1])",
    """w = exp2((AC[r] - AC[c]) * 1.4426950408889634) * cast((c <= r) & (r < M), f32)
    y = y + row_sum(w * X[c])""",
    "store(Y[r], y)",
).replace("cdiv(N", "cdiv(M")


def smoothed(x: torch.Tensor, label: torch.Tensor, smoothing: float) -> torch.Tensor:
    loss = x.logsumexp(-1) - x.gather(1, label.long()[:, None])[:, 0]
    return loss * (1 - smoothing) + (x.logsumexp(-1) - x.mean(-1)) * smoothing if smoothing > 0 else loss


def labels(sizes: Mapping[str, int], generator: torch.Generator) -> dict[str, torch.Tensor]:
    return {"LABEL": torch.randint(sizes["N"], (sizes["M"],), generator=generator)}


def largest(x: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"AT": (x == x.amax(-1, keepdim=True)).int().argmax(-1).int()}


def decayed(x: torch.Tensor, ac: torch.Tensor) -> torch.Tensor:
    w = (ac[:, None] - ac[None]).masked_fill(~torch.ones(len(ac), len(ac), dtype=torch.bool).tril(), -torch.inf).exp()
    return w @ x


def sums(sizes: Mapping[str, int], generator: torch.Generator) -> dict[str, torch.Tensor]:
    return {"AC": -torch.rand(sizes["M"], generator=generator).cumsum(-1)}


def at_least_one(drawn: Mapping[str, int]) -> dict[str, int]:
    return {"N": max(1, drawn["N"])}


Case = tuple[str, str, str, FunctionSpecification]
PAIRS: dict[str, Case] = {
    "a part that counts 0 times": (
        SMOOTHED,
        MIXED,
        f"if smoothing > 0.0:\n{' ' * 16}{MIXED}\n{' ' * 12}else:\n{' ' * 16}store(Y[r], lse - picked)",
        FunctionSpecification("smoothed", smoothed, labels, at_least_one),
    ),
    "a number below all": (LARGEST, "-1e30", "-inf", FunctionSpecification("largest", largest, sizes=at_least_one)),
    "two that are impossible": (
        ADDED,
        "far = -abs(a - b)",
        "far = where(a == b, 0.0, -abs(a - b))",
        FunctionSpecification("added", lambda a, b: torch.logaddexp(a, b)),
    ),
    "the smaller of two": (
        LEAST,
        "b + min(a - b, 0.0)",
        "min(a, b)",
        FunctionSpecification("least", lambda a, b: torch.minimum(a, b)),
    ),
    "a decay that is masked late": (
        DECAYED,
        "exp2((AC[r] - AC[c]) * 1.4426950408889634) * cast((c <= r) & (r < M), f32)",
        "exp2(where((c <= r) & (r < M), AC[r] - AC[c], -inf) * 1.4426950408889634)",
        FunctionSpecification("decayed", decayed, sums),
    ),
}


def judge(text: str, spec: FunctionSpecification) -> VerifyReport:
    return verify(parse(text, "kernel.cuir"), spec, seeded=0, shrink=False)


@pytest.mark.usefixtures("no_schedules")
@pytest.mark.sweep
@pytest.mark.parametrize("name", PAIRS)
def test_faults_where_special_values_meet_are_refused(name: str) -> None:
    text, _, _, spec = PAIRS[name]
    report = judge(text, spec)
    assert [d.code for d in report.diagnostics] in (["V301"], ["V302"]), report.summary()


@pytest.mark.usefixtures("no_schedules")
@pytest.mark.sweep
@pytest.mark.parametrize("name", PAIRS)
def test_right_twins_pass(name: str) -> None:
    text, wrong, right, spec = PAIRS[name]
    assert wrong in text
    report = judge(text.replace(wrong, right), spec)
    assert report.ok, report.diagnostics[0].render()


SHAPES = st.tuples(
    st.integers(4, 24), st.integers(2, 100), st.sampled_from((torch.float16, torch.bfloat16, torch.float32)), st.integers(0, 9)
)


@given(SHAPES)
def test_whole_rows_are_empty_in_both_tensors(drawn: tuple[int, int, torch.dtype, int]) -> None:
    count, columns, dtype, turn = drawn
    x, y = (torch.randn(count, columns, generator=torch.Generator().manual_seed(i)).to(dtype) for i in range(2))
    result = meet(Meeting({"X": (-math.inf,)}, ("X", "Y")), {"X": x, "Y": y}, turn, torch.Generator().manual_seed(turn))
    empty_rows = [(result[n] == -torch.inf).all(-1) for n in ("X", "Y")]  # type: ignore[union-attr]
    assert bool((empty_rows[0] & empty_rows[1]).any()) and result["X"].dtype == dtype  # type: ignore[union-attr]
    assert bool((put_empty_rows(x, turn) == x).all(-1).any())


@given(SHAPES)
def test_steep_rows_go_one_way(drawn: tuple[int, int, torch.dtype, int]) -> None:
    count, columns, dtype, turn = drawn
    x = torch.randn(count, columns, generator=torch.Generator().manual_seed(turn)).to(dtype)
    falling, rising = (make_steep(x, form, turn).double() for form in ("falling", "rising"))
    extra = make_steep(x.abs().cumsum(-1), "sums", turn).double()
    steep = (torch.arange(count) + turn) % 3 < 2
    assert bool((falling[steep].diff(dim=-1) <= 0).all() and (rising[steep].diff(dim=-1) >= 0).all() and (extra.diff(dim=-1) >= 0).all())
    assert falling[:, : min(columns, 64)].min() < -99 and rising[:, : min(columns, 64)].max() > 99


def test_kinds_that_leave_no_number_are_left_out() -> None:
    """A mask of floats above a half hides all where numbers are tiny, or 0."""
    text = rows("Mask: Global[f32, M, D], Y: Global[f32, M, D]", "store(Y[q, cols(D)], where(Mask[q, cols(D)] > 0.5, x, -inf))")
    checked = check(parse(text), "kernel", {"T": F16, "D": 64})
    spec = FunctionSpecification("f", lambda x, mask: x.masked_fill(~(mask > 0.5), -torch.inf).softmax(-1))
    result = restrict_kinds(checked, spec, [Draw(k, {"M": 20}, k, seed) for k in ("tiny", "zero", "wide") for seed in range(2)])  # type: ignore[arg-type]
    kinds = {(d.name, d.seed): d.kind for d in result}
    assert kinds["tiny", 0] == "normal" and "normal" in (kinds["zero", 0], kinds["zero", 1]) and kinds["wide", 0] == "wide"
    assert any(kinds["zero", seed] == "zero" for seed in range(2)), "zeros in the other tensor say something"


def test_no_rows_leave_statistics_that_say_nothing() -> None:
    """An average of nothing: `inputs` gives NaN among numbers, and such a problem is left out."""
    consts: dict[str, Const] = {"T": F32, "D": 64}
    text = rows("MEAN: Global[f32, D], Y: Global[f32, M, D]", "store(Y[q, cols(D)], x - MEAN[cols(D)])")
    spec = FunctionSpecification(
        "f", lambda x, mean: x - mean, lambda sizes, generator, x: {"MEAN": torch.cat([x[:, :1].mean(0), x.new_zeros(63)])}
    )
    checked = check(parse(text), "kernel", consts)
    assert not says_something(checked, spec, Draw("none", {"M": 0})) and says_something(checked, spec, Draw("some", {"M": 2}))
