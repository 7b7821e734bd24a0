"""Kernels with dropout: what is added to an expert kernel, that verification replays the mask, and that kernels with another mask are refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import corpus
import cuir
from cuir import CuirError, Dropout, Lengths, Specification
from cuir.attn.splicing.backward import KERNEL, transfer_backward, transfer_query_gradients
from cuir.attn.splicing.backward import QUERY_KERNEL as BY_QUERIES
from cuir.attn.splicing.splice import TransferResult, transfer
from cuir.attn.tracing.splice_names import DROPOUT
from cuir.interp import Schedule
from cuir.spec.dropout_hash import dropout_mask
from cuir.syntax.parser import parse
from cuir.syntax.printer import show
from cuir.verification import Case, check_mask, check_numbers
from cuir.verification.lengths import convert_case
from cuir.verification.spec_dispatch import check_case, prepare_specification

Consts = dict[str, Any]


def causal(b: Any, h: Any, q: Any, k: Any) -> Any:
    return k <= q + 11


def capped(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return 20 * torch.tanh(s / 20) + h


SPECS = {
    "full": Specification("full"),
    "causal": Specification("causal", causal),
    "capped": Specification("capped", causal, capped),
    "sink": Specification("sink", causal, sink=0.5),
    "largest scores": Specification("most", causal, max_scores=True),
    "sigmoid": Specification("sigmoid", causal, capped, normalize="sigmoid"),
    "relu": Specification("relu", None, capped, normalize="relu"),
    "documents": Specification("documents", lambda b, h, q, k, *, ids=torch.arange(1000) // 70: ids[q] == ids[k]),
}
RAGGED = Case("ragged", Lengths(2, 4, 2, 75, 140))
FORWARD: dict[str, Consts] = {
    "flash_fwd_sm90": {"T": cuir.f16, "D": 64, "BM": 64, "BN": 64},
    "flash_fwd_split_sm90": {"T": cuir.f16, "D": 64},
    "flash_fwd_sm80": {"T": cuir.f16, "D": 32, "BM": 64, "BN": 32},
    "flash_fwd_f32": {"D": 32, "BM": 64, "BN": 32},
}
BACKWARD: dict[str, tuple[str, Consts]] = {
    "flash_bwd_sm90": (KERNEL, {"T": cuir.f16, "D": 64, "BM": 128}),
    "flash_bwd_wide_sm90": (KERNEL, {"T": cuir.f16, "D": 192}),
    "flash_bwd_split_sm90": (KERNEL, {"T": cuir.f16, "D": 64}),
    "flash_bwd_dq_split_sm90": (BY_QUERIES, {"T": cuir.f16, "D": 64}),
    "flash_bwd_f32": (KERNEL, {"D": 32}),
    "flash_bwd_dq_sm90": (BY_QUERIES, {"T": cuir.f16, "D": 64, "BM": 128, "BN": 64, "PREPARES": True}),
    "flash_bwd_dq_f32": (BY_QUERIES, {"D": 32}),
    "flash_bwd_sm80": (KERNEL, {"T": cuir.f16, "D": 64, "BM": 32, "BN": 64}),
    "flash_bwd_dq_sm80": (BY_QUERIES, {"T": cuir.f16, "D": 64, "BM": 64, "BN": 32}),
    "flash_bwd_sm75": (KERNEL, {"T": cuir.f16, "D": 64, "BM": 32}),
    "flash_bwd_dq_sm75": (BY_QUERIES, {"T": cuir.f16, "D": 64}),
}


def expert(name: str) -> cuir.Program:
    return parse(corpus.kernels()[name].read_text(encoding="utf-8"), f"{name}.cuir")


def transfer_variant(name: str, spec: Specification) -> TransferResult:
    if name.startswith("flash_fwd"):
        return transfer(expert(name), spec)
    return transfer_query_gradients(expert(name), spec) if "_dq_" in name else transfer_backward(expert(name), spec)


def check_gradients(name: str, text: str, spec: Specification) -> None:
    """Compare the kernel's gradients in one problem with those of float64."""
    kernel, consts = BACKWARD[name]
    program = parse(text, f"{name}.cuir")
    checked = cuir.check(program, kernel, consts)
    against = prepare_specification(spec, checked.origin, program, checked.consts)
    assert isinstance(against, cuir.FunctionSpecification)
    check_case(program, checked, against, convert_case(checked, against, RAGGED))


