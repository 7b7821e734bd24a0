"""`lower`: a checked kernel to one CUDA C++ file. Owns the frame: parameters, shared memory, barriers, roles, tiles of work."""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from ..checking.checked import Barrier, Checked, Role, TensorParam
from ..checking.checker import check
from ..checking.tensor_modes import exchanged
from ..checking.views import Range, root_name, view_of
from ..ops.limits import TARGETS, register_pool
from ..syntax.given import program_of
from ..syntax.nodes import Assign, Expr, Literal, Program
from ..syntax.types import Scalar, SharedView
from ..text.diagnostics import CuirError
from ..text.source import Span
from .coalesce import coalesced
from .prelude import HEADERS, HEADERS_90, render
from .role import RoleEmitter
from .tile_queue import choose, declare, hand_out
from .values import CTYPE, MEMORY, Scalars, strip, summand
from .writer import Writer, identifier, symbol

WARPS = 4  # of a warpgroup


@dataclass(frozen=True)
class TensorMap:
    """A tensor map parameter: a box of `sizes` (outermost first; the innermost one panel) of a tensor."""

    name: str
    tensor: str
    sizes: tuple[int, ...]


@dataclass(frozen=True)
class Cuda:
    """A lowered kernel: the source text, where its lines come from, and what a launch must know."""

    name: str
    arch: str
    source: str
    spans: tuple[Span | None, ...]  # of each line of source
    threads: int
    cluster: int
    shared_bytes: int  # dynamic shared memory, barriers included
    maps: tuple[TensorMap, ...]
    tensors: tuple[str, ...]  # passed as pointers, in order; each is followed by its outer strides, in elements
    counter: bool  # a pointer to an unsigned, zero before the first launch; the kernel leaves it zero
    scalars: tuple[str, ...]
    dims: tuple[str, ...]
    checked: Checked = field(repr=False)
    aligned: tuple[str, ...] = ()  # tensors that asynchronous copies address: multiples of 16 bytes
    choices: tuple[str, ...] = ()  # decisions that the program's text leaves open

    @property
    def line_map(self) -> dict[int, Span]:
        """CUDA line number (from 1) -> CuIR span."""
        return {i: s for i, s in enumerate(self.spans, 1) if s is not None}

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.source.encode()).hexdigest()[:16]


def lower(checked: Checked | Program | str | os.PathLike[str]) -> Cuda:
    """Emit CUDA C++ for a checked kernel (or a program, or the path of its file, whose consts have defaults); the same kernel always gives the same text. Raises CuirError (codes L0xx) naming the statement."""
    if not isinstance(checked, Checked):
        checked = check(program_of(checked, "lower"))
    emitter = KernelEmitter(*coalesced(checked))
    return replace(emitter.emit(), checked=checked)


