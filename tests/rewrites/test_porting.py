"""Programs for another architecture: what is rewritten, what stays, which consts fit."""

from __future__ import annotations

import pytest

from cuir.checking.checker import check
from cuir.ops.limits import TARGETS
from cuir.rewrites.porting import list_smaller_consts, port_program
from cuir.syntax.parser import parse
from cuir.syntax.printer import show
from cuir.syntax.types import F16
from cuir.text.diagnostics import CuirError
from tests.cli.programs import TWICE


def test_copies_become_loads_and_stores_and_waits_go() -> None:
    ported = port_program(parse(TWICE), "sm_75")
    text = show(ported.program)
    assert ported.copies == 1 and '# ported from sm_80\n@kernel(arch="sm_75")' in text
    assert "store(sX, load(X[t * BM : t * BM + BM, :]))" in text and "copy_" not in text
    assert check(parse(text), "twice", {"T": F16}).arch == "sm_75"


@pytest.mark.parametrize("arch", [name for name in TARGETS if TARGETS[name].has("cp_async") and name != "sm_80"])
def test_a_card_with_these_features_needs_its_name_alone(arch: str) -> None:
    ported = port_program(parse(TWICE), arch)
    assert ported.copies == 0
    expected = TWICE.replace('"sm_80"', f'"{arch}"')
    assert show(ported.program) == "# ported from sm_80\n" + show(parse(expected))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("if M > 5:\n                copy_commit()\n            copy_wait(0)", ""),
        (
            "if M > 5:\n                copy_wait(0)\n            else:\n                sync()",
            "if not M > 5:\n                sync()\n            ",
        ),
        ("for i in range(2):\n                copy_commit()\n            copy_wait(0)", ""),
    ],
)
def test_blocks_that_become_empty_go(before: str, after: str) -> None:
    old = "copy_commit()\n            copy_wait(0)"
    text = show(port_program(parse(TWICE.replace(old, before)), "sm_75").program)
    plain = TWICE.replace(old + "\n            ", after).replace(
        "copy_async(X[t * BM : t * BM + BM, :], sX)", "store(sX, load(X[t * BM : t * BM + BM, :]))"
    )
    assert text == "# ported from sm_80\n" + show(parse(plain.replace("sm_80", "sm_75")))


def test_a_program_of_the_architecture_stays() -> None:
    program = parse(TWICE)
    assert port_program(program, "sm_80").program == program


def test_what_has_no_rule_stays_for_the_check() -> None:
    text = TWICE.replace("sX = shared", "bar = mbarrier()\n    sX = shared").replace(
        ", sX)\n            copy_commit", ", sX, bar)\n            copy_commit"
    )
    with pytest.raises(CuirError) as caught:
        check(port_program(parse(text), "sm_75").program, "twice", {"T": F16})
    lines = {d.span.line for d in caught.value.diagnostics if d.code == "S217" and d.span is not None}
    assert lines == {8}, "the line of the origin"


def test_consts_that_fit_are_the_largest_halves() -> None:
    program = port_program(parse(TWICE.replace("BM: const = 32", "BM: const = 1024, OTHER: const = 8")), "sm_75").program
    kernel = program.kernels()["twice"]
    with pytest.raises(CuirError, match="M301"):
        check(program, "twice", {"T": F16})
    assert list_smaller_consts(program, kernel, {"T": F16}) == [("BM", 512)]