@pytest.mark.sweep
@pytest.mark.parametrize("origin", FORWARD)
@pytest.mark.parametrize("name", SPECS)
def test_outputs_are_those_of_the_replayed_mask(name: str, origin: str) -> None:
    spec = replace(SPECS[name], dropout=Dropout())
    program = transfer_variant(origin, spec).program
    checked = cuir.check(program, consts=FORWARD[origin])
    for case in (RAGGED, Case("no keys", Lengths(1, 2, 1, 40, 0)), Case("growing", Lengths(1, 2, 2, 40, 200), "growing")):
        check_numbers(program, checked, spec, case)
    assert check_mask(program, checked, spec, Lengths(1, 2, 1, 70, 83)).read > 0


@pytest.mark.sweep
@pytest.mark.parametrize("name", BACKWARD)
@pytest.mark.parametrize("variant", ["causal", "capped"])
def test_gradients_are_those_of_the_replayed_mask(variant: str, name: str) -> None:
    spec = replace(SPECS[variant], dropout=Dropout())
    check_gradients(name, transfer_variant(name, spec).text, spec)


@pytest.mark.parametrize("p", [0.003, 0.9, 1.0])
def test_other_probabilities(p: float) -> None:
    """The same program, for it takes the threshold when it runs."""
    spec = replace(SPECS["causal"], dropout=Dropout(p))
    program = transfer_variant("flash_fwd_sm90", spec).program
    assert show(program) == transfer_variant("flash_fwd_sm90", replace(spec, dropout=Dropout(0.5))).text
    check_numbers(program, cuir.check(program, consts=FORWARD["flash_fwd_sm90"]), spec, RAGGED)


def test_schedules_do_not_change_the_mask() -> None:
    spec = replace(SPECS["causal"], dropout=Dropout())
    program = transfer_variant("flash_fwd_f32", spec).program
    checked = cuir.check(program, consts=FORWARD["flash_fwd_f32"])
    for number in range(4):
        check_numbers(program, checked, spec, RAGGED, Schedule.random(number))


FAULTS = {
    "queries counted within a tile": ("q * 668265263 +", "q % 64 * 668265263 +"),
    "keys counted within a block": ("+ k * -1640531535", "+ k % 32 * -1640531535"),
    "heads alike": ("head = b * H + h", "head = b * H"),
    "key heads for heads": ("head = b * H + h", "head = b * H + h // 2"),
    "batches alike": ("head = b * H + h", "head = h"),
    "words of the seed exchanged": ("(dropout_seed[0] + head", "(dropout_seed[1] + head"),
    "a seed of its own": ("dropout_seed[1] + head", "12345 + head"),
    "another multiplication": (
        "* 2146121005\n    x = (x ^ x // 32768 & 131071 ^ y)",
        "* 2146121007\n    x = (x ^ x // 32768 & 131071 ^ y)",
    ),
    "a shift that copies the sign": ("x // 32768 & 131071 ^ y", "x // 32768 ^ y"),
    "the complement": ("return x < dropout_threshold", "return x >= dropout_threshold"),
    "everything retained": ("return x < dropout_threshold", "return x < 2147483647"),
}
FORWARD_FAULTS = FAULTS | {
    "weights are not rescaled": (" * dropout_factor, where(total", ", where(total"),
    "the sum leaves dropped weights out": (
        "P, state, alpha = softmax_step(S, state, c)",
        "P, state, alpha = softmax_step(where(retained(b, h, q, k), S, -inf), state, c)",
    ),
}
BACKWARD_FAULTS = FAULTS | {
    "dV of all weights": ("cast(max(P, 0.0) * dropout_factor, T)", "cast(abs(P) * dropout_factor, T)"),
    "dV is not rescaled": ("max(P, 0.0) * dropout_factor", "max(P, 0.0)"),
    "gradients reach dropped weights": ("where(P > 0.0, dP * dropout_factor, 0.0)", "dP * dropout_factor"),
    "their rows' part is left out": ("dX = abs(P) *", "dX = max(P, 0.0) *"),
}


def with_fault(text: str, fault: tuple[str, str]) -> str:
    assert text.count(fault[0]) == 1, fault
    return text.replace(*fault)


@pytest.mark.sweep
@pytest.mark.parametrize("fault", FORWARD_FAULTS)
def test_a_forward_kernel_with_another_mask_is_refused(fault: str) -> None:
    spec = replace(SPECS["causal"], dropout=Dropout())
    program = parse(with_fault(transfer_variant("flash_fwd_sm90", spec).text, FORWARD_FAULTS[fault]), "faulty.cuir")
    with pytest.raises(CuirError) as caught:
        check_numbers(program, cuir.check(program, consts=FORWARD["flash_fwd_sm90"]), spec, RAGGED)
    assert caught.value.diagnostics[0].code in ("V301", "V304")


@pytest.mark.sweep
@pytest.mark.parametrize("fault", BACKWARD_FAULTS)
def test_a_backward_kernel_with_another_mask_is_refused(fault: str) -> None:
    spec = replace(SPECS["causal"], dropout=Dropout())
    with pytest.raises(CuirError) as caught:
        check_gradients("flash_bwd_sm90", with_fault(transfer_variant("flash_bwd_sm90", spec).text, BACKWARD_FAULTS[fault]), spec)
    assert caught.value.diagnostics[0].code == "V301"


