"""One role: declarations, control flow, statements, joins of a worker's lanes. What a primitive does is in `ops/`."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from ..checking.checked import BoundCall, Role
from ..checking.views import Range, root_name, view_of
from ..ops.base import Effects
from ..syntax.nodes import Assign, Binary, Call, Expr, ExprStmt, For, If, Literal, Name, Stmt
from ..syntax.types import I32, DType, Scalar, TileType
from ..syntax.walk import assigned
from ..text.diagnostics import CuirError
from .analysis import analyse, ring_place
from .flat import called, calls, integer, names, operation, own_expressions, single_lane, statements, subexpressions
from .layouts import Fragment
from .nans import Nans
from .products import WgmmaEmitter
from .registry import emitter
from .tile_queue import carried, units
from .tiles import TileEmitter
from .values import CTYPE, HALVES, Scalars, strip
from .views import Views
from .warp_sync import joins_of
from .writer import identifier

if TYPE_CHECKING:
    from .emission import KernelEmitter

UNCHANGING = {"+", "-", "*", "//", "%", "cdiv", "min", "max"}


class RoleEmitter:
    """Emits the text of one role; `wg`/`w` (its index) and lane numbers are in scope."""

    def __init__(self, kernel: KernelEmitter, role: Role):
        self.kernel, self.role, self.out = kernel, role, kernel.out
        self.threads = role.threads
        self.facts = analyse(kernel.checked, role)
        self.single = single_lane(kernel.checked, role)
        self.scalars = Scalars(kernel, self.facts.nonnegative, self.inverse, self.ring, shared=False)
        self.views = Views(self)
        self.nans = Nans(self)
        self.hoisted: dict[str, str] = {}  # texts computed before the loops of the current statement
        self.tiles = TileEmitter(self)
        self.products = WgmmaEmitter(self)
        self.current: Stmt | None = None
        self.unit = ""  # array with the words of the unit of work, see tile_queue
        self._declared: list[str] = []
        self._rings: dict[str, dict[int, tuple[str, str]]] = {}  # counter -> stages of a ring -> names of its stage and parity
        self._once: dict[str, str] = {}  # text -> name of what is computed once, before all statements

    def once(self, ctype: str, stem: str, text: str) -> str:
        """The name of a value that never changes, computed at the start of the role."""
        if text not in self._once:
            self._once[text] = self.out.temp(stem)
            self._declared.append(f"{ctype} {self._once[text]} = {text};")
        return self._once[text]

    def variable(self, ctype: str, stem: str, value: str) -> str:
        """The name of a variable of the whole role, set at its start."""
        name = self.out.temp(stem)
        self._declared.append(f"{ctype} {name} = {value};")
        return name

    def ring(self, expr: Expr) -> str | None:
        """The variable that holds a counter's stage in a ring, or its parity: carried along, since a wait's address and a descriptor follow from it."""
        found = ring_place(expr, self.facts.counters)
        return None if found is None else self._rings[found[0]][found[1]][found[2]]

    def _declare_rings(self) -> None:
        for stmt in statements(self.role.body):
            for expr in own_expressions(stmt):
                for part in subexpressions(expr):
                    if found := ring_place(part, self.facts.counters):
                        counter, stages, _ = found
                        first, rings = self.facts.counters[counter], self._rings.setdefault(counter, {})
                        if stages not in rings:
                            stage = self.variable("int", f"{identifier(counter)}_stage", str(first % stages))
                            rings[stages] = stage, self.variable("int", f"{identifier(counter)}_parity", str(first // stages % 2))

    def inverse(self, expr: Expr) -> str | None:
        """The name of the inverse (see `quotient` in prelude.py) of a divisor that never changes and is not negative.

        Not for a role on one lane: it has time to divide, and few registers.
        """
        text = self._unchanging(expr) if self.scalars.nonnegative(expr) and not self.single else None
        return None if text is None else self.once("const unsigned", "inverse", f"cuir::inverse({strip(text)})")

    def _unchanging(self, expr: Expr) -> str | None:
        """The text of an i32 scalar of dims, scalar parameters and names bound once to such, in their terms."""
        checked = self.kernel.checked
        if isinstance(expr, Name):
            if expr.id not in self.role.locals:
                return self.scalars.scalar(expr) if expr.id != self.role.index else None
            found = self.facts.definitions.get(expr.id, [])
            return self._unchanging(found[0].value) if len(found) == 1 and isinstance(found[0], Assign) else None
        if isinstance(expr, Literal):
            return self.scalars.scalar(expr)
        op, args = operation(checked, expr)
        if op not in UNCHANGING or any(checked.type_of(a) != Scalar(I32) for a in args):
            return None
        texts = {id(a): self._unchanging(a) for a in args}
        if any(t is None for t in texts.values()):
            return None
        return self.scalars.apply(op, args, expr, lambda e: texts[id(e)])  # type: ignore[arg-type,return-value]

    # ---- lookups
    def call(self, expr: Expr) -> BoundCall:
        assert isinstance(expr, Call)
        return self.kernel.checked.call(expr)

    def dtype(self, expr: Expr) -> DType:
        return self.scalars.dtype(expr)

    def tile_type(self, expr: Expr) -> TileType:
        found = self.kernel.checked.type_of(expr)
        assert isinstance(found, TileType), found
        return found

    def fragment(self, t: TileType) -> Fragment:
        return Fragment(t.rows, t.cols, self.threads)

    # ---- joins: the lanes of a worker as one
    def join(self) -> None:
        """What any lane did before is done before what any lane does after."""
        if self.single:
            return
        if self.threads == 32:
            self.out.line("__syncwarp();")
        else:
            self.out.line(f"cuir::bar_sync({self.kernel.worker_barrier(self.role)}, 128);")

    @property
    def first_lane(self) -> str:
        """A condition that one thread of the worker meets; empty on a single lane."""
        if self.single:
            return ""
        return "if (lane == 0) " if self.threads == 32 else "if (threadIdx.x % 128 == 0) "

    @property
    def storing_lane(self) -> str:
        """A condition that the threads meet which issue the worker's asynchronous stores."""
        return "if (lane == 0) " if self.stores_by_warps else self.first_lane

    @functools.cached_property
    def stores_by_warps(self) -> bool:
        """Whether each warp may store the 16 rows that it wrote itself: a warpgroup's asynchronous stores are all of one view, and all that is
        written to this array are accumulator rows, to the same view. Then no warp waits for another one."""
        checked, found = self.kernel.checked, list(calls(self.kernel.checked, self.role.body))
        sent = [checked.call(c).args for c in found if checked.call(c).op.name == "store_async"]
        if self.threads != 128 or not sent or any(root_name(a["box"]) in self.kernel.handed for a in sent):
            return False  # nor where another warp may have read, or stored, what a warp's bulk store overwrites
        view = sent[0]["shared"]
        array, text, ref = root_name(view), self._text(view), self.views.shared(view)
        written = [a for c in found if checked.call(c).op.name == "store" and root_name((a := checked.call(c).args)["place"]) == array]
        boxes = [self.views.box(a["box"]) for a in sent]
        if not ref.alloc.panelled or any(box.sizes[-2:] != (64, ref.cols) or box.rows != 64 for box in boxes):
            return False
        parts = view_of(view, len(ref.alloc.dims))
        row = parts.parts[-2] if parts and len(parts.parts) > 1 else None
        steady = isinstance(row, Range) and (row.start is None or self._steady(row.start))
        tiles = [self.tile_type(a["tile"]) for a in written]
        return (
            steady
            and bool(written)
            and all(self._text(a["shared"]) == text for a in sent)
            and all(self._text(a["place"]) == text and "mask" not in a for a in written)
            and all(t.dtype in HALVES and t.cols % 16 == 0 for t in tiles)
        )

    @functools.cached_property
    def _joins(self) -> tuple[set[int], set[int]]:
        """Statements before which the lanes of the worker must meet, and those in the middle of which they must."""
        checked = self.kernel.checked
        sent = (checked.call(c).args["shared"] for c in calls(checked, self.role.body) if checked.call(c).op.name == "store_async")
        own = root_name(next(sent)) if self.stores_by_warps else None
        return joins_of(checked, self.role, self.facts.definitions, own)

    @property
    def reads_what_it_stores(self) -> bool:
        """Whether the current statement is a store of what it reads from the same memory: all is read before anything is stored."""
        return id(self.current) in self._joins[1]

    def _steady(self, expr: Expr) -> bool:
        """Whether a scalar has one value in a worker: of its index and names bound once to such."""
        for name in names(expr) - {self.role.index}:
            found = self.facts.definitions.get(name, [])
            if name in self.role.locals and not (len(found) == 1 and isinstance(found[0], Assign) and self._steady(found[0].value)):
                return False
        return True

    @staticmethod
    def _text(expr: Expr) -> str:
        from ..syntax.printer import show

        return show(expr)

    # ---- statements
    def body(self) -> None:
        used = {n for stmt in statements(self.role.body) for e in own_expressions(stmt) for n in names(e)}
        if any(isinstance(t, TileType) for t in self.role.locals.values()) or not self.single:
            first = "16 * warp + lane / 4" if self.threads == 128 else "lane / 4"
            self.out.line(f"const int row = {first}, col = 2 * (lane % 4);  // of this thread's first element in a tile")
        if self.role.index and self.role.index in used:
            self.out.line(f"const int {identifier(self.role.index)} = {self.kernel.worker_index(self.role)};")
        first_statement = len(self.out.lines)
        self._declare_rings()
        self.block(self.role.body)
        self.out.insert(first_statement, [*self._declared, *self.tiles.affine_bias.bound(None)])
        if any(c.op.name == "store_async" for c in (self.call(x) for x in calls(self.kernel.checked, self.role.body))):
            self.out.line(f"{self.storing_lane}cute::tma_store_wait<0>();  // shared memory is read before the CTA ends")

    def block(self, body: tuple[Stmt, ...]) -> None:
        saved, self.products.before = self.products.before, []
        sums, self.tiles.sums = self.tiles.sums, {}  # of names that a loop binds anew, and in arrays that end with the block
        self.tiles.whole = {}
        i = 0
        while i < len(body):
            stmt = body[i]
            if called(self.kernel.checked, getattr(stmt, "value", stmt)) == "mma_async":  # type: ignore[arg-type]
                batch = self._batch(body[i:])
                self.hoisted = {}
                self.out.mark(stmt.span)
                if any(id(s) in self._joins[0] for s in batch):
                    self.join()
                self.products.issue(batch)
                self.products.before.extend(batch)
                i += len(batch)
                continue
            if self._guards_wait(stmt, body[i + 1 : i + 2]):
                assert isinstance(stmt, If)
                self.products.due = stmt  # emitted with the wait
            else:
                self.statement(stmt, body[i + 1 :])
            self.products.before.append(stmt)
            i += 1
        self.products.before, bound = saved, assigned(body)
        self.tiles.sums = {name: array for name, array in sums.items() if name not in bound}
        self.tiles.whole = {}

    def _guards_wait(self, stmt: Stmt, following: tuple[Stmt, ...]) -> bool:
        """Whether a statement is a wait for a barrier under a condition, right before a wait for products."""
        checked = self.kernel.checked
        return (
            isinstance(stmt, If)
            and not stmt.orelse
            and len(stmt.body) == 1
            and isinstance(stmt.body[0], ExprStmt)
            and called(checked, stmt.body[0].value) == "mbarrier.wait"
            and any(isinstance(s, ExprStmt) and called(checked, s.value) == "mma_wait" for s in following)
        )

    def _batch(self, body: tuple[Stmt, ...]) -> list[Stmt]:
        """Products that follow each other, with nothing but assignments of plain scalars between them."""
        batch: list[Stmt] = []
        end = 0
        for stmt in body:
            if isinstance(stmt, Assign) and called(self.kernel.checked, stmt.value) == "mma_async":
                batch.append(stmt)
                end = len(batch)
            elif isinstance(stmt, Assign) and isinstance(self.role.locals.get(stmt.targets[0]), Scalar):
                batch.append(stmt)
            else:
                break
        return batch[:end]

    def prepare(self, stmt: Stmt) -> None:
        """Declares what this statement is the first to bind."""
        for name in self.facts.declare_at.get(id(stmt), []):
            self._declare(name)
        if id(stmt) in self.facts.inline and isinstance(stmt, Assign) and isinstance(self.role.locals.get(stmt.targets[0]), TileType):
            self._declare(stmt.targets[0])

    def _declare(self, name: str) -> None:
        t = self.role.locals.get(name)
        if isinstance(t, Scalar):
            self.out.line(f"{CTYPE[t.dtype]} {identifier(name)};")
        elif isinstance(t, TileType) and (text := self.tiles.declaration(name)):
            self.out.line(text)

    def statement(self, stmt: Stmt, following: tuple[Stmt, ...]) -> None:
        if id(stmt) in self.tiles.lazy_rescale.done:
            return
        self.hoisted = {}
        self.current = stmt
        self.out.mark(stmt.span)
        if id(stmt) in self._joins[0]:
            self.join()
        if isinstance(stmt, Assign):
            self._assign(stmt, following)
            for line in self.tiles.affine_bias.bound(stmt):
                self.out.line(line)
        elif isinstance(stmt, ExprStmt):
            self.prepare(stmt)
            bound = self.call(stmt.value)
            emit = emitter(bound.op.name, "statement")
            if emit is None and bound.op.effects == Effects():
                return  # a value that nobody needs, such as a part of a result that goes to `_`
            if emit is None:
                raise CuirError.of("L001", f"the lowering has no meaning for `{bound.op.written}` as a statement", stmt.span)
            emit(self, stmt.value)
        elif isinstance(stmt, If):
            self.prepare(stmt)
            self._if(stmt)
        elif isinstance(stmt, For):
            self.prepare(stmt)
            self._for(stmt)
        else:
            raise AssertionError(stmt)

    def _assign(self, stmt: Assign, following: tuple[Stmt, ...]) -> None:
        name = stmt.targets[0]
        t = self.role.locals.get(name)
        if isinstance(t, Scalar):
            text = carried(self, stmt)
            if text == "":
                return
            self.prepare(stmt)
            inline = id(stmt) in self.facts.inline
            constant = inline and len(self.facts.definitions[name]) == 1
            head = f"{'const ' if constant else ''}{CTYPE[t.dtype]} " if inline else ""
            self.out.line(f"{head}{identifier(name)} = {text or strip(self.scalars.scalar(stmt.value))};")
            for stages, (stage, parity) in self._rings.get(name, {}).items():
                if isinstance(stmt.value, Binary):  # the increment
                    self.out.line(f"if (++{stage} == {stages}) {{ {stage} = 0; {parity} ^= 1; }}")
            return
        if not isinstance(t, TileType):
            return  # a view or a barrier by another name: its uses say what it is
        if name not in self.facts.live_after[id(stmt)] and isinstance(stmt.value, Name):
            self.prepare(stmt)
            return  # only waited for, or never read
        self.prepare(stmt)
        self.tiles.assign(stmt, following)

    def _if(self, stmt: If) -> None:
        with self.out.block(f"if ({strip(self.scalars.scalar(stmt.cond))})"):
            self.block(stmt.body)
        if stmt.orelse:
            with self.out.block("else"):
                self.block(stmt.orelse)

    def _for(self, stmt: For) -> None:
        if isinstance(stmt.iter, Name):
            with units(self, stmt):
                self.block(stmt.body)
            return
        assert isinstance(stmt.iter, Call)
        args = stmt.iter.args
        start = strip(self.scalars.scalar(args[0])) if len(args) > 1 else "0"
        step = 1 if len(args) < 3 else integer(args[2])
        end_expr = args[0] if len(args) == 1 else args[1]
        if step is None or step == 0:
            raise CuirError.of("L002", "the step of a range must be known", stmt.iter.span)
        rebound = assigned(stmt.body).keys()
        own = stmt.target not in rebound and not any(stmt.target in v for v in self.facts.declare_at.values())
        counter = identifier(stmt.target) if own else self.out.temp(stmt.target)
        end = strip(self.scalars.scalar(end_expr))
        extra = ""
        if names(end_expr) & rebound or not (integer(end_expr) is not None or isinstance(end_expr, Name)):
            last = self.out.temp("end")
            extra, end = f", {last} = {end}", last
        sign = "<" if step > 0 else ">"
        move = f"++{counter}" if step == 1 else f"--{counter}" if step == -1 else f"{counter} += {step}"
        if not self.single:
            self.out.line("#pragma unroll 1")  # copies of the body cost more than the branch
        with self.out.block(f"for (int {counter} = {start}{extra}; {counter} {sign} {end}; {move})"):
            if not own:
                self.out.line(f"{identifier(stmt.target)} = {counter};")
            self.block(stmt.body)
