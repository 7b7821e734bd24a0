"""Parts of judging that all passes share: stages of verification, and judgements that never ended."""

from __future__ import annotations

from cuir.text.diagnostics import Diagnostic

from ..limited_processes import Died, OutOfTime
from ..loop import Stage

STAGE_OF: dict[str, Stage] = {
    "well-formed": "check",
    "contracts": "contracts",
    "schedules": "schedules",
    "mask": "mask",
    "numbers": "numbers",
}


def make_unjudged_diagnostic(how: OutOfTime | Died, seconds: float) -> Diagnostic:
    """Return the diagnostic for a judgement that took too long or ended its process.

    `seconds` is the limit of processor time.
    """
    if isinstance(how, Died):
        return Diagnostic("A007", f"the process that judged the program {how}", hint="smaller tiles, fewer stages")
    return Diagnostic(
        "A006",
        f"judging the program takes more than {seconds:.0f} s of processor time",
        hint="a loop over units of work or blocks that runs far longer than it must?",
    )
