"""Inputs that a function does not read are NaN: found unasked, and reported when they reach an output."""

from __future__ import annotations

import pytest
import torch

import corpus
from cuir import CuirError, FunctionSpecification, check, parse, verify
from cuir.spec.loading import as_any
from cuir.syntax.types import F16
from cuir.verification import unread_inputs
from cuir.verification.inputs import make_function_launch
from cuir.verification.spec_dispatch import check_case
from cuir.verification.values.cases import Draw

CONSTS = {"T": F16, "D": 32}
LENGTHS = """
@kernel(arch="sm_80")
def mean(X: Global[T, B, N, D], W: Global[T, B, N], length: Global[i32, B], Y: Global[T, B, D], *, T: const, D: const):
    work = tiles(B)
    with role("all", warps=1):
        for t in work:
            acc = zeros(f32, [16, D])
            for n in range(N):
                x = cast(X[t, n, 0 * rows(16) + cols(D)], f32)
                w = cast(W[t, n + 0 * rows(16)], f32)
                acc = acc + where(n < length[t] + 0 * rows(16), x * w, 0.0)
            store(Y[t, 0 * rows(16) + cols(D)], cast(acc, T), mask=(rows(16) == 0) & (cols(D) >= 0))
"""
SAFE, ZERO = "where(n < length[t] + 0 * rows(16), x * w, 0.0)", "x * where(n < length[t] + 0 * rows(16), w, 0.0)"


def reference(x: torch.Tensor, w: torch.Tensor, length: torch.Tensor) -> torch.Tensor:
    return torch.stack([(x[b, :n] * w[b, :n, None]).sum(0) for b, n in enumerate(length.tolist())])


def inputs(sizes, generator):  # type: ignore[no-untyped-def]
    return {"length": torch.randint(sizes["N"] + 1, (sizes["B"],), generator=generator)}


SPEC = FunctionSpecification("mean", reference, inputs)


