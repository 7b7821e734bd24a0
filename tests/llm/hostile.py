"""Hostile actions of a judgement in its process; a separate module, so that such a process imports little."""

from __future__ import annotations

import os
from typing import Any

from cuir.text.diagnostics import CuirError


def hostile(description: str) -> Any:
    """Does it, and gives `what` back if it is nothing bad."""
    if description == "loop":
        while True:
            pass
    if description == "memory":
        return len(bytearray(64 << 30))
    if description == "end":
        os._exit(3)
    if description == "keys":
        return sorted(n for n in os.environ if "API_KEY" in n or "TOKEN" in n)
    if description == "raise":
        raise CuirError.of("P001", "no")
    return description
