"""Forms of floating-point arithmetic: every rounding, flushing and saturation; extrema, comparisons, approximations."""

from __future__ import annotations

from itertools import product

from .forms import Bound, Form, make_lanes

MODES = ("rn", "rz", "rm", "rp")
NUMBERS = ("f16", "bf16", "f16x2", "bf16x2")
COUNTS = {"add": 2, "sub": 2, "mul": 2, "fma": 3, "div": 2, "rcp": 1, "sqrt": 1}


def make(name: str, t: str, count: int, bound: Bound | None = None, *kinds: str) -> Form:
    """Make a form whose operands and result have one type."""
    return make_lanes(name, f"{t} " * count, t, kinds=kinds, bound=bound, threads=512 if count > 1 and t == "f32" else 256)


def list_arithmetic() -> list[Form]:
    """Return forms of sums, products, quotients and roots."""
    forms = []
    for name, mode, ftz, sat in product(("add", "sub", "mul", "fma"), MODES, ("", ".ftz"), ("", ".sat")):
        forms.append(make(f"{name}.{mode}{ftz}{sat}.f32", "f32", COUNTS[name]))
    for name, mode, ftz in product(("div", "rcp", "sqrt"), MODES, ("", ".ftz")):
        forms.append(make(f"{name}.{mode}{ftz}.f32", "f32", COUNTS[name]))
    for name, mode in product(("add", "mul", "fma", "div", "rcp", "sqrt"), MODES):
        forms.append(make(f"{name}.{mode}.f64", "f64", COUNTS[name]))
    forms += [make(f"{name}.{t}", t, 2) for name, t in product(("add", "sub", "mul"), ("f32", "f64"))]
    for name, t in product(("add", "sub", "mul"), NUMBERS):
        suffixes = ("", ".ftz", ".sat", ".ftz.sat") if t[0] == "f" else ("",)
        forms += [make(f"{name}.rn{s}.{t}", t, 2) for s in suffixes]
    for t in NUMBERS:
        suffixes = ("", ".ftz", ".sat", ".ftz.sat", ".relu", ".ftz.relu") if t[0] == "f" else ("", ".relu")
        forms += [make(f"fma.rn{s}.{t}", t, 3) for s in suffixes]
    return forms


def list_extrema() -> list[Form]:
    """Return forms of min and max, of signs and of tests of a property."""
    forms = []
    for name, t in product(("min", "max"), ("f32", *NUMBERS)):
        flushes = ("", ".ftz") if t[0] == "f" else ("",)
        forms += [make(f"{name}{f}{n}{x}.{t}", t, 2) for f, n, x in product(flushes, ("", ".NaN"), ("", ".xorsign.abs"))]
    forms += [make(f"{name}.f64", "f64", 2) for name in ("min", "max")]
    for name, t in product(("neg", "abs"), ("f32", "f64", *NUMBERS)):
        forms.append(make(f"{name}.{t}", t, 1))
    forms += [make(f"{name}.ftz.{t}", t, 1) for name, t in product(("neg", "abs"), ("f32", "f16", "f16x2"))]
    forms += [make(f"copysign.{t}", t, 2) for t in ("f32", "f64")]
    tests = ("finite", "infinite", "number", "notanumber", "normal", "subnormal")
    forms += [make_lanes(f"testp.{p}.{t}", t, "pred") for p, t in product(tests, ("f32", "f64"))]
    return forms


ORDERED = ("eq", "ne", "lt", "le", "gt", "ge")
UNORDERED = ("equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan")


def list_comparisons() -> list[Form]:
    """Return forms of setp, set, selp and slct on numbers."""
    forms = []
    for test, t in product((*ORDERED, *UNORDERED), ("f32", "f64", "f16", "bf16")):
        forms.append(make_lanes(f"setp.{test}.{t}", f"{t} {t}", "pred", threads=512))
    for test, t in product((*ORDERED, "equ", "geu", "nan"), ("f16x2", "bf16x2")):
        forms.append(make_lanes(f"setp.{test}.{t}", f"{t} {t}", "pred pred", f"setp.{test}.{t} %d0|%d1, %a0, %a1;"))
    for test, t in product(("lt", "neu"), ("f32", "f16")):
        forms.append(make_lanes(f"setp.{test}.ftz.{t}", f"{t} {t}", "pred", threads=512))
    for combined in ("and", "or", "xor"):
        code = f"setp.lt.{combined}.f32 %d0|%d1, %a0, %a1, %a2;"
        forms.append(make_lanes(f"setp.lt.{combined}.f32", "f32 f32 pred", "pred pred", code))
    for test, result, t in (
        ("lt", "u32", "f32"),
        ("geu", "f32", "f32"),
        ("ne", "s32", "f64"),
        ("gt", "f16", "f16"),
        ("le", "u16", "f16"),
        ("eq", "bf16", "bf16"),
        ("lt", "f16x2", "f16x2"),
        ("gtu", "bf16x2", "bf16x2"),
        ("nan", "u32", "f16x2"),
    ):
        forms.append(make_lanes(f"set.{test}.{result}.{t}", f"{t} {t}", result))
    forms.append(make_lanes("set.lt.and.u32.f32", "f32 f32 pred", "u32"))
    forms += [make_lanes(f"selp.{t}", f"{t} {t} pred", t) for t in ("f32", "f64")]
    forms += [make_lanes(f"slct.{t}.f32", f"{t} {t} f32", t) for t in ("f32", "b32", "u64")]
    forms.append(make_lanes("slct.ftz.f32.f32", "f32 f32 f32", "f32"))
    return forms


