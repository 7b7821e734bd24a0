"""Problems whose synchronisation runs alone: launches far beyond those with data, and which values they still need."""

from __future__ import annotations

import pytest
import torch

import corpus
from cuir import CuirError, FunctionSpecification, check, parse
from cuir.attn.verification.problems import Case
from cuir.checking.checked import Checked
from cuir.spec.loading import as_any
from cuir.spec.specification import Lengths
from cuir.syntax.types import F16
from cuir.verification.synchronisation import make_arguments, needs_data, run_synchronisation
from cuir.verification.values.cases import Draw

CAUSAL = as_any(corpus.specification("causal"), "causal")
GROUPS = """
@kernel(arch="sm_90a")
def k(X: Global[f16, M, 64], Y: Global[f16, M, 64]):
    buf, filled, free = shared(f16, [4, 64, 64]), mbarrier(1, stages=4), mbarrier(1, stages=4)
    with role("load", warps=1):
        for i in range(cdiv(M, 64)):
            free[i % 4].wait(i // 4 % 2 ^ 1)
            filled[i % 4].expect(nbytes(buf[i % 4]))
            copy_async(X[i * 64 : i * 64 + 64, :], buf[i % 4], filled[i % 4])
    with role("store", warpgroups=1):
        for i in range(cdiv(M, 64)):
            filled[i % 4].wait(i // 4 % 2)
            store(Y[i * 64 : i * 64 + 64, :], load(buf[i % 4]))
            if {released}:
                free[i % 4].arrive()
"""


def make_grouped(released: str) -> tuple[Checked, FunctionSpecification]:
    return check(parse(GROUPS.format(released=released), "k.cuir")), FunctionSpecification("copy", lambda x: x)


def flash_checked(name: str = "flash_fwd_sm90") -> Checked:
    tree = parse(corpus.kernels()[name].read_text(encoding="utf-8"), f"{name}.cuir")
    return check(tree, "flash_fwd", {"T": F16, "D": 64})


def test_hundreds_of_blocks_and_of_units() -> None:
    checked = flash_checked()
    for at, grid in ((Lengths(1, 1, 1, 128, 520 * 128), 1), (Lengths(1, 300, 1, 128, 128), 1), (Lengths(501, 1, 1, 128, 128), 2)):
        finished = run_synchronisation(checked, CAUSAL, Case("long", at), grid=grid)
        assert finished.alone and not finished.reason and finished.report.seconds < 5


@pytest.mark.parametrize(("released", "steps"), [("i < 1000", 1010), ("i % 256 != 255", 270), ("i != 511", 530)])
def test_a_release_that_is_missing_far_out(released: str, steps: int) -> None:
    checked, spec = make_grouped(released)
    with pytest.raises(CuirError) as caught:
        run_synchronisation(checked, spec, Draw("long", {"M": 64 * steps}))
    first = caught.value.diagnostics[0]
    assert first.code == "D401" and any("run for its synchronisation" in n.message for n in first.notes)
    right, _ = make_grouped("True")
    assert run_synchronisation(right, spec, Draw("long", {"M": 64 * steps})).alone


def test_integers_come_from_the_specification() -> None:
    tree = parse(corpus.programs()["decode_paged"].read_text(encoding="utf-8"), "decode_paged.cuir")
    checked = check(tree, "decode", {"T": F16, "D": 64, "G": 4, "PAGE": 16})
    spec = as_any(corpus.specification("paged_decode"), "paged_decode")
    sizes = spec.admit_lengths({**dict.fromkeys(checked.dims, 40), "D": 64, "G": 4, "PAGE": 16, "H": 4, "HK": 1})
    draw = Draw("pages", {d: sizes[d] for d in checked.dims})
    values = make_arguments(checked, spec, draw)
    assert all(values[t.name].dtype == torch.int32 for t in checked.tensors if t.dtype.name == "i32")
    assert run_synchronisation(checked, spec, draw).alone


def test_data_where_results_decide() -> None:
    text = """
@kernel(arch="sm_80")
def k(X: Global[f32, M, 32], Y: Global[f32, M, 32], F: Scratch[i32, M]):
    with role("all", warps=1):
        store(F[0], 1)
        sync()
        for i in range(F[0]):
            sync()
        store(Y[rows(16), cols(32)], X[rows(16), cols(32)])
"""
    checked, spec = check(parse(text, "k.cuir")), FunctionSpecification("copy", lambda x: x)
    assert needs_data(checked).startswith("line 7: ")
    finished = run_synchronisation(checked, spec, Draw("short", {"M": 16}))
    assert not finished.alone and finished.reason.startswith("line 7: ")
    with pytest.raises(CuirError) as caught:
        run_synchronisation(checked, spec, Draw("long", {"M": 400_000}))
    assert caught.value.diagnostics[0].code == "V202"
