"""Report of verification on a wrong program: the first report of the first question answered with no."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from cuir.checking.checked import Const
from cuir.checking.checker import check
from cuir.spec.specification import Lengths, Specification
from cuir.syntax.nodes import Program
from cuir.text.diagnostics import CuirError, Diagnostic
from cuir.verification import Case, check_mask, check_numbers


def read_diagnostic(
    program: Program, spec: Specification, consts: Mapping[str, Const], mask: Lengths, numbers: Case | None = None
) -> Diagnostic:
    checked = check(program, None, consts)
    with pytest.raises(CuirError) as caught:
        check_mask(program, checked, spec, mask)
        if numbers is not None:
            check_numbers(program, checked, spec, numbers)
    return caught.value.diagnostics[0]
