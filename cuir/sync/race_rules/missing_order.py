"""A race: two conflicting accesses, and nothing orders them (R401 in shared memory, R402 in tensors)."""

from __future__ import annotations

from ..accesses import Access, Finding, describe_access, race_rule
from ..orders import E, Order


@race_rule(ordered=False)
def find_missing_order(new: Access[E], old: Access[E], order: Order[E]) -> Finding:
    """Report a pair without order; all such pairs are races."""
    hint = f"it is over after {old.awaited}" if old.awaited else "a barrier must lie between the two"
    return Finding(
        "R401" if new.memory == "shared" else "R402",
        f"{describe_access(new)} is not ordered after {describe_access(old)}",
        new.span,
        hint,
        ((f"this must be over before the {new.mode} in line {new.span.line}", old.span),),
    )
