"""What a kernel is given: tensors that it writes in place, values of each kind, scalars that stand below a root."""

from __future__ import annotations

import pytest
import torch

from cuir import FunctionSpecification, check, parse, verify
from cuir.syntax.types import BF16, F16, F32, DType
from cuir.verification.function_problems import make_draws
from cuir.verification.inputs import collect_readable, get_small_scalars, list_applicable_kinds, make_function_launch
from cuir.verification.values.cases import Draw
from tests.verification.small_kernels import KERNELS

CONSTS = {"T": F16, "D": 32}
IN_PLACE = """
@kernel(arch="sm_80")
def step(W: Global[T, M, D], G: Global[T, M, D], V: Global[f32, M, D], rate: f32, *, T: const, D: const):
    work = tiles(cdiv(M, 16))
    with role("all", warps=1):
        for t in work:
            q = t * 16 + rows(16)
            v = V[q, cols(D)] * 0.5 + cast(G[q, cols(D)], f32)
            store(V[q, cols(D)], v)
            store(W[q, cols(D)], cast(cast(W[q, cols(D)], f32) - v * rate, T))
"""
ADDED = """
@kernel(arch="sm_80")
def add(X: Global[f32, M, D], Y: Global[f32, D], *, D: const):
    work = tiles(M)
    with role("all", warps=1):
        for t in work:
            store(Y[0 * rows(16) + cols(D)], X[t, 0 * rows(16) + cols(D)], mask=(rows(16) == 0) & (cols(D) >= 0), add=True)
"""
GROUP_NORM = """
@kernel(arch="sm_80")
def normalise(X: Global[f32, C, S], Y: Global[f32, C, S]):
    work = tiles(1)
    with role("all", warps=1):
        for t in work:
            total = zeros(f32, [16, 1])
            for i in range(cdiv(C, 16)):
                for j in range(cdiv(S, 64)):
                    total = total + row_sum(X[i * 16 + rows(16), j * 64 + cols(64)])
            mean = col_sum(total) / cast(C * S, f32)
            squares = zeros(f32, [16, 1])
            for i in range(cdiv(C, 16)):
                for j in range(cdiv(S, 64)):
                    c, s = i * 16 + rows(16), j * 64 + cols(64)
                    d = where((c < C) & (s < S), X[c, s] - mean, 0.0)
                    squares = squares + row_sum(d * d)
            inv = 1.0 / sqrt(col_sum(squares) / cast(C * S, f32) + 0.00001)
            for i in range(cdiv(C, 16)):
                for j in range(cdiv(S, 64)):
                    c, s = i * 16 + rows(16), j * 64 + cols(64)
                    store(Y[c, s], (X[c, s] - mean) * inv)
"""


def step(w: torch.Tensor, g: torch.Tensor, v: torch.Tensor, rate: float) -> dict[str, torch.Tensor]:
    v = v * 0.5 + g
    return {"W": w - rate * v, "V": v}


@pytest.mark.sweep
@pytest.mark.parametrize(
    "reference",
    [
        step,
        lambda w, g, v, rate: tuple(step(w, g, v, rate).values()),
        lambda w, g, v, rate: {"v": v.mul_(0.5).add_(g), "w": w.sub_(rate * v)},
    ],
)
def test_tensors_read_and_written_are_compared(reference: object) -> None:
    """By name, in the order of the parameters, and by a function that writes what it is given."""
    report = verify(parse(IN_PLACE), FunctionSpecification("step", reference), consts=CONSTS, seeded=0)  # type: ignore[arg-type]
    assert report.ok and {r["output"] for r in report.stages[-1].rows} == {"W", "V"}


@pytest.mark.sweep(4)
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("* 0.5 +", "* 0.6 +"),
        ("store(V[q, cols(D)], v)", "store(V[q, cols(D)], v * 2.0)"),
        ("f32) - v", "f32) + v"),
        ("V[q, cols(D)] * 0.5 +", ""),
    ],
)
def test_faults_in_place_are_found(old: str, new: str) -> None:
    assert old in IN_PLACE
    report = verify(parse(IN_PLACE.replace(old, new)), FunctionSpecification("step", step), consts=CONSTS, seeded=0, shrink=False)
    assert [d.code for d in report.diagnostics] == ["V301"]


@pytest.mark.thorough
def test_what_is_written_in_place_and_not_given_is_a_finding() -> None:
    alone = FunctionSpecification("alone", lambda w, g, v, rate: {"W": step(w, g, v, rate)["W"]})
    report = verify(parse(IN_PLACE), alone, consts=CONSTS, seeded=0, shrink=False)
    assert not report.ok and [d.code for d in report.diagnostics] == ["V307"] and "writes V" in report.summary()


@pytest.mark.parametrize(
    ("requests", "code"), [(lambda x, y: y + x.sum(0), None), (lambda x: x.sum(0), None), (lambda x, y: 2 * y + x.sum(0), "V301")]
)
def test_what_a_kernel_adds_to_has_the_contents_that_the_function_asks_for(requests: object, code: str | None) -> None:
    spec, checked = FunctionSpecification("add", requests), check(parse(ADDED), "add", {"D": 32})  # type: ignore[arg-type]
    inputs = make_function_launch(checked, spec, Draw("one", {"M": 5}))
    assert bool(inputs.before["Y"].any()) == ("Y" in collect_readable(checked, inputs))
    report = verify(parse(ADDED), spec, consts={"D": 32}, seeded=0, shrink=False)
    assert [d.code for d in report.diagnostics] == ([code] if code else []), report.summary()


