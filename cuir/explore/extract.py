"""Extraction of skeletons from a checked kernel and its arguments.

The control flow of each worker is run alone; its synchronisation and accesses are recorded. The effects of a call on
memory and barriers come from the table of primitives. Scalars are evaluated as the interpreter evaluates them; register
tiles are not, except index tiles of elements that are stored. That a worker's steps do not depend on the schedule is
required, not assumed: no scalar, and no place of an access, may come from memory that the kernel writes (CuirError
V202).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, combinations
from typing import Any

import numpy as np
import torch

from ..arguments.binding import Argument
from ..checking.checked import BoundCall, Checked
from ..checking.tensor_modes import find_exchanged
from ..checking.views import root_name
from ..interp.barrier_state import NamedBarrier
from ..interp.code import Compiler, Site
from ..interp.element_places import compile_barrier_place, compile_box_place, compile_shared_place, list_peers
from ..interp.interpreted_launch import LaunchOptions, prepare
from ..interp.machine import Evaluate, Launch, Machine, Worker
from ..interp.memory import SharedRef
from ..interp.ops.async_memory import commit_name, copy_name
from ..interp.tensors import TensorArg
from ..interp.values import require_uniform
from ..sync.byte_ranges import Intervals
from ..sync.waits import split_at_most, split_through
from ..syntax.nodes import Assign, Call, Expr, ExprStmt, For, If, Name, Slice, Stmt, Subscript
from ..syntax.types import GlobalView, Scalar, TileType
from ..syntax.walk import IdentityKey, names_read, walk
from ..text.diagnostics import CuirError
from ..text.source import Span
from .skeleton import NOW, Bar, Fence, Landing, Region, Retire, Skeleton, Step, Touch, Trace
from .state_intervals import compute_box_coordinates, compute_box_intervals, compute_element_intervals

ANY_UNITS = 3  # up to this number every assignment of units is explored
LONGEST = 200_000  # largest number of steps of a cluster
OPERATION_NAMES = {"bulk_store": "the bulk store", "cp_async": "cp.async"}  # by groups
Handler = Callable[["_Worker"], None]
Reached = tuple[int, str, str]  # region, text, array of shared memory


def extract_skeletons(checked: Checked, arguments: Mapping[str, Argument], grid: int | None = None) -> Iterator[Skeleton]:
    """Yield the skeleton of each cluster of a launch.

    If few units of work are handed out dynamically, of a cluster for each set of units that it may get. Raises
    CuirError: V202, an invalid call, or a fault of the program that no schedule avoids (M...).
    """
    require_independence(checked)
    with np.errstate(all="ignore"), torch.no_grad():
        launch, units, compiler = prepare(checked, arguments, LaunchOptions(grid))
        extractor = _Extractor(launch, compiler)
        dynamic = checked.tiles is not None and checked.tiles.dynamic
        if dynamic and units <= ANY_UNITS:
            for chosen in chain.from_iterable(combinations(range(units), n) for n in range(units, -1, -1)):
                yield extractor.cluster(0, launch.grid if len(chosen) == units else max(2, launch.grid), chosen, dynamic)
        else:
            for cluster, assigned in enumerate(launch.work):
                yield extractor.cluster(cluster, launch.grid, assigned, dynamic)


def extract_single_units(checked: Checked, arguments: Mapping[str, Argument], grid: int | None = None) -> list[Skeleton]:
    """Extract as many clusters as there are units of work, or as a launch without units has."""
    with np.errstate(all="ignore"), torch.no_grad():
        launch, units, compiler = prepare(checked, arguments, LaunchOptions(grid))
        extractor = _Extractor(launch, compiler)
        if units > LONGEST:
            raise CuirError.of(
                "V203", f"the launch has {units:,} units of work, more than {LONGEST:,}", checked.origin.span, "explore a smaller launch"
            )
        work = [[t] for t in range(units)] if checked.tiles is not None else launch.work
        return [extractor.cluster(c, len(work), assigned, False) for c, assigned in enumerate(work)]


def require_independence(checked: Checked) -> None:
    """Raise CuirError V202 if a worker's steps or addresses may depend on values that other workers wrote."""
    written = {t.name for t in checked.tensors if t.written}
    for role in checked.roles:
        definitions: dict[str, list[Expr]] = {}
        for stmt in (s for top in role.body for s in walk(top)):
            if isinstance(stmt, Assign):
                definitions.setdefault(stmt.targets[0], []).append(stmt.value)
        for node in (n for top in role.body for n in walk(top)):
            if isinstance(node, Subscript) and not node.place and root_name(node) in written and isinstance(node.type, Scalar):
                raise CuirError.of(
                    "V202",
                    "a scalar is read from a tensor that the kernel writes: what the worker does next depends on who ran first",
                    node.span,
                    "the schedules of such a program are tried, not enumerated: --schedule all",
                )
        for e in _find_access_places(checked, role.body, written):
            _require_known(checked, e, definitions, written)


