"""The coverage figure of a report: conditions, sides seen, and sides not seen."""

from __future__ import annotations

from dataclasses import dataclass

MOST_LINES = 3  # lines that a note names


@dataclass(frozen=True)
class OneSided:
    """A side of a condition that no run has taken.

    waived: the reason that the text states.
    """

    line: int
    condition: str  # its text
    side: str  # its description
    why: str
    waived: str = ""

    def __str__(self) -> str:
        return f"line {self.line}: {self.side} ({f'waived: {self.waived}' if self.waived else self.why})"

    def as_json(self) -> dict[str, object]:
        """Return the side as JSON values."""
        return {"line": self.line, "condition": self.condition, "side": self.side, "why": self.why, "waived": self.waived}


@dataclass(frozen=True)
class Figure:
    """Coverage figure of a kernel.

    sides: those that sizes and arguments decide, a launch may take, and no comment waives; sides_seen: those that some run
    took. of_data, data_seen: the same of sides that data decide.
    """

    conditions: int = 0
    sides: int = 0
    sides_seen: int = 0
    of_data: int = 0
    data_seen: int = 0
    one_sided: tuple[OneSided, ...] = ()

    def __str__(self) -> str:
        more = f", and {self.of_data} more that data decide, {self.data_seen} seen" if self.of_data else ""
        return f"conditions: {self.sides_seen} of {self.sides} sides seen{more}"

    def __bool__(self) -> bool:
        """Return whether there is any side."""
        return self.sides + self.of_data > 0

    def name_open_sides(self, source: str) -> str:
        """Name sides that no run has taken; "" if there are none.

        One side of each of a few lines, and all that are waived.
        """
        if not self.one_sided:
            return ""
        by_line: dict[int, OneSided] = {}
        for side in self.one_sided:
            if not side.waived and len(by_line) < MOST_LINES:
                by_line.setdefault(side.line, side)
        named = [*by_line.values(), *(side for side in self.one_sided if side.waived)]
        more = len(self.one_sided) - len(named)
        words = "; ".join(map(str, named)) + (f"; and {more} more, which --json lists" if more > 0 else "")
        return f"in no run conditions of {source} went this way: {words}"

    def as_json(self) -> dict[str, object]:
        """Return the figure as JSON values."""
        return {
            "conditions": self.conditions,
            "sides": self.sides,
            "seen": self.sides_seen,
            "of_data": self.of_data,
            "data_seen": self.data_seen,
            "one_sided": [side.as_json() for side in self.one_sided],
        }


__all__ = ["Figure", "OneSided"]