def last_warpgroup(members: list[Role]) -> int:
    """The warpgroup after the last one that these roles stand in."""
    return max(r.warpgroup + -(-(r.warp + r.workers * (r.threads // 32)) // WARPS) for r in members)


class KernelEmitter:
    def __init__(self, checked: Checked, choices: Iterable[tuple[str, Span]] = ()):
        self.checked, self.out = checked, Writer()
        self.tensors: dict[str, TensorParam] = {t.name: t for t in checked.tensors}
        self.maps: dict[tuple[str, tuple[int, ...]], TensorMap] = {}
        self.pointers: dict[str, None] = {}
        self.functions: dict[str, str] = {}  # of this kernel alone: wgmma shapes
        self.choices: dict[str, None] = {}
        for text, span in choices:
            self.choice(text, span)
        self.aligned: dict[str, None] = {}  # addressed by cp.async
        self.next_barrier = 1  # hardware barrier 0 is the whole CTA's
        self.named: dict[str, int] = {}
        self.worker_barriers: dict[str, int] = {}
        self.handed = exchanged(checked)
        self.queue = choose(self)
        self.tile_count = "tile_count"

    @property
    def draws(self) -> bool:
        """Whether units of work are drawn from a counter in global memory."""
        return self.queue is not None and self.queue.dynamic

    @functools.cached_property
    def between_ctas(self) -> frozenset[str]:
        """Barriers that are arrived at across the cluster in a kernel whose CTAs may hand over data in tensors: they order these, too."""
        if self.checked.cluster == 1 or not self.handed:
            return frozenset()
        found = set()
        for bound in self.checked.calls():
            across = bound.args.get("cluster")
            if bound.op.effects.arrives and isinstance(across, Literal) and across.value:
                found.add(root_name(bound.args[bound.op.effects.arrives]) or "")
        return frozenset(found)

    # ---- services of the emitters
    def choice(self, text: str, span: Span | None) -> None:
        self.choices[f"line {span.line}: {text}" if span else text] = None

    def nbytes(self, expr: Expr, view: SharedView) -> int:
        """Bytes of a view, padding included."""
        alloc = self.checked.shared[root_name(expr) or ""]
        found = view_of(expr, len(alloc.dims))
        assert found is not None
        total = alloc.row_bytes
        for part, dim in zip(found.parts[:-1], alloc.dims[:-1], strict=True):
            total *= (part.size or dim) if isinstance(part, Range) else 1
        last = found.parts[-1]
        if isinstance(last, Range) and last.size is not None:
            total = total // alloc.row_bytes * (-(-last.size * alloc.dtype.itemsize // 16) * 16)
        return total

    def index(self, tensor: str, indices: list[str], uniform: Sequence[bool] = ()) -> str:
        """Offset of an element inside the tensor, in elements; `uniform`: which indices are scalars, whose sign then need not be extended."""
        self.pointers[tensor] = None
        ident = identifier(tensor)
        parts = []
        for i, x in enumerate(indices[:-1]):
            text = f"uint32_t({strip(x)})" if any(uniform[i : i + 1]) else strip(x) if " " not in strip(x) else f"({strip(x)})"
            parts.append(f"{text} * {ident}_stride{i}")
        return " + ".join([*parts, summand(indices[-1])])

    def inside(self, tensor: str, indices: list[str]) -> str:
        """A condition that indices lie in the tensor."""
        dims = self.tensors[tensor].dims
        tests = [
            f"unsigned({strip(x)}) < unsigned({d if isinstance(d, int) else identifier(d)})" for x, d in zip(indices, dims, strict=True)
        ]
        return " && ".join(tests)

    def tensor_read(self, tensor: str, offset: str) -> str:
        text = f"{identifier(tensor)}[{offset}]"
        return text if self.tensors[tensor].dtype.itemsize != 2 else f"cuir::to_float({text})"

    def tensor_map(self, tensor: str, sizes: tuple[int, ...], span: Span) -> str:
        if len(sizes) > TARGETS["sm_90a"].tensor_rank:
            raise CuirError.of("L003", f"a bulk copy takes tensors of up to {TARGETS['sm_90a'].tensor_rank} dims, `{tensor}` has {len(sizes)}", span,
                               "merge dims of the tensor that are contiguous")  # fmt: skip
        key = (tensor, sizes)
        if key not in self.maps:
            taken = sum(m.tensor == tensor for m in self.maps.values())
            self.maps[key] = TensorMap(f"map_{tensor}" + (f"_{taken}" if taken else ""), tensor, sizes)
        return self.maps[key].name

    def wgmma(self, cols: int, dtype: str, kind: str, major_a: str, major_b: str, registers: int) -> str:
        """A function for one shape of product: accumulators O .. O + cols / 2 of an array."""
        name = f"wgmma_64x{cols}_{dtype.lower()}_{kind.lower()}_{major_a.lower()}_{major_b.lower()}"
        left = "uint64_t a" if kind == "SS" else "uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3"
        pass_left = "a" if kind == "SS" else "a0, a1, a2, a3"
        regs = ", ".join(f"d[O + {i}]" for i in range(cols // 2))
        self.functions[name] = (
            f"template <int O, int N> DEV void {name}(float (&d)[N], {left}, uint64_t b, GMMA::ScaleOut scale) {{\n"
            f"  GMMA::MMA_64x{cols}x16_F32{dtype}{dtype}_{kind}<GMMA::Major::{major_a}, GMMA::Major::{major_b}>::fma({pass_left}, b, {regs}, scale);\n}}"
        )
        return f"cuir::{name}"

    # ---- hardware barriers
    def _take(self, n: int, span: Span) -> int:
        first, self.next_barrier = self.next_barrier, self.next_barrier + n
        limit = TARGETS[self.checked.arch].named_barriers
        if self.next_barrier > limit:
            raise CuirError.of("L004", f"the kernel needs more than the {limit - 1} hardware barriers that a CTA has for named barriers and joins of workers", span,
                               "use fewer named barriers or stages")  # fmt: skip
        return first

    def named_barrier(self, name: str) -> int:
        barrier = self.checked.barriers[name]
        if name not in self.named:
            self.named[name] = self._take(barrier.stages or 1, barrier.span)
        return self.named[name]

    def worker_barrier(self, role: Role) -> str:
        """Hardware barrier that joins a warpgroup's four warps."""
        if role.name not in self.worker_barriers:
            self.worker_barriers[role.name] = self._take(role.workers, role.span)
        first = self.worker_barriers[role.name]
        return str(first) if role.workers == 1 else f"{first} + {self.worker_index(role)}"

    def worker_index(self, role: Role) -> str:
        if role.threads == 128:
            return f"(warpgroup - {role.warpgroup})" if role.warpgroup else "warpgroup"
        if role.workers <= WARPS - role.warp:
            return f"(warp - {role.warp})" if role.warp else "warp"
        return f"(4 * (warpgroup - {role.warpgroup}) + warp - {role.warp})"

    def threads_of(self, role_name: str | None) -> int:
        return next((r.threads for r in self.checked.roles if r.name == role_name), 32)

    def arrivals(self, barrier: Barrier) -> int:
        """Arrivals of hardware that end a phase: one a warp."""
        return barrier.count * (WARPS if self.threads_of(barrier.arrivers) == 128 else 1)

    # ---- the file
    def emit(self) -> Cuda:
        body = Writer()
        self.out = body
        body.depth = 1
        self._roles()
        frame = Writer()
        self.out = frame
        head, shared_bytes = self._head()
        checked = self.checked
        prelude = render(body.text() + frame.text(), self.functions)
        top = Writer()
        sm90 = checked.arch != "sm_80"
        top.line(f"// {checked.name} for {checked.arch}: made from CuIR by cuir.lowering; `// N: text` is line N of the program")
        consts = ", ".join(f"{n}={v}" for n, v in checked.consts.items())
        if consts:
            top.line(f"// {consts}")
        top.line(HEADERS + ("\n" + HEADERS_90 if sm90 else ""))
        top.line("\n#define DEV static __device__ __forceinline__\n#define DEV_MEMBER __device__ __forceinline__")
        if sm90:
            top.line("namespace GMMA = cute::SM90::GMMA;")
        top.line(f"namespace cuir {{\n{prelude}\n}}  // namespace cuir\n")
        lines = [*top.lines, *head, *frame.lines, *body.lines, "}"]
        spans: list[Span | None] = [*([None] * (len(top.lines) + len(head))), *frame.spans, *body.spans, None]
        return Cuda(
            checked.name, checked.arch, "\n".join(lines) + "\n", tuple(spans), checked.threads, checked.cluster, shared_bytes, tuple(self.maps.values()),
            tuple(self.pointers), self.draws, tuple(s.name for s in checked.scalars), checked.dims, checked,
            tuple(dict.fromkeys([*(m.tensor for m in self.maps.values()), *self.aligned])), tuple(self.choices),
        )  # fmt: skip

    def _head(self) -> tuple[list[str], int]:
        """The signature, and in `self.out` all that comes before the roles. Returns the signature and the bytes of shared memory."""
        checked, out = self.checked, self.out
        params = [f"const __grid_constant__ CUtensorMap {m.name}" for m in self.maps.values()]
        for name in self.pointers:
            t = self.tensors[name]
            const = "" if t.written else "const "
            # what a kernel both reads and writes others may write between two of its reads: a compiler that takes the pointer for the only way there moves
            # loads across barriers, or reads through the texture path
            alone = "" if name in self.handed else "__restrict__ "
            params.append(f"{const}{MEMORY[t.dtype]}* {alone}{identifier(name)}")
            params += [f"const int64_t {identifier(name)}_stride{i}" for i in range(len(t.dims) - 1)]
        if self.draws:
            params.append("unsigned* __restrict__ counter")
        params += [f"const {CTYPE[s.dtype]} {identifier(s.name)}" for s in checked.scalars]
        params += [f"const int {identifier(d)}" for d in checked.dims]
        listed = ",\n    ".join(params)
        head = [
            f'extern "C" __global__ void __launch_bounds__({checked.threads}, 1)',
            *f"{symbol(checked.name)}({listed}) {{".split("\n"),
        ]
        out.depth = 1
        out.line("extern __shared__ __align__(1024) uint8_t smem[];")
        out.line("[[maybe_unused]] const uint32_t smem_address = cute::cast_smem_ptr_to_uint(smem);")
        out.line("[[maybe_unused]] const int lane = threadIdx.x % 32;")
        out.line("// uniform, so that descriptors and branches live in uniform registers")
        out.line(
            "[[maybe_unused]] const int warpgroup = __shfl_sync(~0u, int(threadIdx.x) / 128, 0), warp = __shfl_sync(~0u, int(threadIdx.x) / 32 % 4, 0);"
        )
        offset = -(-checked.shared_bytes // 16) * 16
        inits = []
        for b in checked.barriers.values():
            if b.kind != "mbarrier":
                continue
            stages = b.stages or 1
            out.line(f"uint64_t* const {identifier(b.name)} = reinterpret_cast<uint64_t*>(smem + {offset});")
            count = self.arrivals(b)
            init = f"cuir::Bar::init({identifier(b.name)} + i, {count});"
            inits.append(f"for (int i = 0; i < {stages}; ++i) {init}" if stages > 1 else f"cuir::Bar::init({identifier(b.name)}, {count});")
            offset += 8 * stages
        if self.queue:
            offset = -(-offset // 16) * 16
            inits += declare(self, self.queue, offset)
            offset += self.queue.nbytes
        limit = TARGETS[checked.arch].shared_bytes
        if offset > limit:
            raise CuirError.of(
                "L005",
                f"arrays and barriers take {offset} bytes of shared memory, a CTA has {limit}",
                checked.origin.span,
                "use fewer stages or smaller tiles",
            )
        scalars = Scalars(self, set(checked.dims))
        for stmt in checked.declarations:
            if isinstance(stmt, Assign) and isinstance(kind := checked.declared.get(stmt.targets[0]), Scalar):
                out.mark(stmt.span)
                out.line(f"[[maybe_unused]] const {CTYPE[kind.dtype]} {identifier(stmt.targets[0])} = {strip(scalars.scalar(stmt.value))};")
        if checked.tiles is not None:
            out.mark(checked.tiles.span)
            out.line(f"const int tile_count = {strip(scalars.scalar(checked.tiles.count))};")
        out.span = None
        if inits or self.maps:
            with out.block("if (threadIdx.x == 0)"):
                for m in self.maps.values():
                    out.line(f"cute::prefetch_tma_descriptor(&{m.name});")
                for text in inits:
                    out.line(text)
                if inits:
                    out.line("cutlass::arch::fence_barrier_init();")
        if inits:
            out.line("cute::cluster_sync();" if checked.cluster > 1 else "__syncthreads();")
        return head, offset

    # ---- roles
    def _roles(self) -> None:
        out, roles = self.out, self.checked.roles
        groups: dict[int, list[Role]] = {}
        for role in roles:
            groups.setdefault(role.warpgroup, []).append(role)
        order = sorted(groups)
        launch = register_pool(self.checked.threads) // self.checked.threads
        for n, first in enumerate(order):
            members = groups[first]
            last = last_warpgroup(members)
            single = len(order) == 1
            test = f"warpgroup == {first}" if last == first + 1 else f"warpgroup >= {first} && warpgroup < {last}"
            head = "" if single else f"if ({test})" if n == 0 else f"else if ({test})" if n < len(order) - 1 else "else"
            if single:
                self._group(members, launch)
            else:
                with out.block(head):
                    self._group(members, launch)
        if self.checked.cluster > 1:
            out.line("__syncwarp();\ncute::cluster_sync();  // no CTA leaves while another may signal it")

    def _group(self, members: list[Role], launch: int) -> None:
        """Roles that share warpgroups, and so registers."""
        out = self.out
        registers = next((r.registers for r in members if r.registers), None)
        if registers is not None and registers != launch and len(self.checked.roles) > 1:
            kind = "alloc" if registers > launch else "dealloc"
            out.line(f"cutlass::arch::warpgroup_reg_{kind}<{registers}>();")
        for k, role in enumerate(members):
            emitter = RoleEmitter(self, role)
            last = role.warp + role.workers
            whole = role.threads == 128 or (len(members) == 1 and role.warp == 0 and role.workers % WARPS == 0)
            test = (
                f"warp == {role.warp}"
                if role.workers == 1
                else f"{self._position(role)} < {last}"
                if role.warp == 0
                else f"{self._position(role)} >= {role.warp} && {self._position(role)} < {last}"
            )
            if emitter.single:
                test += " && cute::elect_one_sync()"
            out.line(f"// ---- role {role.name}")
            if whole and not emitter.single:
                emitter.body()
                continue
            with out.block(f"{'else ' if k else ''}if ({test})"):
                emitter.body()
        if (
            self.queue
            and self.queue.spare is not None
            and self.queue.spare // WARPS in range(members[0].warpgroup, last_warpgroup(members))
        ):
            out.span = None
            out.line("// ---- a spare warp hands out the units of work")
            here = f"warpgroup == {self.queue.spare // WARPS} && warp == {self.queue.spare % WARPS}"
            with out.block(f"else if ({here} && cute::elect_one_sync())"):
                hand_out(self, self.queue)

    def _position(self, role: Role) -> str:
        """Warp number among the role's warpgroups."""
        return "warp" if role.warp + role.workers <= WARPS else f"4 * (warpgroup - {role.warpgroup}) + warp"
