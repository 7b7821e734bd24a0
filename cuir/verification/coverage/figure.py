"""The figure of coverage in a report: conditions, sides seen, and the sides left."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

SHOWN = 6  # sides that a note names


@dataclass(frozen=True)
class OneSided:
    """A side of a condition that no run has taken. waived: the reason that the text gives."""

    line: int
    condition: str
    side: str  # in words
    why: str
    waived: str = ""

    def __str__(self) -> str:
        return f"line {self.line}: {self.side} ({f'waived: {self.waived}' if self.waived else self.why})"

    def as_json(self) -> dict[str, Any]:
        return {"line": self.line, "condition": self.condition, "side": self.side, "why": self.why, "waived": self.waived}


@dataclass(frozen=True)
class Figure:
    """Coverage figure of a kernel.

    sides: those that a launch may take and no comment waives; seen: those that some run took.
    """

    conditions: int = 0
    sides: int = 0
    seen: int = 0
    one_sided: tuple[OneSided, ...] = ()

    def __str__(self) -> str:
        return f"conditions: {self.seen} of {self.sides} sides seen"

    def left_open(self, source: str) -> str:
        """The sides that no run has taken, in words; "" if there are none."""
        if not self.one_sided:
            return ""
        more = len(self.one_sided) - SHOWN
        named = "; ".join(map(str, self.one_sided[:SHOWN])) + (f"; and {more} more, which --json lists" if more > 0 else "")
        return f"in no run conditions of {source} went this way: {named}"

    def as_json(self) -> dict[str, Any]:
        return {
            "conditions": self.conditions,
            "sides": self.sides,
            "seen": self.seen,
            "one_sided": [one.as_json() for one in self.one_sided],
        }


__all__ = ["Figure", "OneSided"]
