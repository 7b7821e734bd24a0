"""A missing proxy fence: an engine may miss what was written by the generic proxy (R403)."""

from __future__ import annotations

from ..accesses import Access, Finding, describe_access, race_rule
from ..orders import E, Order


@race_rule(ordered=True, later=("async",), earlier=("generic",))
def find_missing_fence(new: Access[E], old: Access[E], order: Order[E]) -> Finding | None:
    """Report an access by the async proxy after an ordinary write without a fence of its worker."""
    if old.mode == "read":
        return None
    assert old.completion is not None
    if order.is_fenced(old.completion):
        return None
    in_tensor = new.memory == "tensor"
    call = f"fence_async({'tensors=True' if in_tensor else ''}) after its {old.mode}"
    reason, hint = "an ordinary write reaches the async proxy after a fence", f"{old.label} calls {call}"
    if not new.seen:
        hint, note = f"{old.owner} calls {call}, before the barrier that orders the two", "written here"
    else:
        note = f"{old.description} here"
        if old.worker != new.worker:
            hint += " and before the barrier that orders the two"
        if in_tensor:
            reason = "what is stored to a tensor the ordinary way reaches the copy engine after a fence"
            hint += "; fence_async() alone is for shared memory"
    return Finding("R403", f"{describe_access(new)} may miss {describe_access(old)}: {reason}", new.span, hint, ((note, old.span),))
