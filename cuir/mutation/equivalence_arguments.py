"""Other values of const parameters, for arguments that a mutant is equivalent.

The mutant is the original at one of them, or shows at one what a number is for.

The argument for another order of the units of work: they are the same ones, each once.

The argument for a left-out choice: where its condition fails, both sides are one expression.

It is worked out from the definitions before it. `where(warp_any(m), where(m, x, y), y)` is `where(m, x, y)`: no row of
a warp that votes no has m.

Argument that a mutant is equivalent: it changes a part of a tuple that nothing reads.

It holds for the consts with which the kernel is checked.

Argument that a mutant is equivalent: consts alone decide which of two ways is taken, and both are right.

Arguments for exchanged factors, and for a comparison of equal operands that decides nothing.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np

from ..attn.verification.splice_evaluator import Evaluator
from ..checking.checker import check
from ..ops.build_calls import where
from ..ops.expressions import is_where, traits
from ..ops.traits import DIFFERENCE
from ..syntax.nodes import Assign, Binary, Call, Expr, For, Func, If, IfExp, Kernel, Literal, Name, Node, Program, Return, Tuple
from ..syntax.printer import show
from ..syntax.walk import copy_marks, count_assignments, names_read, replace_node, rewrite, substitute, walk
from ..text.diagnostics import CuirError
from ..verification.tile_steps import align_heads
from .mutant_comparison import Trial
from .mutation_sites import Site, list_sites


def other_setting(t: Trial) -> str | None:
    """Argue that the original with another value of a const parameter gives the mutant's bits.

    What changed no longer reads the parameter, which the caller may choose. The bits must differ from the original's: a
    ring of another length gives the same bits, whatever is wrong with its waits.
    """
    consts = check(t.program, t.kernel, t.consts).consts
    for site, replacement in t.expressions():
        for name in sorted((_names_taken(site.node, consts) - _names_taken(replacement, consts)) & set(consts)):
            value = consts[name]
            if isinstance(value, bool) or not isinstance(value, int):
                continue
            bits = t.bits(t.mutant)
            if bits is None or t.gives(bits):
                return None
            for setting in (-1, 0, 2 * value + 1, 1000 * value):
                trial = replace(t, consts={**t.consts, name: setting})
                trial.problems = t.problems
                if setting != value and trial.gives(bits):
                    return f"the original with {name}={setting}, a setting that is the caller's to choose, gives the same bits in {t.runs} runs"
            return None
    return None


def _names_taken(e: Node, consts: Mapping[str, object]) -> set[str]:
    """Return the names that an expression reads, without those of the way that consts alone decide against."""
    numbers = {n: v for n, v in consts.items() if isinstance(v, (bool, int, float))}
    if isinstance(e, IfExp) and names_read(e.cond) <= numbers.keys() and not any(isinstance(n, Call) for n in walk(e.cond)):
        return _names_taken(e.then if Evaluator(Program(()), numbers).evaluate_expr(e.cond, {}) else e.other, consts)
    return names_read(e)


def make_smaller_tiles(t: Trial) -> Iterator[Trial]:
    """Yield trials with half the keys of a block or half the queries of a tile, where that makes a kernel."""
    consts = check(t.program, t.kernel, t.consts).consts
    for name in ("BN", "BM"):
        value = consts.get(name)
        if isinstance(value, int) and value % 2 == 0:
            smaller = replace(t, consts={**t.consts, name: value // 2})
            with suppress(CuirError):  # no kernel
                if smaller.expected is not None:
                    yield smaller


def other_way(t: Trial) -> str | None:
    """Argue for a condition on consts alone that chooses the other of two ways of computing the same.

    Both are the author's, each for some consts. A way that is empty may leave out what no run needs, and does not count.
    """
    consts = {n: v for n, v in check(t.program, t.kernel, t.consts).consts.items() if isinstance(v, (bool, int))}
    for site, replacement in t.expressions():
        choice = site.parents[-1]
        has_two_ways = isinstance(choice, IfExp) or (isinstance(choice, If) and bool(choice.orelse))
        if not has_two_ways or site.path[-1][0] != "cond":
            continue
        if not names_read(site.node) | names_read(replacement) <= consts.keys() or any(isinstance(n, Call) for n in walk(site.node)):
            return None
        run = Evaluator(t.program, consts)
        before, now = (bool(run.evaluate_expr(e, {})) for e in (site.node, replacement))  # type: ignore[arg-type]
        if before == now or not t.explored.clean or not t.has_same_bits(t.mutant):
            return None
        return f"consts alone decide that `{show(replacement)}` is {now}, unlike `{show(site.node)}`: the way it takes, the kernel's own for other consts, has no fault in any schedule of {t.explored.launches} launches, and gives the same bits in {t.runs} runs"
    return None


_PROBLEMS = 60
_LONGEST = 17  # binary exponent of the largest length
_UNITS = 20_000  # the largest number of units that is enumerated


def same_units(t: Trial) -> str | None:
    """Argue for a change of the function that says which unit of work has which number.

    The function is called with numbers of units alone, and over all of them it gives the same results, in another order.
    That is enumerated; schedules of the mutant have shown no fault by then.
    """
    function = next((p for p in (*t.at.parents, t.at.node) if isinstance(p, Func)), None)
    if function is None or len(function.params) != 1 or (count := _find_count(t, function.name)) is None:
        return None
    checked, rng, problems, units = check(t.program, t.kernel, t.consts), random.Random(0), 0, 0
    consts = {n: v for n, v in checked.consts.items() if isinstance(v, (int, float))}
    try:
        for _ in range(50 * _PROBLEMS):
            sizes = align_heads({d: int(2 ** rng.uniform(0, _LONGEST if d not in ("B", "H", "HK") else 5)) for d in checked.dims})
            evaluators = [Evaluator(p, {**consts, **sizes}) for p in (t.program, t.mutant)]
            number = int(evaluators[0].evaluate_expr(count, {}))
            if not 0 < number <= _UNITS:
                continue
            original, mutated = (_enumerate_units(e, function.name, number) for e in evaluators)
            if not np.array_equal(original, mutated):
                return None
            problems, units = problems + 1, units + number
            if problems == _PROBLEMS:
                return f"`{function.name}` gives the same {units:,} units of work in {problems} problems, in another order, which is free"
    except CuirError:
        pass
    return None


def _find_count(t: Trial, name: str) -> Expr | None:
    """Return the number of units of work, if a function is called with numbers of units alone."""
    counts: set[Expr] = set()
    calls = [s for s in t.places.sites if isinstance(s.node, Call) and s.node.func == Name(name)]
    for call in calls:
        loops = {p.target: p.iter for p in call.parents if isinstance(p, For)}
        assert isinstance(call.node, Call)
        argument = call.node.args[0] if len(call.node.args) == 1 and not call.node.keywords else None
        source = loops.get(argument.id) if isinstance(argument, Name) else None
        bound = [
            s.node.value
            for s in t.places.sites
            if isinstance(s.node, Assign) and isinstance(source, Name) and s.node.targets == (source.id,) and isinstance(s.node.value, Call)
        ]
        if len(bound) != 1 or traits(bound[0]).makes != "units" or len(bound[0].args) != 1:
            return None
        counts.add(bound[0].args[0])
    return counts.pop() if len(counts) == 1 else None


def _enumerate_units(evaluator: Evaluator, name: str, number: int) -> np.ndarray:
    """Return the results of a function for all numbers of units, a row each, sorted."""
    result = evaluator.call(name, np.arange(number))
    parts = result if isinstance(result, tuple) else (result,)
    table = np.stack([np.broadcast_to(np.asarray(x), (number,)) for x in parts])
    return table[:, np.lexsort(table)]


_NAN = Binary("-", Name("inf"), Name("inf"))
_UNEQUAL = (-1, 1)  # signs of a difference


def needless_choice(t: Trial) -> str | None:
    """Argue for `where(c, x, y)` that became x: where c does not hold, x is y by the definitions.

    Argue likewise for another condition in place of c, if no run takes y then. A difference of equal values is 0 where
    they are finite, which runs of a kernel that gives NaN elsewhere show.
    """
    found = next(((s, new) for s, new in t.expressions() if isinstance(s.node, Call) and is_where(s.node) and len(s.node.args) == 3), None)
    func = next((p for p in t.at.parents if isinstance(p, Func)), None)
    if func is None or found is None:
        return None
    (site, new), node = found, found[0].node
    statement = next((i for i, s in enumerate(func.body) if any(s is p for p in site.parents)), None)
    if statement is None or not isinstance(node, Call):
        return None
    condition, chosen, alternative = node.args
    reduced = _Reduced(_list_definitions(func, statement), condition)
    if reduced.reduce(chosen) != reduced.reduce(alternative):
        return None
    reason = f"where `{show(condition)}` does not hold, `{show(chosen)}` is `{show(alternative)}` by the definitions before it"
    if isinstance(new, Call) and not reduced.cancelled and replace(new, args=(condition, *new.args[1:])) == node:
        never = replace_node(t.program, site.path, replace(new, args=(*new.args[:2], _NAN)))
        return (
            f"{reason}; `{show(new.args[0])}` holds in {t.runs} runs (NaN in place of the other gives the same bits)"
            if t.has_same_bits(never)
            else None
        )
    if new != chosen:
        return None
    if not reduced.cancelled:
        return reason
    marked: Expr = node
    for x in reduced.cancelled:
        finite = Binary("==", Binary("-", x, x), Literal(0.0))
        marked = replace(node, args=(Binary("|", condition, finite), marked, _NAN))
    if not t.has_same_bits(replace_node(t.program, site.path, marked)):
        return None
    finite_values = ", ".join(f"`{show(x)}`" for x in reduced.cancelled)
    return f"{reason}; {finite_values} is finite there in {t.runs} runs (a program that gives NaN where it is not gives the same bits)"


def _list_definitions(func: Func, end: int) -> dict[str, Expr]:
    """Return the values of names that a function binds once, before a statement of its body.

    The names are bound outside of branches.
    """
    counts = count_assignments(func.body)
    before = [s for s in func.body[:end] if isinstance(s, Assign) and len(s.targets) == 1]
    return {s.targets[0]: s.value for s in before if counts[s.targets[0]] == 1 and _is_settled(s.value, counts)}


def _is_settled(e: Expr, counts: Mapping[str, int]) -> bool:
    """Return whether no name in an expression is bound again."""
    return all(counts[name] <= 1 for name in names_read(e))


class _Reduced:
    """Expressions under the assumption that a condition does not hold.

    cancelled: expressions of which a difference with themselves was taken for 0.
    """

    def __init__(self, definitions: Mapping[str, Expr], condition: Expr):
        self.definitions = definitions
        self.cancelled: list[Expr] = []
        self.false: list[Expr] = []
        self.equal: dict[Expr, Expr] = {}  # names of tiles that are a number, as a vote of `name != number` failed
        self._assume_false(condition)

    def reduce(self, e: Expr) -> Expr:
        """Return the expression without choices that are decided, and with what follows from them."""
        if isinstance(e, Name):
            value = self.equal.get(e) or self.definitions.get(e.id)
            return self.reduce(value) if value is not None and (e in self.equal or self._is_decided(value)) else e
        if self._is_decided(e):
            assert isinstance(e, Call)
            return self.reduce(e.args[2])
        if isinstance(e, Binary):
            left, right = self.reduce(e.left), self.reduce(e.right)
            if traits(e).linear == DIFFERENCE and left == right:
                if left not in self.cancelled:
                    self.cancelled.append(left)
                return Literal(0.0)
            if traits(e).factors and right == Literal(1.0):
                return left
            return replace(e, left=left, right=right)
        if isinstance(e, Call):
            args: Sequence[Expr] = tuple(self.reduce(a) for a in e.args)
            if traits(e).exponential is not None and args == (Literal(0.0),):
                return Literal(1.0)
            return replace(e, args=tuple(args))
        return e

    def _assume_false(self, condition: Expr) -> None:
        """Record that a condition is false, and so are its definition and the operand of a vote."""
        while condition not in self.false:
            self.false.append(condition)
            if isinstance(condition, Name) and condition.id in self.definitions:
                condition = self.definitions[condition.id]
            elif isinstance(condition, Call) and traits(condition).votes and len(condition.args) == 1:
                condition = condition.args[0]
            elif (
                isinstance(condition, Binary)
                and traits(condition).compares == _UNEQUAL
                and isinstance(condition.left, Name)
                and isinstance(condition.right, Literal)
            ):
                self.equal[condition.left] = condition.right

    def _is_decided(self, e: Expr) -> bool:
        """Return whether an expression is a choice whose condition does not hold."""
        return isinstance(e, Call) and is_where(e) and len(e.args) == 3 and e.args[0] in self.false


def tied_operands(t: Trial) -> str | None:
    """Argue for a comparison that became strict or not strict: where both operands are equal, so are both sides of each choice.

    Where a vote of the comparison is the condition, both sides are also equal for the rows that voted no. A difference of
    equal values is 0 where they are finite, which runs of a kernel that gives NaN elsewhere show.
    """
    node, new = t.at.node, t.new
    func = next((p for p in t.at.parents if isinstance(p, Func)), None)
    if func is None or not (isinstance(node, Binary) and isinstance(new, Binary)) or not became_strict_or_not(node, new):
        return None
    decided = _find_decided(func, t.at)
    if decided is None:
        return None
    conditions, choices = decided
    strict, finite = node if 0 not in traits(node).compares else new, dict[Expr, None]()
    for choice in choices:
        assert isinstance(choice.node, Call)
        condition, chosen, alternative = choice.node.args
        statement = next(i for i, s in enumerate(func.body) if any(s is p for p in choice.parents))
        definitions = _list_definitions(func, statement)
        tie = _Reduced(definitions, condition)
        tie.false += conditions
        tie.equal |= {node.left: node.right} if isinstance(node.left, Name) else {node.right: node.left}
        cases = [tie, _Reduced(definitions, condition)] if condition in conditions[2:] else [tie]  # a vote
        if any(c.reduce(chosen) != c.reduce(alternative) for c in cases):
            return None
        finite |= dict.fromkeys(x for c in cases for x in c.cancelled)
    program: Program = t.program
    for choice in sorted(choices, key=lambda c: len(c.path), reverse=True) if finite else ():
        marked: Expr = choice.node  # type: ignore[assignment]
        for x in finite:
            safe = Binary("|", strict, Binary("==", Binary("-", x, x), Literal(0.0)))
            marked = where(safe, marked, _NAN)
        if not t.has_same_bits(replace_node(program, choice.path, marked)):
            return None
    reason = f"where `{show(node.left)}` is `{show(node.right)}`, both sides of each choice that the comparison decides are equal by the definitions"
    names = ", ".join(f"`{show(x)}`" for x in finite)
    return (
        f"{reason}; {names} is finite there in {t.runs} runs (a program that gives NaN where it is not gives the same bits)"
        if finite
        else reason
    )


def became_strict_or_not(old: Binary, new: Binary) -> bool:
    """Return whether `<` became `<=`, or `>` became `>=`, or the reverse."""
    operator = traits(old)
    same_operands = old.left == new.left and old.right == new.right
    return same_operands and bool(operator.compares) and not operator.commutative and operator.slip == new.op


def _find_decided(func: Func, comparison: Site) -> tuple[list[Expr], list[Site]] | None:
    """Return all that a comparison decides: it, its name and votes of that, and the choices with one of these as condition.

    The first two are the comparison and its name. None if anything else reads them, or if it has no name and decides nothing.
    """
    sites = list(list_sites(func, comparison.path[: comparison.parents.index(func)], comparison.parents[: comparison.parents.index(func)]))
    times = count_assignments(func.body)
    node, around = comparison.node, comparison.parents[-1]
    assert isinstance(node, Binary)
    conditions: list[Expr] = [node, node]
    if isinstance(around, Assign):
        conditions[1] = Name(around.targets[0])
        votes = [s.node for s in sites if isinstance(s.node, Assign) and _is_vote_of(s.node.value, conditions[1])]
        conditions += [Name(v.targets[0]) for v in votes]
        names = {n for assigned in (around, *votes) for n in assigned.targets}
        if around not in func.body or any(v not in func.body for v in votes) or any(times[n] > 1 for n in names | names_read(node)):
            return None
    choices = []
    for s in sites:
        if s.node not in conditions or (s.path == comparison.path and isinstance(around, Assign)):
            continue
        user = s.parents[-1]
        if isinstance(user, Call) and is_where(user) and s.path[-1] == ("args", 0):
            choices.append(Site(s.path[:-1], user, s.parents[:-1]))
        elif not _is_vote_of(user, s.node):
            return None
    return (conditions, choices) if choices else None


def _is_vote_of(e: Node, condition: Node) -> bool:
    return isinstance(e, Call) and bool(traits(e).votes) and e.args == (condition,)


def sort_factors(node: Node) -> Node:
    """Return a product with its two factors in the order of their texts, and any other node as it is."""
    if isinstance(node, Binary) and traits(node).multiplies and traits(node).commutative:
        left, right = sorted((node.left, node.right), key=show)
        return node if left is node.left else copy_marks(node, replace(node, left=left, right=right))
    return node


def exchanged_arguments(t: Trial) -> str | None:
    """Argue for exchanged arguments of a function that returns a product of them.

    A choice in it is needless, such as one that skips a product with 1: both sides are the product by the definitions.
    """
    old, new = t.at.node, t.new
    if (
        not (isinstance(old, Call) and isinstance(new, Call) and isinstance(old.func, Name))
        or old.keywords
        or replace(old, args=new.args) != new
    ):
        return None
    function = t.program.funcs().get(old.func.id)
    if function is None or len(function.body) != 1 or not isinstance(returned := function.body[0], Return):
        return None
    product = _drop_needless_choices(returned.value)
    if product is None:
        return None
    values = [rewrite(substitute(product, dict(zip(function.params, call.args, strict=True))), sort_factors) for call in (old, new)]
    if values[0] != values[1]:
        return None
    return (
        f"`{function.name}` is `{show(product)}` by its definition, whichever side its choices take, and that is the same in either order"
    )


def _drop_needless_choices(e: Expr) -> Expr | None:
    """Return an expression without choices between equal sides; None if a choice may matter."""
    if not (isinstance(e, Call) and is_where(e) and len(e.args) == 3):
        return None if any(isinstance(n, IfExp) or (isinstance(n, Call) and is_where(n)) for n in walk(e)) else e
    condition, chosen, alternative = e.args
    reduced = _Reduced({}, condition)
    return _drop_needless_choices(chosen) if reduced.reduce(chosen) == reduced.reduce(alternative) and not reduced.cancelled else None


def swapped_factors(t: Trial) -> str | None:
    """Argue for two names that are bound in each other's place, and that are read only as factors of one product.

    Branches that the consts decide against read nothing.
    """
    old, new = t.at.node, t.new
    if not (isinstance(old, Assign) and isinstance(new, Assign)) or replace(old, targets=new.targets) != new:
        return None
    swapped = {a: b for a, b in zip(old.targets, new.targets, strict=True) if a != b}
    if len(swapped) != 2 or any(swapped[b] != a for a, b in swapped.items()):
        return None

    def rename(node: Node) -> Node:
        if isinstance(node, Assign):
            return replace(node, targets=tuple(swapped.get(x, x) for x in node.targets))
        return Name(swapped.get(node.id, node.id)) if isinstance(node, Name) else node

    original, mutant = (check(p, t.kernel, t.consts) for p in (t.program, t.mutant))
    bodies = [[rewrite(s, sort_factors) for role in original.roles for s in role.body]]
    bodies += [[rewrite(rewrite(s, rename), sort_factors) for role in mutant.roles for s in role.body]]
    if bodies[0] != bodies[1]:
        return None
    return f"{' and '.join(f'`{x}`' for x in sorted(swapped))} are read only as factors of one product, which is the same in either order"


_NUMBERS = (*range(24), 63, 64, 1000)  # of other arguments
_REPLACEMENTS = (0, 1, 2, 3, 7, 1000)  # in place of the part
_TUPLES = 8  # drawn values of the other parts


def argue_for_unused_part(t: Trial) -> str | None:
    """Argue for a changed part of the tuple that a function returns.

    Every function that takes the tuple ignores this part. Callers bind the tuple to one name, which is read as an
    argument alone. Functions that take it are enumerated.
    """
    function = next((p for p in (*t.at.parents, t.at.node) if isinstance(p, Func)), None)
    mutant = t.mutant.funcs().get(function.name) if function is not None else None
    if function is None or mutant is None or (changed := _find_changed_parts(function, mutant)) is None:
        return None
    count, parts = changed
    uses = [u for call in _list_calls(t, function.name) for u in _list_uses(t, call)]
    if not uses or None in uses:
        return None
    checked = check(t.program, t.kernel, t.consts)
    consts = {n: v for n, v in checked.consts.items() if isinstance(v, (int, float))}
    try:
        run = Evaluator(t.program, consts)
        if not all(_ignores(run, u, function.name, count, parts) for u in dict.fromkeys(uses) if u is not None):
            return None
    except (CuirError, TypeError, IndexError):
        return None
    takers = ", ".join(f"`{name}`" for name in sorted({u[0] for u in uses if u is not None}))
    names = " and ".join(str(p) for p in parts)
    return f"part {names} of what `{function.name}` returns is ignored by {takers}, which alone take it: other numbers there give the same results with these consts"


def _find_changed_parts(function: Func, mutant: Func) -> tuple[int, tuple[int, ...]] | None:
    """Return the length of the tuple that a function returns, and the parts in which the mutant's differs."""
    old, new = function.body[-1], mutant.body[-1]
    if function.body[:-1] != mutant.body[:-1] or not (isinstance(old, Return) and isinstance(new, Return)):
        return None
    if not (isinstance(old.value, Tuple) and isinstance(new.value, Tuple)) or len(old.value.items) != len(new.value.items):
        return None
    return len(old.value.items), tuple(i for i, (a, b) in enumerate(zip(old.value.items, new.value.items, strict=True)) if a != b)


