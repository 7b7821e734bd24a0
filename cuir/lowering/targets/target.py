"""Targets of the lowering: features, printers and device functions of GPU architectures."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ...ops.limits import Target as Limits
from ..cuda import prelude
from ..cuda.registry import Print, Printers, load_common
from ..select.ways import Ways


@dataclass(frozen=True)
class Target:
    """A GPU architecture: features, printers, device functions.

    Entries that a target lacks are looked up in its base, and last in those common to all targets.
    """

    limits: Limits
    printers: Printers
    parts: Mapping[str, prelude.Part] = field(default_factory=dict)
    headers: str = ""
    opening: str = ""  # follows the headers
    phrases: Mapping[str, str] = field(default_factory=dict)  # statements of the frame as format strings
    base: Target | None = None
    ways: Ways = field(default_factory=Ways)  # of operations, tried before those of the base
    replacements: Mapping[str, prelude.Part] = field(default_factory=dict)  # of functions that no GPU based on it needs

    def printer(self, name: str) -> Print | None:
        """Return the printer of a primitive, or None."""
        return self._lookup("printers", name)

    def text(self, name: str) -> Callable[..., str] | None:
        """Return the function that formats a numeric operation as C++ text, or None."""
        return self._lookup("texts", name)

    def element(self, name: str) -> Callable[..., str] | None:
        """Return the function that formats one element of a machine operation as C++ text, or None."""
        return self._lookup("elements", name)

    def code(self, step: str, way: str) -> Callable[..., None]:
        """Return the function that emits an operation in the way that was selected.

        Raises: LookupError if there is none.
        """
        function: Callable[..., None] | None = self._lookup("codes", f"{step}: {way}")
        if function is None:
            raise LookupError(f"{self.limits.name} has no code for the way `{way}` to {step}")
        return function

    def format_phrase(self, phrase: str, *arguments: object) -> str:
        """Return a statement of the frame; a target without it is an internal error."""
        return next(t.phrases[phrase] for t in self.lineage if phrase in t.phrases).format(*arguments)

    @property
    def lineage(self) -> tuple[Target, ...]:
        """The target, its base, and so on."""
        return (self, *(self.base.lineage if self.base is not None else ()))

    @property
    def all_headers(self) -> str:
        """Headers of the file, those of the base first."""
        return "\n".join([prelude.HEADERS, *(t.headers for t in reversed(self.lineage) if t.headers)])

    @property
    def all_openings(self) -> tuple[str, ...]:
        """Declarations behind the headers, those of the base first."""
        return tuple(t.opening for t in reversed(self.lineage) if t.opening)

    @property
    def all_parts(self) -> dict[str, prelude.Part]:
        """Device functions by name, of the target, its base, and all targets."""
        chosen: dict[str, prelude.Part] = {}
        for parts in (*(t.parts for t in self.lineage), prelude.COMMON):
            chosen = {**chosen, **{name: part for name, part in parts.items() if name not in chosen}}
        return {name: self.replacements.get(name, part) for name, part in chosen.items()}

    def names(self) -> set[str]:
        """Return the names of all primitives that the target prints."""
        return {n for p in (load_common(), *(t.printers for t in self.lineage)) for table in (p.printers, p.texts) for n in table}

    def render(self, body: str, extra: Mapping[str, str]) -> str:
        """Return the device functions that a text uses."""
        return prelude.render(body, extra, self.all_parts)

    def _lookup(self, table: str, name: str) -> Any:
        for printers in (*(t.printers for t in self.lineage), load_common()):
            entry = getattr(printers, table).get(name)
            if entry is not None:
                return entry
        return None
