"""Settled differences between a reading and a program, where the program is right for a stated reason.

A person's reason stands as it is. A reason of anybody else must name an instruction and its line in the sources, and
the compiler's reading must have it there, about the object of the settlement.
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
OPTIONAL_KEYS = ("instruction", "line")


@dataclass(frozen=True)
class Settlement:
    """Settlement of a difference.

    Attributes:
        code: Code of the difference.
        about: A name that its message has in backquotes.
        by: "person", or who else.
    """

    code: str
    about: str
    reason: str
    by: str
    instruction: str = ""
    line: str = ""

    def settles(self, difference: Diagnostic) -> bool:
        """Return whether a difference is this one."""
        return difference.code == self.code and f"`{self.about}`" in difference.message


def read_settled(path: Path, reading: Reading) -> tuple[Settlement, ...]:
    """Read the settlements of a file, each an entry `[[settled]]`.

    Raises CuirError O125: an entry is malformed, or its evidence is not in the PTX.
    """
    try:
        entries = tomllib.loads(path.read_text(encoding="utf-8")).get("settled", [])
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise CuirError.of("O125", f"`{path}` must hold settlements: {error}", hint="[[settled]] with code, about, reason, by") from None
    result = []
    for number, entry in enumerate(entries if isinstance(entries, list) else [], 1):
        fields = entry if isinstance(entry, dict) else {}
        wrong = [k for k in KEYS if not isinstance(fields.get(k), str) or not fields[k].strip()] + [
            k for k in fields if k not in (*KEYS, *OPTIONAL_KEYS)
        ]
        if wrong:
            raise CuirError.of(
                "O125",
                f"`{path}`, settlement {number}: it must have {', '.join(KEYS)} as texts, and may have {', '.join(OPTIONAL_KEYS)}; wrong: {', '.join(wrong)}",
            )
        settlement = Settlement(**{k: str(v) for k, v in fields.items()})
        if settlement.code not in CODES:
            raise CuirError.of(
                "O125",
                f"`{path}`, settlement {number}: code must be one of a difference, {CODES[0]} to {CODES[-1]}, found {settlement.code}",
            )
        if settlement.by != "person":
            _check(settlement, reading, f"`{path}`, settlement {number}")
        result.append(settlement)
    return tuple(result)


def _check(settlement: Settlement, reading: Reading, location: str) -> None:
    """Check that the instruction of a reason stands where it says, as the compiler has it.

    Raises CuirError O125.
    """
    if reading.by != "compiler":
        raise CuirError.of(
            "O125",
            f"{location}: a reason by {settlement.by} is checked against the PTX, and the source was read from its text alone",
            hint='--read compiler, or by = "person"',
        )
    objects = {o.lower() for c in reading.calls for o in c.objects}
    objects_at: dict[str, set[str]] = {}
    for c in (c for c in reading.calls if settlement.instruction and c.name.startswith(settlement.instruction)):
        for source, line in reading.calling(c.at):
            objects_at.setdefault(f"{source.name}:{line}", set()).update(o.lower() for o in c.objects)
    if settlement.line not in objects_at:
        places = f"it stands at {', '.join(sorted(objects_at)[:6])}" if objects_at else "the kernel has none"
        raise CuirError.of(
            "O125",
            f"{location}: a reason by {settlement.by} must name an instruction and its line; `{settlement.instruction}` is not at {settlement.line or 'no line'}: {places}",
        )
    if settlement.about.lower() in objects and settlement.about.lower() not in objects_at[settlement.line]:
        names = ", ".join(sorted(objects_at[settlement.line])) or "no barrier or array"
        raise CuirError.of(
            "O125",
            f"{location}: a reason by {settlement.by} must rest on an instruction that `{settlement.about}` has; `{settlement.instruction}` at {settlement.line} is about {names}",
        )


def describe_settlements(settlements: Sequence[Settlement]) -> str:
    """Describe settlements for a model before it writes: there the program may differ from the list."""
    if not settlements:
        return ""
    entries = "\n".join(f"* {s.about} ({s.code}): {s.reason}" for s in settlements)
    return f"In these your program may differ from the list, each for the reason that a person or a check has settled:\n\n{entries}\n\n"


def without_effect(settlements: Sequence[Settlement], applied: Sequence[dict[str, str]]) -> list[str]:
    """Return the settlements that no difference was settled by.

    Then a name or a code is wrong, or the program does not differ there.
    """
    used = {(a["code"], a["about"]) for a in applied}
    return [f"{s.code} `{s.about}`" for s in settlements if (s.code, s.about) not in used]


def split_settled(
    differences: Iterable[Diagnostic], settlements: Sequence[Settlement]
) -> tuple[tuple[Diagnostic, ...], list[dict[str, str]]]:
    """Split differences into those that remain, and those that are settled, each with its reason."""
    remaining, applied = [], []
    for difference in differences:
        reason = next((s for s in settlements if s.settles(difference)), None)
        if reason is None:
            remaining.append(difference)
        else:
            applied.append(
                {
                    "code": difference.code,
                    "about": reason.about,
                    "message": difference.message,
                    "reason": reason.reason,
                    "by": reason.by,
                    "line": reason.line,
                }
            )
    return tuple(remaining), applied
