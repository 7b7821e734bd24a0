"""Ways to do a step, the choice among them, and its record on an operation of the IR."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from xdsl.dialects.builtin import ArrayAttr, StringAttr
from xdsl.ir import Operation

CHOSEN, BECAUSE, REJECTED = "selected", "because", "rejected"  # attributes of an operation
# before these names: how a choice between two elements is computed, in whatever loop it stands; what a barrier orders;
# where the elements of a tile are; how a number is computed
CHOICE, SCOPE, VALUE, NUMBER = "choice_", "scope_", "value_", "number_"
PARTS = ("", CHOICE, SCOPE, VALUE, NUMBER)
IN_READER, IN_REGISTERS = "in its reader", "in registers"  # ways of a tile's value


class Verdict(NamedTuple):
    """Verdict on whether a way fits an operation, with the property that decides it.

    `code` and `hint` are those of the error if no other way fits.
    """

    fits: bool
    because: str
    code: str = "L002"
    hint: str = ""


def fits(because: str) -> Verdict:
    """Return the verdict of a way that fits."""
    return Verdict(True, because)


def misfits(because: str, code: str = "L002", hint: str = "") -> Verdict:
    """Return the verdict of a way that does not fit, although it does the same for similar operations."""
    return Verdict(False, because, code, hint)


class NoWay(LookupError):
    """No way fits: the verdict on the last one, the most general, says why."""

    def __init__(self, rejected: Sequence[str], verdict: Verdict | None) -> None:
        super().__init__(f"no way fits: {'; '.join(rejected)}")
        self.verdict = verdict


Decide = Callable[..., Verdict | None]  # of a step's subject; None: the way is for operations of another kind


class Ways:
    """Ways by the name of their step, each in the order in which they are tried."""

    def __init__(self) -> None:
        self.steps: dict[str, dict[str, Decide]] = {}

    def way(self, step: str, name: str) -> Callable[[Decide], Decide]:
        """Register the function that follows as the decision about a way.

        Raises: ValueError for a second way of that name.
        """

        def register(decide: Decide) -> Decide:
            ways = self.steps.setdefault(step, {})
            if name in ways:
                raise ValueError(f"two ways to {step} are called {name}")
            ways[name] = decide
            return decide

        return register

    @classmethod
    def join(cls, *families: Ways) -> Ways:
        """Return the ways of several families, those of the first one first."""
        result = cls()
        for family in families:
            for step, ways in family.steps.items():
                for name, decide in ways.items():
                    result.way(step, name)(decide)
        return result

    def list_ways(self, step: str) -> list[tuple[str, Decide]]:
        """Return the ways of a step, by name."""
        return list(self.steps.get(step, {}).items())


@dataclass(frozen=True)
class Selection:
    """The way that was chosen for an operation, the property that decides it, and the ways that do not fit, with theirs."""

    way: str
    because: str
    rejected: tuple[str, ...] = ()

    def record(self, op: Operation, part: str = "") -> None:
        """Record the choice on an operation, in place of an earlier one of this part of its work."""
        forget_selection(op, part)
        op.attributes[part + CHOSEN] = _make_text(self.way)
        op.attributes[part + BECAUSE] = _make_text(self.because)
        if self.rejected:
            op.attributes[part + REJECTED] = ArrayAttr([_make_text(text) for text in self.rejected])


@functools.lru_cache(1024)
def _make_text(text: str) -> StringAttr:
    """Return an attribute, the same for equal texts: hundreds of operations have the same reason."""
    return StringAttr(text)


def forget_selection(op: Operation, part: str = "") -> None:
    """Remove the record of a choice."""
    for name in (CHOSEN, BECAUSE, REJECTED):
        op.attributes.pop(part + name, None)


def choose(ways: Sequence[tuple[str, Decide]], *subject: object) -> Selection:
    """Return the first way that fits.

    Raises: NoWay if none does.
    """
    rejected, last = list[str](), None
    for name, decide in ways:
        verdict = decide(*subject)
        if verdict is None:
            continue
        if verdict.fits:
            return Selection(name, verdict.because, tuple(rejected))
        last = verdict
        rejected.append(f"{name}: {verdict.because}")
    raise NoWay(rejected, last)


def find_selection(op: Operation, part: str = "") -> Selection | None:
    """Return the choice that is recorded on an operation, or None."""
    way, because, rejected = (op.attributes.get(part + name) for name in (CHOSEN, BECAUSE, REJECTED))
    if not isinstance(way, StringAttr) or not isinstance(because, StringAttr):
        return None
    texts = tuple(t.data for t in rejected.data if isinstance(t, StringAttr)) if isinstance(rejected, ArrayAttr) else ()
    return Selection(way.data, because.data, texts)


def is_selected(op: Operation, way: str, part: str = "") -> bool:
    """Return whether a way was chosen for an operation."""
    chosen = op.attributes.get(part + CHOSEN)
    return isinstance(chosen, StringAttr) and chosen.data == way


def because_of(op: Operation) -> str:
    """Return the reason for the way that was chosen for an operation.

    Raises: LookupError if none was.
    """
    selection = find_selection(op)
    if selection is None:
        raise LookupError(f"no way is selected for {op.name}")
    return selection.because


def way_of(op: Operation) -> str:
    """Return the name of the way that was chosen for an operation.

    Raises: LookupError if none was: the IR has not been through `select_instructions`.
    """
    way = op.attributes.get(CHOSEN)
    if not isinstance(way, StringAttr):
        raise LookupError(f"no way is selected for {op.name}")
    return way.data
