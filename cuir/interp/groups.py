"""Groups of late accesses of a worker: tensor-core products, cp.async copies, bulk stores. Owns the order in which they are retired."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..text.source import Span, spoken
from .agents import Action, Product, Taken
from .faults import fault
from .state import State

if TYPE_CHECKING:
    from .machine import Machine, Worker


class Groups(State):
    """What a worker issued and did not wait for yet."""

    def __init__(self) -> None:
        self.products: list[Product] = []  # in the order of issue
        self.operands: dict[str, Product] = {}  # names of register operands that the tensor core still reads
        self.open: list[Action] = []  # cp.async copies since the last commit
        self.closed: list[list[Action]] = []
        self.stores: list[Action] = []

    # ---- products
    def retire_products(self, m: Machine, w: Worker, last: Product) -> None:
        """Retires `last` and all products before it."""
        if last.over:
            return
        n = self.products.index(last) + 1
        event = w.event()
        for p in self.products[:n]:
            p.retire(m, event)
            p.over = True
            w.time = max(w.time, p.time)
            for name in p.names:
                if self.operands.get(name) is p:
                    del self.operands[name]
        del self.products[:n]

    def take_over(self, w: Worker, value: object, by: Product) -> None:
        """The registers of `value` belong to `by` from now on: names that hold it hold nothing that may be read."""
        if isinstance(value, Product):
            value.taken = by
            return
        for name, held in w.frame.items():
            if held is value:
                w.frame[name] = Taken(by)

    # ---- cp.async
    def commit(self) -> None:
        self.closed.append(self.open)
        self.open = []

    def drain_copies(self, m: Machine, w: Worker, keep: int) -> None:
        """Retires all closed groups but the last `keep`."""
        while len(self.closed) > keep:
            for action in self.closed.pop(0):
                action.retire(m, w.event())
                w.time = max(w.time, action.time)

    # ---- bulk stores
    def drain_stores(self, m: Machine, w: Worker) -> None:
        for action in self.stores:
            action.retire(m, w.event())
            w.time = max(w.time, action.time)
        self.stores.clear()

    def finish(self, m: Machine, w: Worker) -> None:
        """The worker is at its end: the kernel's end waits for its bulk stores and for nothing else. Raises CuirError M403, M404."""
        if not m.launch.detect:
            return
        action = next((a for group in (self.open, *self.closed) for a in group), None)
        if action is not None:  # a group may be empty: the last rounds of a pipeline commit and wait for nothing
            raise fault(
                m,
                "M403",
                f"{action.actor.label} is still in flight when {w.label} ends",
                action.actor.span,
                "copy_commit() and copy_wait(0) before the end",
            )
        if self.products:
            p = self.products[0]
            raise fault(
                m, "M404", f"{p.actor.label} is still in flight when {w.label} ends", p.actor.span, "mma_wait(x) for the last product"
            )


def check_rebinding(m: Machine, w: Worker, name: str, old: object, new: object, span: Span) -> None:
    """A name that an engine still uses may not be bound anew. Raises CuirError M406 (accumulator), M407 (register operand)."""
    if isinstance(old, Product) and not old.over and old.taken is None and m.launch.detect:
        said = spoken(name, span)
        raise fault(m, "M406", f"`{said}` is bound anew while {old.actor.label} still accumulates into it", span, f"mma_wait({said}) before",
                    [("the product was issued here", old.actor.span)])  # fmt: skip
    p = w.groups.operands.get(name)
    if p is not None and new is not old and m.launch.detect:
        raise fault(m, "M407", f"`{spoken(name, span)}` is bound anew while {p.actor.label} may still read it from registers", span, "mma_wait for that product before",
                    [("the product was issued here", p.actor.span)])  # fmt: skip
