"""Kernels that several tests of the lowering take: those of the corpus, names that are hard for C++, loops over units of work."""

from __future__ import annotations

import functools
import re
from pathlib import Path

from cuir.arguments.binding import assume_consts
from cuir.checking.checked import Checked
from cuir.checking.checker import check
from cuir.syntax.parser import parse

ROOT = Path(__file__).parents[2]
FILES = sorted([*ROOT.glob("corpus/programs/*.cuir"), *ROOT.glob("corpus/kernels/*.cuir")])
EXTRA = {
    "decode": {"G": 8},
    "mla_decode": {"D": 192, "DV": 128},
    "mla_selected": {"D": 192, "DV": 128},
    "global_sliding_window": {"L": 64, "R": 64, "g": 16},
}


NAMES = [
    f"{path.stem}.{name}"
    for path in FILES
    for name in re.findall(r"^@kernel\(.*\n(?:@.*\n)*def (\w+)", path.read_text(encoding="utf-8"), re.M)
]  # of the text: nothing is parsed before a test asks


@functools.cache
def corpus_kernel(name: str) -> Checked:
    stem, _, kernel = name.partition(".")
    (path,) = (path for path in FILES if path.stem == stem)
    program = parse(path.read_text(encoding="utf-8"), path.name)
    return check(program, kernel, assume_consts(program.kernels()[kernel], {**EXTRA.get(kernel, {}), **EXTRA.get(stem, {})}))


# ---- names
HARD = ["new", "int", "row", "col", "lane", "warp", "this", "union", "x_u", "x__1", "smem", "double", "min_", "i_", "r_", "NULL", "unix", "counter",
        "slots", "tile_count", "uint32_t", "Z_stride0", "I_stride0", "queue", "t__1", "map_X", "descriptor_s", "INFINITY", "at", "__x", "half", "struct"]  # fmt: skip


def with_names(names: list[str]) -> str:
    """A kernel whose locals have these names: scalars, tiles and loop variables in turn."""
    lines, total = [], []
    for i, name in enumerate(names):
        if i % 3 == 0:
            lines.append(f"{name} = n + {i}")
        elif i % 3 == 1:
            lines.append(f"{name} = cast(full(f32, [64, 1], scale) + {i}.0, f32)")
        else:
            lines += [f"for {name} in range(2):", f"    store(I[{name}], {name})"]
        total += [name] if i % 3 == 1 else []
    return "\n".join(
        [*lines, *(f"store(I[{i}], {n})" for i, n in enumerate(names) if i % 3 == 0), f"store(Y[rows(64)], {' + '.join(total)})"]
    )


# ---- units of work
UNITS = """\
@kernel(arch="sm_90a")
def k(X: Global[f16, M, 64], I: Global[i32, M], J: Global[i32, M], F: Global[f32, M], n: i32, scale: f32, *, DYNAMIC: const = True):
    s = shared(f16, [64, 64])
    full, empty = mbarrier(1), mbarrier(1)
    work = tiles(n, dynamic=DYNAMIC)
"""
LOAD = """\
    with role("load", warps=1):
        u = 0
        for t in work:
            line = t // n
            empty.wait(u % 2 ^ 1)
            full.expect(nbytes(s))
            copy_async(X[line * 64 : line * 64 + 64, :], s, full)
            u += 1
"""
COMPUTE = """\
    with role("compute", warpgroups=1):
        v = 0
        for t in work:
            place = t // n
            odd = place % 7 > 2
            weight = cast(t, f32) / scale
            first = J[t % 5]
            if odd:
                place = place + first
            full.wait(v % 2)
            a = mma_async(s, s)
            mma_wait(a)
            empty.arrive()
            v += 1
            store(I[place], first)
            store(F[place], weight)
            store(X[place * 64 + rows(64), cols(64)], cast(a, f16))
"""
ALL = '    with role("all", warps=4):\n        for t in work:\n            store(I[t // n], t)\n'


def queues() -> list[Checked]:
    return [
        check(parse(UNITS + body, "k.cuir"), consts={"DYNAMIC": dynamic}) for body in (LOAD + COMPUTE, ALL) for dynamic in (True, False)
    ]
