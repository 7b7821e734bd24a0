"""Scratch: memory that a launch brings along. Written, checked, run without being given; what it holds is nobody's result."""

from __future__ import annotations

import pytest
import torch

from cuir import check, parse, run, show, verify
from cuir.arguments.binding import add_scratch
from cuir.lowering import lower
from cuir.spec import FunctionSpecification
from cuir.testing import assert_matches
from cuir.text.diagnostics import CuirError

TEXT = """\
@kernel(arch="sm_90a", cluster=2)
def halves(X: Global[f32, M, 64], Y: Global[f32, M, 64], PARTS: Scratch[f32, 2, M, 64]):
    done = mbarrier(2)
    work = tiles(cdiv(M, 64))

    with role("all", warpgroups=1):
        i = 0
        for t in work:
            r, c = t * 64 + rows(64), cols(64)
            store(PARTS[cta_rank(), r, c], X[r, c] * cast(cta_rank() + 1, f32))
            done.arrive(cluster=True)
            done.wait(i % 2)
            store(Y[r, cta_rank() * 32 + cols(32)], PARTS[0, r, cta_rank() * 32 + cols(32)] + PARTS[1, r, cta_rank() * 32 + cols(32)])
            i += 1
"""


def test_a_launch_brings_it_along() -> None:
    checked = check(parse(TEXT))
    assert [t.name for t in checked.outputs] == ["Y"] and [t.scratch for t in checked.tensors] == [False, False, True]
    assert_matches(checked, lambda x: 3 * x, M=130)


@pytest.mark.parametrize(
    "inputs", [torch.empty(2, 130, 128)[:, :, :64], torch.empty(2 * 130 * 64 + 1)[1:].view(2, 130, 64)], ids=["apart", "unaligned"]
)
def test_one_that_is_given_lies_as_one_that_is_brought(inputs: torch.Tensor) -> None:
    """The text knows its strides, and reads two elements at once."""
    checked = check(parse(TEXT))
    x, y = torch.randn(130, 64), torch.empty(130, 64)
    run(checked, {"X": x, "Y": y, "PARTS": torch.empty(2, 130, 64)})
    torch.testing.assert_close(y, 3 * x)
    with pytest.raises(CuirError, match="`PARTS` is scratch, so it must be contiguous and start at a multiple of 16 bytes"):
        run(checked, {"X": x, "Y": y, "PARTS": inputs})


def test_it_stays_in_the_text_and_comes_to_the_cuda() -> None:
    program = parse(TEXT)
    assert "PARTS: Scratch[f32, 2, M, 64]" in show(program) and parse(show(program)) == program
    assert "float* PARTS" in lower(check(program)).source


def test_verification_asks_nothing_of_it() -> None:
    assert verify(parse(TEXT), FunctionSpecification("three", lambda X: X * 3), seeded=0).ok


def test_what_is_read_unwritten_is_an_error() -> None:
    """The part of the other CTA, which nobody wrote."""
    wrong = TEXT.replace("store(PARTS[cta_rank(), r, c], X[r, c] * cast(cta_rank() + 1, f32))", "store(PARTS[0, r, c], X[r, c])")
    wrong = wrong.replace("store(PARTS[0, r, c]", "if cta_rank() == 0:\n                store(PARTS[0, r, c]")
    report = verify(parse(wrong), FunctionSpecification("three", lambda X: X * 3), shrink=False, seeded=0)
    assert report.diagnostics[0].code == "M415" and "`PARTS[1, 0, " in report.diagnostics[0].message


def test_without_the_barrier_it_is_a_race() -> None:
    report = verify(
        parse(TEXT.replace("            done.wait(i % 2)\n", "")), FunctionSpecification("three", lambda X: X * 3), shrink=False, seeded=0
    )
    assert not report.ok and report.diagnostics[0].code in ("R402", "M415", "S402", "S401")


def test_its_dims_are_known_from_elsewhere() -> None:
    with pytest.raises(CuirError) as caught:
        check(parse(TEXT.replace("Scratch[f32, 2, M, 64]", "Scratch[f32, PIECES, M, 64]")))
    assert "T157" in {d.code for d in caught.value.diagnostics} and "PIECES" in str(caught.value)


def test_what_is_given_stays() -> None:
    checked = check(parse(TEXT))
    x = torch.zeros(70, 64)
    result = add_scratch(checked.tensors, {"X": x, "Y": x}, fill=float("nan"))
    assert result["PARTS"].shape == (2, 70, 64) and bool(result["PARTS"].isnan().all()) and result["X"] is x
    assert add_scratch(checked.tensors, result)["PARTS"] is result["PARTS"]
