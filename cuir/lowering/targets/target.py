"""What a card is to the lowering: what it has, how its primitives are printed, its device functions. Owns no card."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ...ops.limits import Target as Limits
from ..cuda import accumulators as accumulators  # enters its functions
from ..cuda import prelude
from ..cuda import reductions as reductions  # enters its functions
from ..cuda.registry import Printer, Printers, common


@dataclass(frozen=True)
class Target:
    """A card. What it does not say itself, its base says, and last what all cards have in common."""

    limits: Limits
    printers: Printers
    parts: prelude.Parts = field(default_factory=prelude.Parts)
    headers: str = ""
    opening: str = ""  # stands behind the headers
    phrases: Mapping[str, str] = field(default_factory=dict)  # statements of the frame, with places for their arguments
    base: Target | None = None

    def printer(self, name: str) -> Printer | None:
        return self._lookup("printers", name)

    def text(self, name: str) -> Callable[..., str] | None:
        return self._lookup("texts", name)

    def element(self, name: str) -> Callable[..., str] | None:
        return self._lookup("elements", name)

    def choice(self, name: str) -> Callable[..., Any] | None:
        """The card's instructions for a step that has a way without them."""
        return self._lookup("choices", name)

    def say(self, phrase: str, *arguments: object) -> str:
        """A statement of the frame. An error of ours if the card has none."""
        return next(t.phrases[phrase] for t in self.lineage if phrase in t.phrases).format(*arguments)

    @property
    def lineage(self) -> tuple[Target, ...]:
        """It, its base, and so on."""
        return (self, *(self.base.lineage if self.base is not None else ()))

    @property
    def all_headers(self) -> str:
        return "\n".join([prelude.HEADERS, *(t.headers for t in reversed(self.lineage) if t.headers)])

    @property
    def all_openings(self) -> tuple[str, ...]:
        return tuple(t.opening for t in reversed(self.lineage) if t.opening)

    @property
    def all_parts(self) -> dict[str, prelude.Part]:
        """Device functions by name: its own, its base's, and those of all cards."""
        chosen: dict[str, prelude.Part] = {}
        for parts in (*(t.parts for t in self.lineage), prelude.COMMON):
            chosen = {**chosen, **{name: part for name, part in parts.items() if name not in chosen}}
        return chosen

    def names(self) -> set[str]:
        """Everything that it prints by name."""
        return {n for p in (common(), *(t.printers for t in self.lineage)) for table in (p.printers, p.texts) for n in table}

    def render(self, body: str, extra: Mapping[str, str]) -> str:
        """The device functions that a text uses."""
        return prelude.render(body, extra, self.all_parts)

    def _lookup(self, table: str, name: str) -> Any:
        for printers in (*(t.printers for t in self.lineage), common()):
            entry = getattr(printers, table).get(name)
            if entry is not None:
                return entry
        return None
