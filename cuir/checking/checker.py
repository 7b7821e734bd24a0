"""The checker: parsed text -> a `Checked` kernel, or every error found.

Drives flattening, typing and the static checks. Typing of expressions is in infer.py, limits of the machine in
resources.py, rules of a primitive in its entry of the table.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from ..caching import memoize
from ..ops import TABLE
from ..ops.base import Effects
from ..ops.expressions import get_called_op
from ..ops.limits import TARGETS, Target
from ..syntax.caller_values import plain_number, program_of
from ..syntax.nodes import (
    Assign,
    Call,
    ConstType,
    Expr,
    GlobalType,
    Kernel,
    Literal,
    Name,
    Param,
    Program,
    ScalarType,
    Stmt,
    Str,
    Subscript,
    Tuple,
    With,
)
from ..syntax.types import BOOL, DTYPES, F32, I32, BarrierType, DType, Scalar, SharedView, Type
from ..syntax.walk import IdentityKey, walk
from ..text.diagnostics import CuirError, Diagnostic, Sink
from .checked import Barrier, Checked, Const, Role, ScalarParam, TensorParam, TileScheduler, call_of
from .const_defaults import fill_consts, get_default
from .flatten import FlatKernel, flatten
from .fold import check_literals, fold, shorten, specialise
from .infer import Scope, Typer
from .resources import (
    check_counts,
    check_fragments,
    check_narrow_floats,
    check_roles,
    count_signal_bytes,
    lay_out_exchanges,
    lay_out_shared,
)
from .scope import remove_dead

SIZES = ("T104", "T162")  # codes of lengths, counts and stages


def check(program: Program | str | os.PathLike[str], kernel: str | None = None, consts: Mapping[str, Const] | None = None) -> Checked:
    """Check one kernel of a program, specialised.

    program: a parsed one, a decorated kernel, or the path of a file. kernel: its name, optional if there is only one.
    consts: values of const parameters (dtypes, also as "f16" or torch.float16; ints, bools). The kernel's defaults
    fill the rest; without a default, the dtype of tensors is f16 and `D` is 128 (`fill_consts`). Raises CuirError with
    every error found.
    """
    program = program_of(program, "check")
    sink = Sink()
    picked = pick_kernel(program, kernel)
    values = resolve_consts(picked, fill_consts(picked, consts or {}), sink)
    sink.stop_if_any()
    return _check_cached(IdentityKey(program), IdentityKey(picked), tuple((name, type(value), value) for name, value in values.items()))


@memoize(64)  # a caller that finds a setting which fits runs it or lowers it next
def _check_cached(program: IdentityKey, kernel: IdentityKey, consts: tuple[tuple[str, type, Const], ...]) -> Checked:
    assert isinstance(program.tree, Program) and isinstance(kernel.tree, Kernel)
    try:
        return _Checker(program.tree, kernel.tree, {name: value for name, _, value in consts}, Sink()).run()
    except RecursionError:
        raise CuirError.of(
            "P018", "expressions are nested too deeply once functions are inlined", kernel.tree.span, "bind parts of them to names"
        ) from None


def pick_kernel(program: Program, name: str | None) -> Kernel:
    kernels = program.kernels()
    if name is None and len(kernels) == 1:
        return next(iter(kernels.values()))
    if name in kernels:
        return kernels[name]
    listed = ", ".join(kernels) or "none"
    if name is None:
        message = "the program has no kernel" if not kernels else f"the program has {len(kernels)} kernels: {listed}"
        raise CuirError.of(
            "N109",
            message,
            program.span if not kernels else None,
            "name one (-k NAME)" if kernels else "write one: @kernel(arch=...) def name(...):",
        )
    raise CuirError.of("N110", f"there is no kernel `{name}`; the program has: {listed}")


def resolve_consts(kernel: Kernel, arguments: Mapping[str, Const], sink: Sink) -> dict[str, Const]:
    """Return the value of each const parameter: the caller's, else its default.

    Reports parameters without value, unknown names and values of a wrong kind.
    """
    params = {p.name: p for p in kernel.params if isinstance(p.type, ConstType)}
    values: dict[str, Const] = {}
    for name in arguments:
        if name not in params:
            sink.error("N111", f"`{kernel.name}` has no const parameter `{name}`; it has: {', '.join(params) or 'none'}", kernel.span)
    for name, p in params.items():
        default = get_default(p, values)
        if p.default is not None and default is None and not _is_const_before(p, kernel):
            sink.error("T102", f"the default of `{name}` must be a literal, a dtype or a const parameter before it", p.span)
        value = normalise_dtype(plain_number(arguments.get(name, default)))
        if value is None:
            sink.error(
                "N112",
                f"const `{name}` has no value",
                p.span,
                f"give one: -c {name}=..., consts={{'{name}': ...}}, or a default in the signature",
            )
            continue
        expected = _kind(p, kernel, default)
        if expected == "dim" and not (type(value) is int and value >= 0):
            sink.error("T103", f"const `{name}` is a dim and must be an integer >= 0, found {_show(value)}", p.span)
        elif expected == "dtype" and not isinstance(value, DType):
            sink.error("T103", f"const `{name}` must be a dtype ({', '.join(DTYPES)}), found {_show(value)}", p.span)
        elif type(value) is int and not -(2**31) <= value < 2**31:
            sink.error("T103", f"const `{name}` is an integer of 32 bits, found {shorten(value)}", p.span)
        elif default is not None and type(default) is not type(value) and not (isinstance(default, float) and type(value) is int):
            sink.error("T103", f"const `{name}` must be of the kind of its default {_show(default)}, found {_show(value)}", p.span)
        else:
            values[name] = value
    return values


def normalise_dtype(value: Const | str | object) -> Const | None:
    """Normalise a const of the caller: a dtype may be its name ("f16") or torch's (torch.float16)."""
    named = {f"torch.{d.torch}": d.name for d in DTYPES.values() if d != BOOL}
    dtype = DTYPES.get(named.get(str(value), str(value)))
    return dtype if dtype is not None else value  # type: ignore[return-value]


