"""Limits and features of each architecture, read from `features.toml` of the targets' folders.

A target is one folder of `cuir/lowering/targets`; this data is all of it that a check needs, so that it is read here,
without code of the lowering.
"""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Target:
    name: str  # the value of `arch=`
    folder: str  # of cuir/lowering/targets
    capability: tuple[int, int]
    code: tuple[str, ...]  # nvcc's outputs: machine code of these cards, and PTX (compute_...) for later ones
    features: frozenset[str]
    # feature that multiplies -> dtypes of its operands; widened: of right ones of mma_sync with halves
    operands: Mapping[str, tuple[str, ...]]
    shared_bytes: int  # a CTA's dynamic shared memory, barriers included
    register_file: int  # 32-bit registers of a multiprocessor
    threads: int  # most threads of a CTA
    cluster: int  # most CTAs of a cluster (portable)
    named_barriers: int  # hardware ids, one of which __syncthreads takes
    box_elements: int  # longest side of a bulk copy's box
    tensor_rank: int  # highest rank of a tensor map
    copy_bytes: int  # alignment of a bulk copy's rows and of a tensor's strides
    parameter_bytes: int  # of all parameters of a kernel

    def has(self, *features: str) -> bool:
        return self.features.issuperset(features)

    def find_substitute(self, *features: str) -> str | None:
        """Return what a program does on this card without the first of these features that it lacks, or None."""
        missing = next((f for f in features if f not in self.features), "")
        words = next((words for needed, words in SUBSTITUTES.get(missing, {}).items() if not needed or needed in self.features), None)
        return f"{self.name} has {words}" if words is not None else None

    def runs_on(self, capability: tuple[int, int]) -> bool:
        """Return whether a device of this compute capability runs its code."""
        return capability >= self.capability if self.portable else capability == self.capability

    @property
    def portable(self) -> bool:
        """True if later cards run its code too."""
        return any(c.startswith("compute_") for c in self.code)


def _read_tables() -> dict[Path, dict[str, Any]]:
    """Read the tables of all targets."""
    folder = Path(__file__).parent.parent / "lowering" / "targets"
    return {place: tomllib.loads(place.read_text(encoding="utf-8")) for place in sorted(folder.glob("*/features.toml"))}


def _make_target(place: Path, values: Mapping[str, Any]) -> Target:
    if unknown := set(values["features"]) - FEATURES.keys():
        raise ValueError(f"{place}: no such features: {', '.join(sorted(unknown))}")
    major, minor = values["capability"]
    features = frozenset(values["features"])
    return Target(
        values["arch"],
        place.parent.name,
        (major, minor),
        tuple(values["code"]),
        features,
        {unit: tuple(d) for unit, d in values["operands"].items()},
        **values["limits"],
    )


_TABLES = _read_tables()
# What a program does on an earlier card than the first one with a feature: words, behind a feature that they need or "".
SUBSTITUTES: dict[str, dict[str, str]] = {name: words for values in _TABLES.values() for name, words in values.get("instead", {}).items()}
# Features, each described in the table of the first architecture that has it.
FEATURES: dict[str, str] = {name: text for values in _TABLES.values() for name, text in values.get("introduces", {}).items()}
# The values of `arch=`, in the order of compute capabilities.
TARGETS = {
    t.name: t for t in sorted((_make_target(place, values) for place, values in _TABLES.items()), key=lambda t: (t.capability, t.name))
}


@functools.cache
def list_architectures(*features: str) -> tuple[str, ...]:
    """Return the architectures with all of these features."""
    return tuple(t.name for t in TARGETS.values() if t.has(*features))


REGISTER_FILE = 65536  # registers of a multiprocessor
RESERVED = 1024  # bytes of shared memory that a multiprocessor keeps for each CTA


def count_pool_registers(threads: int, ctas: int = 1) -> int:
    """Return the registers that the roles of a CTA of `threads` threads share, with so many CTAs on a multiprocessor.

    These are the registers of its launch, a multiple of 8 a thread.
    """
    return min(255, REGISTER_FILE // ctas // threads // 8 * 8) * threads


def count_resident_ctas(target: Target, threads: int, registers: int, shared_bytes: int) -> int:
    """Return how many CTAs a multiprocessor holds at a time, 1 or 2, whose roles take so many registers in all."""
    return 2 if registers <= count_pool_registers(threads, 2) and 2 * (shared_bytes + RESERVED) <= target.shared_bytes + RESERVED else 1