def _find_access_places(checked: Checked, body: tuple[Stmt, ...], written: set[str]) -> Iterator[Expr]:
    """Yield the indices and masks that select the accessed elements of a written tensor."""
    for node in (n for top in body for n in walk(top)):
        bound = checked.find_call(node)
        if bound is not None:
            roots = {root_name(bound.args[a.arg]) for a in bound.op.effects.accesses if a.arg in bound.args}
            if "mask" in bound.args and roots & written:
                yield bound.args["mask"]
        elif isinstance(node, Subscript) and root_name(node) in written:
            yield from (i for i in node.indices if not isinstance(i, Slice))


def _require_known(checked: Checked, e: Expr, definitions: Mapping[str, list[Expr]], written: set[str]) -> None:
    visited: set[str] = set()
    todo = [e]
    while todo:
        current = todo.pop()
        for n in walk(current):
            bound = checked.find_call(n)
            reads = [a.arg for a in bound.op.effects.accesses if a.mode == "read" and a.arg in bound.args] if bound is not None else []
            from_memory = bound is not None and any(root_name(bound.args[a]) in written | checked.shared.keys() for a in reads)
            if from_memory or (isinstance(n, Subscript) and root_name(n) in written):
                raise CuirError.of(
                    "V202",
                    "which elements are accessed was computed from memory, and may depend on who ran first",
                    e.span,
                    "the schedules of such a program are tried, not enumerated: --schedule all",
                )
        for name in names_read(current) - visited:
            visited.add(name)
            todo += definitions.get(name, [])


