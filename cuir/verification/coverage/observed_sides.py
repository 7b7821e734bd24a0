"""Sides of conditions that runs have taken, recorded by a watch of values and operands."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch

from ...checking.checked import Checked
from ...interp.expression_watches import find_watch, set_watch
from ...interp.interpreted_launch import list_loop_turns
from ...interp.machine import Evaluate, Worker
from ...ops.meaning import Value
from ...syntax.nodes import Expr, For
from ...syntax.walk import IdentityKey
from .conditions import Condition, collect_conditions

NARROWER = 0.75  # watch fewer conditions once their share falls below


class Observed:
    """The masks of the sides seen, by the number of the condition."""

    def __init__(self, checked: Checked):
        self.checked = checked
        self.conditions = collect_conditions(checked)
        self.sides = [0] * len(self.conditions)
        self.values: list[Value] = [None] * sum(len(c.reads) for c in self.conditions)  # latest values of operands
        # index of the first operand of each condition
        self.places = [0, *itertools.accumulate(len(c.reads) for c in self.conditions)]
        self.results: dict[IdentityKey, list[tuple[Condition, tuple[int, ...]]]] = {}
        self.operands: dict[IdentityKey, list[tuple[Condition, int]]] = {}
        self.key: tuple[int, ...] = ()  # numbers of the conditions that are watched
        self.earlier: dict[IdentityKey, set[int]] = {}  # numbers of turns of runs that were not compared
        self.forget()

    def forget(self) -> None:
        """Discard all sides seen, and watch everything."""
        self.sides[:] = [0] * len(self.sides)
        self._watch([c for c in self.conditions if not isinstance(c.node, For)])

    def start_comparing(self) -> None:
        """Discard the sides seen by runs whose results were not compared; keep their loop trip counts."""
        self.earlier = {key: set(counts) for key, counts in collect_trip_counts(self.checked).items()}
        for turns in list_loop_turns(self.checked):
            turns.counts.clear()
        self.forget()

    def counts(self) -> dict[IdentityKey, set[int]]:
        """Return the trip counts of each loop in all runs."""
        now = collect_trip_counts(self.checked)
        return {key: now.get(key, set()) | self.earlier.get(key, set()) for key in (*now, *self.earlier)}

    def narrow(self) -> None:
        """Watch only conditions with an unseen side from now on, if these are considerably fewer.

        Code is compiled anew for it.
        """
        open_conditions = [c for c in self.conditions if c.number in self.key and self.sides[c.number] != c.all_sides]
        if len(open_conditions) <= len(self.key) * NARROWER:
            self._watch(open_conditions)

    def _watch(self, conditions: Sequence[Condition]) -> None:
        self.results, self.operands = {}, {}
        self.key = tuple(c.number for c in conditions)
        for c in conditions:
            first = self.places[c.number]
            reads = tuple(range(first, first + len(c.reads)))
            self.results.setdefault(IdentityKey(c.node), []).append((c, reads))
            for e, place in zip(c.reads, reads):
                self.operands.setdefault(IdentityKey(e), []).append((c, place))

    # ---- called by the interpreter
    def watch(self, e: Expr, run: Evaluate) -> Evaluate:
        """Return the code of an expression, which also records the sides that it takes."""
        key = IdentityKey(e)
        for c, places in self.results.get(key, ()):
            run = self._record(c, places, run)
        for c, place in self.operands.get(key, ()):
            run = self._keep_operand(c, place, run)
        return run

    def _record(self, c: Condition, places: tuple[int, ...], run: Evaluate) -> Evaluate:
        masks, number, all_sides, sides_of, values = self.sides, c.number, c.all_sides, c.sides_of, self.values
        if not places:

            def observe(w: Worker) -> Value:
                v = run(w)
                if masks[number] != all_sides:
                    masks[number] |= sides_of(v, ())
                return v

            return observe

        def observe_operands(w: Worker) -> Value:
            v = run(w)
            if masks[number] != all_sides:
                masks[number] |= sides_of(v, [values[p] for p in places])
            return v

        return observe_operands

    def _keep_operand(self, c: Condition, place: int, run: Evaluate) -> Evaluate:
        masks, number, all_sides, values = self.sides, c.number, c.all_sides, self.values
        if not c.tile:

            def keep(w: Worker) -> Value:
                values[place] = v = run(w)
                return v

            return keep

        def keep_copy(w: Worker) -> Value:
            v = run(w)
            if masks[number] != all_sides:  # the operation may overwrite its operand
                values[place] = v.clone() if isinstance(v, torch.Tensor) else v
            return v

        return keep_copy

    # ---- called by verification
    def masks(self) -> list[int]:
        """Return the sides seen of each condition; of loops by their trip counts."""
        counts = collect_trip_counts(self.checked)
        masks = list(self.sides)
        for c in self.conditions:
            if isinstance(c.node, For):
                for n in counts.get(IdentityKey(c.node), ()):
                    masks[c.number] |= c.sides_of(n, ())
        return masks

    def mark(self, masks: list[int]) -> None:
        """Add sides that a run without the data of a problem has taken."""
        for number, mask in enumerate(masks):
            self.sides[number] |= mask


def collect_trip_counts(checked: Checked) -> dict[IdentityKey, set[int]]:
    """Return the trip counts of each loop in some run."""
    counts: dict[IdentityKey, set[int]] = {}
    for turns in list_loop_turns(checked):
        counts.setdefault(IdentityKey(turns.stmt), set()).update(turns.counts)
    return counts


def observe(checked: Checked) -> Observed:
    """Observe a kernel's runs from now on; the observation is stored with the kernel and begins anew."""
    observed = find_watch(checked)
    if not isinstance(observed, Observed):
        observed = Observed(checked)
        set_watch(checked, observed)
    observed.earlier = {}
    observed.forget()
    return observed
