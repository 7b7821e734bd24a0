"""What passes ask of a primitive instead of its name: traits, as data of its entry. Owns the questions; the answers stand in the entries.

Arguments are named, never positions. A trait says nothing of memory and barriers: that is `Effects`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class Traits:
    """What holds of a primitive. All left out: a statement, or a value of which nothing is known."""

    pure: bool = False  # no effect, and the result depends on the operands alone: nothing is read from memory
    elementwise: bool = False  # each element of the result depends on the same element of the operands alone; they broadcast
    commutative: bool = False  # the first two operands may change places
    cost: int = 1  # instructions for an element, about
    special: bool = False  # takes the unit of exponentials and reciprocals
    one_lane: bool = False  # one lane can do it for its whole worker
    joins_worker: bool = False  # all lanes of the worker meet there
    # ---- what it makes
    declares: bool = False  # stands before the roles and gives a name to what lasts as long as the launch
    makes: Literal["array", "barrier", "units", "workers"] | None = None  # what a declaration makes; workers: it opens a role
    hardware: bool = False  # of a barrier or its methods: one of the hardware's, not in shared memory; it counts no bytes
    index_of: Literal["row", "column"] | None = None  # the numbers of rows or columns, from 0
    rank: bool = False  # the CTA's number within its cluster
    reduction: Literal["max", "sum"] | None = None  # of each row
    product: bool = False  # of matrices, on the tensor core
    # ---- operands
    alike: tuple[str, ...] = ()  # arguments of one dtype: a literal among them takes the others' (a variadic one: all of it)
    takes: tuple[str, str] | None = None  # a literal as the first takes the dtype that the second is or has
    converts: str | None = None  # the argument with the dtype of the result
    lazy: tuple[str, ...] = ()  # evaluated only if the first operand asks for it
    chooses: str | None = None  # the condition by which the result is one of the others
    # ---- algebra
    decided_by: bool | None = None  # of bools: an operand of this value is the result, whatever the other one is
    complements: bool = False  # the opposite of a bool; of an i32 all its bits
    involutive: bool = False  # done twice, with the same other operand, it gives the first one again
    compares: tuple[int, ...] = ()  # a comparison: for which signs of x - y it holds (all but != are false of a NaN)
    linear: tuple[int, ...] = ()  # the result is the sum of the operands times these
    factors: tuple[str, ...] = ()  # a factor of one of these operands is a factor of the result
    divisor: str | None = None  # the operand that divides
    rounds: Literal["down", "up"] | None = None  # a quotient of integers
    remainder: bool = False  # of a quotient that is rounded down
    extremum: Literal["min", "max"] | None = None  # one of the operands
    magnitude: bool = False  # the greater one of the operand and its negative
    slip: str = ""  # the operation that is easily written instead, as faulty programs have it


def arithmetic(*alike: str, **more: Any) -> Traits:
    """The traits of an operation on numbers, element by element. alike: its arguments of one dtype."""
    return Traits(pure=True, elementwise=True, one_lane=True, alike=alike, **more)


__all__ = ["Traits", "arithmetic"]
