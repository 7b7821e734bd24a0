"""Forms in which lanes exchange values: shuffles, votes, matches, reductions, matrices of shared memory."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import numpy as np

from .forms import Array, Form, draw_bytes, draw_words, make_lanes

ALL = "0xffffffff"
# Lanes below 12 go one way, the others another; each way names its lanes.
APART = ".reg .pred %q; setp.lt.u32 %q, %i0, 12; @%q bra LOW; {upper} bra.uni END; LOW: {lower} END:"


def list_shuffles() -> list[Form]:
    """Return forms of shfl: any amounts, and clamps with segments."""
    forms = []
    for mode in ("idx", "up", "down", "bfly"):
        code = f"shfl.sync.{mode}.b32 %d0|%d1, %a0, %a1, %a2, {ALL};"
        forms.append(make_lanes(f"shfl.sync.{mode}.b32", "b32 u32 u32", "b32 pred", code, ("bits", "below:32", "bits"), threads=512))
        clamp = 0 if mode == "up" else 31
        for width in (32, 16, 8, 4, 2):
            code = f"shfl.sync.{mode}.b32 %d0|%d1, %a0, %a1, {clamp | (32 - width) << 8}, {ALL};"
            forms.append(make_lanes(f"shfl.sync.{mode}.b32 of {width}", "b32 u32", "b32 pred", code, ("bits", "bits")))
    return forms


def list_votes() -> list[Form]:
    """Return forms of vote, match, redux, elect and activemask."""
    forms = []
    for mode, negated in product(("all", "any", "uni"), ("", "!")):
        # Warps that agree are as likely as others: %a0 holds a word whose value decides.
        code = f".reg .pred %q; setp.lt.u32 %q, %a0, %a1; vote.sync.{mode}.pred %d0, {negated}%q, {ALL};"
        forms.append(
            make_lanes(f"vote.sync.{mode}.pred {'not' if negated else 'as it is'}", "u32 u32", "pred", code, ("below:32", "below:1"))
        )
        forms.append(
            make_lanes(f"vote.sync.{mode}.pred {negated or 'mixed'}", "pred", "pred", f"vote.sync.{mode}.pred %d0, {negated}%a0, {ALL};")
        )
    forms.append(make_lanes("vote.sync.ballot.b32", "pred", "b32", f"vote.sync.ballot.b32 %d0, %a0, {ALL};"))
    parts = (f"vote.sync.ballot.b32 %d0, %a0, {mask};" for mask in ("0xfffff000", "0xfff"))
    forms.append(make_lanes("vote.sync.ballot.b32 apart", "pred", "b32", APART.format(upper=next(parts), lower=next(parts)), threads=32))
    parts = (f"vote.sync.any.pred %d0, %a0, {mask};" for mask in ("0xfffff000", "0xfff"))
    forms.append(make_lanes("vote.sync.any.pred apart", "pred", "pred", APART.format(upper=next(parts), lower=next(parts)), threads=32))
    for t, kind in product(("b32", "b64"), ("below:4", "below:1", "bits")):
        forms.append(make_lanes(f"match.any.sync.{t} {kind}", t, "b32", f"match.any.sync.{t} %d0, %a0, {ALL};", (kind,)))
        forms.append(make_lanes(f"match.all.sync.{t} {kind}", t, "b32 pred", f"match.all.sync.{t} %d0|%d1, %a0, {ALL};", (kind,)))
    parts = (f"match.any.sync.b32 %d0, %a0, {mask};" for mask in ("0xfffff000", "0xfff"))
    code = APART.format(upper=next(parts), lower=next(parts))
    forms.append(make_lanes("match.any.sync.b32 apart", "b32", "b32", code, ("below:3",), threads=32))
    for name, t in (*product(("add", "min", "max"), ("u32", "s32")), *product(("and", "or", "xor"), ("b32",))):
        forms.append(make_lanes(f"redux.sync.{name}.{t}", t, t, f"redux.sync.{name}.{t} %d0, %a0, {ALL};"))
        parts = (f"redux.sync.{name}.{t} %d0, %a0, {mask};" for mask in ("0xfffff000", "0xfff"))
        code = APART.format(upper=next(parts), lower=next(parts))
        forms.append(make_lanes(f"redux.sync.{name}.{t} apart", t, t, code, ("bits",), threads=32))
    parts = (f"elect.sync %d0|%d1, {mask};" for mask in ("0xfffff000", "0xfff"))
    forms.append(make_lanes("elect.sync apart", "b32", "b32 pred", APART.format(upper=next(parts), lower=next(parts)), threads=32))
    forms.append(make_lanes("elect.sync", "b32", "b32 pred", f"elect.sync %d0|%d1, {ALL};"))
    registers = (
        "laneid",
        "lanemask_eq",
        "lanemask_lt",
        "lanemask_le",
        "lanemask_gt",
        "lanemask_ge",
        "tid.x",
        "ntid.x",
        "ctaid.x",
        "nctaid.x",
    )
    forms += [make_lanes(f"mov.u32 {r}", "b32", "b32", f"mov.u32 %d0, %{r};", threads=64) for r in registers]
    return forms


# ---- matrices
def fill_shared(nbytes: int, threads: int, source: str = "%x0", proxy: bool = False) -> str:
    """Return code that copies the first bytes of a buffer to shared memory at `tile`, whose address %i1 becomes."""
    lines = [f".shared .align 1024 .b8 tile[{nbytes}];", "mov.u32 %i1, tile;"]
    lines += [".reg .b32 %w<4>; .reg .pred %more; shl.b32 %i2, %i0, 4;", "FILL: cvt.u64.u32 %x2, %i2;", f"add.u64 %x2, %x2, {source};"]
    lines += [f"add.u32 %i3, %i1, %i2; setp.lt.u32 %more, %i2, {nbytes};"]
    lines += ["@%more ld.global.v4.b32 {%w0, %w1, %w2, %w3}, [%x2];", "@%more st.shared.v4.b32 [%i3], {%w0, %w1, %w2, %w3};"]
    lines += [f"add.u32 %i2, %i2, {16 * threads}; setp.lt.u32 %more, %i2, {nbytes};", "@%more bra FILL;"]
    lines += ["fence.proxy.async;"] if proxy else []
    return "\n".join([*lines, "bar.sync 0;"])


def dump_shared(nbytes: int, threads: int) -> str:
    """Return code that copies shared memory at `tile` to the output."""
    lines = [
        "bar.sync 0;",
        ".reg .b32 %v<4>; .reg .pred %rest; shl.b32 %i2, %i0, 4;",
        "DUMP: cvt.u64.u32 %x2, %i2;",
        "add.u64 %x2, %x2, %x1;",
    ]
    lines += [f"add.u32 %i3, %i1, %i2; setp.lt.u32 %rest, %i2, {nbytes};"]
    lines += ["@%rest ld.shared.v4.b32 {%v0, %v1, %v2, %v3}, [%i3];", "@%rest st.global.v4.b32 [%x2], {%v0, %v1, %v2, %v3};"]
    return "\n".join([*lines, f"add.u32 %i2, %i2, {16 * threads}; setp.lt.u32 %rest, %i2, {nbytes};", "@%rest bra DUMP;"])


def list_matrix_moves() -> list[Form]:
    """Return forms of ldmatrix, stmatrix and movmatrix, at rows in a drawn order."""
    forms = []
    for count, trans in product((1, 2, 4), ("", ".trans")):
        registers = "{" + ", ".join(f"%d{i}" for i in range(count)) + "}"
        order = np.argsort(draw_words(f"rows {count}{trans}", 32), kind="stable")
        rows = "ld.global.b32 %i4, [%x4]; shl.b32 %i4, %i4, 4; add.u32 %i4, %i4, %i1;"

        def draw(key: str, order: Array = order) -> Array:
            return np.concatenate([draw_bytes(key, 512), order.astype(np.uint32).view(np.uint8)])

        place = "mad.wide.u32 %x4, %i0, 4, %x0; add.u64 %x4, %x4, 512;"
        stores = "\n".join(f"st.global.b32 [%x5+{128 * i}], %d{i};" for i in range(count))
        name = f"ldmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16"
        body = f".reg .b32 %d<4>;\n{fill_shared(512, 32)}\n{place}\n{rows}\n{name} {registers}, [%i4];\nmad.wide.u32 %x5, %i0, 4, %x1;\n{stores}"
        forms.append(Form(name, "ldmatrix", body, bind(draw, name), 128 * count))
        name = f"stmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16"
        loads = "\n".join(f"ld.global.b32 %d{i}, [%x4+{-512 + 128 * i}];" for i in range(count))
        body = f".reg .b32 %d<4>;\n{fill_shared(512, 32)}\n{place}\n{rows}\n{loads}\nbar.sync 0;\n{name} [%i4], {registers};\n{dump_shared(512, 32)}"
        forms.append(Form(name, "stmatrix", body, bind(draw, name), 512))
    name = "movmatrix.sync.aligned.m8n8.trans.b16"
    forms.append(make_lanes(name, "b32", "b32", kinds=("bits",)))
    return forms


def bind(draw: Callable[[str], Array], key: str) -> Callable[[], Array]:
    """Return a function of no arguments that draws for a key."""
    return lambda: draw(key)


def list_forms() -> list[Form]:
    """Return the forms of the family."""
    return [*list_shuffles(), *list_votes(), *list_matrix_moves()]
