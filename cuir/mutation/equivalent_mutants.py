"""Arguments that a mutant which nothing refuses gives the same result.

They are computed from the two programs, never listed. Each argument makes other programs or enumerates functions, and
holds or does not; a mutant for which none holds has survived.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from difflib import SequenceMatcher
from typing import Any

import numpy as np

from ..attn.tracing.splice_names import OPTIONAL, SPLICE_POINTS
from ..attn.verification.column_contracts import check_columns, has_column_points, make_column_evaluator, make_column_problems
from ..attn.verification.contracts import has_splice_points
from ..attn.verification.serving_specifications import knows_lengths_of_sequences, make_bounds_of_sequences
from ..attn.verification.sizes import make_problems
from ..attn.verification.splice_evaluator import Evaluator, collect_kernel_values
from ..checking.checker import check, pick_kernel
from ..ops.build_calls import where
from ..ops.expressions import is_where, traits
from ..ops.traits import EQUAL
from ..spec.specification import Lengths, Specification
from ..syntax.nodes import (
    Assign,
    Attribute,
    Binary,
    Call,
    Expr,
    ExprStmt,
    For,
    Func,
    If,
    IfExp,
    Literal,
    Name,
    Node,
    Program,
    Stmt,
    Unary,
    With,
)
from ..syntax.printer import show
from ..syntax.walk import count_assignments, names_read, replace_node, rewrite_block, walk
from ..text.diagnostics import CuirError
from ..verification import Problem, check_contracts
from ..verification.inputs import make_contract_problems
from .equivalence_arguments import (
    argue_for_unused_part,
    became_strict_or_not,
    exchanged_arguments,
    make_smaller_tiles,
    needless_choice,
    other_setting,
    other_way,
    same_units,
    swapped_factors,
    tied_operands,
)
from .kernel_content import has_spare_stages
from .mutant_comparison import Trial
from .mutation_sites import Places, Site, get_root

_PURE = {*SPLICE_POINTS, *OPTIONAL} - {"score"}  # splice points that the contracts specify completely
_NAN = Binary("-", Name("inf"), Name("inf"))
_MOST_STAGES = 16  # of a ring


def why(t: Trial) -> str | None:
    """Return the argument that a mutant which all stages pass gives the same result, or None."""
    return next((reason for argument in ARGUMENTS if (reason := argument(t)) is not None), None)


# ---- arguments
def blocks(t: Trial) -> str | None:
    """Argue for a change of functions that decide which blocks are visited and masked, and in which order.

    Their contracts are all that the kernel requires of them.
    """
    func, spec = _find_changed_function(t), _variant_of(t)
    if func is None or not has_splice_points(t.program) or not _only_for(t.program, func.name, _PURE):
        return None
    kernel = pick_kernel(t.program, t.kernel)
    if spec is None and not knows_lengths_of_sequences(t.program, kernel):
        return None
    rng = random.Random(0)
    drawn = [Problem(_draw_lengths(rng), rng.choice([64, 128, 192]), rng.choice([16, 64, 80, 128])) for _ in range(60)]
    problems = [*make_problems(spec, *t.tile, "full", t.program), *drawn]
    if spec is None:
        extra_values = {p: make_bounds_of_sequences(p.lengths) for p in problems}
    try:
        pairs = check_contracts(t.mutant, kernel, spec, problems, t.consts, extra_values=extra_values.__getitem__ if spec is None else None)
        visits = [_count_visits(_evaluator(p, t, at), "kv_count", at.lengths.M, at.BM) for at in problems for p in (t.program, t.mutant)]
    except CuirError:
        return None
    return _describe_contracts(len(problems), pairs, visits)


def columns(t: Trial) -> str | None:
    """Argue likewise for the blocks of queries that a block of keys visits, in kernels of the gradients of keys."""
    func = _find_changed_function(t)
    if func is None or _variant_of(t) is None or isinstance(t.spec, Specification) or not has_column_points(t.program):
        return None
    if not _only_for(t.program, func.name, {"q_count", "q_block"}):
        return None
    rng = random.Random(0)
    drawn = [*make_column_problems(*t.tile), *(Problem(_draw_lengths(rng), *t.tile) for _ in range(190))]
    try:
        original, mutant = (check(p, t.kernel, t.consts) for p in (t.program, t.mutant))
        problems = make_contract_problems(original, t.spec, drawn)
        pairs = check_columns(mutant, problems)
        visits = [
            _count_visits(make_column_evaluator(c, at, extra), "q_count", at.lengths.N, at.BN)
            for at, extra in problems.items()
            for c in (original, mutant)
        ]
    except CuirError:
        return None
    return _describe_contracts(len(problems), pairs, visits)


def _find_changed_function(t: Trial) -> Func | None:
    return next((p for p in (*t.at.parents, t.at.node) if isinstance(p, Func)), None)


def _draw_lengths(rng: random.Random) -> Lengths:
    return Lengths(1, 2, 1, rng.randint(1, 400), rng.randint(0, 400))


def _describe_contracts(problems: int, pairs: int, visits: Sequence[tuple[int, int]]) -> str:
    """Say that contracts hold; visits: masked and visited blocks, of the original and of the mutant in turns."""
    (was_masked, was_visited), (masked, visited) = (map(sum, zip(*visits[i::2])) for i in (0, 1))
    message = f"the contracts of the splice points hold in {problems} problems ({pairs:,} pairs), and the kernel asks for nothing else"
    return f"{message}; of {was_visited} blocks visited {was_masked} are masked, by the mutant {masked} of {visited}"


def _variant_of(t: Trial) -> Specification | None:
    """Return the attention variant of which a kernel has the splice points."""
    return t.spec if isinstance(t.spec, Specification) else t.spec.variant


def _only_for(program: Program, name: str, splice: set[str]) -> bool:
    """Return whether a function is one of these splice points, or is only called from them."""
    if name in splice:
        return True
    users = [item for item in program.items if getattr(item, "name", "") != name and name in names_read(item)]
    return bool(users) and all(isinstance(u, Func) and _only_for(program, u.name, splice) for u in users)


def _count_visits(run: Evaluator, point: str, length: int, tile: int) -> tuple[int, int]:
    """Count the blocks that are masked, and the blocks that are visited, by all tiles of a length."""
    numbers = np.arange(-(-length // tile))
    if not len(numbers):
        return 0, 0
    partial, n = (np.broadcast_to(np.asarray(x), numbers.shape) for x in run.call(point, 0, 0, numbers))
    return int(partial.sum()), int(n.sum())


def _evaluator(program: Program, t: Trial, problem: Problem) -> Evaluator:
    from ..attn.splicing.captured_arguments import compute_captured_arguments

    spec, lengths, kernel = _variant_of(t), problem.lengths, pick_kernel(program, t.kernel)
    consts = {**t.consts, "BM": problem.BM, "BN": problem.BN}
    dims = {"B": lengths.B, "H": lengths.H, "HK": lengths.HK, "M": lengths.M, "N": lengths.N}
    if spec is None:
        extra: Mapping[str, Any] = make_bounds_of_sequences(lengths)
    else:
        extra = compute_captured_arguments(program, kernel, spec, lengths, consts=consts)
    return Evaluator(program, collect_kernel_values(kernel, dims, consts, {"scale": 0.125, **extra}))


def predicate(t: Trial) -> str | None:
    """Argue for a condition on the query and the key whose value is the same wherever it matters.

    That is every query that is stored and every key of a block.
    """
    for site, replacement in t.expressions():
        calls = [n for n in walk(site.node) if isinstance(n, Call) and n.func == Name("keep") and len(n.args) == 4]
        if not calls or not all(isinstance(a, Name) for a in calls[0].args):
            continue
        names, pairs = [a.id for a in calls[0].args], 0  # type: ignore[union-attr]
        kernel, spec = pick_kernel(t.program, t.kernel), _variant_of(t)
        problems = make_problems(spec, *t.tile, "full", t.program)
        behind = 0 if isinstance(t.spec, Specification) else 1  # blocks that a list may lack are read behind the last one
        try:
            for problem in problems:
                at = problem.lengths
                run = _evaluator(t.program, t, problem)
                q, k = np.arange(at.M)[:, None], np.arange((-(-at.N // problem.BN) + behind) * problem.BN)[None]
                for b, h in itertools.product(range(at.B), range(at.H)):
                    local = dict(zip(names, (b, h, q, k)))
                    original, mutated = (
                        np.broadcast_to(np.asarray(run.evaluate_expr(e, local)), (at.M, k.size))  # type: ignore[arg-type]
                        for e in (site.node, replacement)
                    )
                    if (original != mutated).any():
                        return None
                    pairs += original.size
        except CuirError:
            return None
        return f"`{show(replacement)}` has the value of `{show(site.node)}` for every query that `{kernel.name}` stores and every key of a block, behind the last one too, in {len(problems)} problems ({pairs:,} pairs)"
    return None


def argue_for_wider_mask(t: Trial) -> str | None:
    """Argue for a mask that is evaluated in more blocks than needed.

    Where all pairs are kept, it changes nothing.
    """
    for site, replacement in t.expressions():
        call = site.parents[-1]
        func = t.program.funcs().get(get_root(call.func) or "") if isinstance(call, Call) else None
        if func is None or site.path[-1][0] != "args":
            continue
        param = func.params[site.path[-1][1] or 0]
        if not _only_masks(func, param):
            return None
        free = sorted(names_read(site.node) | names_read(replacement))
        if len(free) > 3 or any(isinstance(n, Call) for e in (site.node, replacement) for n in walk(e)):
            return None
        run = Evaluator(t.program, {})
        for values in itertools.product(range(-2, 7), repeat=len(free)):
            local = dict(zip(free, values))
            if run.evaluate_expr(site.node, local) and not run.evaluate_expr(replacement, local):  # type: ignore[arg-type]
                return None
        return f"`{show(replacement)}` holds wherever `{show(site.node)}` does: the mask is asked for in more blocks, and there, as the contract `full` says, all pairs are kept, so that it changes nothing"
    return None


def _only_masks(func: Func, param: str) -> bool:
    """Return whether a parameter is used only in `if param: S = where(keep(...) ..., S, -inf)`."""
    uses = [n for stmt in func.body for n in walk(stmt) if n == Name(param)]
    for stmt in func.body:
        if isinstance(stmt, If) and stmt.cond == Name(param) and len(uses) == 1 and len(stmt.body) == 1 and not stmt.orelse:
            inner = stmt.body[0]
            if isinstance(inner, Assign) and isinstance(inner.value, Call) and is_where(inner.value) and len(inner.value.args) == 3:
                cond, values, _ = inner.value.args
                return inner.targets == (show(values),) and any(isinstance(n, Call) and n.func == Name("keep") for n in walk(cond))
    return False


def more_order(t: Trial) -> str | None:
    """Argue for a wait moved forward, or a release moved back: whatever was ordered still is."""
    old, new = _region(t)
    if old is None or new is None or sorted(map(show, old)) != sorted(map(show, new)):
        return None
    for stmt, step in ((old[-1], "forward"), (old[0], "back")):
        rest = [s for s in old if s is not stmt]
        moved = [stmt, *rest] if step == "forward" else [*rest, stmt]
        call = stmt.value if isinstance(stmt, ExprStmt) else None
        op = t.places.op(call) if isinstance(call, Call) else None
        only_waits = _only_waits(t.places, stmt)
        if tuple(moved) != new or any(names_read(stmt) & set(count_assignments((s,))) for s in rest):
            continue
        if (step == "forward" and only_waits) or (step == "back" and op is not None and op.effects.releases):
            text = show(stmt).strip().split("\n")[0]
            return f"`{text}` {'earlier' if step == 'forward' else 'later'} only adds order: no race can come of it, only a deadlock, which does not depend on the schedule and which no run shows"
    return None


def _only_waits(places: Places, stmt: Stmt) -> bool:
    if isinstance(stmt, If):
        return not stmt.orelse and all(_only_waits(places, s) for s in stmt.body)
    op = places.op(stmt.value) if isinstance(stmt, ExprStmt) and isinstance(stmt.value, Call) else None
    return op is not None and bool(op.effects.waits or op.effects.drains) and not op.effects.arrives


def _region(t: Trial) -> tuple[tuple[Stmt, ...] | None, tuple[Stmt, ...] | None]:
    """Return the statements of the original and of the mutant between which they differ.

    None if they do not differ in one block.
    """
    if isinstance(t.at.node, Expr) or type(t.new) is not type(t.at.node):
        return None, None
    for name in ("body", "orelse"):
        a, b = getattr(t.at.node, name, ()), getattr(t.new, name, ())
        if a != b and replace_node(t.at.node, ((name, None),), b) == t.new:
            same = SequenceMatcher(None, [show(x) for x in a], [show(x) for x in b], autojunk=False).get_opcodes()
            changed = [o for o in same if o[0] != "equal"]
            return a[changed[0][1] : changed[-1][2]], b[changed[0][3] : changed[-1][4]]
    return None, None


def nobody_waits(t: Trial) -> str | None:
    """Argue for changed arrivals that no wait needs: without them altogether the program passes."""
    arrivals = _arrivals(t)
    if not arrivals:
        return None
    program: Any = t.program
    for site in sorted(arrivals, key=lambda s: s.path, reverse=True):
        program = replace_node(program, site.path, ())
    try:
        if not t.explore(program).clean or not t.has_same_bits(program):
            return None
    except CuirError:
        return None
    message = ", ".join(f"`{show(s.node).strip()}`" for s in arrivals)
    return f"without {message} no worker waits in vain in {t.runs} runs of up to 18 tiles a CTA, nor in any schedule of {t.explored.launches} launches: nobody waits for the phase that it counts for, so its place and number are free"


def _arrivals(t: Trial) -> list[Site]:
    """Return the arrivals at mbarriers that changed, if nothing else did."""
    inside = next((p for p in reversed((*t.at.parents, t.at.node)) if isinstance(p, ExprStmt)), None)
    old, new = _region(t)
    if inside is not None:
        old, new = (inside,), None
    if old is None or (new is not None and _remove_arrivals(t.places, old) != _remove_arrivals(t.places, new)):
        return []
    arrivals = [
        s
        for s in t.places.sites
        if any(s.node is n for o in old for n in walk(o)) and isinstance(s.node, ExprStmt) and _arrives(t.places, s.node)
    ]
    if not arrivals and new is not None:  # an arrival was added
        more = {show(s).strip() for s in new if _arrives(t.places, s)}
        block = getattr(t.at.node, "body", ())
        arrivals = [s for s in t.places.sites if any(s.node is o for o in block) and show(s.node).strip() in more]
    return arrivals


def _arrives(places: Places, stmt: Node) -> bool:
    op = places.op(stmt.value) if isinstance(stmt, ExprStmt) and isinstance(stmt.value, Call) else None
    return op is not None and op.effects.releases and not op.traits.hardware


def _remove_arrivals(places: Places, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    return tuple(
        s for s in body if not (_arrives(places, s) or (isinstance(s, If) and not s.orelse and all(_arrives(places, x) for x in s.body)))
    )


def only_speed(t: Trial) -> str | None:
    """Argue for changed uses of a named barrier that orders nothing that must be ordered.

    Without it the program is right as well.
    """
    kernels = [pick_kernel(p, t.kernel) for p in (t.program, t.mutant)]
    for name in filter(t.places.hardware, t.places.barriers):
        original, mutated = (replace(k, body=_strip(k.body, name)) for k in kernels)
        rest = [tuple(i for i in p.items if i is not k) for p, k in zip((t.program, t.mutant), kernels)]
        if original != mutated or rest[0] != rest[1]:
            continue
        without = replace_node(t.program, (("items", t.program.items.index(kernels[0])),), original)
        if t.explore(without).clean and t.has_same_bits(without):
            return f"without any use of `{name}` no schedule of {t.explored.launches} launches goes wrong, and the bits are the same in {t.runs} runs: it makes workers take turns, and orders nothing that must be ordered"
    return None


def _strip(body: tuple[Stmt, ...], name: str) -> tuple[Stmt, ...]:
    """Remove a barrier's declaration and the calls of its methods, and blocks that this leaves empty."""

    def strip(s: Stmt) -> Stmt | tuple[Stmt, ...]:
        if isinstance(s, Assign):
            return () if s.targets == (name,) else s
        if isinstance(s, ExprStmt):
            method = isinstance(s.value, Call) and isinstance(s.value.func, Attribute) and get_root(s.value.func) == name
            return () if method else s
        if isinstance(s, If) and not s.body and s.orelse:
            return replace(s, cond=Unary("not", s.cond), body=s.orelse, orelse=())
        return () if isinstance(s, (If, For, With)) and not s.body else s

    return rewrite_block(body, strip)


