"""Logic, comparisons, choices and moves of bits."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .float_formats import F32, decode, flush, is_float
from .instruction_table import Array, Meaning, Opcode, UnknownForm, get_width, instruction

COMPARISONS: dict[str, Callable[[Array, Array], Array]] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "lo": np.less,
    "ls": np.less_equal,
    "hi": np.greater,
    "hs": np.greater_equal,
}
UNORDERED = {"equ": "eq", "neu": "ne", "ltu": "lt", "leu": "le", "gtu": "gt", "geu": "ge"}
COMBINED: dict[str, Callable[[Array, Array], Array]] = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}


def compare(op: Opcode, name: str) -> Callable[[Array, Array], Array]:
    """Return the comparison that a modifier names, on arrays of the opcode's last type."""
    t = op.type
    if not is_float(t):
        if name not in COMPARISONS:
            raise UnknownForm(f"the comparison of `{op.text}`")
        return COMPARISONS[name]

    def floats(a: Array, b: Array) -> Array:
        if name in ("num", "nan"):
            return (np.isnan(a) | np.isnan(b)) == (name == "nan")
        if name in UNORDERED:
            return COMPARISONS[UNORDERED[name]](a, b) | np.isnan(a) | np.isnan(b)
        result = COMPARISONS[name](a, b)
        return result & ~np.isnan(a) & ~np.isnan(b) if name == "ne" else result

    if t == "f32" and op.has("ftz"):
        return lambda a, b: floats(flush(a), flush(b))
    if op.has("ftz"):
        return lambda a, b: floats(flush(decode(a, t), 2.0**-14), flush(decode(b, t), 2.0**-14))
    return floats if t in ("f32", "f64", "f16") else lambda a, b: floats(decode(a, t), decode(b, t))


def find_comparison(op: Opcode) -> str:
    """Return the modifier that names a comparison."""
    name = op.pick(*COMPARISONS, *UNORDERED, "num", "nan")
    if not name:
        raise UnknownForm(f"the comparison of `{op.text}`")
    return name


@instruction("setp")
def make_predicate(op: Opcode) -> Meaning:
    name, combination = find_comparison(op), op.pick(*COMBINED)
    op.allow(name, combination, "ftz")
    t, test = op.type, compare(op, name)
    combine = COMBINED.get(combination)
    if t.endswith("x2"):

        def of_pairs(a: Array, b: Array, *c: Array) -> tuple[Array, Array]:
            both = test(a, b)
            low, high = both[..., 0], both[..., 1]
            return (combine(low, c[0]), combine(high, c[0])) if combine is not None else (low, high)

        return Meaning(("pred", "pred"), (t, t, "pred") if combine else (t, t), of_pairs)
    if combine is None:
        return Meaning(("pred", "pred"), (t, t), lambda a, b: (r := test(a, b), ~r))

    def run(a: Array, b: Array, c: Array) -> tuple[Array, Array]:
        result = test(a, b)
        return combine(result, c), combine(~result, c)

    return Meaning(("pred", "pred"), (t, t, "pred"), run)


@instruction("set")
def make_set(op: Opcode) -> Meaning:
    name, combination = find_comparison(op), op.pick(*COMBINED)
    op.allow(name, combination, "ftz")
    test, combine = compare(op, name), COMBINED.get(combination)
    result_type, t = op.types[0], op.type
    if t.endswith("x2"):
        ones = np.uint16(0xFFFF) if result_type[0] == "u" else np.uint16(0x3C00 if result_type == "f16x2" else 0x3F80)

        def of_pairs(a: Array, b: Array) -> Array:
            return np.where(test(a, b), ones, np.uint16(0)).view(np.uint32)[..., 0]

        return Meaning((result_type,), (t, t), of_pairs)

    def run(a: Array, b: Array, *c: Array) -> Array:
        result = test(a, b)
        result = combine(result, c[0]) if combine is not None else result
        if result_type == "f32":
            return result.astype(F32)
        if result_type == "bf16":
            return np.where(result, np.uint16(0x3F80), np.uint16(0))
        return (
            result.astype(np.float16)
            if result_type == "f16"
            else np.where(result, -1, 0).astype("i8").astype(f"u{get_width(result_type) // 8}")
        )

    return Meaning((result_type,), (t, t, "pred") if combine else (t, t), run)


@instruction("selp")
def make_selection(op: Opcode) -> Meaning:
    op.allow()
    t = "b" + str(get_width(op.type))
    return Meaning((t,), (t, t, "pred"), lambda a, b, p: np.where(p, a, b))


@instruction("slct")
def make_choice_by_sign(op: Opcode) -> Meaning:
    op.allow("ftz")
    t = "b" + str(get_width(op.types[0]))
    ftz = op.has("ftz")
    return Meaning((t,), (t, t, op.type), lambda a, b, c: np.where((flush(c) if ftz else c) >= 0, a, b))


@instruction("and", "or", "xor")
def make_bitwise(op: Opcode) -> Meaning:
    op.allow()
    function = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}[op.name]
    return Meaning((op.type,), (op.type, op.type), function)


@instruction("not")
def make_inversion(op: Opcode) -> Meaning:
    op.allow()
    return Meaning((op.type,), (op.type,), np.invert)


@instruction("cnot")
def make_logical_inversion(op: Opcode) -> Meaning:
    op.allow()
    return Meaning((op.type,), (op.type,), lambda a: (a == 0).astype(a.dtype))


@instruction("lop3")
def make_lookup(op: Opcode) -> Meaning:
    op.allow()

    def look_up(a: Array, b: Array, c: Array, table: Array) -> Array:
        result = np.zeros(np.broadcast(a, b, c).shape, np.uint32)
        bits = int(np.asarray(table).reshape(-1)[0])
        for i in range(8):
            if bits >> i & 1:
                result |= (a if i & 4 else ~a) & (b if i & 2 else ~b) & (c if i & 1 else ~c)
        return result

    return Meaning(("b32",), ("b32", "b32", "b32", "u32"), look_up)