def test_a_scalar_below_a_root_is_small_and_positive() -> None:
    small = KERNELS["layer_norm"]
    checked, spec = check(parse(small.text), "kernel", CONSTS), FunctionSpecification("norm", small.reference)
    assert get_small_scalars(checked, spec) == {"eps": True}
    values = {make_function_launch(checked, spec, d).inputs["eps"] for d in make_draws(checked, spec, "quick")}
    assert {1e-12, 1e-5, 1e-3, 1.0} <= values and all(1e-12 <= v <= 1 for v in values)  # type: ignore[operator]
    gain = FunctionSpecification("gain", lambda w, g, v, rate: step(w, g, v, rate))
    assert get_small_scalars(check(parse(IN_PLACE), "step", CONSTS), gain) == {}


@pytest.mark.parametrize("dtype", [F16, BF16, F32])
@pytest.mark.parametrize("seed", [0, 1])
def test_rows_far_from_0_are_as_said(dtype: object, seed: int) -> None:
    small = KERNELS["variance"]
    checked = check(parse(small.text), "kernel", {"T": dtype, "D": 64})  # type: ignore[dict-item]
    x = make_function_launch(checked, FunctionSpecification("variance", small.reference), Draw("one", {"M": 40}, "offset", seed)).inputs[
        "X"
    ]
    assert isinstance(x, torch.Tensor)
    rows = x.double()
    ratio = rows.mean(-1).abs() / rows.std(-1)
    assert ratio.min() > 500 and ratio.median() < 3000
    assert bool((rows.mean(-1) > 0).any()) and bool((rows.mean(-1) < 0).any())
    if seed and dtype is not F32:
        assert bool((rows.mean(-1) == rows.mean(-1).to(x.dtype)).all()), "a mean that the dtype holds"


def draw_largest(name: str, dtype: DType) -> torch.Tensor:
    checked = check(parse(KERNELS[name].text), "kernel", {"T": dtype, "D": 64})
    x = make_function_launch(checked, FunctionSpecification(name, KERNELS[name].reference), Draw("one", {"M": 40}, "largest")).inputs["X"]
    assert isinstance(x, torch.Tensor)
    return x


@pytest.mark.parametrize("dtype, least, most", [(F16, 65504, 65504), (BF16, 8.5e37, 1.7e38)])
def test_the_largest_values_are_those_of_the_dtype(dtype: DType, least: float, most: float) -> None:
    assert least <= draw_largest("gelu", dtype).double().abs().max() <= most


@pytest.mark.parametrize("name", ["softmax", "layer_norm"])
def test_f32_holds_the_sum_of_the_largest_values_of_a_kernel_that_adds(name: str) -> None:
    x = draw_largest(name, BF16).float()
    assert x.abs().max() > 1e33 and x.abs().sum().isfinite()


def test_a_group_norm_may_add_in_f32_what_pytorch_adds_in_double_precision() -> None:
    """The mean of a group whose elements are 8e37 leaves f32; PyTorch's own group norm does not."""
    spec = FunctionSpecification(
        "group_norm",
        lambda x: torch.nn.functional.group_norm(x[None], 1)[0],
        sizes=lambda drawn: drawn if 1 < drawn["C"] * drawn["S"] < 10_000 else None,  # f32 adds that many one after another
    )
    report = verify(parse(GROUP_NORM), spec, level="quick", seeded=0)
    assert report.ok, str(report)


def test_kinds_that_do_not_apply_are_left_out() -> None:
    small = KERNELS["softmax"]
    checked, spec = check(parse(small.text), "kernel", CONSTS), FunctionSpecification("softmax", small.reference)
    result = list_applicable_kinds(checked, spec)
    assert not {"faint", "scaled", "strided"} & set(result) and {"offset", "equal", "growing", "huge", "onehot"} <= set(result)
    plain = make_function_launch(checked, spec, Draw("one", {"M": 20})).inputs["X"]
    for kind in result[1:]:
        x = make_function_launch(checked, spec, Draw("one", {"M": 20}, kind)).inputs["X"]
        assert isinstance(x, torch.Tensor) and isinstance(plain, torch.Tensor) and not torch.equal(x, plain), kind
    assert {d.kind for d in make_draws(checked, spec, "quick")} <= set(result)
    inputs = FunctionSpecification("given", small.reference, lambda sizes, generator: {"X": torch.zeros(sizes["M"], sizes["D"])})
    assert list_applicable_kinds(checked, inputs) == ("normal",)


@pytest.mark.parametrize(("shift", "ok"), [("seed", True), ("min(seed, 5)", False)])
def test_numbers_may_be_tensors_without_dims(shift: str, ok: bool) -> None:
    """As `torch.randint(9, (), generator=generator)` gives them, in runs with data and without."""
    text = f"""
@kernel(arch="sm_80")
def shifted(X: Global[f32, M, 16], Y: Global[f32, M, 16], seed: i32, keep: f32):
    work = tiles(cdiv(M, 16))
    with role("all", warps=1):
        for t in work:
            r = t * 16 + rows(16)
            store(Y[r, cols(16)], X[r, cols(16)] / keep + cast({shift}, f32))
"""

    def inputs(sizes: dict[str, int], generator: torch.Generator) -> dict[str, torch.Tensor]:
        return {"seed": torch.randint(9, (), generator=generator), "keep": torch.tensor(0.5, dtype=torch.float64)}

    report = verify(parse(text), FunctionSpecification("shifted", lambda x, seed, keep: x / keep + seed, inputs), seeded=0)
    assert report.ok == ok and [d.code for d in report.diagnostics] == ([] if ok else ["V301"])
