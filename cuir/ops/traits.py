"""Traits of primitives, as data of their entries, which passes use instead of names.

Arguments are named, never positions. Memory and barriers are in `Effects`, from which `memory_effect` and
`speculatable` of an entry follow: these say which operations may be moved, dropped or repeated.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, Literal

Signs = tuple[int, ...]

LESS, AT_MOST, EQUAL, UNEQUAL = (-1,), (-1, 0), (0,), (-1, 1)  # the signs of x - y for which a comparison holds
BELOW = (LESS, AT_MOST)
SUM, DIFFERENCE, NEGATIVE = (1, 1), (1, -1), (-1,)  # factors of the operands of a linear operation


@dataclass(frozen=True)
class Traits:
    """Properties of a primitive; by default a statement, or a value of which nothing is known."""

    elementwise: bool = False  # each element of the result depends on that of the operands alone; they broadcast
    commutative: bool = False  # the first two operands may be exchanged
    cost: int = 1  # instructions for an element, about
    special: bool = False  # takes the unit of exponentials and reciprocals
    one_lane: bool = False  # one lane can do it for its whole worker
    joins_worker: bool = False  # all lanes of the worker meet there
    # ---- results and declarations
    declares: bool = False  # stands before the roles and names an object of the launch's lifetime
    makes: Literal["array", "barrier", "units", "workers"] | None = None  # of a declaration; workers: opens a role
    hardware: bool = False  # of a barrier or its methods: a hardware barrier, not in shared memory; it counts no bytes
    index_of: Literal["row", "column"] | None = None  # the numbers of rows or columns, from 0
    rank: bool = False  # the CTA's number within its cluster
    constant: int | None = None  # a tile of this number
    repeats: str | None = None  # a tile of this operand
    measures: bool = False  # the bytes of an array or view, known from its type
    place: bool = False  # a view of memory: nothing is read
    indexed: bool = False  # reads elements at separate indices
    reduction: Literal["max", "sum"] | None = None  # of each row
    column_reduction: Literal["max", "sum"] | None = None  # of each column; all lanes of the worker meet there
    interleaves: bool = False  # orders the columns of each 16 as lanes hold them; of memory: those of the transpose
    votes: bool = False  # of a bool tile: true in all rows that a warp holds if it is in one
    product: bool = False  # of matrices, on the tensor core; `multiplies` is that of numbers
    # ---- operands
    alike: tuple[str, ...] = ()  # arguments of one dtype, which a literal among them takes (a variadic one: all of it)
    takes: tuple[str, str] | None = None  # a literal as the first argument takes the dtype of the second
    converts: str | None = None  # the argument with the dtype of the result
    lazy: tuple[str, ...] = ()  # evaluated only if the first operand requires it
    chooses: str | None = None  # the condition by which the result is one of the others
    # ---- algebra
    decided_by: bool | None = None  # of bools: an operand of this value is the result, whatever the other one is
    complements: bool = False  # the opposite of a bool; of an i32 all its bits
    involutive: bool = False  # applied twice, with the same second operand, it returns the first one
    compares: Signs = ()  # a comparison: the signs of x - y for which it holds (all but != are false of a NaN)
    linear: tuple[int, ...] = ()  # the result is the sum of the operands times these
    multiplies: bool = False  # the result is the product of the operands
    factors: tuple[str, ...] = ()  # a factor of one of these operands is a factor of the result
    divisor: str | None = None  # the operand that divides
    rounds: Literal["down", "up"] | None = None  # a quotient of integers
    remainder: bool = False  # of a quotient that is rounded down
    extremum: Literal["min", "max"] | None = None  # one of the operands
    magnitude: bool = False  # the greater one of the operand and its negative
    exponential: int | None = None  # the result is this number to the power of the operand
    logarithm: int | None = None  # the result is the power of this number that the operand is
    root: int | None = None  # the operand is this power of the result
    quarters: int | None = None  # the result is the sine of the operand plus this many quarters of a turn
    logistic: float | None = None  # the result is 2 / (1 + 2 ** (-this * x)) - 1, between -1 and 1
    jumps: bool = False  # a step function: a rounding of an operand may change the result by a whole step
    tests_bit: bool = False  # tests the bit of the first operand whose number is the second
    slip: str = ""  # the operation that is easily written instead, as in faulty programs

    @property
    def divides_integers(self) -> bool:
        """True for a quotient or a remainder of integers: a divisor of 0 is an error."""
        return self.rounds is not None or self.remainder

    @property
    def divides_floats(self) -> bool:
        return self.divisor is not None and not self.divides_integers


@functools.cache
def exchange_operands(signs: Signs) -> Signs:
    """Return the signs for which a comparison with exchanged operands holds."""
    return tuple(-s for s in reversed(signs))


def invert_comparison(signs: Signs) -> Signs:
    """Return the signs for which a comparison does not hold."""
    return tuple(s for s in (-1, 0, 1) if s not in signs)


def arithmetic(*alike: str, **more: Any) -> Traits:
    """Make the traits of an elementwise operation on numbers.

    alike: its arguments of one dtype.
    """
    return Traits(elementwise=True, one_lane=True, alike=alike, **more)


__all__ = [
    "AT_MOST",
    "BELOW",
    "DIFFERENCE",
    "EQUAL",
    "LESS",
    "NEGATIVE",
    "SUM",
    "UNEQUAL",
    "Signs",
    "Traits",
    "arithmetic",
    "exchange_operands",
    "invert_comparison",
]
