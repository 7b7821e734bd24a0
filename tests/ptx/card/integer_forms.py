"""Forms of integer arithmetic, carries, shifts, fields of bits, permutations, and logic."""

from __future__ import annotations

from itertools import product

from .forms import Form, make_lanes

INTEGERS = ("u16", "s16", "u32", "s32", "u64", "s64")
WIDE = {"u16": "u32", "s16": "s32", "u32": "u64", "s32": "s64"}
SHIFTS = "below:80"


def list_arithmetic() -> list[Form]:
    """Return forms of sums, products, quotients and extrema."""
    forms = []
    for name, t in product(("add", "sub", "min", "max", "div", "rem", "mul.lo", "mul.hi"), INTEGERS):
        forms.append(make_lanes(f"{name}.{t}", f"{t} {t}", t))
    for t, w in WIDE.items():
        forms.append(make_lanes(f"mul.wide.{t}", f"{t} {t}", w))
        forms.append(make_lanes(f"mad.wide.{t}", f"{t} {t} {w}", w))
    for half, t in product(("lo", "hi"), INTEGERS):
        forms.append(make_lanes(f"mad.{half}.{t}", f"{t} {t} {t}", t))
    forms += [make_lanes(f"{name}.sat.s32", "s32 s32", "s32") for name in ("add", "sub")]
    forms.append(make_lanes("mad.hi.sat.s32", "s32 s32 s32", "s32"))
    for half, t in product(("lo", "hi"), ("u32", "s32")):
        forms.append(make_lanes(f"mul24.{half}.{t}", f"{t} {t}", t))
        forms.append(make_lanes(f"mad24.{half}.{t}", f"{t} {t} {t}", t))
    forms += [make_lanes(f"sad.{t}", f"{t} {t} {t}", t) for t in INTEGERS]
    forms += [make_lanes(f"{name}.{t}", t, t) for name, t in product(("abs", "neg"), ("s16", "s32", "s64"))]
    forms += [make_lanes(f"{name}.{t}", f"{t} {t}", t) for name, t in product(("add", "min", "max"), ("u16x2", "s16x2"))]
    forms += [make_lanes(f"{name}.relu.{t}", f"{t} {t}", t) for name, t in product(("min", "max"), ("s32", "s16x2"))]
    for first, second in product(("u32", "s32"), ("u32", "s32")):
        total = "s32" if "s32" in (first, second) else "u32"
        forms.append(make_lanes(f"dp4a.{first}.{second}", f"{first} {second} {total}", total))
        forms += [make_lanes(f"dp2a.{half}.{first}.{second}", f"{first} {second} {total}", total) for half in ("lo", "hi")]
    return forms


def list_carries() -> list[Form]:
    """Return forms that write the carry flag, and then read it."""
    forms = []
    for t in ("u32", "s32", "u64", "s64"):
        for name in ("add", "sub"):
            code = f"{name}.cc.{t} %d0, %a0, %a1; {name}c.cc.{t} %d1, %a2, %a3; {name}c.{t} %d2, %a0, %a3;"
            forms.append(make_lanes(f"{name}c.cc.{t} chain", f"{t} {t} {t} {t}", f"{t} {t} {t}", code))
        code = f"mad.lo.cc.{t} %d0, %a0, %a1, %a2; madc.hi.cc.{t} %d1, %a0, %a1, %a3; madc.hi.{t} %d2, %a1, %a2, %a3;"
        forms.append(make_lanes(f"madc.hi.cc.{t} chain", f"{t} {t} {t} {t}", f"{t} {t} {t}", code))
        code = f"mad.hi.cc.{t} %d0, %a0, %a1, %a2; madc.lo.{t} %d1, %a0, %a1, %a3;"
        forms.append(make_lanes(f"madc.lo.{t} chain", f"{t} {t} {t} {t}", f"{t} {t}", code))
    return forms


