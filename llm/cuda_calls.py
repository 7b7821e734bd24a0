"""Table of the low-level calls of CUDA attention kernels and their names in CuIR.

It has wrappers of CuTe and CUTLASS, functions of CUDA, and PTX instructions.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

from .cuda_text import closing

IMPLIED = "nothing"  # what CuIR has for a call that its meaning already implies

# kind -> what CuIR calls it
CUIR = {
    "cp_async": "copy_async(box, shared)",
    "cp_commit": "copy_commit()",
    "cp_wait": "copy_wait({n})",
    "bulk_load": "copy_async(box, shared, bar)",
    "bulk_store": "store_async(shared, box)",
    "bulk_commit": f"{IMPLIED}: each store_async is a group",
    "bulk_wait": "store_wait()",
    "init": "mbarrier(count, stages=)",
    "expect": "bar.expect(bytes): arrives once, too",
    "expect_bytes": "the bytes of bar.expect(bytes), without its arrival",
    "arrive": "bar.arrive()",
    "wait": "bar.wait(parity)",
    "named_sync": "named_barrier: bar.sync()",
    "named_arrive": "named_barrier: bar.arrive()",
    "fence_init": f"{IMPLIED}: barriers are ready when the roles start",
    "fence_async": "fence_async()",
    "wgmma_fence": f"{IMPLIED}: part of mma_async",
    "wgmma": "mma_async(a, b, c)",
    "wgmma_commit": f"{IMPLIED}: each mma_async is a group",
    "wgmma_wait": "mma_wait(value, ...): {n} later products may still run",
    "order": f"{IMPLIED}: keeps the compiler from moving registers' uses",
    "mma": "mma(a, b, c)",
    "ldmatrix": "load(view), or the Shared operand of mma",
    "stmatrix": "store(view, tile)",
    "registers": "role(..., registers={n})",
    "sync": "sync()",
    "warp_sync": f"{IMPLIED}: a worker acts as a whole",
    "cluster_sync": f"{IMPLIED}: a cluster starts and ends together",
    "elect": f"{IMPLIED}: a worker acts as a whole",
    "prefetch": IMPLIED,
}


@dataclass(frozen=True)
class Wrapper:
    """Function that wraps a low-level call.

    Attributes:
        name: Pattern for its qualified name without template arguments.
        kind: Key of CUIR.
        object: Index of the argument that is its barrier or shared array; None for none.
        number: Index of the argument that is its number, -1 for the first template argument; None for none.
        second: Index of another barrier or shared array.
    """

    name: re.Pattern[str]
    kind: str
    object: int | None = None
    number: int | None = None
    second: int | None = None


def _w(name: str, kind: str, object: int | None = None, number: int | None = None, second: int | None = None) -> Wrapper:
    """Return a Wrapper with a compiled pattern."""
    return Wrapper(re.compile(rf"(?:^|::)(?:{name})$"), kind, object, number, second)


WRAPPERS: tuple[Wrapper, ...] = (
    _w(r"SM80_CP_ASYNC_\w+::copy", "cp_async", 1),
    _w(r"cp_async_fence|__pipeline_commit", "cp_commit"),
    _w(r"cp_async_wait", "cp_wait", number=-1),
    _w(r"__pipeline_wait_prior", "cp_wait", number=0),
    _w(r"__pipeline_memcpy_async", "cp_async", 0),
    _w(r"SM90_TMA_LOAD_MULTICAST\w*::copy", "bulk_load", 4, second=1),
    _w(r"SM90_TMA_LOAD\w*::copy", "bulk_load", 3, second=1),
    _w(r"SM90_TMA_(?:STORE|REDUCE)\w*::copy", "bulk_store", 1),
    _w(r"tma_store_arrive", "bulk_commit"),
    _w(r"tma_store_wait", "bulk_wait", number=-1),
    _w(r"(?:Cluster(?:Transaction)?Barrier)::init", "init", 0, 1),
    _w(r"ClusterTransactionBarrier::(?:arrive_and_expect_tx)", "expect", 0),
    _w(r"Cluster(?:Transaction)?Barrier::arrive", "arrive", 0),
    _w(r"Cluster(?:Transaction)?Barrier::(?:wait|try_wait|test_wait)", "wait", 0),
    _w(r"NamedBarrier::(?:sync|arrive_and_wait)", "named_sync", 1, 0),
    _w(r"NamedBarrier::arrive", "named_arrive", 1, 0),
    _w(r"fence_barrier_init", "fence_init"),
    _w(r"fence_view_async_shared|tma_store_fence", "fence_async"),
    _w(r"warpgroup_arrive", "wgmma_fence"),
    _w(r"warpgroup_commit_batch", "wgmma_commit"),
    _w(r"warpgroup_wait", "wgmma_wait", number=-1),
    _w(r"warpgroup_fence_operand", "order"),
    _w(r"MMA_64x\w+::fma", "wgmma"),
    _w(r"SM80_16x8x\w+::fma", "mma"),
    _w(r"SM75_\w+_LDSM_\w+::copy", "ldmatrix", 0),
    _w(r"SM90_\w+_STSM_\w+::copy", "stmatrix"),
    _w(r"warpgroup_reg_(?:alloc|dealloc)", "registers", number=-1),
    _w(r"__syncthreads", "sync"),
    _w(r"__syncwarp", "warp_sync"),
    _w(r"cluster_(?:sync|arrive\w*|wait)", "cluster_sync"),
    _w(r"elect_one_sync", "elect"),
    _w(r"prefetch_tma_descriptor", "prefetch"),
)
METHODS = {
    "init": ("init", 0),
    "wait": ("wait", None),
    "try_wait": ("wait", None),
    "arrive": ("arrive", None),
    "arrive_and_expect_tx": ("expect", None),
}


@dataclass(frozen=True)
class Instruction:
    """PTX instruction.

    `object` and `second` index its bracketed operands, `number` its plain ones (from 0, in order).
    """

    name: re.Pattern[str]
    kind: str
    object: int | None = None
    number: int | None = None
    second: int | None = None


def _i(name: str, kind: str, object: int | None = None, number: int | None = None, second: int | None = None) -> Instruction:
    """Return an Instruction with a compiled pattern."""
    return Instruction(re.compile(name), kind, object, number, second)


INSTRUCTIONS: tuple[Instruction, ...] = (
    _i(r"cp\.async\.mbarrier\.arrive", "arrive", 0),
    _i(r"cp\.async\.bulk\.prefetch|prefetch", "prefetch"),
    _i(r"cp\.(?:reduce\.)?async\.bulk\.(?:tensor\.\dd\.)?global\.shared", "bulk_store", 1),
    _i(r"cp\.async\.bulk\.commit_group", "bulk_commit"),
    _i(r"cp\.async\.bulk\.wait_group", "bulk_wait", number=0),
    _i(r"cp\.async\.bulk\.(?:tensor\.\dd\.)?shared", "bulk_load", 0, second=2),
    _i(r"cp\.async\.commit_group", "cp_commit"),
    _i(r"cp\.async\.wait_group", "cp_wait", number=0),
    _i(r"cp\.async\.wait_all", "cp_wait"),
    _i(r"cp\.async\.c[ag]\.", "cp_async", 0),
    _i(r"mbarrier\.init", "init", 0, 0),
    _i(r"mbarrier\.arrive\.expect_tx", "expect", 0),
    _i(r"mbarrier\.expect_tx", "expect_bytes", 0),
    _i(r"mbarrier\.arrive", "arrive", 0),
    _i(r"mbarrier\.(?:try|test)_wait", "wait", 0),
    _i(r"wgmma\.fence", "wgmma_fence"),
    _i(r"wgmma\.commit_group", "wgmma_commit"),
    _i(r"wgmma\.wait_group", "wgmma_wait", number=0),
    _i(r"wgmma\.mma_async", "wgmma"),
    _i(r"setmaxnreg", "registers", number=0),
    _i(r"bar\.warp\.sync", "warp_sync"),
    _i(r"barrier\.cluster", "cluster_sync"),
    _i(r"bar(?:rier)?(?:\.cta)?\.sync", "named_sync"),
    _i(r"bar(?:rier)?(?:\.cta)?\.arrive", "named_arrive"),
    _i(r"ldmatrix", "ldmatrix"),
    _i(r"stmatrix", "stmatrix"),
    _i(r"mma\.sync", "mma"),
    _i(r"fence\.proxy\.async", "fence_async"),
    _i(r"fence\.mbarrier_init", "fence_init"),
    _i(r"elect\.sync", "elect"),
)


@dataclass(frozen=True)
class LocatedCall:
    """Low-level call in a piece of text: `objects` and `number` as they are written there."""

    kind: str
    name: str
    arguments: tuple[str, ...]
    objects: tuple[str, ...]
    number: str


@functools.lru_cache(4096)
def wrapper_of(name: str) -> Wrapper | None:
    """Return the wrapper that a qualified name stands for, None if there is none."""
    return next((w for w in WRAPPERS if w.name.search(name)), None)


def wrapper_call(w: Wrapper, name: str, template: tuple[str, ...], arguments: tuple[str, ...]) -> LocatedCall:
    """Return the low-level call that a call of a wrapper makes."""
    objects = tuple(arguments[i] for i in (w.object, w.second) if i is not None and i < len(arguments))
    number = ""
    if w.number == -1:
        number = template[0] if template else ""
    elif w.number is not None and w.number < len(arguments):
        number = arguments[w.number]
    return LocatedCall(w.kind, name, arguments, objects, number)


def ptx_calls(asm: str) -> list[LocatedCall]:
    """Return the calls that the instructions of an `asm` statement make.

    `asm` is the text between its parentheses.
    """
    literals, rest = [], asm
    while match := re.match(r'\s*"((?:\\.|[^"\\])*)"', rest):
        literals.append(match[1])
        rest = rest[match.end() :]
    operands = [rest[m.end() : closing(rest, m.end() - 1)].strip() for m in re.finditer(r'"[^"]*"\s*\(', rest)]

    def fill_operands(text: str) -> str:
        """Put operands in place of `%0`, `%1`, ..."""
        return re.sub(r"%(\d+)", lambda m: f"({operands[int(m[1])]})" if int(m[1]) < len(operands) else m[0], text)

    calls = []
    for line in re.split(r"\\n|\\t|;", "".join(literals)):
        words = re.sub(r"^[\s{]*(?:\w+:\s*)?(?:@!?%?\w+\s+)?", "", line).strip()
        for i in INSTRUCTIONS:
            if i.name.match(words):
                name, _, tail = words.partition(" ")
                brackets = [fill_operands(b.partition(",")[0]) for b in re.findall(r"\[([^\]]*)\]", tail)]
                plain = [fill_operands(p.strip()) for p in re.sub(r"\[[^\]]*\]|\{[^}]*\}", "", tail).split(",") if p.strip()]
                objects = tuple(brackets[j] for j in (i.object, i.second) if j is not None and j < len(brackets))
                number = plain[i.number] if i.number is not None and i.number < len(plain) else "0" if i.kind == "cp_wait" else ""
                if i.kind in ("named_sync", "named_arrive"):
                    objects, number = tuple(plain[:1]), plain[1] if len(plain) > 1 else ""
                calls.append(
                    LocatedCall("sync" if i.kind == "named_sync" and not number else i.kind, name, tuple(operands), objects, number)
                )
                break
    return calls
