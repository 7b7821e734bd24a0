"""Reading of expert CUDA, from text or PTX: low-level calls with their threads, shared arrays, places."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from cuir.text.source import Source, Span


@dataclass(frozen=True)
class LowCall:
    """Low-level call as it is reached in the kernel.

    Attributes:
        threads: Bit mask of the threads of the CTA that reach it.
        objects: Names of arrays and barriers that it concerns.
        number: A count, or a wait's number.
        ids: Ids of a named barrier, or of the CTA that is arrived at, each with its threads.
        via: Macros and functions that it lies in.
        trips: Trip count of the loops around it; None if unknown.
        written: The number as written in the source.
    """

    kind: str
    name: str
    text: str
    at: int
    threads: int
    objects: tuple[str, ...]
    number: int | None
    ids: tuple[tuple[int, int], ...]  # (id, threads that name it)
    arguments: tuple[str, ...]
    via: tuple[str, ...]
    in_loop: bool
    trips: int | None
    written: str = ""


@dataclass(frozen=True)
class Array:
    """Shared array or barrier: the element type's name, dims as numbers (None: unknown)."""

    name: str
    type: str
    dims: tuple[int | None, ...]
    at: int


@dataclass
class Reading:
    """Kernel of expert CUDA as it was read; `by` is "text" or "compiler"."""

    source: Source
    kernel: str
    threads: int
    calls: list[LowCall]
    arrays: dict[str, Array]

    by: ClassVar[str]

    @property
    def constants(self) -> Mapping[str, int]:
        """Named whole numbers of the source, where they are known."""
        return {}

    @property
    def sources(self) -> tuple[Source, ...]:
        """Sources that calls lie in, the main one first."""
        raise NotImplementedError

    def with_code(self, source: Source) -> frozenset[int] | None:
        """Return the lines of a source that the kernel has code of; None if unknown."""
        return None

    @property
    def more(self) -> tuple[tuple[str, Span], ...]:
        """Findings beyond roles, barriers, arrays and groups, each with its place."""
        return ()

    @property
    def unknown(self) -> tuple[str, ...]:
        """Facts that could not be established, in words; they are not compared."""
        return ()

    @property
    def uncertain(self) -> frozenset[str]:
        """Kinds of calls of which some concern facts that could not be established."""
        return frozenset()

    def place(self, at: int) -> tuple[Source, int]:
        """Return the source and line of a call's `at`."""
        raise NotImplementedError

    def calling(self, at: int) -> list[tuple[Source, int]]:
        """Return the source lines of a call's `at`: with inlining, the lines in the user's sources."""
        return [self.place(at)]

    def span(self, at: int) -> Span:
        """Return the line of a call's `at`, and the calls that it was inlined through."""
        raise NotImplementedError
