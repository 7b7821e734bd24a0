"""Pairs of accesses to the same bytes: which conflict, and which rule a conflicting pair breaks.

A rule is a function with `race_rule` in a file of race_rules/. A machine asks `find_races` for an access and the
earlier ones that it meets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeVar

from ..text.source import Span
from .orders import E, E_co, Order

Note = tuple[str, Span | None]


class Finding(NamedTuple):
    """A broken rule, as it is reported.

    hint, notes: for a machine that has nothing more to say about the cause.
    """

    code: str
    message: str
    span: Span
    hint: str
    notes: tuple[Note, ...] = ()


class Access(Protocol[E_co]):
    """An access of a worker, or of an engine that acts for it.

    Attributes:
        mode: "read", "write" or "add".
        proxy: One of PROXIES.
        completion: The event at which it is over; None while an engine has it in flight.
        memory: "shared" or "tensor".
        label: Who makes it: the worker or the engine.
        owner: The worker.
        description: What makes it; empty if `label` tells.
        text: Spelling of what is accessed; may be empty.
        awaited: The wait after which an engine's access is over; empty for a worker's.
        seen: True if a run made the access, False if some schedule can make it.
    """

    @property
    def mode(self) -> str: ...
    @property
    def proxy(self) -> str: ...
    @property
    def completion(self) -> E_co | None: ...
    @property
    def memory(self) -> str: ...
    @property
    def worker(self) -> int: ...
    @property
    def label(self) -> str: ...
    @property
    def owner(self) -> str: ...
    @property
    def description(self) -> str: ...
    @property
    def text(self) -> str: ...
    @property
    def span(self) -> Span: ...
    @property
    def awaited(self) -> str: ...
    @property
    def seen(self) -> bool: ...


Rule = Callable[[Access[E], Access[E], Order[E]], Finding | None]
A = TypeVar("A", bound=Access)


@dataclass(frozen=True)
class RuleBook:
    """The rules of conflicting pairs, by what they judge."""

    unordered: list[Rule]
    ordered: dict[str, dict[str, list[Rule]]]  # by the proxies of the later and the earlier access


QUEUE = "tensor_core"  # the proxy of an engine that performs all accesses of a worker in the order of their issue
PROXIES = ("generic", "async", QUEUE)
RULES = RuleBook([], {new: {old: [] for old in PROXIES} for new in PROXIES})


def race_rule(*, ordered: bool, later: Sequence[str] = PROXIES, earlier: Sequence[str] = PROXIES) -> Callable[[Rule], Rule]:
    """Register a rule for conflicting pairs of accesses.

    Args:
        ordered: whether it judges pairs in happens-before order, or pairs without.
        later: of pairs in order, the proxies of the later access that it judges.
        earlier: those of the earlier one.
    """

    def register(rule: Rule) -> Rule:
        for rules in [RULES.ordered[new][old] for new in later for old in earlier] if ordered else [RULES.unordered]:
            rules.append(rule)
        return rule

    return register


def commutes(mode: str, other: str) -> bool:
    """Return True if two accesses to the same bytes need no order: two reads, or two additions."""
    return mode == other and mode != "write"


def is_in_queue(new: A, old: A) -> bool:
    """Return True if one engine performs two accesses in the order of their issue."""
    return new.proxy == QUEUE and old.proxy == QUEUE and new.worker == old.worker


def get_rules(new: A, old: A, ordered: bool) -> list[Rule]:
    """Return the rules for a conflicting pair; ordered: whether the old access happened before the new one."""
    return RULES.ordered[new.proxy][old.proxy] if ordered else RULES.unordered


def judge_pair(new: A, old: A, order: Order, ordered: bool) -> Finding | None:
    """Return what a conflicting pair breaks, if anything; ordered: whether the old access happened before the new one."""
    for rule in get_rules(new, old, ordered):
        finding = rule(new, old, order)
        if finding is not None:
            return finding
    return None


def find_races(new: A, earlier: Iterable[A], order: Order, unorderable: Callable[[A], bool] | None = None) -> Iterator[tuple[A, Finding]]:
    """Yield each earlier access with which a new one breaks a rule, and the finding.

    Args:
        new: the later access.
        earlier: accesses to some of the same bytes.
        order: what the new access's worker knew when it made or issued it.
        unorderable: tells whether barriers order nothing between the new access and an earlier one.
    """
    commuting = new.mode if new.mode != "write" else ""
    rules_in_order = RULES.ordered[new.proxy]
    for old in earlier:
        if old.mode == commuting or is_in_queue(new, old):
            continue
        completion = old.completion
        if completion is None or not order.is_before(completion) or (unorderable is not None and unorderable(old)):
            rules = RULES.unordered
        else:
            rules = rules_in_order[old.proxy]
        for rule in rules:
            finding = rule(new, old, order)
            if finding is not None:
                yield old, finding
                break


def drop_replaced_reads(records: Iterable[A], new: A, order: Order) -> list[A]:
    """Return the records without reads of the same bytes that a new one by the same worker stands for."""
    worker = new.worker
    return [r for r in records if r.mode != "read" or r.worker != worker or r.completion is None or not order.is_before(r.completion)]


def describe_access(access: Access[E]) -> str:
    """Return what an access does to what, and whose it is."""
    target = f" of `{access.text}`" if access.text else ""
    return f"the {access.mode}{target} by {access.label}"
