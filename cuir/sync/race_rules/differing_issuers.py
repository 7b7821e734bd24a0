"""Products into one accumulator that two workers issue: the tensor core keeps the order of one issuer (R401)."""

from __future__ import annotations

from ..accesses import QUEUE, Access, Finding, describe_access, race_rule
from ..orders import E, Order


@race_rule(ordered=False)
def find_differing_issuers(new: Access[E], old: Access[E], order: Order[E]) -> Finding | None:
    """Report two products into the same accumulator that nothing orders."""
    if new.proxy != QUEUE or old.proxy != QUEUE:
        return None
    return Finding(
        "R401",
        f"{describe_access(new)} is not ordered after {describe_access(old)}: products finish in order only if one worker issues them",
        new.span,
        f"{new.owner} first waits for the phase of a commit by {old.owner}",
        ((f"this must be over before the {new.mode} in line {new.span.line}", old.span),),
    )