def same_value(t: Trial) -> str | None:
    """Argue for a scalar in a role whose value is the same whenever it is needed.

    A program that divides by 0 where it differs runs through.
    """
    for site, replacement in itertools.islice(t.expressions(), 3):
        for witness in (_witness(site.node, replacement), _witness_bool(site.node, replacement)):  # type: ignore[arg-type]
            if t.has_same_bits(replace_node(t.program, site.path, witness)):
                return f"`{show(replacement)}` is equal to `{show(site.node)}` whenever it is needed, in {t.runs} runs (a program that divides by 0 where they differ runs through)"
    return None


def _witness(old: Expr, new: Expr) -> Expr:
    return Binary("+", old, Binary("//", Literal(0), IfExp(Binary("==", old, new), Literal(1), Literal(0))))


def _witness_bool(old: Expr, new: Expr) -> Expr:
    old_number, new_number = (IfExp(e, Literal(1), Literal(0)) for e in (old, new))
    return Binary("==", _witness(old_number, new_number), Literal(1))


def free_number(t: Trial) -> str | None:
    """Argue for a number that is always multiplied by 0: other numbers give the same bits, NaN does not.

    Where no run needs it, tiles of half the size are tried, too.
    """
    if not isinstance(t.at.node, Literal) or t.at.node.kind != "float" or isinstance(t.at.parents[-1], Unary):
        return None
    for trial in (t, *make_smaller_tiles(t)):
        if not all(trial.has_same_bits(replace_node(t.program, t.at.path, Literal(x))) for x in (1.0, 7.5, 1000.0)):
            return None
        if not trial.has_same_bits(replace_node(t.program, t.at.path, _NAN)):
            changed = [f"{n}={v}" for n, v in trial.consts.items() if t.consts.get(n) != v]
            qualification = f" (no run needs it with these consts; with {', '.join(changed)} they do)" if changed else ""
            return f"1.0, 7.5 and 1000.0 in place of `{show(t.at.node)}` all give the same bits in {trial.runs} runs, and NaN does not: the number is multiplied by 0{qualification}"
    return None


