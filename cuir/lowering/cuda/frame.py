"""The file around the roles: parameters, shared memory, barriers, tensor maps, dispatch of warps."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import Block, SSAValue

from ...ops.limits import TARGETS, count_pool_registers, count_resident_ctas
from ...text.source import Span
from ..ir import machine_ops as machine
from ..ir import ops
from ..ir.ir_types import dtype_of, is_scalar
from ..ir.ir_walk import is_inlined
from ..ir.synchronisation import BARRIERS, COLUMNS, ROLES, ClusterSync, CtaSync, Join, Synchronisation
from ..lowered import KERNEL, CudaText, TileRegisters
from ..select.frame_layout import lay_out_frame
from ..select.join_ways import IN_TWO_STEPS, ONE_LANE
from ..select.ways import way_of
from . import work_queues as queues
from .address_sums import stride
from .context import WARPS, KernelContext
from .elements import Elements
from .operator_text import CTYPE, MEMORY, strip
from .prelude import QUALIFIERS
from .print_scope import Scope
from .role import RolePrinter
from .writer import Writer, identifier, symbol


def find_end_warpgroup(members: Sequence[ops.Role]) -> int:
    """Return the warpgroup after the last one that these roles occupy."""
    return max(r.warpgroup.data + -(-(r.warp.data + r.workers.data * (r.threads.data // 32)) // WARPS) for r in members)


class KernelPrinter(KernelContext):
    """Printer of a kernel."""

    def __init__(self, kernel: ops.Kernel):
        super().__init__(kernel)
        self.layout = lay_out_frame(kernel)
        self.tile_registers: list[TileRegisters] = []

    # ---- the file
    def emit(self) -> CudaText:
        """Emit the file, with the span that each line comes from."""
        body = Writer()
        self.out = body
        body.depth = 1
        frame = Writer()
        self.out = frame
        self._emit_declarations()
        declared = self.out
        self.out = body
        self._emit_roles()
        frame = Writer()
        self.out = frame
        head, shared_bytes = self._emit_head(declared)
        name, arch = self.kernel.symbol.data, self.kernel.arch.data
        prelude = self.target.render("\n".join([*head, body.text(), frame.text()]), self.functions)
        top = Writer()
        top.line(f"// {name} for {arch}: made from CuIR by cuir.lowering; `// N: text` is line N of the program")
        if self.kernel.consts is not None:
            top.line(f"// {self.kernel.consts.data}")
        top.line(self.target.all_headers)
        top.line(f"\n{QUALIFIERS}")
        for line in self.target.all_openings:
            top.line(line)
        top.line(f"namespace cuir {{\n{prelude}\n}}  // namespace cuir\n")
        lines = [*top.lines, *head, *frame.lines, *body.lines, "}"]
        spans: list[Span | None] = [*([None] * (len(top.lines) + len(head))), *frame.spans, *body.spans, None]
        return CudaText(
            name,
            arch,
            "\n".join(lines) + "\n",
            tuple(spans),
            self.threads,
            self.cluster,
            shared_bytes,
            tuple(self.maps.values()),
            tuple(self.pointers),
            self.draws,
            self.starts_cta_per_unit,
            tuple(p.symbol.data for p in self.parameters if p.dim is None),
            tuple(p.symbol.data for p in self.parameters if p.dim is not None),
            tuple(dict.fromkeys([*(m.tensor for m in self.maps.values()), *self.aligned])),
            tuple(self.choices),
            tuple(self.tile_registers),
            self.span(self.kernel),
        )

    def _emit_declarations(self) -> None:
        """Emit the scalars of the frame, which all roles read."""
        self.out.depth = 1
        self._emit_scalars(self.kernel.body.block, Elements(_Frame(self)))
        self.out.span = None

    def _emit_scalars(self, block: Block, texts: Elements) -> None:
        """Emit the scalars of a block; those of a branch are declared before it."""
        out = self.out
        for op in block.ops:
            if isinstance(op, ops.If):
                out.mark(self.span(op))
                for value in op.results:
                    out.line(f"{CTYPE[dtype_of(value)]} {self._name_scalar(value)};")
                with out.block(f"if ({strip(texts.scalar(op.condition))})"):
                    self._emit_side(op, op.then.block, texts)
                with out.block("else"):
                    self._emit_side(op, op.orelse.block, texts)
            elif isinstance(op, (ops.Apply, ops.Perform)) and is_scalar(op.results[0]) and not is_inlined(op.results[0]):
                out.mark(self.span(op))
                text = texts.apply(op, texts.scalar) if isinstance(op, ops.Apply) else texts.places.element(op.arg("place"))
                out.line(f"[[maybe_unused]] const {CTYPE[dtype_of(op.results[0])]} {self._name_scalar(op.results[0])} = {strip(text)};")
            elif isinstance(op, machine.Note):
                self.record_choice(op.text.data, self.span(op))
            elif isinstance(op, ops.Units):
                out.line(f"const int tile_count = {strip(texts.scalar(op.count))};")

    def _emit_side(self, branch: ops.If, block: Block, texts: Elements) -> None:
        self._emit_scalars(block, texts)
        end = block.last_op
        assert isinstance(end, ops.Yield)
        for value, chosen in zip(branch.results, end.values, strict=True):
            self.out.line(f"{self.frame[value]} = {strip(texts.scalar(chosen))};")

    def _name_scalar(self, value: SSAValue) -> str:
        """Return a new name for a scalar of the frame."""
        base = name = identifier((value.name_hint or "v").replace(".", "_"))
        count = 1
        while name in self.names:
            count += 1
            name = f"{base}_{count}"
        self.names.add(name)
        self.frame[value] = name
        return name

    def _emit_head(self, declared: Writer) -> tuple[list[str], int]:
        """Emit all that comes before the roles to `self.out`.

        Returns: The lines of the signature, and the bytes of shared memory.
        """
        out, layout = self.out, self.layout
        params = [f"const __grid_constant__ CUtensorMap {m.name}" for m in self.maps.values()]
        for name in self.pointers:
            t = self.tensors[name]
            const = "const " if t.written is None else ""
            # other CTAs may write a tensor that the kernel both reads and writes between two of its reads: with
            # __restrict__ the compiler would move loads across barriers, or read through the texture path
            qualifier = "" if name in self.exchanged_tensors else "__restrict__ "
            params.append(f"{const}{MEMORY[t.dtype]}* {qualifier}{identifier(name)}")
            if t.scratch is None:
                params += [f"const int64_t {stride(name, i)}" for i in range(len(t.dims) - 1)]
        if self.draws:
            params.append("unsigned* __restrict__ counter")
        for p in sorted(self.parameters, key=lambda p: p.dim is not None):
            params.append(f"const {CTYPE[dtype_of(p.result)]} {identifier(p.symbol.data)}")
        listed = ",\n    ".join(params)
        head = [
            f"{KERNEL} __launch_bounds__({self.threads}, {self._count_ctas()})",
            *f"{symbol(self.kernel.symbol.data)}({listed}) {{".split("\n"),
        ]
        out.depth = 1
        for name, dims in ((name, t.dims) for name in self.pointers if (t := self.tensors[name]).scratch is not None):
            for i in reversed(range(len(dims) - 1)):  # it is contiguous
                next_dim, factor = dims[i + 1], "" if i == len(dims) - 2 else f" * {stride(name, i + 1)}"
                out.line(f"const int64_t {stride(name, i)} = {next_dim if isinstance(next_dim, int) else identifier(next_dim)}{factor};")
        out.line("extern __shared__ __align__(1024) uint8_t smem[];")
        out.line("[[maybe_unused]] const uint32_t smem_address = cute::cast_smem_ptr_to_uint(smem);")
        out.line("[[maybe_unused]] const int lane = threadIdx.x % 32;")
        out.line("// uniform, so that descriptors and branches live in uniform registers")
        out.line(
            "[[maybe_unused]] const int warpgroup = __shfl_sync(~0u, int(threadIdx.x) / 128, 0), warp = __shfl_sync(~0u, int(threadIdx.x) / 32 % 4, 0);"
        )
        inits = []
        for name, offset in layout.barriers.items():
            b = self.barriers[name]
            stages = b.stages
            out.line(f"uint64_t* const {identifier(name)} = reinterpret_cast<uint64_t*>(smem + {offset});")
            init = self.target.format_phrase("init mbarrier", identifier(name) + (" + i" if stages > 1 else ""), b.warps.data)
            inits.append(f"for (int i = 0; i < {stages}; ++i) {init}" if stages > 1 else init)
        if self.queue is not None:
            inits += queues.declare(self, self.queue, layout.queue)
        if inits or self.maps:
            with out.block("if (threadIdx.x == 0)"):
                for m in self.maps.values():
                    out.line(self.target.format_phrase("prefetch map", m.name))
                for text in inits:
                    out.line(text)
                if inits:
                    out.line(self.target.format_phrase("fence of inits"))
        syncs = {op.behind.data: op for op in self.kernel.body.block.ops if isinstance(op, CtaSync)}
        if BARRIERS in syncs and way_of(syncs[BARRIERS]) == IN_TWO_STEPS:
            out.line(self.target.format_phrase("arrive in cluster"))
        out.lines += declared.lines  # computed while other CTAs arrive
        out.spans += declared.spans
        if self.queue is not None:
            queues.prepare(self, self.queue)
        if BARRIERS in syncs:
            self._emit_chosen("meet", syncs[BARRIERS])
        if layout.columns:
            told_at = f"reinterpret_cast<uint32_t*>(smem + {layout.tensor_address})"  # where the first column is told
            out.line(self.target.format_phrase("allocate tensor memory", layout.columns, told_at))
            if COLUMNS in syncs:
                self._emit_chosen("meet", syncs[COLUMNS])
            out.line(self.target.format_phrase("read tensor memory's address", told_at))
        return head, layout.nbytes

    def _count_ctas(self) -> int:
        """Return the CTAs that a multiprocessor holds at a time, for which ptxas limits registers."""
        given = {w: r.registers.data for r in self.kernel.roles for w in range(r.warpgroup.data, find_end_warpgroup([r]))}
        if not all(given.values()):
            return 1
        return count_resident_ctas(TARGETS[self.kernel.arch.data], self.threads, 128 * sum(given.values()), self.layout.nbytes)

    # ---- roles
    def _emit_roles(self) -> None:
        out = self.out
        groups: dict[int, list[ops.Role]] = {}
        for role in self.kernel.roles:
            groups.setdefault(role.warpgroup.data, []).append(role)
        order = sorted(groups)
        for n, first in enumerate(order):
            members = groups[first]
            last = find_end_warpgroup(members)
            test = f"warpgroup == {first}" if last == first + 1 else f"warpgroup >= {first} && warpgroup < {last}"
            head = f"if ({test})" if n == 0 else f"else if ({test})" if n < len(order) - 1 else "else"
            if len(order) == 1:
                self._emit_group(members)
            else:
                with out.block(head):
                    self._emit_group(members)
        end = [op for op in self.kernel.body.block.ops if isinstance(op, Synchronisation)]
        freed = next((i + 1 for i, op in enumerate(end) if isinstance(op, CtaSync) and op.behind.data == ROLES), 0)
        for op in end[:freed]:
            self._emit_end(op)
        if self.layout.columns:
            out.line(self.target.format_phrase("free tensor memory", self.layout.columns))
        for op in end[freed:]:
            self._emit_end(op)

    def _emit_end(self, op: Synchronisation) -> None:
        """Emit synchronisation that stands behind the roles."""
        if isinstance(op, Join):
            self._emit_chosen("join", op)
        elif isinstance(op, CtaSync) and op.behind.data == ROLES:
            self._emit_chosen("meet", op)
        elif isinstance(op, ClusterSync) and op.argument is not None:
            self.out.line("// no CTA signals another that is done")
        elif isinstance(op, ClusterSync):
            self.out.line(f"{self.target.format_phrase('sync of cluster')}  // no CTA leaves while another may signal it")

    def _emit_chosen(self, step: str, op: Synchronisation) -> None:
        self.target.code(step, way_of(op))(self, op)

    def _emit_group(self, members: Sequence[ops.Role]) -> None:
        """Emit the roles that share warpgroups, and so registers."""
        out, launch = self.out, count_pool_registers(self.threads, self._count_ctas()) // self.threads
        registers = next((r.registers.data for r in members if r.registers.data), None)
        if registers is not None and registers != launch and len(self.kernel.roles) > 1:
            out.line(self.target.format_phrase("more registers" if registers > launch else "fewer registers", registers))
        for k, role in enumerate(members):
            printer = RolePrinter(self, role, way_of(role) == ONE_LANE)
            self.tile_registers.append(printer.estimate_registers())
            last, warp = role.warp.data + role.workers.data, role.warp.data
            whole = role.threads.data == 128 or (len(members) == 1 and warp == 0 and role.workers.data % WARPS == 0)
            position = "warp" if last <= WARPS else f"4 * (warpgroup - {role.warpgroup.data}) + warp"
            if role.workers.data == 1:
                test = f"warp == {warp}"
            else:
                test = f"{position} < {last}" if warp == 0 else f"{position} >= {warp} && {position} < {last}"
            if printer.single:
                test += f" && {self.target.format_phrase('elect')}"
            out.span = None
            out.line(f"// ---- role {role.symbol.data}")
            if whole and not printer.single:
                printer.emit_body()
                continue
            with out.block(f"{'else ' if k else ''}if ({test})"):
                printer.emit_body()
        if self.queue is not None and self.queue.spare.data // WARPS in range(members[0].warpgroup.data, find_end_warpgroup(members)):
            out.span = None
            out.line("// ---- a spare warp hands out the units of work")
            spare = self.queue.spare.data
            with out.block(f"else if (warpgroup == {spare // WARPS} && warp == {spare % WARPS} && {self.target.format_phrase('elect')})"):
                queues.hand_out(RolePrinter(self, self.queue, True), self.queue)


class _Frame(Scope):
    """The kernel's frame, outside of all roles."""

    def name(self, value: SSAValue) -> str:
        return self.kernel.frame[value]