def _kind(p: Param, kernel: Kernel, default: Const | None) -> str:
    tensors = [q.type for q in kernel.params if isinstance(q.type, GlobalType)]
    if any(t.dtype == p.name for t in tensors) or isinstance(default, DType):
        return "dtype"
    return "dim" if any(p.name in t.dims for t in tensors) else "any"


def _is_const_before(p: Param, kernel: Kernel) -> bool:
    """Return whether the default names a const before it.

    That const is reported separately if it has no value.
    """
    before = kernel.params[: kernel.params.index(p)]
    return isinstance(p.default, Name) and any(q.name == p.default.id and isinstance(q.type, ConstType) for q in before)


def _show(value: Const) -> str:
    return value.name if isinstance(value, DType) else repr(value)


class _RoleHeader(NamedTuple):
    """Header of a role: its name, its workers and the threads of one, and the registers of a thread."""

    name: str
    workers: int
    threads: int
    registers: int | None


class _Checker:
    def __init__(self, program: Program, kernel: Kernel, consts: dict[str, Const], sink: Sink):
        self.program, self.kernel, self.consts, self.sink = program, kernel, consts, sink
        self.shared: dict[str, tuple[SharedView, str | None, Stmt]] = {}
        self.barriers: dict[str, tuple[BarrierType, int, Stmt]] = {}
        self.warps: dict[str, int] = {}  # of named barriers with `warps=`
        self.tiles: TileScheduler | None = None

    def run(self) -> Checked:
        if self.kernel.arch not in TARGETS:
            self.sink.error("S207", f"`arch` is one of {', '.join(TARGETS)}, found {self.kernel.arch!r}", self.kernel.span)
            self.sink.stop_if_any()
        target = TARGETS[self.kernel.arch]
        cluster, cluster_x = self.resolve_cluster(target)
        self.sink.stop_if_any()
        scope = self.declare_parameters()
        flat = flatten(self.program, replace(self.kernel, cluster=Literal(cluster)), self.consts, self.sink)
        typer = Typer(self.kernel, scope, self.sink)
        declarations = self.declare(flat, typer, scope)
        allocs, shared_bytes = lay_out_shared(self.shared, self.barriers, target, self.sink)
        unusable = select_size_errors([d for d in self.sink.diagnostics if d.code in SIZES], self.kernel, self.consts)
        if unusable:  # errors in the roles about these arrays and rings would only follow from this
            raise CuirError([*unusable, *(d for d in self.sink.diagnostics if d.code not in SIZES)])
        roles = self.type_roles(flat, typer, scope)
        check_literals(typer.literals, self.sink)
        check_narrow_floats(scope.tensors.values(), self.shared.values(), roles, target, self.sink)
        threads = {r.name: r.threads for r in roles}
        barriers = self.build_barrier_table(typer, threads)
        check_counts(barriers.values(), threads, target, self.sink)
        roles, warpgroups = check_roles(roles, self.kernel, target, self.sink)
        check_fragments(roles, self.sink)
        roles, shared_bytes = lay_out_exchanges(roles, shared_bytes, count_signal_bytes(self.barriers), target, self.sink)
        if sum(b.stages or 1 for b in barriers.values() if b.hardware) > target.named_barriers - 1:
            self.sink.error(
                "M303",
                f"the machine has {target.named_barriers - 1} named barriers for a kernel, found more",
                next(b.span for b in barriers.values() if b.hardware),
            )
        self.sink.stop_if_any()
        written = typer.written
        tensors = tuple(replace(t, written=t.name in written) for t in scope.tensors.values())
        checked = Checked(
            self.program,
            self.kernel,
            cluster,
            cluster_x,
            self.consts,
            tensors,
            scope.scalar_params,
            scope.dims,
            allocs,
            shared_bytes,
            barriers,
            self.tiles,
            tuple(declarations),
            dict(scope.declared),
            tuple(roles),
            warpgroups,
        )
        return checked

    def resolve_cluster(self, target: Target) -> tuple[int, int]:
        """Return the CTAs of a cluster, and those of them along x; 1 after an error."""
        written = self.kernel.cluster or Literal(1)
        sides = written.items if isinstance(written, Tuple) else (written,)
        lengths = [self.resolve_side(e) for e in sides]
        if None in lengths:
            return 1, 1
        size = math.prod(n for n in lengths if n is not None)
        if not 1 <= size <= target.cluster or min(n for n in lengths if n is not None) < 1:
            description = " x ".join(map(str, lengths)) + (f", {size} in all" if len(lengths) > 1 and size > target.cluster else "")
            allowed = (
                "no clusters"
                if target.cluster == 1
                else f"clusters of 1 to {target.cluster} CTAs" + ", each side at least 1" * (len(lengths) > 1)
            )
            self.sink.error("S208", f"{target.name} has {allowed}, found {description}", written.span)
            return 1, 1
        return size, lengths[0] or 1

    def resolve_side(self, written: Expr) -> int | None:
        """Return a side of a cluster; None after an error."""
        bindings = {n: fold(c.value) for n, c in self.program.constants().items()}
        bindings |= {n: Name(v.name) if isinstance(v, DType) else Literal(v) for n, v in self.consts.items()}
        try:
            size = specialise(written, bindings)
        except ZeroDivisionError:
            size = written
        value = size.value if isinstance(size, Literal) else None
        if type(value) is int:
            return value
        description = "something that is not known when the kernel is specialised" if value is None else repr(value)
        hint = "write an integer, a const parameter or an expression of these"
        self.sink.error("S208", f"`cluster` must be a known integer, found {description}", written.span, hint)
        return None

    # ---- parameters
    def declare_parameters(self) -> Scope:
        tensors: dict[str, TensorParam] = {}
        scalars: list[ScalarParam] = []
        dims: dict[str, None] = {}
        for p in self.kernel.params:
            if isinstance(p.type, GlobalType):
                dtype = self.consts.get(p.type.dtype) or DTYPES.get(p.type.dtype)
                if not isinstance(dtype, DType):
                    self.sink.error(
                        "T156", f"`{p.type.dtype}` is no dtype ({', '.join(DTYPES)}) and no const parameter that is one", p.span
                    )
                    dtype = F32
                if dtype == BOOL:
                    self.sink.error("T156", "tensors are of f16, bf16, f32 or i32, found bool", p.span, "pass it as i32")
                resolved: list[str | int] = []
                for d in p.type.dims:
                    value = self.consts.get(d, d) if isinstance(d, str) else d
                    if not isinstance(value, (str, int)) or isinstance(value, bool):
                        self.sink.error("T157", f"`{d}` is no dim", p.span)
                        value = 1
                    resolved.append(value)
                    if isinstance(value, str):
                        dims[value] = None
                tensors[p.name] = TensorParam(p.name, dtype, tuple(resolved), False, p.span, p.type.scratch)
            elif isinstance(p.type, ScalarType):
                if p.type.dtype not in ("i32", "f32", "bool"):
                    self.sink.error("T118", f"scalars are i32, f32 or bool, found {p.type.dtype}", p.span)
                scalars.append(ScalarParam(p.name, DTYPES.get(p.type.dtype, F32), p.span))
        lengths = {d for t in tensors.values() if not t.scratch for d in t.dims}
        for t in tensors.values():
            for unknown in [d for d in t.dims if t.scratch and isinstance(d, str) and d not in lengths]:
                self.sink.error(
                    "T157",
                    f"`{unknown}`, a dim of the scratch `{t.name}`, is no dim of a tensor that the caller gives and no const",
                    t.span,
                    "a launch makes it: its lengths are dims of `Global` parameters, consts and integers",
                )
        for name in dims:
            if any(p.name == name for p in self.kernel.params if not isinstance(p.type, ConstType)):
                self.sink.error("N113", f"`{name}` is both a dim and a parameter", self.kernel.span)
        declared: dict[str, Type] = {s.name: Scalar(s.dtype) for s in scalars}
        declared.update({d: Scalar(I32) for d in dims})
        return Scope(tensors, tuple(scalars), tuple(dims), declared)

    # ---- declarations
    def declare(self, flat: FlatKernel, typer: Typer, scope: Scope) -> list[Stmt]:
        scalars: list[Stmt] = []
        for stmt in flat.declarations:
            if not isinstance(stmt, Assign):
                self.sink.error("S202", "before the roles only declarations: `name = ...`", stmt.span, "move it into a role")
                continue
            name, value = stmt.targets[0], stmt.value
            op = get_called_op(value)
            makes = op.traits.makes if op is not None and op.traits.declares else None
            t = typer.type_declaration(value)
            if name in scope.views or name in scope.barriers or (makes is not None and name in scope.declared):
                self.sink.error("S209", f"`{name}` is declared twice", stmt.span)
            elif makes == "units" and isinstance(value, Call):
                self.declare_tiles(name, value, stmt, typer)
                scope.tiles = name
            elif isinstance(t, SharedView):
                bound = call_of(value)
                over = bound.args.get("over") if bound is not None else None
                base = over.id if isinstance(over, Name) else None
                self.shared[name] = (t, base, stmt)
                scope.views[name] = t
            elif isinstance(t, BarrierType):
                bound = call_of(value)
                n = typer.const(bound.args["n"]) if bound is not None else 1
                self.barriers[name] = (t, n, stmt)
                if bound is not None and "warps" in bound.args and (warps := typer.const(bound.args["warps"])):
                    self.warps[name] = warps
                scope.barriers[name] = t
            elif isinstance(t, Scalar):
                typer.bind(name, t, stmt.span, scope.declared)
                scalars.append(stmt)
            elif makes is None:
                typer.poison(name, t, stmt.span, scope.declared)
        return scalars

    def declare_tiles(self, name: str, call: Call, stmt: Stmt, typer: Typer) -> None:
        if self.tiles is not None:
            self.sink.error("S210", "`tiles` is called once in a kernel", stmt.span, notes=[("it was called here", self.tiles.span)])
            return
        bound = call_of(call)
        if bound is not None and "n" in bound.args:
            dynamic = typer.const(bound.args["dynamic"]) if "dynamic" in bound.args else False
            self.tiles = TileScheduler(name, bound.args["n"], bool(dynamic), stmt.span)

    # ---- roles
    def type_roles(self, flat: FlatKernel, typer: Typer, scope: Scope) -> list[Role]:
        roles: list[Role] = []
        for w in flat.roles:
            name, workers, threads, registers = self.bind_role(w, typer)
            if any(r.name == name for r in roles):
                self.sink.error("S211", f"there are two roles `{name}`", w.span)
            local = typer.type_role(name, threads, w.name, w.body)
            body = remove_dead(w.body, reads_memory_or_acts)
            roles.append(Role(name, workers, threads, registers, w.name, body, local, 0, 0, w.span))
        return roles

    def bind_role(self, w: With, typer: Typer) -> _RoleHeader:
        call = w.call
        op = get_called_op(call)
        if op is None or op.traits.makes != "workers":
            self.sink.error("S212", "`with` opens a role", call.span, 'write `with role("name", warps=1):`')
            return _RoleHeader("?", 1, 32, None)
        bound = typer.bind_arguments(call)
        if bound is None:
            return _RoleHeader("?", 1, 32, None)
        args = bound.args
        word = args.get("name")
        if not isinstance(word, Str):
            self.sink.error("S213", "a role's name is a word in quotes", call.span)
        numbers: dict[str, int | None] = {}
        for key in ("warps", "warpgroups", "registers"):
            value = typer.const(args[key]) if key in args else None
            if key in args and (type(value) is not int or value <= 0):
                self.sink.error("T103", f"`{key}` must be a known positive integer", args[key].span)
                value = 1 if key != "registers" else None
            numbers[key] = value
        if (numbers["warps"] is None) == (numbers["warpgroups"] is None):
            self.sink.error("S214", "a role has either warps=n or warpgroups=n", call.span)
        threads = 128 if numbers["warpgroups"] is not None else 32
        most = TARGETS[self.kernel.arch].threads // threads
        for key in ("warps", "warpgroups"):
            if (numbers[key] or 0) > most:
                self.sink.error(
                    "M305",
                    f"a CTA has at most {TARGETS[self.kernel.arch].threads} threads, found {shorten((numbers[key] or 0) * threads)}",
                    args[key].span,
                )
                numbers[key] = most
        name = word.value if isinstance(word, Str) else "?"
        return _RoleHeader(name, numbers["warpgroups"] or numbers["warps"] or 1, threads, numbers["registers"])

    def build_barrier_table(self, typer: Typer, threads: Mapping[str, int]) -> dict[str, Barrier]:
        """Build the table of barriers, with the role that arrives and the warps of a named barrier's phase.

        threads: of a worker of each role.
        """
        table: dict[str, Barrier] = {}
        for name, (t, n, stmt) in self.barriers.items():
            users: dict[str, Stmt | Expr] = {}
            for role, call, kind in typer.barrier_uses.get(name, []):
                if kind == "arrives" or TABLE[t.kind].traits.hardware:
                    users.setdefault(role, call)
            sizes = {threads[role]: role for role in reversed(users)}
            if len(users) > 1 and not TABLE[t.kind].traits.hardware:
                (first, first_use), (second, second_use) = list(users.items())[:2]
                self.sink.error(
                    "S215",
                    f"roles `{first}` and `{second}` both arrive on `{name}`; all who do belong to one role",
                    second_use.span,
                    notes=[(f"`{first}` here", first_use.span)],
                )
            elif len(sizes) > 1 and name not in self.warps:
                self.sink.error(
                    "S215",
                    f"warps of role `{sizes[32]}` and warpgroups of role `{sizes[128]}` meet at `{name}`, which does not say of how many warps a phase is",
                    stmt.span,
                    f"a warpgroup is four: named_barrier({n}, warps=...)",
                    notes=[(f"`{role}` here", users[role].span) for role in sizes.values()],
                )
            warps = n * min(sizes, default=32) // 32
            table[name] = Barrier(name, t.kind, n, t.stages, next(iter(users), None), self.warps.get(name, warps), stmt.span)
        return table


