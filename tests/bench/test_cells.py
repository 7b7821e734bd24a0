"""One cell on a CPU: kernels run in the interpreter, the clock is given; what is wrong is not timed, rates are of unmasked pairs."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
import torch

import corpus
from cuir import check, parse, run, transfer
from cuir.bench.cells import Cell, measure_cell
from cuir.bench.peers import check_peers, contenders
from cuir.bench.suites import SUITES, VARIANTS, suite
from cuir.cli.inputs import read_variant
from cuir.diagnostics import CuirError
from cuir.measure.problem import Shape, expectation
from cuir.spec import lengths_of
from cuir.tuning.device import Prepared
from cuir.types import F16

SHAPE = Shape(1, 2, 1, 100, 100, 64)
ORIGIN = parse(corpus.kernels()["flash_fwd_sm90"].read_text(encoding="utf-8"), "flash_fwd_sm90.cuir")
SETTING = {"T": F16, "D": 64, "BM": 64, "BN": 64}


def on_cpu(transferred: object, shape: Shape, dtype: torch.dtype) -> Prepared:
    return Prepared(transferred, shape, dtype, "cpu")


def interpreted(program: object) -> Callable:
    def launch(consts: Mapping) -> Callable:
        checked = check(program, consts=consts)
        return lambda **arguments: run(checked, arguments)

    return launch


def measured(program: object, transferred: object, **options: object) -> dict:
    cell = Cell("causal", {}, "small", SHAPE)
    return measure_cell(
        cell,
        transferred,
        "f16",
        [SETTING],
        [],
        2,
        prepare=on_cpu,
        launch=interpreted(program),
        measure=lambda call: (call() and None) or 0.5,
        **options,
    )


def test_a_right_kernel_is_timed() -> None:
    transferred = transfer(ORIGIN, read_variant("causal", ()))
    row = measured(transferred.program, transferred)
    ((name, found),) = row["contenders"].items()
    assert name == "cuir BM=64,BN=64" and found["milliseconds"] == 0.5 and found["error"] <= row["bound"]
    flops = 4 * 64 * 2 * (100 * 101 // 2)  # two heads
    assert row["flops"] == flops and found["tflops"] == round(flops / 0.5 / 1e9, 1)
    assert Cell.from_json(row) == Cell("causal", {}, "small", SHAPE)


def test_a_wrong_kernel_is_not_timed() -> None:
    transferred = transfer(ORIGIN, read_variant("causal", ()))
    wrong = transfer(ORIGIN, read_variant("full", ()))
    row = measured(wrong.program, transferred)
    (found,) = row["contenders"].values()
    assert "relative error" in found["wrong"] and "tflops" not in found


def test_repeated_runs_that_differ_are_wrong() -> None:
    transferred = transfer(ORIGIN, read_variant("causal", ()))
    case = on_cpu(transferred, SHAPE, torch.float16)
    launch = interpreted(transferred.program)(SETTING)
    count = iter(range(10))

    def unsteady(**arguments: torch.Tensor) -> None:
        launch(**arguments)
        if next(count) == 1:
            arguments["O"][0, 1, 3, 5] += 0.01

    assert case.verdict(launch) == ""
    assert case.verdict(unsteady) == "two runs give different bits"


@pytest.mark.parametrize("name", ["full", "causal", "prefix_lm", "softcap", "causal_document"])
def test_peers_compute_the_variant(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)  # what they compute, not how fast
    spec = read_variant(name, ())
    transferred = transfer(ORIGIN, spec)
    case = on_cpu(transferred, Shape(2, 4, 2, 150, 150, 64), torch.float16)
    found = contenders(("cudnn", "fa2", "flex", "compiled"), spec, case)
    assert ("cudnn" in found) == ("fa2" in found) == (name in ("full", "causal"))
    q, k = case.problem["Q"], case.problem["K"]
    assert lengths_of(q, k).HK == 2
    assert expectation(spec, q, k, case.problem["V"], case.scale).judge(found["compiled"]()) == ""
    assert case.expected.judge(found["flex"]()) == ""


def test_suites_name_variants_and_peers_that_there_are() -> None:
    for one in SUITES.values():
        check_peers(one.peers)
        assert one.cells() and len({c.name for c in one.cells()}) == len(one.cells())
        assert all(c.shape.B * c.shape.M == 16384 for c in one.cells())
    assert set(VARIANTS) <= set(corpus.variants())
    for name, parameters in VARIANTS.items():
        read_variant(name, [f"{k}={v}" for k, v in parameters(1024).items()])


def test_unknown_suites_and_peers() -> None:
    for call, code in ((lambda: suite("papre"), "U117"), (lambda: check_peers(["cudnnn"]), "U118")):
        with pytest.raises(CuirError) as error:
            call()
        assert error.value.diagnostics[0].code == code