def never_equal(t: Trial) -> str | None:
    """Argue for a comparison of computed floats that became strict or not strict.

    The programs differ where both sides are equal, which no run shows.
    """
    node = t.at.node
    if not (isinstance(node, Binary) and isinstance(t.new, Binary)):
        return None
    choice = _find_decided_choice(t)
    if not became_strict_or_not(node, t.new) or choice is None:
        return None
    call = choice.node
    assert isinstance(call, Call)
    halves = replace(node, left=Binary("*", node.left, Literal(0.5)), right=Binary("*", node.right, Literal(0.5)))
    equal = Binary("==", node.left, node.right)
    marked = replace(call, args=(equal, _NAN, call))
    if not t.has_same_bits(replace_node(t.program, t.at.path, halves)) or not t.has_same_bits(replace_node(t.program, choice.path, marked)):
        return None  # not of floats, or equal somewhere
    return f"`{show(node.left)}` and `{show(node.right)}` are computed floats, never equal in {t.runs} runs; either side is right where they are"


def _find_decided_choice(t: Trial) -> Site | None:
    """Return the choice that the changed comparison decides, directly or by a name.

    The name is bound once in its function, and so is what it compares.
    """
    around = t.at.parents[-1]
    if isinstance(around, Call):
        return t.places.at[t.at.path[:-1]] if is_where(around) else None
    function = t.at.parents[-2]
    if not isinstance(around, Assign) or len(around.targets) != 1 or not isinstance(function, Func):
        return None
    times = count_assignments(function.body)
    if any(times[name] > 1 for name in (*around.targets, *names_read(t.at.node))):
        return None
    calls = (s for s in t.places.at.values() if function in s.parents and isinstance(s.node, Call) and is_where(s.node))
    return next((s for s in calls if s.node.args[0] == Name(around.targets[0])), None)  # type: ignore[attr-defined]


