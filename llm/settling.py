"""Differences between a reading and a program that somebody has settled: the program is right there, for a reason. Owns the file of such settlements and their check.

A person's reason stands as it is. A reason of anybody else must name an instruction and its line in the sources, and the compiler's reading must have it there,
about what the settlement is about.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from cuir.text.diagnostics import CuirError, Diagnostic

from .reading import Reading

CODES = tuple(f"O{n}" for n in range(101, 111))  # of what a comparison says; the architecture (O111) is no matter of a reading
KEYS = ("code", "about", "reason", "by")
FURTHER = ("instruction", "line")


@dataclass(frozen=True)
class Settled:
    """code: of the difference; about: a name that its message has in backquotes; by: person, or who else."""

    code: str
    about: str
    reason: str
    by: str
    instruction: str = ""
    line: str = ""

    def settles(self, difference: Diagnostic) -> bool:
        return difference.code == self.code and f"`{self.about}`" in difference.message


def read_settled(path: Path, reading: Reading) -> tuple[Settled, ...]:
    """The settlements of a file, each an entry `[[settled]]`. Raises CuirError O125: an entry is malformed, or its evidence is not in the PTX."""
    try:
        entries = tomllib.loads(path.read_text(encoding="utf-8")).get("settled", [])
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise CuirError.of("O125", f"`{path}` must hold settlements: {error}", hint="[[settled]] with code, about, reason, by") from None
    result = []
    for number, entry in enumerate(entries if isinstance(entries, list) else [], 1):
        said = entry if isinstance(entry, dict) else {}
        wrong = [k for k in KEYS if not isinstance(said.get(k), str) or not said[k].strip()] + [
            k for k in said if k not in (*KEYS, *FURTHER)
        ]
        if wrong:
            raise CuirError.of(
                "O125",
                f"`{path}`, settlement {number}: it must have {', '.join(KEYS)} as texts, and may have {', '.join(FURTHER)}; wrong: {', '.join(wrong)}",
            )
        settled = Settled(**{k: str(v) for k, v in said.items()})
        if settled.code not in CODES:
            raise CuirError.of(
                "O125", f"`{path}`, settlement {number}: code must be one of a difference, {CODES[0]} to {CODES[-1]}, found {settled.code}"
            )
        if settled.by != "person":
            _check(settled, reading, f"`{path}`, settlement {number}")
        result.append(settled)
    return tuple(result)


def _check(settled: Settled, reading: Reading, where: str) -> None:
    """Whether the instruction that a reason rests on stands where it says, as the compiler has it."""
    if reading.by != "compiler":
        raise CuirError.of("O125", f"{where}: a reason by {settled.by} is checked against the PTX, and the source was read from its text alone", hint="--read compiler, or by = \"person\"")  # fmt: skip
    known = {o.lower() for c in reading.calls for o in c.objects}
    there: dict[str, set[str]] = {}
    for c in (c for c in reading.calls if settled.instruction and c.name.startswith(settled.instruction)):
        for source, line in reading.calling(c.at):
            there.setdefault(f"{source.name}:{line}", set()).update(o.lower() for o in c.objects)
    if settled.line not in there:
        found = f"it stands at {', '.join(sorted(there)[:6])}" if there else "the kernel has none"
        raise CuirError.of("O125", f"{where}: a reason by {settled.by} must name an instruction and its line; `{settled.instruction}` is not at {settled.line or 'no line'}: {found}")  # fmt: skip
    if settled.about.lower() in known and settled.about.lower() not in there[settled.line]:
        others = ", ".join(sorted(there[settled.line])) or "no barrier or array"
        raise CuirError.of("O125", f"{where}: a reason by {settled.by} must rest on an instruction that `{settled.about}` has; `{settled.instruction}` at {settled.line} is about {others}")  # fmt: skip


def told(settled: Sequence[Settled]) -> str:
    """What a model is told of settlements before it writes: in these the program may differ from the list."""
    if not settled:
        return ""
    entries = "\n".join(f"* {s.about} ({s.code}): {s.reason}" for s in settled)
    return f"In these your program may differ from the list, each for the reason that a person or a check has settled:\n\n{entries}\n\n"


def without_effect(settled: Sequence[Settled], away: Sequence[dict[str, str]]) -> list[str]:
    """The settlements that no difference was taken away by: a name or a code is wrong, or the program does not differ there."""
    used = {(a["code"], a["about"]) for a in away}
    return [f"{s.code} `{s.about}`" for s in settled if (s.code, s.about) not in used]


def unsettled(differences: Iterable[Diagnostic], settled: Sequence[Settled]) -> tuple[tuple[Diagnostic, ...], list[dict[str, str]]]:
    """The differences that remain, and those that are settled, each with its reason."""
    left, away = [], []
    for difference in differences:
        reason = next((s for s in settled if s.settles(difference)), None)
        if reason is None:
            left.append(difference)
        else:
            away.append(
                {
                    "code": difference.code,
                    "about": reason.about,
                    "message": difference.message,
                    "reason": reason.reason,
                    "by": reason.by,
                    "line": reason.line,
                }
            )
    return tuple(left), away