def list_edges() -> list[Form]:
    """Return forms whose exact results lie just below the least normal number, so that roundings and flushing meet."""
    forms = []
    one = ".reg .b32 %s; and.b32 %s, %a0, 15; {way}.u32 %s, {start}, %s; lop3.b32 %s, %s, %a0, 0x80000000, 0xf8;"
    less = one.format(way="sub", start="0x20000000")  # (1 - i / 2^24) / 2^63, in either sign
    more = one.format(way="add", start="0x7e800000")  # (1 + i / 2^23) * 2^126
    rests = {"mul": (less, ", 0f20000000"), "div": (less, ", 0f5F000000"), "fma": (less, ", 0f20000000, 0f00000000"), "rcp": (more, "")}
    for (name, (number, rest)), mode, ftz in product(rests.items(), MODES, ("", ".ftz")):
        opcode = f"{name}.{mode}{ftz}.f32"
        forms.append(make_lanes(f"{opcode} edge", "f32", "f32", f"{number} {opcode} %d0, %s{rest};", ("bits",), threads=64))
    return forms


# Bounds of the PTX ISA, and half a unit in the last place for the machine's rounding.
HALVES = {"f32": 2.0**-24, "f16": 2.0**-11, "bf16": 2.0**-8}
LEAST = {"f32": 2.0**-149, "f16": 2.0**-24, "bf16": 2.0**-133}  # a unit of subnormal numbers


def bound_relative(t: str, error: float, source: str) -> Bound:
    """Return a bound of relative errors."""
    t = t.removesuffix("x2")
    return Bound(error + HALVES[t], LEAST[t], f"PTX ISA: {source}")


def list_approximations() -> list[Form]:
    """Return forms of approximate functions, each with the bound that the PTX ISA states."""
    forms = []
    for ftz in ("", ".ftz"):
        two_ulps = bound_relative("f32", 2.0**-22, "div.approx and div.full, 2 ulp")
        forms.append(make(f"div.approx{ftz}.f32", "f32", 2, two_ulps, "range:-60:60", "range:-60:60"))
        forms.append(make(f"div.full{ftz}.f32", "f32", 2, two_ulps, "range:-60:60", "range:-60:60"))
        for name, error, source in (
            ("rcp", 2.0**-23, "rcp.approx, 1 ulp"),
            ("sqrt", 2.0**-23, "sqrt.approx, 2^-23"),
            ("rsqrt", 2.0**-22.9, "rsqrt.approx, 2^-22.9"),
            ("ex2", 2.0**-22, "ex2.approx, 2 ulp"),
        ):
            bound = bound_relative("f32", error, source)
            forms.append(make(f"{name}.approx{ftz}.f32", "f32", 1, bound))
            kind = "range:-4:6" if name == "ex2" else "range:-126:127"
            forms.append(make(f"{name}.approx{ftz}.f32 range", "f32", 1, bound, kind))
        around_one = Bound(2.0**-22 + HALVES["f32"], 2.0**-22, "PTX ISA: lg2.approx, 2^-22 absolute in (0.5, 2), relative elsewhere")
        forms.append(make(f"lg2.approx{ftz}.f32", "f32", 1, around_one))
        forms.append(make(f"lg2.approx{ftz}.f32 near", "f32", 1, around_one, "near"))
        for name in ("sin", "cos"):
            near = Bound(0, 2.0**-20.5 + HALVES["f32"], "PTX ISA: sin and cos.approx, 2^-20.5 in [-2 pi, 2 pi]")
            far = Bound(0, 2.0**-14.7 + HALVES["f32"], "PTX ISA: sin and cos.approx, 2^-14.7 in [-100 pi, 100 pi]")
            forms.append(make(f"{name}.approx{ftz}.f32 near", "f32", 1, near, "range:-20:1"))
            forms.append(make(f"{name}.approx{ftz}.f32 far", "f32", 1, far, "range:2:7"))
    forms.append(make("tanh.approx.f32", "f32", 1, bound_relative("f32", 2.0**-11, "tanh.approx.f32, 2^-11")))
    forms.append(make("tanh.approx.f32 range", "f32", 1, bound_relative("f32", 2.0**-11, "tanh.approx.f32, 2^-11"), "range:-12:4"))
    for t in ("f16", "f16x2"):
        absolute = Bound(HALVES["f16"], 2.0**-10.987, "PTX ISA: tanh.approx.f16, 2^-10.987 absolute")
        forms.append(make(f"tanh.approx.{t}", t, 1, absolute))
        forms.append(make(f"ex2.approx.{t}", t, 1, bound_relative(t, 2.0**-9.9, "ex2.approx.f16, 2^-9.9")))
    for t in ("bf16", "bf16x2"):
        forms.append(make(f"tanh.approx.{t}", t, 1, bound_relative(t, 2.0**-8, "tanh.approx.bf16, 2^-8")))
        forms.append(make(f"ex2.approx.ftz.{t}", t, 1, bound_relative(t, 2.0**-7, "ex2.approx.ftz.bf16, 2^-7")))
    return forms


def list_forms() -> list[Form]:
    """Return the forms of the family."""
    return [*list_arithmetic(), *list_extrema(), *list_comparisons(), *list_edges(), *list_approximations()]