def needless_case(t: Trial) -> str | None:
    """Argue for another number n in `where(x == n, value, general)`: `general` gives the same bits for the original's number.

    No run has an x between both numbers, nor the new one.
    """
    old, new = t.at.node, t.new
    if not (isinstance(old, Literal) and isinstance(new, Literal)):
        return None
    choice, test = t.at.parents[-2:]
    if not (isinstance(test, Binary) and traits(test).compares == EQUAL):
        return None
    if not (isinstance(choice, Call) and is_where(choice) and choice.args[0] is test and test.right is old):
        return None
    path, general = t.at.path[:-2], choice.args[2]
    low, high = sorted((old, new), key=lambda x: x.value)
    between = Binary("&", Binary(">" if low is old else ">=", test.left, low), Binary("<=" if high is new else "<", test.left, high))
    never = where(between, _NAN, choice)
    taken = replace(choice, args=(test, _NAN, general))
    if not t.has_same_bits(replace_node(t.program, path, general)) or not t.has_same_bits(replace_node(t.program, path, never)):
        return None
    if t.has_same_bits(replace_node(t.program, path, taken)):
        return None  # no run takes the case
    return f"where `{show(test)}` holds, `{show(general)}` gives the same bits in {t.runs} runs; `{show(between)}` holds in none of them (NaN there gives the same bits)"


