"""Products and sums that lowering may contract to an FMA, and differences in which it must not.

A difference of a product and the maximum of equal products is 0 at the maximum. Contracted, it is the rounding error of the
product there: of 5e-4 for a product of 1e4, and an exponential makes a relative error of it. Such differences are
computed as written. Products are equal if their factors are: the same numbers, operations on equal operands, and
reads of the same tensors at any place, also through copies to shared memory.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence

from ..ops.expressions import traits
from ..ops.traits import NEGATIVE
from ..syntax.nodes import Binary, Expr, Literal, Name, Subscript
from ..syntax.types import F32
from ..syntax.walk import IdentityKey, names_read, walk
from .checked import Checked
from .decisions import (
    Placed,
    bind_names,
    collect_copies,
    collect_deciding,
    collect_stored_floats,
    dtype_of,
    entry,
    is_float,
    list_accessed,
    list_definitions,
    list_expressions,
)
from .fact_solver import reach
from .kernel_results import keep_with_kernel
from .views import root_name


@keep_with_kernel
def collect_exempt_sums(checked: Checked) -> frozenset[IdentityKey]:
    """Return the sums of a product and a value that derives from the maximum of equal products.

    Differences count as sums.
    """
    numbering, exempt = _Numbering(checked), set[IdentityKey]()
    for i, e in _list_sums(checked):
        for x, y in ((e.left, e.right), (e.right, e.left)):
            products = {numbering.number(p) for p in _list_products(checked, (i, x), through_choices=True)}
            if products and any(numbering.number(p) in products for p in _walk_maxima(checked, (i, y))):
                exempt.add(IdentityKey(e))
    return frozenset(exempt)


@keep_with_kernel
def collect_exact(checked: Checked) -> frozenset[IdentityKey]:
    """Return the exact arithmetic: what feeds decisions, floats outside of roles, and exempt sums."""
    return collect_deciding(checked) | collect_exempt_sums(checked)


@keep_with_kernel
def list_contractable_sums(checked: Checked) -> tuple[Binary, ...]:
    """Return the sums and differences that lowering may contract with a product that is an operand."""
    exempt = collect_exempt_sums(checked)
    return tuple(
        e
        for i, e in _list_sums(checked)
        if IdentityKey(e) not in exempt and any(_list_products(checked, (i, x)) for x in (e.left, e.right))
    )


def _list_sums(checked: Checked) -> Iterator[tuple[int, Binary]]:
    """Yield the sums and differences of f32 in roles that feed no decision."""
    deciding = collect_deciding(checked)
    for i, placed in enumerate(list_expressions(checked)):
        for e in placed if i else ():
            if isinstance(e, Binary) and traits(e).linear and IdentityKey(e) not in deciding and dtype_of(checked, e) == F32:
                yield i, e


def _is_product(checked: Checked, e: Expr) -> bool:
    return isinstance(e, Binary) and traits(e).multiplies and IdentityKey(e) not in collect_deciding(checked)


def _list_products(checked: Checked, value: Placed, through_choices: bool = False) -> list[Placed]:
    """Return the products that a value is, by names and negations.

    through_choices: also where a condition chooses it, as passes remove conditions that always hold.
    """
    bound, worklist, visited, products = bind_names(checked), [value], set[IdentityKey](), list[Placed]()
    while worklist:
        i, e = worklist.pop()
        if IdentityKey(e) in visited:
            continue
        visited.add(IdentityKey(e))
        if isinstance(e, Name):
            worklist += bound[i].get(e.id, [])
        elif _is_product(checked, e):
            products.append((i, e))
        elif (operation := entry(checked, e)) is not None:
            kind = operation[0].traits
            if kind.linear == NEGATIVE or (through_choices and kind.chooses):
                worklist += [(i, a) for a in operation[1] if dtype_of(checked, a) == F32]
    return products


def _walk_maxima(checked: Checked, value: Placed) -> Iterator[Placed]:
    """Yield the products whose maximum or minimum, over many, is the value or an addend of it.

    Of two values a maximum is one over many only if a loop carries it. The walk passes through names, choices, and
    memory to the values that the kernel stores there.
    """
    bound, stores = bind_names(checked), collect_stored_floats(checked)
    worklist, visited = [(*value, False)], set[tuple[int, IdentityKey, bool]]()
    while worklist:
        i, e, is_maximum = worklist.pop()
        if (i, IdentityKey(e), is_maximum) in visited:
            continue
        visited.add((i, IdentityKey(e), is_maximum))
        operation = entry(checked, e)
        if isinstance(e, Name):
            sources = bound[i].get(e.id, [])
        elif isinstance(e, Subscript):
            sources = stores.get(root_name(e) or "", [])
        elif operation is None:
            continue
        elif operation[0].effects.accesses:
            names = [] if operation[0].sums else list_accessed(checked, e, reads=True)
            sources = [v for name in names for v in stores.get(name, [])]
        else:
            kind = operation[0].traits
            takes_maximum = "max" in (kind.reduction, kind.column_reduction) or IdentityKey(e) in _collect_carried_maxima(checked)
            if is_maximum and kind.multiplies:
                yield i, e
            adds = kind.linear and (kind.linear == NEGATIVE or not is_maximum)
            if not (takes_maximum or kind.extremum or kind.chooses or kind.repeats or adds):
                continue
            is_maximum |= takes_maximum
            sources = [(i, a) for a in operation[1] if dtype_of(checked, a) == F32]
        worklist += [(j, v, is_maximum) for j, v in sources]


@keep_with_kernel
def _collect_carried_maxima(checked: Checked) -> frozenset[IdentityKey]:
    """Return the maxima and minima of two or more floats of which one depends on the result."""
    carried = set[IdentityKey]()
    for bound in list_definitions(checked):
        inside = {n: [e for v in values for e in walk(v)] for n, values in bound.items()}
        into: dict[str, list[str]] = {}  # the names that are computed from a name
        for n, e in ((n, e) for n, nodes in inside.items() for e in nodes if isinstance(e, Name)):
            into.setdefault(e.id, []).append(n)
        for n, nodes in inside.items():
            extrema = [e for e in nodes if traits(e).extremum is not None and isinstance(e, Expr) and is_float(checked, e)]
            if extrema:
                dependent = reach([n], lambda name, into=into: into.get(name, ()))  # type: ignore[misc]
                carried |= {IdentityKey(e) for e in extrema if not dependent.isdisjoint(names_read(e))}
    return frozenset(carried)


class _Numbering:
    """Numbers of values, equal for values that are computed alike.

    Reads of the same tensor are alike at any place.
    """

    def __init__(self, checked: Checked):
        self.checked = checked
        self.bound, self.stores, self.copies = bind_names(checked), collect_stored_floats(checked), collect_copies(checked)
        self.arrays = {t.name for t in checked.tensors} | set(checked.shared)
        self.numbers: dict[Hashable, int] = {}
        self.numbers_by_name: dict[Hashable, int] = {}  # of names and arrays; -1 inside of their own definition

    def number(self, value: Placed) -> int:
        """Return the number of a value; places of reads are left out."""
        i, e = value
        root = root_name(e)
        if root in self.arrays:
            return self._number_array(root)
        if isinstance(e, Name):
            values = self.bound[i].get(e.id, [])
            return self._number_any((i, e.id), values) if values else self._intern(("name", e.id))
        if isinstance(e, Literal):
            return self._intern(("literal", float(e.value)))
        operation = entry(self.checked, e)
        if operation is None:
            return self._intern(("expression", IdentityKey(e)))
        op, args = operation
        if op.effects.accesses and not op.sums:
            read = {self._number_array(n) for n in list_accessed(self.checked, e, reads=True)} - {-1}
            return read.pop() if len(read) == 1 else self._intern(frozenset(read))
        if op.traits.converts and dtype_of(self.checked, e) == F32 and (t := dtype_of(self.checked, args[0])) is not None and t.is_float:
            return self.number((i, args[0]))
        numbers = [self.number((i, a)) for a in args]
        return self._intern((op.name, *(sorted(numbers) if op.traits.commutative else numbers)))

    def _number_array(self, name: str) -> int:
        """Return the number of what an array holds: copies of tensors, and values that are stored there."""
        values = self.stores.get(name, [])
        originals = [n for n in self.copies.get(name, {name}) if n not in self.copies] or ([] if values else [name])
        return self._number_any(name, values, [self._intern(("array", n)) for n in originals])

    def _number_any(self, key: Hashable, values: list[Placed], originals: Sequence[int] = ()) -> int:
        if key not in self.numbers_by_name:
            self.numbers_by_name[key] = -1
            numbers = {*originals, *(self.number(v) for v in values)} - {-1}
            self.numbers_by_name[key] = numbers.pop() if len(numbers) == 1 else self._intern(frozenset(numbers))
        return self.numbers_by_name[key]

    def _intern(self, key: Hashable) -> int:
        return self.numbers.setdefault(key, len(self.numbers))


__all__ = ["collect_exact", "collect_exempt_sums", "list_contractable_sums"]