def _list_calls(t: Trial, name: str) -> list[Site]:
    return [s for s in t.places.sites if isinstance(s.node, Call) and s.node.func == Name(name)]


def _list_uses(t: Trial, call: Site) -> Sequence[tuple[str, int] | None]:
    """Return the functions that take the result of a call, with the place of the argument.

    Any other use is None.
    """
    bound, kernel = call.parents[-1], call.inside(Kernel)
    if not isinstance(bound, Assign) or len(bound.targets) != 1 or bound.value is not call.node or kernel is None:
        return [None]
    uses: list[tuple[str, int] | None] = []
    for s in t.places.sites:
        if s.node != Name(bound.targets[0]) or kernel not in s.parents:
            continue
        taker, funcs = s.parents[-1], t.program.funcs()
        if isinstance(taker, Call) and isinstance(taker.func, Name) and taker.func.id in funcs and s.path[-1][0] == "args":
            uses.append((taker.func.id, s.path[-1][1] or 0))
        else:
            uses.append(None)
    return uses


def _ignores(run: Evaluator, use: tuple[str, int], source: str, count: int, parts: Sequence[int]) -> bool:
    """Return whether the results of a function do not depend on parts of an argument.

    source: the function that makes the tuple; these parts of its result may depend on themselves.
    """
    name, place = use
    rng, params = random.Random(0), len(run.funcs[name].params)
    for other_arguments in itertools.product(_NUMBERS, repeat=min(params - 1, 2)):
        arguments = [*other_arguments, *(1 for _ in range(params - 1 - len(other_arguments)))]
        for _ in range(_TUPLES):
            drawn = [rng.randrange(100) for _ in range(count)]
            results = []
            for number in _REPLACEMENTS:
                value = tuple(number if i in parts else x for i, x in enumerate(drawn))
                result = run.call(name, *arguments[:place], value, *arguments[place:])
                results.append(tuple(x for i, x in enumerate(result) if i not in parts) if name == source else result)
            if any(r != results[0] for r in results):
                return False
    return True


__all__ = [
    "argue_for_unused_part",
    "became_strict_or_not",
    "exchanged_arguments",
    "make_smaller_tiles",
    "needless_choice",
    "other_setting",
    "other_way",
    "same_units",
    "sort_factors",
    "swapped_factors",
    "tied_operands",
]
