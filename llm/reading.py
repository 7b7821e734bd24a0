"""What a reading of expert CUDA comes to, whoever read: low-level calls with the threads that reach them, arrays in shared memory, places in the sources."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from cuir.text.source import Source, Span


@dataclass(frozen=True)
class LowCall:
    """A low-level call as it is reached in the kernel. threads: a bit for each thread of the CTA. objects: names of arrays and barriers that it is about.

    number: a count, a wait's number; ids: of a named barrier, or of the CTA that is arrived at. via: macros and functions it lies in.
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
    trips: int | None  # of the loops around it; None if they do not follow
    written: str = ""  # the number as it stands there


@dataclass(frozen=True)
class Array:
    """A shared array or barrier: the element type's name, dims as numbers (None: unknown)."""

    name: str
    type: str
    dims: tuple[int | None, ...]
    at: int


@dataclass
class Reading:
    """by: who read, the text or the compiler."""

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
        """The sources that calls lie in, the given one first."""
        raise NotImplementedError

    def with_code(self, source: Source) -> frozenset[int] | None:
        """The lines of a source that the kernel has code of; None if that is not known."""
        return None

    @property
    def more(self) -> tuple[tuple[str, Span], ...]:
        """What was found beyond roles, barriers, arrays and groups, with its place."""
        return ()

    @property
    def unknown(self) -> tuple[str, ...]:
        """What could not be found out, in words: it is not compared."""
        return ()

    @property
    def uncertain(self) -> frozenset[str]:
        """Kinds of calls of which some are about what could not be found out."""
        return frozenset()

    def place(self, at: int) -> tuple[Source, int]:
        """The source and line of a call's `at`."""
        raise NotImplementedError

    def calling(self, at: int) -> list[tuple[Source, int]]:
        """That line, and those in the user's own sources that it was inlined through."""
        return [self.place(at)]

    def span(self, at: int) -> Span:
        """The line of a call's `at`, and the calls that it was inlined through."""
        raise NotImplementedError
