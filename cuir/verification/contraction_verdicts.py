"""Verdict with every product contracted with its sum.

A GPU may round both once, and the result must stay right.

Which sums lowering may contract, and which it computes as written, says checking/contraction.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from ..attn.verification.problems import Case
from ..checking.checked import Checked
from ..checking.contraction import list_contractable_sums
from ..interp.noise import contract_sums
from ..syntax.nodes import Expr
from ..text.diagnostics import CuirError, Diagnostic, Note
from .noise_verdicts import FEW, MANY, compute_volume, judge_with, shorten
from .values.cases import Draw

KIND = "wide"  # of inputs, with the largest products
_HINT = (
    "a product that is rounded elsewhere does not cancel this one: subtract first, c * (x - y) for c * x - c * y, or subtract "
    "the maximum of such products itself, row_max(c * x), which is computed as written"
)


def choose_contraction_cases(checked: Checked, cases: Iterable[Draw | Case], level: str) -> list[Draw]:
    """Return the smallest problems of wide inputs; none if the kernel has nothing to contract.

    Nor those of a mask or score: expert kernels contract a score and its row's maximum, whose error is a factor of all
    weights of the row, and cancels. Scores beyond 2^31 would overflow, which only such inputs of a steep score reach.
    """
    wide = [c for c in cases if isinstance(c, Draw) and c.kind == KIND and compute_volume(c)] if list_contractable_sums(checked) else []
    return sorted(wide, key=compute_volume)[: FEW if level == "quick" else MANY]


def check_contraction(checked: Checked, judge: Callable[[], Sequence[Mapping[str, object]]]) -> None:
    """Judge a problem with all products contracted.

    Raises CuirError V301 for a sum that changes the verdict.

    judge: runs the kernel on fresh arguments, and returns rows of numbers, or raises CuirError for a bad verdict. It
    passed without contraction.
    """
    sums = list_contractable_sums(checked)
    error = judge_with(judge, contract_sums(sums))
    if error is None or not error.diagnostics[0].code.startswith("V3"):
        return
    alone = ((e, judge_with(judge, contract_sums([e]))) for e in sums)
    e, error = next(((e, alone_error) for e, alone_error in alone if alone_error is not None), (sums[0], error))
    before = max((float(r["error / allowed"]) for r in judge() if "error / allowed" in r), default=0.0)  # type: ignore[arg-type]
    raise _make_error(e, error, before)


def _make_error(e: Expr, error: CuirError, before: float) -> CuirError:
    first = error.diagnostics[0]
    message = f"the GPU may round the product and the sum `{shorten(e)}` once (FMA), and the result is then wrong"
    notes = (Note(f"then: {first.message}"), *first.notes, Note(f"with both rounded, the error is {before:.2f} of what is allowed"))
    return CuirError([Diagnostic("V301", message, e.span, notes, _HINT)])


__all__ = ["check_contraction", "choose_contraction_cases"]