def select_size_errors(errors: Sequence[Diagnostic], kernel: Kernel, consts: Mapping[str, Const]) -> list[Diagnostic]:
    """Select the errors of sizes to report, with the const parameters that decide them in the hint.

    Errors that depend on more consts than another one are left out.
    """
    bound: dict[str, Expr] = {}
    for stmt in kernel.body:
        if isinstance(stmt, Assign):
            values: Sequence[Expr] = stmt.value.items if isinstance(stmt.value, Tuple) else (stmt.value,)
            bound |= dict(zip(stmt.targets, values))

    def deciding(names: set[str], visited: frozenset[str] = frozenset()) -> set[str]:
        direct = {n for n in names if n in consts and not isinstance(consts[n], DType)}
        inner = {m for n in names - visited if n in bound for m in collect_names(bound[n])}
        return direct | (deciding(inner, visited | names) if inner else set())

    selected: list[Diagnostic] = []
    reasons = [deciding(set(re.findall(r"[A-Za-z_]\w*", d.span.text()))) if d.span else set() for d in errors]
    for i, (d, names) in enumerate(zip(errors, reasons)):
        if any(r and (r < names or (r == names and j < i)) for j, r in enumerate(reasons)):
            continue
        used = sorted(set(re.findall(r"[A-Za-z_]\w*", d.span.text())) & set(bound)) if d.span and d.code == "T104" else []
        steps = [f"{n} = {bound[n].span.text()}" for n in used if bound[n].span]
        chosen = [f"{n} = {_show(v)}" for n, v in consts.items() if n in names]
        selected.append(replace(d, hint=f"here {', '.join((*steps, *chosen))}: choose others") if chosen and d.hint is None else d)
    return selected


def collect_names(e: Expr) -> set[str]:
    return {n.id for n in walk(e) if isinstance(n, Name)}


def reads_memory_or_acts(e: Expr) -> bool:
    """Return whether evaluating an expression does more than compute its value."""
    calls = [call_of(n) for n in walk(e) if isinstance(n, Call)]  # None: it was reported as wrong
    return any(c is None or c.op.effects != Effects() for c in calls) or any(isinstance(n, Subscript) for n in walk(e))


__all__ = ["check", "pick_kernel", "resolve_consts"]
