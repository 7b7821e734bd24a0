"""Norms, softmaxes and the like as people write them: the right ones pass, and each fault is found at level quick."""

from __future__ import annotations

import pytest

from cuir import FunctionSpecification, parse, verify
from cuir.checking.checked import Const
from cuir.verification.report import VerifyReport
from tests.verification.small_kernels import KERNELS, Small


def judge(name: str, small: Small, consts: dict[str, Const], *changes: tuple[str, str]) -> VerifyReport:
    text = small.text
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    spec = FunctionSpecification(name, small.reference, small.inputs, small.sizes)
    return verify(parse(text, f"{name}.cuir"), spec, consts=consts, seeded=0, shrink=False)


@pytest.mark.usefixtures("few_problems")
@pytest.mark.sweep
@pytest.mark.parametrize(("name", "at"), [(n, i) for n, s in KERNELS.items() for i in range(len(s.consts))])
def test_right_kernels_pass(name: str, at: int) -> None:
    small = KERNELS[name]
    for change in ((), *((c,) for c in small.right)):
        report = judge(name, small, dict(small.consts[at]), *change)
        assert report.ok, (change, report.diagnostics[0].render())


@pytest.mark.sweep
@pytest.mark.parametrize(("name", "fault"), [(n, i) for n, s in KERNELS.items() for i in range(len(s.wrong))])
def test_wrong_kernels_are_refused(name: str, fault: int) -> None:
    small = KERNELS[name]
    report = judge(name, small, dict(small.consts[fault % len(small.consts)]), small.wrong[fault])
    assert [d.code for d in report.diagnostics] in (["V301"], ["V302"]), (small.wrong[fault], report.as_markdown())
