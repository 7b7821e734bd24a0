"""Validation of targets: specifications that can judge no kernel are refused before a model runs."""

from __future__ import annotations

from collections.abc import Mapping

from cuir.checking.checked import Const
from cuir.checking.checker import check
from cuir.spec.function_specification import AnySpecification
from cuir.spec.user_calls import limit_calls
from cuir.syntax.nodes import Program
from cuir.text.diagnostics import CuirError
from cuir.verification.resource_limits import RUN
from cuir.verification.soundness import require_usable
from cuir.verification.spec_dispatch import make_number_cases, prepare_specification

from ..added_parameters import supply_parameters

_OF_THE_KERNEL = ("V300", "X105", "X106", "X107", "X108")  # what an answer's kernel, with other parameters, may mend


def require_usable_target(origin: Program, kernel: str, target: AnySpecification, consts: Mapping[str, Const], level: str) -> None:
    """Raise CuirError for a specification that can judge no kernel.

    It is tried with the parameters that the origin has and the target declares. Codes: X106 (NaN alone), X113, X118,
    X119, X125 or X126.
    """
    program = supply_parameters(origin, kernel, origin, target)
    with limit_calls(RUN):
        try:
            checked = check(program, kernel, consts)
            spec = prepare_specification(target, checked.origin, program, checked.consts)
            cases = make_number_cases(checked, spec, [], level)
        except CuirError as error:
            if error.diagnostics[0].code.startswith("X1") and error.diagnostics[0].code not in _OF_THE_KERNEL:
                raise
            return
        require_usable(checked, spec, cases)
