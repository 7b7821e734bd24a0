import pytest

import corpus
import cuir
from corpus.functions.causal_backward import causal_backward
from cuir.checking.checked import Checked
from cuir.checking.checker import check
from cuir.spec.function_specification import FunctionSpecification
from cuir.syntax.types import BF16, F16, DType
from cuir.verification.function_problems import keeps_units, make_draws
from cuir.verification.values.cases import Draw

from .coverage.planted import check_body, doubled

SIZES = {"B": 1, "H": 1, "M": 2, "HK": 1, "N": 126}


def backward(dtype: DType) -> Checked:
    text = corpus.programs()["flash_bwd"].read_text(encoding="utf-8")
    return check(cuir.parse(text), "flash_bwd", {"T": dtype, "D": 64})


@pytest.mark.parametrize("dtype, kind, retained", [(BF16, "largest", False), (F16, "largest", True), (BF16, "normal", True)])
def test_logarithms_that_lost_their_units_are_seen(dtype: DType, kind: str, retained: bool) -> None:
    assert keeps_units(backward(dtype), causal_backward(), Draw("one", SIZES, kind)) is retained


def test_a_function_that_gives_no_inputs_keeps_all() -> None:
    assert keeps_units(check_body(""), FunctionSpecification("doubled", doubled), Draw("one", {"B": 1, "H": 1, "M": 4}, "largest"))


@pytest.mark.parametrize("dtype, requests", [(BF16, False), (F16, True)])
def test_far_numbers_are_asked_where_what_is_kept_of_them_says_something(dtype: DType, requests: bool) -> None:
    assert any(d.kind == "largest" for d in make_draws(backward(dtype), causal_backward(), "quick")) is requests