class _Worker:
    """A worker while its trace is extracted."""

    def __init__(self, w: Worker, number: int):
        self.w, self.number = w, number
        self.trace = Trace(w.label, bool(w.program.loops), w.program.threads // 32, cta=w.cta)
        self.engines = 0
        self.open: list[int] = []  # cp.async since the last commit
        self.closed: list[list[int]] = []
        self.stores: list[int] = []
        self.products: list[int] = []  # in flight, in the order of issue
        self.product_names: dict[str, int] = {}  # names of products
        self.queue: list[int] = []  # of an engine that finishes in order: all that was ever issued to it
        self.issued = 0  # the product of the statement

    def engine(self) -> int:
        self.engines += 1
        return self.engines - 1


class _Extractor:
    def __init__(self, launch: Launch, compiler: Compiler):
        self.launch, self.compiler, self.checked = launch, compiler, launch.checked
        self.handlers: dict[IdentityKey, list[Handler]] = {}
        self.evaluators: dict[IdentityKey, Evaluate] = {}
        self.written = {t.name for t in self.checked.tensors if t.written}
        self.turns = 0  # loop turns of the cluster
        self.before = compiler.compile_body(self.checked.declarations)
        self.needed = self._find_needed()

    def _find_needed(self) -> dict[str, set[str]]:
        """Collect, by role, the names of tiles that select the accessed elements of a written tensor."""
        needed_by_role: dict[str, set[str]] = {}
        for role in self.checked.roles:  # a name of two roles has other definitions in each
            needed = needed_by_role[role.name] = set()
            todo = [n for e in _find_access_places(self.checked, role.body, self.written) for n in names_read(e)]
            while todo:
                name = todo.pop()
                if name in needed:
                    continue
                needed.add(name)
                for stmt in (s for top in role.body for s in walk(top)):
                    if isinstance(stmt, Assign) and stmt.targets[0] == name:
                        todo += names_read(stmt.value)
        return needed_by_role

    # ---- a cluster
    def cluster(self, number: int, clusters: int, units: Sequence[int], dynamic: bool) -> Skeleton:
        self.units, self.turns = units, 0
        m = Machine(self.launch, np.array([number]))
        lockstep = self.checked.tiles is not None and all(p.loops in ((), (True,)) for p in self.launch.programs)
        self.skeleton = Skeleton(number, clusters, tuple(units) if dynamic else None, lockstep)
        self.regions: dict[Region, int] = {}
        self.bars: dict[int, int] = {}
        for ring in m.barriers.values():
            for bar in ring:
                self.bars[id(bar)] = len(self.skeleton.bars)
                self.skeleton.bars.append(
                    Bar(bar.text, bar.count, bar.warps if isinstance(bar, NamedBarrier) else 0, bar.span, self._is_named(bar))
                )
        for join in m.joins:
            self.bars[id(join)] = len(self.skeleton.bars)
            self.skeleton.bars.append(Bar(join.text, join.count, join.warps, None, True))
        roles = {r.name: r for r in self.checked.roles}
        for n, w in enumerate(m.workers):
            worker = _Worker(w, n)
            for instruction in self.before:
                instruction(w)
            self.block(worker, roles[w.program.name].body)
            self.skeleton.workers.append(worker.trace)
        self.skeleton.regions = list(self.regions)
        self.skeleton.aliases = {a: tuple(b.name for b in aliases) for a, aliases in m.shared[0].aliases.items()}
        self.skeleton.handed = find_exchanged(self.checked)
        self.skeleton.connect()
        return self.skeleton

    def _is_named(self, bar: Any) -> bool:
        return isinstance(bar, NamedBarrier)

    # ---- statements
    def block(self, worker: _Worker, stmts: tuple[Stmt, ...]) -> None:
        for stmt in stmts:
            if isinstance(stmt, Assign):
                self.effects(worker, stmt.value)
                self.assign(worker, stmt)
            elif isinstance(stmt, ExprStmt):
                self.effects(worker, stmt.value)
            elif isinstance(stmt, If):
                self.block(worker, stmt.body if require_uniform(self.value(worker, stmt.cond)) else stmt.orelse)
            elif isinstance(stmt, For):
                self.loop(worker, stmt)

    def assign(self, worker: _Worker, stmt: Assign) -> None:
        name, value = stmt.targets[0], stmt.value
        if not isinstance(self.checked.type_of(value), TileType):
            worker.w.frame[name] = require_uniform(self.value(worker, value))
            return
        worker.product_names.pop(name, None)
        if isinstance(value, Call) and self.checked.call(value).op.effects.group == "wgmma":
            worker.product_names[name] = worker.issued
        elif isinstance(value, Name) and value.id in worker.product_names:
            worker.product_names[name] = worker.product_names[value.id]
        elif name in self.needed[worker.w.program.name]:
            worker.w.frame[name] = self.value(worker, value)

    def loop(self, worker: _Worker, stmt: For) -> None:
        if isinstance(stmt.iter, Call):
            parts = [require_uniform(self.value(worker, a)) for a in stmt.iter.args]
            if len(parts) == 3 and parts[2] == 0:
                raise CuirError.of("M410", "the step of range is 0", stmt.iter.span, "a step that is positive or negative")
            for i in range(*parts):
                self.count_turn(worker, stmt)
                worker.w.frame[stmt.target] = i
                self.block(worker, stmt.body)
            return
        for t in self.units:
            self.count_turn(worker, stmt)
            self.point(worker, Step("take", stmt.span))
            worker.w.frame[stmt.target] = t
            self.block(worker, stmt.body)
        self.point(worker, Step("take", stmt.span))

    def value(self, worker: _Worker, e: Expr) -> Any:
        evaluate = self.evaluators.get(key := IdentityKey(e))
        if evaluate is None:
            evaluate = self.evaluators[key] = self.compiler.compile_expr(e)
        return evaluate(worker.w)

    def count_turn(self, worker: _Worker, stmt: For) -> None:
        """Count one turn of a loop, which may make no step."""
        self.turns += 1
        if self.turns > LONGEST:
            raise CuirError.of(
                "V203",
                f"loops of {worker.trace.label} make more than {LONGEST:,} turns",
                stmt.iter.span,
                "explore a smaller launch: fewer blocks and tiles",
            )

    def point(self, worker: _Worker, step: Step) -> None:
        worker.trace.steps.append(step)
        if len(worker.trace.steps) > LONGEST:
            raise CuirError.of(
                "V203",
                f"{worker.trace.label} makes more than {LONGEST:,} steps",
                step.span,
                "explore a smaller launch: fewer blocks and tiles",
            )

    # ---- effects
    def effects(self, worker: _Worker, e: Expr) -> None:
        """Record the effects of evaluating an expression on memory and barriers."""
        handlers = self.handlers.get(key := IdentityKey(e))
        if handlers is None:
            # operands first
            handlers = self.handlers[key] = [h for n in reversed(list(walk(e))) for h in self.handle(n)]
        for handler in handlers:
            handler(worker)

    def handle(self, node: Any) -> Iterator[Handler]:
        bound = self.checked.find_call(node)
        if bound is not None:
            if bound.op.effects != type(bound.op.effects)():
                yield from self.call(node, bound)
        elif isinstance(node, Subscript) and root_name(node) in self.written and not node.place:
            yield self.make_gather_handler(node)

    def call(self, node: Call, bound: BoundCall) -> Iterator[Handler]:
        """Yield the handlers of a call, from its effects as data."""
        site, effects, span = Site(self.compiler, bound.op, bound.args, node), bound.op.effects, node.span
        if effects.joins:
            yield lambda worker: self.arrive_named(worker, (self.bars[id(worker.w.m.joins[worker.w.cta])],), True, span)
        elif effects.completes:
            yield self.commit_to_barrier(site, span) if effects.commits else self.copy(site, span)
        elif effects.arrives or effects.waits:
            yield self.barrier(site, span)
        elif effects.commits:
            yield self.commit
        elif effects.drains:
            yield self.drain(site, effects.drains, span)
        elif effects.fences:
            tensors = bool(site.const("tensors", False))
            yield lambda worker: worker.trace.add_local(Fence(tensors))
        else:
            yield self.accesses(site, span)

    def barrier(self, site: Site, span: Span) -> Handler:
        effects, place = site.op.effects, compile_barrier_place(site, site.op.effects.arrives or site.op.effects.waits or "")
        if effects.arrives and effects.waits:
            return lambda worker: self.arrive_named(worker, (self.bars[id(place(worker.w))],), True, span)
        if effects.waits:
            parity = site.value("parity")

            def wait(worker: _Worker) -> None:
                p = require_uniform(parity(worker.w))
                bar = place(worker.w)
                if p not in (0, 1):
                    raise CuirError.of(
                        "S405", f"a parity is 0 or 1, {worker.trace.label} waits for {p}", span, "the parity of a phase is phase % 2"
                    )
                self.point(worker, Step("wait", span, (self.bars[id(bar)],), p))

            return wait
        size, along = site.value(effects.expects) if effects.expects else None, site.const("cluster", False)

        def arrive(worker: _Worker) -> None:
            w, bar = worker.w, place(worker.w)
            if self._is_named(bar):
                return self.arrive_named(worker, (self.bars[id(bar)],), False, span)
            n = require_uniform(size(w)) if size is not None else 0
            if n < 0:
                raise CuirError.of(
                    "S404",
                    f"{worker.trace.label} expects {n} bytes on `{bar.text}`",
                    span,
                    "bytes are nbytes(view) of the views to be copied",
                )
            bars = list_peers(w.m, w, bar, site, along)
            return self.point(worker, Step("arrive", span, tuple(self.bars[id(b)] for b in bars), n))

        return arrive

    def arrive_named(self, worker: _Worker, bars: tuple[int, ...], waits: bool, span: Span) -> None:
        """Arrive at a named barrier or join; a waiting worker goes on in a separate step."""
        self.point(worker, Step("join" if waits else "named arrive", span, bars))
        if waits:
            self.point(worker, Step("pass", span, bars))

    def copy(self, site: Site, span: Span) -> Handler:
        """Return the handler of a bulk copy: a point, and a landing in each destination CTA."""
        modes = {a.arg: a for a in site.op.effects.accesses}
        shared, box, bar, along = (
            compile_shared_place(site, "shared"),
            compile_box_place(site, "box"),
            compile_barrier_place(site, site.op.effects.completes or ""),
            site.const("cluster", False),
        )

        def run(worker: _Worker) -> None:
            w = worker.w
            ref, source, target = shared(w), box(w), bar(w)
            bars = list_peers(w.m, w, target, site, along)
            refs = [ref.at(cta) for cta in w.m.launch.checked.ctas(w.cta, along)] if along else [ref]
            w.copies += 1
            step = Step("copy", span)
            self.point(worker, step)
            landings = []
            for r, b in zip(refs, bars):
                name = copy_name(w, w.copies, r.cta if len(refs) > 1 else None)
                engine = worker.engine()
                landing = Landing(len(self.skeleton.landings), name, worker.number, (engine,), self.bars[id(b)], r.nbytes, span)
                self.skeleton.landings.append(landing)
                landings.append(landing)
                access = modes["shared"]
                step.locals.append(
                    Touch(
                        self.add_shared_region(r),
                        access.mode,
                        access.proxy,
                        engine,
                        span,
                        r.text,
                        "the copy",
                        f"a wait for its phase of `{b.text}`",
                        True,
                        r.alloc.name,
                    )
                )
                if source.tensor.name in self.written:
                    region = self.add_tensor_region(source.tensor, compute_box_intervals(source.tensor.shape, source.starts, source.sizes))
                    access = modes["box"]
                    step.locals.append(
                        Touch(region, access.mode, access.proxy, engine, span, source.text, "the copy", "a wait for the copy", True)
                    )
            step.landings = tuple(landings)

        return run

    def commit(self, worker: _Worker) -> None:
        worker.closed.append(worker.open)
        worker.open = []

    def commit_to_barrier(self, site: Site, span: Span) -> Handler:
        """Return the handler of an arrival at a barrier when all that the worker's queue held is over."""
        place = compile_barrier_place(site, site.op.effects.completes or "")

        def run(worker: _Worker) -> None:
            w, bar = worker.w, place(worker.w)
            w.copies += 1
            worker.queue.append(worker.engine())
            number = len(self.skeleton.landings)
            landing = Landing(number, commit_name(w), worker.number, tuple(worker.queue), self.bars[id(bar)], 0, span, 1)
            self.skeleton.landings.append(landing)
            self.point(worker, Step("copy", span, landings=(landing,)))

        return run

    def drain(self, site: Site, group: str, span: Span) -> Handler:
        if group == "wgmma":
            names = [site.is_name(x) for x in site.variadic("x")]
            return lambda worker: self.retire_products(worker, [n for n in names if n is not None])
        keep = site.const("n") if site.has("n") else 0

        def run(worker: _Worker) -> None:
            self.point(worker, Step("point", span))
            if group == "cp_async":
                groups, worker.closed = split_at_most(worker.closed, keep)
                over = [engine for engines in groups for engine in engines]
            else:
                over, worker.stores = split_at_most(worker.stores, keep)
            worker.trace.add_local(Retire(tuple(over)))

        return run

    def retire_products(self, worker: _Worker, names: list[str]) -> None:
        for name in names:
            product = worker.product_names.get(name)
            if product in worker.products:
                over, worker.products = split_through(worker.products, product)
                worker.trace.add_local(Retire(tuple(over)))

    def accesses(self, site: Site, span: Span) -> Handler:
        """Return the handler of loads, stores, products, bulk stores and cp.async.

        They access memory now, or by an engine that a group retires.
        """
        effects = site.op.effects
        add, operation = bool(site.const("add", False)), ""
        if effects.group is not None:
            operation = "the product" if site.op.traits.product else OPERATION_NAMES.get(effects.group, f"the {site.op.written}")
        parts = []
        for access in effects.accesses:
            if access.arg in site.args and (place := self.place(site, access.arg)) is not None:
                mode = "add" if add and access.mode == "write" else access.mode
                parts.append((access, mode, place))

        def run(worker: _Worker) -> None:
            engine = NOW
            if effects.group is not None:
                engine = worker.engine()
                groups = {"wgmma": worker.products, "cp_async": worker.open, "bulk_store": worker.stores}
                groups.get(effects.group, worker.queue).append(engine)
                worker.issued = engine
            point = effects.group == "bulk_store"
            if point:
                self.point(worker, Step("point", span))
            for access, mode, place in parts:
                for region, text, array in place(worker):
                    awaited = f"{worker.trace.label} waits for it"
                    # waiting for a bulk store completes its read; its write completes at the end of the kernel
                    access_engine = worker.engine() if point and access.mode != "read" else engine
                    worker.trace.add_local(
                        Touch(
                            region, mode, access.proxy, access_engine if access.late else NOW, span, text, operation, awaited, point, array
                        )
                    )

        return run

    # ---- places
    def place(self, site: Site, arg: str) -> Callable[[_Worker], list[Reached]] | None:
        """Return the regions that an argument names; None for registers and for tensors that are only read."""
        e = site.args[arg]
        root = root_name(e)
        if root in self.checked.shared and site.is_shared(arg):
            shared = compile_shared_place(site, arg)

            def in_shared(worker: _Worker) -> list[Reached]:
                ref = shared(worker.w)
                return [(self.add_shared_region(ref), ref.text, ref.alloc.name)]

            return in_shared
        if root not in self.written:
            return None
        kind = site.type(arg)
        if isinstance(kind, GlobalView):
            box, mask = compile_box_place(site, arg), site.args.get("mask")

            def in_tensor(worker: _Worker) -> list[Reached]:
                ref = box(worker.w)
                if mask is not None:
                    selected = self.value(worker, mask)
                    return self.elements(
                        ref.tensor,
                        compute_element_intervals(ref.tensor.shape, compute_box_coordinates(ref.starts, ref.sizes), selected),
                        ref.text,
                    )
                return self.elements(ref.tensor, compute_box_intervals(ref.tensor.shape, ref.starts, ref.sizes), ref.text)

            return in_tensor
        assert isinstance(e, Subscript)
        mask_argument = site.args.get("mask")
        return lambda worker: self.find_scattered(worker, e, mask_argument)

    def make_gather_handler(self, node: Subscript) -> Handler:
        """Return the handler of a read of elements inside an expression."""

        def run(worker: _Worker) -> None:
            for region, text, _ in self.find_scattered(worker, node, None):
                worker.trace.add_local(Touch(region, "read", "generic", NOW, node.span, text, "", "", False))

        return run

    def find_scattered(self, worker: _Worker, e: Subscript, mask: Expr | None) -> list[Reached]:
        tensor = self.launch.tensors[root_name(e) or ""]
        indices = [self.value(worker, i) for i in e.indices]  # type: ignore[arg-type]
        selected = self.value(worker, mask) if mask is not None else None
        return self.elements(tensor, compute_element_intervals(tensor.shape, indices, selected), e.span.text())

    def elements(self, tensor: TensorArg, intervals: Intervals, text: str) -> list[Reached]:
        return [(self.add_tensor_region(tensor, intervals), text, "")] if intervals else []

    def add_tensor_region(self, tensor: TensorArg, intervals: Intervals) -> int:
        return self.regions.setdefault(Region(tensor.name, intervals), len(self.regions))

    def add_shared_region(self, ref: SharedRef) -> int:
        return self.regions.setdefault(Region(ref.cta, ref.intervals), len(self.regions))