def fewer_stages(t: Trial) -> str | None:
    """Argue for a ring of fewer stages wherever it is used: the original with another const has the mutant's statements.

    The mutant only has more stages of arrays and barriers, which no statement uses.
    """
    if not isinstance(t.at.node, Expr):
        return None
    mutant, consts = check(t.mutant, t.kernel, t.consts), check(t.program, t.kernel, t.consts).consts
    for name in sorted(names_read(t.at.node) | names_read(t.new)):
        value = consts.get(name)
        for setting in range(1, value) if isinstance(value, int) and value <= _MOST_STAGES else ():
            try:
                fewer = check(t.program, t.kernel, {**t.consts, name: setting})
            except CuirError:
                continue
            if has_spare_stages(mutant, fewer) and t.explored.clean and t.has_same_bits(t.mutant):
                return f"the statements are those of the original with {name}={setting}, and the further stages of arrays and barriers are unused; no schedule of {t.explored.launches} launches is faulty, and the bits are the same in {t.runs} runs"
    return None


def every_schedule(t: Trial) -> str | None:
    """Argue for a change of synchronisation or memory accesses by exploration.

    No schedule of a few small launches is faulty, and the outputs are bitwise equal.
    """
    inside = (*t.at.parents, t.at.node)
    values = [p for p in inside if isinstance(p, (Assign, Func))]  # register computations are judged by the numbers
    if (
        any(all(map(t.places.in_registers, p.body if isinstance(p, Func) else (p,))) for p in values)
        or not t.explored.clean
        or not t.has_same_bits(t.mutant)
    ):
        return None
    return f"no deadlock, race, overrun or lapped wait in any schedule of {t.explored.launches} launches ({t.explored.states:,} states), {t.extent}, and the bits of the original in {t.runs} runs"


ARGUMENTS: tuple[Callable[[Trial], str | None], ...] = (
    blocks,
    columns,
    predicate,
    argue_for_wider_mask,
    more_order,
    nobody_waits,
    only_speed,
    tied_operands,
    never_equal,
    needless_choice,
    needless_case,
    swapped_factors,
    exchanged_arguments,
    free_number,
    same_value,
    other_setting,
    same_units,
    argue_for_unused_part,
    other_way,
    fewer_stages,
    every_schedule,
)