def list_bits() -> list[Form]:
    """Return forms of shifts, fields, counts and permutations."""
    forms = []
    for t in ("b16", "b32", "b64"):
        forms.append(make_lanes(f"shl.{t}", f"{t} u32", t, kinds=("", SHIFTS)))
        forms.append(make_lanes(f"shl.{t} any", f"{t} u32", t))
    for t in (*INTEGERS, "b32", "b64"):
        forms.append(make_lanes(f"shr.{t}", f"{t} u32", t, kinds=("", SHIFTS)))
        forms.append(make_lanes(f"shr.{t} any", f"{t} u32", t))
    for side, mode in product(("l", "r"), ("wrap", "clamp")):
        forms.append(make_lanes(f"shf.{side}.{mode}.b32", "b32 b32 u32", "b32", kinds=("", "", SHIFTS)))
        forms.append(make_lanes(f"shf.{side}.{mode}.b32 any", "b32 b32 u32", "b32"))
    for t in ("u32", "s32", "u64", "s64"):
        forms.append(make_lanes(f"bfe.{t}", f"{t} u32 u32", t, kinds=("", SHIFTS, SHIFTS)))
        forms.append(make_lanes(f"bfe.{t} any", f"{t} u32 u32", t))
        forms += [make_lanes(f"bfind{s}.{t}", t, "u32") for s in ("", ".shiftamt")]
    for t in ("b32", "b64"):
        forms.append(make_lanes(f"bfi.{t}", f"{t} {t} u32 u32", t, kinds=("", "", SHIFTS, SHIFTS)))
        forms.append(make_lanes(f"bfi.{t} any", f"{t} {t} u32 u32", t))
        forms += [make_lanes(f"{name}.{t}", t, "u32") for name in ("clz", "popc")]
        forms.append(make_lanes(f"brev.{t}", t, t))
    for mode in ("wrap", "clamp"):
        forms.append(make_lanes(f"bmsk.{mode}.b32", "u32 u32", "b32", kinds=(SHIFTS, SHIFTS)))
        forms += [make_lanes(f"szext.{mode}.{t}", f"{t} u32", t, kinds=("", SHIFTS)) for t in ("u32", "s32")]
    forms += [make_lanes(f"prmt.b32{m}", "b32 b32 b32", "b32") for m in ("", ".f4e", ".b4e", ".rc8", ".ecl", ".ecr", ".rc16")]
    return forms


def list_logic() -> list[Form]:
    """Return forms of logic, comparisons and choices."""
    forms = []
    for name, t in product(("and", "or", "xor"), ("b16", "b32", "b64", "pred")):
        forms.append(make_lanes(f"{name}.{t}", f"{t} {t}", t))
    for name, t in product(("not", "cnot"), ("b16", "b32", "b64")):
        forms.append(make_lanes(f"{name}.{t}", t, t))
    forms.append(make_lanes("not.pred", "pred", "pred"))
    for table in (0x00, 0x01, 0x1B, 0x69, 0x80, 0x96, 0xCA, 0xE8, 0xF8, 0xFE, 0x3C, 0x27):
        code = f"lop3.b32 %d0, %a0, %a1, %a2, {table:#x};"
        forms.append(make_lanes(f"lop3.b32 {table:02x}", "b32 b32 b32", "b32", code))
    for test, t in product(("eq", "ne", "lt", "le", "gt", "ge"), INTEGERS):
        forms.append(make_lanes(f"setp.{test}.{t}", f"{t} {t}", "pred"))
    for test, t in product(("lo", "ls", "hi", "hs"), ("u32", "u64")):
        forms.append(make_lanes(f"setp.{test}.{t}", f"{t} {t}", "pred"))
    for test, t in product(("eq", "ne"), ("b16", "b32", "b64")):
        forms.append(make_lanes(f"setp.{test}.{t}", f"{t} {t}", "pred"))
    forms += [
        make_lanes(f"set.{test}.{r}.{t}", f"{t} {t}", r)
        for test, r, t in (("lt", "u32", "s32"), ("hs", "f32", "u32"), ("eq", "s32", "b64"))
    ]
    forms.append(make_lanes("set.gt.or.u32.s32", "s32 s32 pred", "u32"))
    forms += [make_lanes(f"selp.{t}", f"{t} {t} pred", t) for t in ("b16", "b32", "b64")]
    forms += [make_lanes(f"slct.{t}.s32", f"{t} {t} s32", t) for t in ("b32", "u64")]
    code = "mov.b64 %d0, {%a0, %a1}; mov.b64 {%d1, %d2}, %a2;"
    forms.append(make_lanes("mov.b64 halves", "b32 b32 b64", "b64 b32 b32", code))
    code = ".reg .b16 %h<2>; mov.b32 {%h0, %h1}, %a0; mov.b32 %d0, {%h1, %h0};"
    forms.append(make_lanes("mov.b32 halves", "b32", "b32", code))
    return forms


def list_forms() -> list[Form]:
    """Return the forms of the family."""
    return [*list_arithmetic(), *list_carries(), *list_bits(), *list_logic()]
