"""Forms of conversions: every pair of types with the roundings, saturation and flushing that PTX has for it."""

from __future__ import annotations

from itertools import product

import numpy as np

from .forms import Form, make_lanes

INTEGERS = ("u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64")
MODES = ("rn", "rz", "rm", "rp")
WHOLE = ("rni", "rzi", "rmi", "rpi")
SPREAD = {"f16": "range:-4:15", "bf16": "range:-4:66", "f32": "range:-4:66", "f64": "range:-4:66"}


def is_within(source: str, target: str) -> bool:
    """Return whether every number of an integer type is one of another."""
    low, high = (np.iinfo(f"{'int' if t[0] == 's' else 'uint'}{t[1:]}") for t in (source, target))
    return high.min <= low.min and low.max <= high.max


def list_integers() -> list[Form]:
    """Return forms from integers to integers and to numbers."""
    forms = []
    for target, source in product(INTEGERS, INTEGERS):
        if target != source:
            forms.append(make_lanes(f"cvt.{target}.{source}", source, target, threads=64))
            if not is_within(source, target):  # `.sat` is refused where nothing can be out of range
                forms.append(make_lanes(f"cvt.sat.{target}.{source}", source, target, threads=64))
    for target, source in product(("f16", "bf16", "f32", "f64"), INTEGERS):
        if target == "bf16" and source[1:] == "8":
            continue  # PTX has none
        modes = MODES if source in INTEGERS[4:] else ("rn",)
        forms += [make_lanes(f"cvt.{mode}.{target}.{source}", source, target, threads=128) for mode in modes]
    return forms


def list_to_integers() -> list[Form]:
    """Return forms from numbers to integers: any bits, and numbers around the ranges of integers."""
    forms = []
    for target, source in product(INTEGERS, ("f16", "bf16", "f32", "f64")):
        if source == "bf16" and target[1:] == "8":
            continue
        modes = WHOLE if target in INTEGERS[4:] else ("rzi",)
        for mode in modes:
            forms.append(make_lanes(f"cvt.{mode}.{target}.{source}", source, target, threads=64))
            forms.append(make_lanes(f"cvt.{mode}.{target}.{source} spread", source, target, kinds=(SPREAD[source],), threads=128))
    forms += [make_lanes(f"cvt.{mode}.ftz.{t}.f32", "f32", t, threads=64) for mode, t in product(WHOLE, ("s32", "u64"))]
    forms.append(make_lanes("cvt.rpi.sat.s32.f32", "f32", "s32"))
    return forms


def list_between_numbers() -> list[Form]:
    """Return forms from numbers to numbers."""
    forms = []

    def add(name: str, source: str, target: str) -> None:
        forms.append(make_lanes(name, source, target))
        forms.append(make_lanes(f"{name} near", source, target, kinds=("near",)))

    for mode, ftz, sat in product(MODES, ("", ".ftz"), ("", ".sat")):
        add(f"cvt.{mode}{ftz}{sat}.f32.f64", "f64", "f32")
    for mode in MODES:
        add(f"cvt.{mode}.f16.f32", "f32", "f16")
        add(f"cvt.{mode}.f16.f64", "f64", "f16")
        add(f"cvt.{mode}.bf16.f32", "f32", "bf16")
    for suffix in (".ftz", ".sat", ".ftz.sat"):
        add(f"cvt.rn{suffix}.f16.f32", "f32", "f16")
    for mode, t in product(("rn", "rz"), ("f16", "bf16")):
        add(f"cvt.{mode}.relu.{t}.f32", "f32", t)
    for name, source, target in (
        ("cvt.f32.f16", "f16", "f32"),
        ("cvt.ftz.f32.f16", "f16", "f32"),
        ("cvt.sat.f32.f16", "f16", "f32"),
        ("cvt.f64.f16", "f16", "f64"),
        ("cvt.f32.bf16", "bf16", "f32"),
        ("cvt.f64.bf16", "bf16", "f64"),
        ("cvt.f64.f32", "f32", "f64"),
        ("cvt.ftz.f64.f32", "f32", "f64"),
        ("cvt.sat.f64.f32", "f32", "f64"),
        ("cvt.rn.bf16.f16", "f16", "bf16"),
        ("cvt.rz.f16.bf16", "bf16", "f16"),
        ("cvt.rna.tf32.f32", "f32", "tf32"),
        ("cvt.rn.tf32.f32", "f32", "tf32"),
        ("cvt.rz.tf32.f32", "f32", "tf32"),
        ("cvt.rn.relu.tf32.f32", "f32", "tf32"),
        ("cvt.rz.relu.tf32.f32", "f32", "tf32"),
    ):
        add(name, source, target)
    forms.append(make_lanes("cvt.rna.satfinite.tf32.f32", "f32", "tf32", kinds=("range:-126:127",)))
    for mode, t in product(WHOLE, ("f16", "bf16", "f32", "f64")):
        add(f"cvt.{mode}.{t}.{t}", t, t)
    for mode in WHOLE:
        add(f"cvt.{mode}.ftz.f32.f32", "f32", "f32")
        add(f"cvt.{mode}.sat.f32.f32", "f32", "f32")
    for suffix in (".ftz", ".sat", ".ftz.sat"):
        add(f"cvt{suffix}.f32.f32", "f32", "f32")
    return forms


def list_pairs() -> list[Form]:
    """Return forms of pairs, and of 8-bit numbers."""
    forms = []
    for t in ("f16x2", "bf16x2"):
        for mode, relu, finite in product(("rn", "rz"), ("", ".relu"), ("", ".satfinite")):
            forms.append(make_lanes(f"cvt.{mode}{relu}{finite}.{t}.f32", "f32 f32", t))
    for t, relu in product(("e4m3x2", "e5m2x2"), ("", ".relu")):
        forms.append(make_lanes(f"cvt.rn.satfinite{relu}.{t}.f32", "f32 f32", t))
        forms.append(make_lanes(f"cvt.rn.satfinite{relu}.{t}.f32 near", "f32 f32", t, kinds=("range:-18:17", "range:-12:10")))
        forms.append(make_lanes(f"cvt.rn.satfinite{relu}.{t}.f16x2", "f16x2", t))
        forms.append(make_lanes(f"cvt.rn{relu}.f16x2.{t}", t, "f16x2"))
    return forms


def list_forms() -> list[Form]:
    """Return the forms of the family."""
    return [*list_integers(), *list_to_integers(), *list_between_numbers(), *list_pairs()]
