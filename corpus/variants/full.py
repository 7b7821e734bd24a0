"""Full attention."""

from __future__ import annotations

from cuir.spec import Specification


def full() -> Specification:
    """Every query attends to every key."""
    return Specification("full", doc=full.__doc__ or "")
