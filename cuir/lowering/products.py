"""Products in flight: issue of wgmma batches, waits, and the register fences and branches that hold the order of the text around them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..syntax.nodes import Assign, Call, Expr, If, Literal, Name, Stmt
from ..syntax.types import F32, SharedView, TileType
from .flat import called, names, operation, statements, subexpressions
from .layouts import Operand, shape_of
from .values import strip, unsupported
from .writer import identifier

if TYPE_CHECKING:
    from .role import RoleEmitter

COSTLY = ("exp2", "log2", "tanh", "/")


class WgmmaEmitter:
    """Emits mma_async and mma_wait of one role."""

    def __init__(self, role: RoleEmitter):
        self.role, self.out = role, role.out
        self.before: list[Stmt] = []  # statements of the current block that were emitted
        self.due: If | None = None  # a wait for a barrier under a condition, just before a wait for products, not yet emitted

    # ---- issue
    def issue(self, batch: list[Stmt]) -> None:
        """A run of products (and scalar assignments between them): operands are fenced first, then issued without anything in between."""
        role, out = self.role, self.out
        products = [s for s in batch if isinstance(s, Assign) and called(role.kernel.checked, s.value) == "mma_async"]
        registers: dict[int, str] = {}
        made: set[str] = set()
        for stmt in products:
            role.prepare(stmt)
            target, t = identifier(stmt.targets[0]), role.tile_type(stmt.value)
            args = role.call(stmt.value).args
            if "c" in args:
                c = args["c"]
                in_flight = isinstance(c, Name) and c.id in made
                if isinstance(c, Name) and c.id != stmt.targets[0]:
                    role.tiles.into(target, c, t)  # finished: see coalesce.py
                elif not isinstance(c, Name):
                    role.tiles.accumulate(target, c, t)
                if not in_flight:
                    out.line(f"cuir::fence_regs({target});")
            if isinstance(role.kernel.checked.type_of(args["a"]), TileType):
                registers[id(stmt)] = role.tiles.packed(args["a"])
                out.line(f"cuir::fence_regs({registers[id(stmt)]});")
            made.add(stmt.targets[0])
        out.line("cute::warpgroup_arrive();")
        issued: set[str] = set()
        for part in batch:
            if isinstance(part, Assign) and part in products:
                self._one(part, registers.get(id(part)), part.targets[0] in issued)
                issued.add(part.targets[0])
            else:
                role.statement(part, ())
        for name in sorted(issued):
            role.tiles.holds(name)

    def _one(self, stmt: Assign, register: str | None, chained: bool) -> None:
        role, out = self.role, self.out
        out.mark(stmt.span)
        checked = role.kernel.checked
        call = stmt.value
        assert isinstance(call, Call)
        args = role.call(call).args
        t = role.tile_type(call)
        frag, target = role.fragment(t), identifier(stmt.targets[0])
        b = self._operand(args["b"], transposed_is_k_major=True)
        a = None if register else self._operand(args["a"], transposed_is_k_major=False)
        a_type = checked.type_of(args["a"])
        assert isinstance(a_type, (TileType, SharedView))
        inner = a_type.cols if isinstance(a_type, TileType) else a_type.dims[1]
        steps = inner // 16
        dtype = "F16" if a_type.dtype.name == "f16" else "BF16"
        major_a = "K" if a is None or a[0].k_major else "MN"
        function = role.kernel.wgmma(t.cols, dtype, "RS" if register else "SS", major_a, "K" if b[0].k_major else "MN", frag.count)
        per_slab = frag.groups * 4
        begin = "GMMA::ScaleOut::Zero"
        if "c" in args:
            flag = None if chained else role.tiles.lazy_flag(stmt.targets[0])
            begin = f"GMMA::ScaleOut({flag})" if flag else "GMMA::ScaleOut::One"
        with out.block(""):
            out.line(f"const uint64_t b_ = {b[1]};")
            if a is not None:
                out.line(f"const uint64_t a_ = {a[1]};")
            for k in range(steps):
                for s in range(frag.slabs):
                    at_b = f"b_ + {b[0].step(k)}" if k else "b_"
                    if register:
                        first = s * inner // 4 + 4 * k
                        left = ", ".join(f"{register}[{first + i}]" for i in range(4))
                    else:
                        assert a is not None
                        offset = a[0].step(k) + a[0].slab(s)
                        left = f"a_ + {offset}" if offset else "a_"
                    scale = "GMMA::ScaleOut::One" if k else begin
                    out.line(f"{function}<{s * per_slab}>({target}, {left}, {at_b}, {scale});")
        out.line("cute::warpgroup_commit_batch();")

    def _operand(self, expr: object, transposed_is_k_major: bool) -> tuple[Operand, str]:
        """How an operand lies, and the text of its descriptor."""
        role, view = self.role, self.role.views.shared(expr)  # type: ignore[arg-type]
        if not view.alloc.panelled:
            raise unsupported("an operand in shared memory whose rows are no whole panels", expr.span)  # type: ignore[attr-defined]
        operand = Operand(view.alloc, view.transposed == transposed_is_k_major)
        low = role.once("const uint32_t", "shared_units", "(smem_address & 0x3FFFF) >> 4")  # in a cluster the upper bits name the CTA
        base = f"cuir::descriptor({low} + {operand.leading >> 4 << 16 | view.alloc.offset >> 4:#x})"
        for index, factor in view.within:
            base = f"cuir::descriptor_at({base}, {strip(index)}, {factor >> 4})"
        return operand, base

    # ---- wait
    def wait(self, call: Call) -> None:
        role, out = self.role, self.out
        stmt = role.current
        due, self.due = self.due, None
        count = role.facts.waits.get(id(stmt))
        waited = [a.id for a in role.call(call).args.values() if isinstance(a, Name)]
        tie = self._tie(waited) if count is not None else None
        if due and not tie:
            role.statement(due, ())
            out.mark(call.span)
        if count is None:
            out.line("// nothing of this is in flight")
            return
        live = role.facts.live_after[id(stmt)]
        made = [n for n in self._made_since(waited) if n in live]
        for name in made:
            out.line(f"cuir::fence_regs({identifier(name)});")
        if tie:
            # Compilers sink arithmetic below a wait unless a branch before the wait needs its result. The branch is harmless when taken.
            if due:
                self._tied_wait(due, tie)
                out.mark(call.span)
            else:
                out.line(f"if (__any_sync(~0u, {tie})) __nanosleep(0);")
            role.kernel.choice("exponentials stay above this wait: a branch before it needs their results", out.span)
        out.line(f"cute::warpgroup_wait<{count}>();")
        retired = [
            n
            for n in dict.fromkeys([*waited, *role.facts.retired.get(id(stmt), [])])
            if n in live and n in role.role.locals and n not in made
        ]
        for name in [*retired, *made]:
            t = role.role.locals[name]
            if isinstance(t, TileType) and shape_of(t) == "full":
                out.line(f"cuir::fence_regs({identifier(name)});")

    def _tied_wait(self, due: If, tie: str) -> None:
        """A wait for a barrier under a condition as the branch: the tie is tested where the condition fails, and then only looks at the barrier."""
        from .ops.sync import barrier

        role = self.role
        role.prepare(due)
        role.out.mark(due.span)
        condition = strip(role.scalars.scalar(due.cond))
        args = role.call(due.body[0].value).args  # type: ignore[union-attr]
        place = f"{barrier(role, args['bar'])}, {strip(role.scalars.scalar(args['parity']))}"
        with role.out.block(f"if ({condition} || __any_sync(~0u, {tie}))"):
            role.out.mark(due.body[0].span)
            role.out.line(f"if (!cuir::try_wait({place}) && {condition}) cuir::wait({place});")

    def _since(self, waited: list[str]) -> list[Stmt]:
        """Statements of this block since the issue of what is waited for."""
        found: list[Stmt] = []
        for stmt in reversed(self.before):
            if isinstance(stmt, Assign) and stmt.targets[0] in waited and called(self.role.kernel.checked, stmt.value) == "mma_async":
                return found[::-1]
            found.append(stmt)
        return found[::-1]

    def _made_since(self, waited: list[str]) -> list[str]:
        """Full tiles computed under the products waited for."""
        names: dict[str, None] = {}
        for stmt in statements(tuple(self._since(waited))):
            if isinstance(stmt, Assign) and called(self.role.kernel.checked, stmt.value) != "mma_async":
                t = self.role.role.locals[stmt.targets[0]]
                if (
                    isinstance(t, TileType)
                    and shape_of(t) == "full"
                    and self.role.tiles.storage(stmt.targets[0]).ctype in ("float", "uint32_t")
                ):
                    names[stmt.targets[0]] = None
        return list(names)

    def _tie(self, waited: list[str]) -> str | None:
        """A condition that needs every exponential computed under the products waited for. Hardly ever true, but no compiler can know: it
        knows that an exponential, and so a sum of them, is not negative."""
        tests: dict[str, str] = {}
        needs: dict[str, set[str]] = {}  # name -> names of exponentials that it is made of
        for stmt in self._since(waited):
            if isinstance(stmt, Assign):
                needs[stmt.targets[0]] = {n for read in names(stmt.value) for n in (needs.get(read, set()) | {read})}
        for stmt in self._since(waited):
            if not isinstance(stmt, Assign) or not self._costly(stmt.value):
                continue
            name = stmt.targets[0]
            t = self.role.role.locals[name]
            if not isinstance(t, TileType) or shape_of(t) not in ("full", "rows") or self.role.tiles.storage(name).kind != "array":
                continue
            if shape_of(t) == "rows":
                if name not in self.role.facts.deferred_row_sums and t.dtype == F32:
                    tests[name] = self._large(identifier(name), t)
            elif name in self.role.tiles.sums:
                tests[name] = self._large(self.role.tiles.sums[name], t)
            else:
                tests[name] = f"cuir::any_bits({identifier(name)}) == 0x7f7f7f7f"
        for name in reversed(needs):  # a sum that all exponentials have gone into stands for them
            t = self.role.role.locals[name]
            if tests and isinstance(t, TileType) and shape_of(t) == "rows" and t.dtype == F32 and set(tests) <= needs[name]:
                return self._large(identifier(name), t)
        last = [n for n in tests if not any(n in needs.get(other, ()) for other in tests if other != n)]  # the others went into these
        return " || ".join(tests[n] for n in last or tests) if tests else None

    def _costly(self, expr: Expr) -> bool:
        """Whether an expression takes the unit of exponentials and reciprocals for each element or row of a tile."""
        checked = self.role.kernel.checked
        parts = [e for e in subexpressions(expr) if not isinstance(e, (Name, Literal)) and isinstance(checked.find_type(e), TileType)]
        return any(operation(checked, e)[0] in COSTLY for e in parts)  # type: ignore[arg-type]

    def _large(self, array: str, t: TileType) -> str:
        return " + ".join(f"{array}[{r}]" for r in range(self.role.fragment(t).row_values)) + " > 3e38f"