@pytest.fixture(params=["by halves", "by derivatives"])
def search(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A function of small results is evaluated often; one of large results is searched by its derivatives alone."""
    if request.param == "by derivatives":
        monkeypatch.setattr(unread_inputs, "_WORK", 0)


@pytest.mark.usefixtures("search")
def test_what_lies_beyond_a_length_is_found() -> None:
    checked = check(parse(LENGTHS), "mean", CONSTS)
    inputs = make_function_launch(checked, SPEC, Draw("one", {"B": 4, "N": 9}, seed=3), poison=True)
    beyond = torch.arange(9) >= inputs.inputs["length"][:, None]  # type: ignore[index]
    assert torch.equal(inputs.poisoned["W"], beyond) and torch.equal(inputs.poisoned["X"], beyond[..., None].expand(4, 9, 32))
    assert inputs.inputs["X"].isnan().sum() == beyond.sum() * 32 and not inputs.clean["X"].isnan().any()  # type: ignore[union-attr]
    assert not make_function_launch(checked, SPEC, Draw("one", {"B": 4, "N": 9}, seed=3)).poisoned


@pytest.mark.thorough
@pytest.mark.usefixtures("few_problems")
def test_a_factor_of_0_reads_what_it_is_multiplied_with() -> None:
    """A factor in the function: nothing is NaN then. One in the kernel: the element is named."""
    weighed = FunctionSpecification(
        "weighed", lambda x, w, length: (x * (w * (torch.arange(x.shape[1]) < length[:, None]))[..., None]).sum(1), inputs
    )
    checked = check(parse(LENGTHS), "mean", CONSTS)
    arguments = make_function_launch(checked, weighed, Draw("one", {"B": 4, "N": 9}, seed=3), poison=True)
    assert not arguments.poisoned
    assert verify(parse(LENGTHS), SPEC, consts=CONSTS, seeded=0).ok
    assert SAFE in LENGTHS
    report = verify(parse(LENGTHS.replace(SAFE, ZERO)), SPEC, consts=CONSTS, seeded=0, shrink=False)
    (result,) = report.diagnostics
    assert (
        result.code == "V302" and "the NaN comes from the input element X[" in result.message and "`mean` does not read" in result.message
    )


@pytest.mark.usefixtures("search")
@pytest.mark.parametrize(
    "function",
    [lambda x, factor: x * factor, lambda x, factor: x.relu() * factor, lambda x, factor: x.amax(1, keepdim=True) * factor + 0 * x],
)
def test_functions_that_read_everything_have_no_poison(function: object) -> None:
    text = """
@kernel(arch="sm_80")
def scaled(X: Global[T, B, M, D], Y: Global[T, B, M, D], factor: f32, *, T: const, D: const):
    with role("all", warps=1):
        for t in tiles(B):
            store(Y[t, rows(16), cols(D)], X[t, rows(16), cols(D)])
""".replace("        for t in tiles(B):", "        for t in work:").replace("    with", "    work = tiles(B)\n    with")
    checked = check(parse(text), "scaled", CONSTS)
    assert not make_function_launch(checked, FunctionSpecification("f", function), Draw("one", {"B": 2, "M": 5}), poison=True).poisoned  # type: ignore[arg-type]


@pytest.mark.usefixtures("search")
def test_padding_without_a_table_is_found_too() -> None:
    text = LENGTHS.replace("length: Global[i32, B], ", "").replace("length[t]", "5")
    checked = check(parse(text), "mean", CONSTS)
    spec = FunctionSpecification("five", lambda x, w: (x[:, :5] * w[:, :5, None]).sum(1))
    for _ in range(2):
        inputs = make_function_launch(checked, spec, Draw("one", {"B": 2, "N": 9}), poison=True)
        assert inputs.poisoned["X"][:, 5:].all() and not inputs.poisoned["X"][:, :5].any()


@pytest.mark.usefixtures("search")
def test_unused_slots_of_a_cache_may_hold_anything() -> None:
    """Values behind a sequence's last key are cleared before the product; left as they are, their NaN is told as what it is."""
    text = corpus.programs()["decode_paged"].read_text(encoding="utf-8")
    spec = as_any(corpus.specification("paged_decode"), "paged_decode")
    case = Draw("one", {"B": 2, "H": 8, "M": 16, "NP": 27, "HK": 2, "MP": 13, "SP": 2})
    consts = {"T": F16, "D": 64, "G": 4, "PAGE": 16}
    right = check(parse(text), "decode", consts)
    assert all(row["error / allowed"] <= 1 for row in check_case(right.program, right, spec, case))  # type: ignore[operator]
    assert text.count("if left < BN:") == 1
    wrong = check(parse(text.replace("if left < BN:", "if left < 0:")), "decode", consts)
    with pytest.raises(CuirError, match=r"V302.*comes from the input element V\["):
        check_case(wrong.program, wrong, spec, case)


def window(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Attend to the last two keys up to the query, without the first three."""
    far = torch.arange(q.shape[0])[:, None] - torch.arange(k.shape[0])
    retained = (far >= 0) & (far < 2) & (torch.arange(k.shape[0]) >= 3)
    weights = (q @ k.mT).masked_fill(~retained, -torch.inf).softmax(-1)
    return torch.where(retained.any(1, keepdim=True), weights, 0.0) @ torch.where(torch.arange(k.shape[0])[:, None] >= 3, v, 0.0)


def test_nan_flows_back_where_nan_would_flow_forward() -> None:
    """A masked key is unread; the only key of a query has no derivative, and is read all the same."""
    drawn = torch.Generator().manual_seed(0)
    leaves = {n: torch.randn(6, 4, generator=drawn, dtype=torch.float64).requires_grad_() for n in "qkv"}
    result = unread_inputs.find_unreached(leaves, [window(**leaves)])
    before = torch.arange(6)[:, None].expand(6, 4) < 3
    assert result.keys() == {"q", "k", "v"} and all(torch.equal(x, before) for x in result.values())
    zero = unread_inputs.find_without_derivative(leaves, [window(**leaves)])
    assert zero["q"][3].all() and not result["q"][3].any(), "one key: its weight is 1 whatever the query"


def test_an_expensive_function_that_derivatives_do_not_tell_is_asked_tensor_by_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unread_inputs, "_WORK", 0)
    spec = FunctionSpecification("kept", lambda x, y: torch.where(y > 0, 1.0, 0.0) + x[:2].sum())
    checked = check(
        parse("""
@kernel(arch="sm_80")
def kept(X: Global[f32, N], Y: Global[f32, M], Z: Global[f32, M]):
    work = tiles(M)
    with role("all", warps=1):
        for t in work:
            store(Z[t], X[0] + X[1] + (1.0 if Y[t] > 0.0 else 0.0))
""")
    )
    inputs = make_function_launch(checked, spec, Draw("one", {"N": 5, "M": 3}), poison=True)
    assert inputs.poisoned.keys() == {"X"} and torch.equal(inputs.poisoned["X"], torch.arange(5) >= 2)