@pytest.mark.sweep
@pytest.mark.parametrize("fault", FAULTS)
def test_a_kernel_of_dq_with_another_mask_is_refused(fault: str) -> None:
    spec = replace(SPECS["causal"], dropout=Dropout())
    with pytest.raises(CuirError) as caught:
        check_gradients("flash_bwd_dq_f32", with_fault(transfer_variant("flash_bwd_dq_f32", spec).text, FAULTS[fault]), spec)
    assert caught.value.diagnostics[0].code == "V301"


def test_the_mask_that_is_read_out_is_the_replayed_one() -> None:
    spec = replace(SPECS["causal"], dropout=Dropout())
    wrong = with_fault(transfer_variant("flash_fwd_sm90", spec).text, FAULTS["heads alike"])
    program = parse(wrong, "faulty.cuir")
    with pytest.raises(CuirError, match="V305"):
        check_mask(program, cuir.check(program, consts=FORWARD["flash_fwd_sm90"]), spec, Lengths(1, 2, 1, 70, 83))


@pytest.mark.sweep(4)
@pytest.mark.parametrize("name", [*FORWARD, *BACKWARD])
def test_programs_without_dropout_have_none_of_it(name: str) -> None:
    text = transfer_variant(name, SPECS["capped"]).text
    assert not any(word in text for word in ("dropout", "retained", "scrambled"))


@pytest.mark.sweep
@pytest.mark.parametrize("name", [*FORWARD, *BACKWARD])
def test_what_is_added_has_names_of_its_own(name: str) -> None:
    """Captured values that are called like what dropout adds get other names."""
    retained, dropout_seed = torch.arange(300) % 7 > 0, torch.zeros(300)
    mods = lambda b, h, q, k: retained[k] & (k <= q), lambda s, b, h, q, k: s + dropout_seed[k]
    spec = Specification("named", *mods, dropout=Dropout())
    result = transfer_variant(name, spec)
    kernel = result.program.kernels()[result.kernel]
    assert set(DROPOUT) <= {p.name for p in kernel.params} and not {p.name for p in result.captured} & set(DROPOUT)
    if name in BACKWARD:
        check_gradients(name, result.text, spec)
    else:
        check_numbers(result.program, cuir.check(result.program, consts=FORWARD[name]), spec, RAGGED)


def test_a_launch_gets_the_arguments_of_the_specification() -> None:
    """Make arguments as tuning and measuring do; calls of flex_attention have others."""
    spec = replace(SPECS["documents"], dropout=Dropout(0.75))
    result, at = transfer_variant("flash_fwd_sm90", spec), Lengths(1, 2, 1, 40, 70)
    inputs = result.arguments(at, consts=FORWARD["flash_fwd_sm90"])
    assert inputs["dropout_factor"] == 4.0 and torch.equal(inputs["dropout_seed"], Dropout().seed_for(at))  # type: ignore[arg-type]
    assert inputs.keys() - result.arguments(at, consts=FORWARD["flash_fwd_sm90"], dropout=False).keys() == set(DROPOUT)


def test_kernels_without_a_place_for_it_are_refused() -> None:
    spec = Specification("full", dropout=Dropout())
    for name in ("decode_sm90", "decode_cache_sm90"):
        with pytest.raises(CuirError, match=r"X130.*shared out"):
            transfer(expert(name), spec)
    backward = corpus.kernels()["flash_bwd_sm90"].read_text(encoding="utf-8")
    with pytest.raises(CuirError, match="X130"):
        transfer_backward(parse(backward.replace("dX = P * (dP - load(sDL[s]))", "dX = P * dP - P * load(sDL[s])")), spec)


def test_the_reference_drops_weights_of_its_mask() -> None:
    seed = torch.tensor([4, -5], dtype=torch.int32)
    spec = Specification("causal", causal, dropout=Dropout(0.5, seed))
    q, k, v = (torch.randn(2, 2, 20, 8, generator=torch.Generator().manual_seed(i)) for i in range(3))
    o, lse = spec.reference(q, k, v, 0.3)
    plain = replace(spec, dropout=None)
    weights = plain.weights(plain.scores(q.double() @ k.double().mT * 0.3, Lengths(2, 2, 2, 20, 20)), Lengths(2, 2, 2, 20, 20))[0]
    assert torch.allclose(o, (weights * dropout_mask(seed, 0.5, 2, 2, 20, 20) * 2) @ v.double())
    assert torch.equal(lse, plain.reference(q, k, v, 0.3)[1])
