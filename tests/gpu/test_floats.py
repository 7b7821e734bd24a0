"""Every elementwise operation on a GPU: special values, random bits, masks that floats decide, i32 that wraps. `python -m pytest tests/gpu/test_floats.py -q`."""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from cuir.checking.checked import Checked
from cuir.checking.checker import check
from cuir.syntax.parser import parse
from tests.gpu.isolation import run_isolated

pytestmark = pytest.mark.gpu

N = 64  # rows and columns of a tile
SCALARS = 256
SPECIAL = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    np.inf,
    -np.inf,
    np.nan,
    1e-45,
    -1e-45,
    1.1754942e-38,
    1.1754944e-38,
    -1.1754944e-38,
    3.4028235e38,
    -3.4028235e38,
    0.5,
    2.0,
    3.0,
    0.1,
    0.9999999,
    1.0000001,
    1e-20,
    1e20,
    127.99,
    128.0,
    -126.0,
    -126.5,
    -149.5,
    88.7,
    0.6,
    0.59999996,
    1e-5,
    16777216.0,
    2147483648.0,
    -2147483648.0,
    2147483520.0,
    4294967296.0,
]
NEGATIVE_NAN, PAYLOAD = (np.array([b], np.uint32).view(np.float32)[0] for b in (0xFFC00000, 0x7F812345))
INTEGERS = [0, 1, -1, 2, 3, 7, -7, 31, 2**16, 2**24 + 1, 2**31 - 1, -(2**31) + 1, -(2**31), 2**30, -(2**30), 2**31 - 64, 46341, 65537]

EITHER_ZERO = re.compile("min|max|row_max|where")  # of which sign a zero is, is not defined


@dataclass(frozen=True)
class Case:
    """An expression, what it gives in float64 or exactly, and by how many units in the last place it may differ. smallest: results below may be 0."""

    text: str
    expected: Callable[[dict[str, np.ndarray]], np.ndarray]
    ulps: int = 0
    smallest: float = 0.0


def _f(x: Any) -> np.ndarray:
    return np.asarray(x, np.float32)


def _cast_i32(x: np.ndarray) -> np.ndarray:
    return np.clip(np.trunc(np.nan_to_num(x.astype(np.float64), nan=0.0, posinf=2**31, neginf=-(2.0**31))), -(2**31), 2**31 - 1).astype(
        np.int32
    )


def _bf16(x: np.ndarray) -> np.ndarray:
    bits = _f(x).view(np.uint32).astype(np.uint64)
    rounded = ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)
    return np.where(np.isnan(x), np.float32(np.nan), rounded)


def _wide(f: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    return lambda *xs: f(*(x.astype(np.float64) for x in xs))


def _wrap(x: np.ndarray) -> np.ndarray:
    return x.astype(np.int64).astype(np.int32)


def _i64(x: np.ndarray) -> np.ndarray:
    return x.astype(np.int64)


def _row_max(x: np.ndarray) -> np.ndarray:
    return np.broadcast_to(np.max(x, -1, keepdims=True), x.shape)


FLOATS = [  # of f32 tiles X and Z, small ones T, i32 tiles A, B, and scalars third, one
    Case("X + Z", lambda v: v["X"] + v["Z"]),
    Case("X - Z", lambda v: v["X"] - v["Z"]),
    Case("X * Z", lambda v: v["X"] * v["Z"]),
    Case("X / Z", lambda v: _wide(np.divide)(v["X"], v["Z"]), 2),
    Case("1.0 / X", lambda v: _wide(np.divide)(_f(1), v["X"]), 2),
    Case(
        "X / (1.0 + exp2(min(Z, 31.0)))",
        lambda v: v["X"] / (1.0 + np.exp2(np.minimum(v["Z"], np.float32(31)).astype(np.float64))),
        8,
        2.0**-126,
    ),
    Case("-X", lambda v: -v["X"]),
    Case("abs(X)", lambda v: np.abs(v["X"])),
    Case("min(X, Z)", lambda v: np.minimum(v["X"], v["Z"])),
    Case("max(X, Z, 0.5)", lambda v: np.maximum(np.maximum(v["X"], v["Z"]), _f(0.5))),
    Case("where(X < Z, X, Z)", lambda v: np.where(v["X"] < v["Z"], v["X"], v["Z"])),
    Case("exp2(X)", lambda v: _wide(np.exp2)(v["X"]), 2, 2.0**-126),
    Case("log2(X)", lambda v: _wide(np.log2)(v["X"]), 2),
    Case("tanh(X)", lambda v: _wide(np.tanh)(v["X"]), 4),
    Case("tanh(T)", lambda v: _wide(np.tanh)(v["T"]), 4),
    Case("tanh(T * one) * 50.0", lambda v: np.tanh(v["T"].astype(np.float64)) * 50.0, 5),
    Case("tanh(T) + tanh(X)", lambda v: _wide(np.tanh)(v["X"]) + _wide(np.tanh)(v["T"]), 64),
    Case("sqrt(X)", lambda v: np.sqrt(v["X"])),
    Case("sqrt(abs(cast(A, f32)))", lambda v: np.sqrt(np.abs(v["A"].astype(np.float32)))),
    Case("sqrt(cast(A, f32) * 1e30)", lambda v: np.sqrt(v["A"].astype(np.float32) * _f(1e30))),
    Case("floor(X)", lambda v: np.floor(v["X"])),
    Case("round(X)", lambda v: np.rint(v["X"])),
    Case("sin(X)", lambda v: _wide(np.sin)(v["X"]), 2),
    Case("cos(X)", lambda v: _wide(np.cos)(v["X"]), 2),
    Case("atan(X)", lambda v: _wide(np.arctan)(v["X"]), 2),
    Case("log1p(X)", lambda v: _wide(np.log1p)(v["X"]), 2),
    Case("erf(X)", lambda v: _wide(np.vectorize(math.erf, otypes=[float]))(v["X"]), 2),
    Case("erfc(X)", lambda v: _wide(np.vectorize(math.erfc, otypes=[float]))(v["X"]), 4),
    Case("power(X, Z)", lambda v: _wide(np.power)(v["X"], v["Z"]), 4),
    Case("fmod(X, Z)", lambda v: np.fmod(v["X"], v["Z"])),
    Case("cast(A, f32)", lambda v: v["A"].astype(np.float32)),
    Case("cast(cast(X, f16), f32)", lambda v: v["X"].astype(np.float16).astype(np.float32)),
    Case("cast(cast(X, bf16), f32)", lambda v: _bf16(v["X"])),
    Case("cast(cast(X, f16) * cast(Z, f16), f32)", lambda v: (v["X"].astype(np.float16) * v["Z"].astype(np.float16)).astype(np.float32)),
    Case("cast(rows(64) * 33554432 + cols(64), f32)", lambda v: _wrap(np.arange(N)[:, None] * 33554432 + np.arange(N)).astype(np.float32)),
    Case("row_max(X) + zeros(f32, [64, 64])", lambda v: _row_max(v["X"])),
    Case(
        "row_max(where(Z == Z, -abs(Z), -1.0)) + zeros(f32, [64, 64])",
        lambda v: _row_max(np.where(np.isnan(v["Z"]), _f(-1), -np.abs(v["Z"]))),
    ),
    Case("row_max(T * -1.0) + zeros(f32, [64, 64])", lambda v: _row_max(-v["T"])),
    Case("where(rows(64) - cols(64) <= far, 1.0, 0.0)", lambda v: np.where(_q() - _k() <= 2**31 - 1, 1, 0)),
    Case("row_max(-W) + zeros(f32, [64, 64])", lambda v: _row_max(-v["W"])),
    Case("row_max(W * 1.0) + zeros(f32, [64, 64])", lambda v: _row_max(v["W"])),
    Case("cast(cast(W, bf16), f32) * 0.0 + row_max(cast(cast(W, bf16), f32))", lambda v: _bf16(v["W"]) * _f(0) + _row_max(_bf16(v["W"]))),
    # what decides
    Case(
        "where(cast(rows(64), f32) * 0.1 - cast(cols(64), f32) * 0.1 >= 0.0, 1.0, 0.0)",
        lambda v: np.where(_q() * _f(0.1) - _k() * _f(0.1) >= 0, 1, 0),
    ),
    Case(
        "where(cast(rows(64), f32) * third >= cast(cols(64), f32) * third + 0.0, 1.0, 0.0)",
        lambda v: np.where(_q() * _f(1 / 3) >= _k() * _f(1 / 3), 1, 0),
    ),
    Case("where(T / 3.0 - Y / 3.0 == 0.0, 1.0, 0.0)", lambda v: np.where(v["T"] / _f(3) == v["Y"] / _f(3), 1, 0)),
    Case("where(T * third + Y * third > third, 1.0, 0.0)", lambda v: np.where(v["T"] * _f(1 / 3) + v["Y"] * _f(1 / 3) > _f(1 / 3), 1, 0)),
    Case("where(X / Z > third, 1.0, 0.0)", lambda v: np.where(v["X"] / v["Z"] > _f(1 / 3), 1, 0)),
    Case("where(named > 0.0, 1.0, 0.0)", lambda v: np.where(v["T"] * v["T"] - v["Y"] * v["Y"] > 0, 1, 0)),
    Case(
        "where(cast(cast(T * third + Y * third, i32), bool), 1.0, 0.0)",
        lambda v: np.where(_cast_i32(v["T"] * _f(1 / 3) + v["Y"] * _f(1 / 3)) != 0, 1, 0),
    ),
]
INTS = [
    Case("A + B", lambda v: _wrap(_i64(v["A"]) + _i64(v["B"]))),
    Case("A - B", lambda v: _wrap(_i64(v["A"]) - _i64(v["B"]))),
    Case("A * B", lambda v: _wrap(_i64(v["A"]) * _i64(v["B"]))),
    Case("where(A + 1 > A, 1, 0)", lambda v: np.where(_wrap(_i64(v["A"]) + 1) > v["A"], 1, 0)),
    Case("A * 3 // 3", lambda v: _wrap(_i64(_wrap(_i64(v["A"]) * 3)) // 3)),
    Case("A // D", lambda v: _wrap(_i64(v["A"]) // _i64(v["D"]))),
    Case("A % D", lambda v: _wrap(_i64(v["A"]) % _i64(v["D"]))),
    Case("A // 8 + A % 8", lambda v: _wrap(_i64(v["A"]) // 8 + _i64(v["A"]) % 8)),
    Case("-A", lambda v: _wrap(-_i64(v["A"]))),
    Case("abs(A)", lambda v: _wrap(np.abs(_i64(v["A"])))),
    Case("min(A, B)", lambda v: np.minimum(v["A"], v["B"])),
    Case("max(A, B)", lambda v: np.maximum(v["A"], v["B"])),
    Case("(A & B) | (A ^ ~B)", lambda v: (v["A"] & v["B"]) | (v["A"] ^ ~v["B"])),
    Case("where(bit(A, B), 1, 0) + where(bit(B, 31), 2, 0)", lambda v: (_i64(v["A"]) >> (_i64(v["B"]) % 32) & 1) + 2 * (v["B"] < 0)),
    Case("cast(X, i32)", lambda v: _cast_i32(v["X"])),
    Case("cast(X > Z, i32)", lambda v: (v["X"] > v["Z"]).astype(np.int32)),
    Case("cast(cast(X, bool), i32)", lambda v: (v["X"] != 0).astype(np.int32)),
]
# of scalars x, z (f32) and a, b, d (i32)
SCALAR_FLOATS = [
    Case(c.text.lower(), c.expected, c.ulps, c.smallest)
    for c in FLOATS
    if c.text
    in (
        "X + Z",
        "X - Z",
        "X * Z",
        "-X",
        "abs(X)",
        "min(X, Z)",
        "exp2(X)",
        "log2(X)",
        "tanh(X)",
        "cast(A, f32)",
        "sqrt(X)",
        "floor(X)",
        "sin(X)",
        "erfc(X)",
        "power(X, Z)",
        "fmod(X, Z)",
    )
] + [
    Case("x / z", lambda v: v["X"] / v["Z"], 2),
    Case("1.0 / x", lambda v: _f(1) / v["X"], 2),
    Case("1.0 if x * third + z * third >= 0.0 else 0.0", lambda v: np.where(v["X"] * _f(1 / 3) + v["Z"] * _f(1 / 3) >= 0, _f(1), _f(0))),
]
SCALAR_INTS = [Case(c.text.lower(), c.expected) for c in INTS if "where" not in c.text] + [
    Case("cdiv(a, d)", lambda v: _wrap(-(-_i64(v["A"]) // _i64(v["D"])))),
    Case("cdiv(a, 8)", lambda v: _wrap(-(-_i64(v["A"]) // 8))),
    Case("cdiv(max(0, a), max(1, d))", lambda v: _wrap(-(-_i64(np.maximum(v["A"], 0)) // _i64(np.maximum(v["D"], 1))))),
    Case("1 if a + 1 > a else 0", lambda v: np.where(_wrap(_i64(v["A"]) + 1) > v["A"], 1, 0)),
]


def _q() -> np.ndarray:
    return _f(np.arange(N))[:, None]


def _k() -> np.ndarray:
    return _f(np.arange(N))[None, :]


HEAD = """\
@func
def turned(x, y):
    return x * x - y * y

@kernel(arch="sm_90a")
def every(X: Global[f32, 64, 64], Z: Global[f32, 64, 64], T: Global[f32, 64, 64], Y: Global[f32, 64, 64], W: Global[f32, 64, 64], A: Global[i32, 64, 64],
          B: Global[i32, 64, 64], D: Global[i32, 64, 64], F: Global[f32, RF, 64], I: Global[i32, RI, 64], SF: Global[f32, NF, 256], SI: Global[i32, NI, 256],
          third: f32, one: f32, far: i32):
    with role("all", warpgroups=1):
        x_, z_, t_, y_, w_ = X[rows(64), cols(64)], Z[rows(64), cols(64)], T[rows(64), cols(64)], Y[rows(64), cols(64)], W[rows(64), cols(64)]
        a_, b_, d_ = A[rows(64), cols(64)], B[rows(64), cols(64)], D[rows(64), cols(64)]
        named = turned(t_, y_)
"""


def _tile_text(text: str) -> str:
    return "".join(
        f"{c.lower()}_" if c in "XZTYWABD" and not (text[i - 1 : i].isalnum() or text[i + 1 : i + 2].isalnum()) else c
        for i, c in enumerate(text)
    )


def source() -> str:
    lines = [f"store(F[{64 * i} + rows(64), cols(64)], {_tile_text(c.text)})" for i, c in enumerate(FLOATS)]
    lines += [f"store(I[{64 * i} + rows(64), cols(64)], {_tile_text(c.text)})" for i, c in enumerate(INTS)]
    lines += [
        "for i in range(256):",
        "    x, z = X[i // 64, i % 64], Z[i // 64, i % 64]",
        "    a, b, d = A[i // 64, i % 64], B[i // 64, i % 64], D[i // 64, i % 64]",
    ]
    lines += [f"    store(SF[{i}, i], {c.text})" for i, c in enumerate(SCALAR_FLOATS)]
    lines += [f"    store(SI[{i}, i], {c.text})" for i, c in enumerate(SCALAR_INTS)]
    return HEAD + "".join(f"        {line}\n" for line in lines)


def kernel() -> Checked:
    return check(parse(source(), "floats.cuir"))


def inputs(seed: int) -> dict[str, np.ndarray]:
    """Special values in all pairs first, then random bits and numbers of usual sizes."""
    rng = np.random.default_rng(seed)

    def mix(values: list[Any], dtype: Any, pairs: np.ndarray) -> np.ndarray:
        x = rng.integers(0, 2**32, (N, N), dtype=np.uint32).view(dtype)
        if dtype == np.float32:
            usual = (rng.standard_normal((N, N)) * 10.0 ** rng.integers(-4, 3, (N, N))).astype(dtype)
            near = (1 + rng.standard_normal((N, N)) * 10.0 ** rng.integers(-7, 0, (N, N))).astype(dtype)
            kind = rng.integers(0, 4, (N, N))
            x = np.where(kind == 0, x, np.where(kind == 1, near, usual))
        x.reshape(-1)[: len(pairs)] = np.array(values, dtype)[pairs]
        return x

    n, m = len(SPECIAL), len(INTEGERS)
    places = rng.permutation(n * n)
    whole = rng.permutation(m * m)
    v = {"X": mix(SPECIAL, np.float32, places // n), "Z": mix(SPECIAL, np.float32, places % n)}
    v |= {"A": mix(INTEGERS, np.int32, whole // m), "B": mix(INTEGERS, np.int32, whole % m)}
    v["D"] = np.where(v["B"] == 0, np.int32(-1), v["B"])
    v["T"] = (rng.uniform(-1, 1, (N, N)) * 0.59 * 10.0 ** rng.integers(-6, 1, (N, N))).astype(np.float32)
    v["T"][0, :4] = 0.0, -0.0, 1e-42, -1e-42
    v["Y"] = np.where(rng.random((N, N)) < 0.5, v["T"], np.nextafter(v["T"], _f(1), dtype=np.float32))
    v["W"] = (rng.standard_normal((N, N)) - 4 * rng.integers(0, 2, (N, 1))).astype(np.float32)  # rows of negative numbers alone, too
    for row in range(0, N, 2):
        v["W"][row, rng.integers(0, N)] = (NEGATIVE_NAN, PAYLOAD, np.float32(np.nan), np.float32(np.inf))[row // 2 % 4]
    return v


def outputs() -> dict[str, np.ndarray]:
    sizes = {"F": (N * len(FLOATS), N), "SF": (len(SCALAR_FLOATS), SCALARS)}
    whole = {"I": (N * len(INTS), N), "SI": (len(SCALAR_INTS), SCALARS)}
    return {k: np.full(s, np.float32(12345)) for k, s in sizes.items()} | {k: np.full(s, np.int32(12345)) for k, s in whole.items()}


NUMBERS = {"third": float(np.float32(1 / 3)), "one": 1.0, "far": 2**31 - 1}


def wrong(inputs: dict[str, np.ndarray], actual: dict[str, np.ndarray]) -> list[str]:
    """Each case that gave what it must not, with the first such element."""
    flat = {k: x.reshape(-1)[:SCALARS] for k, x in inputs.items()}
    parts = [(c, actual["F"][64 * i : 64 * i + 64], inputs) for i, c in enumerate(FLOATS)] + [
        (c, actual["I"][64 * i : 64 * i + 64], inputs) for i, c in enumerate(INTS)
    ]
    parts += [(c, actual["SF"][i], flat) for i, c in enumerate(SCALAR_FLOATS)] + [
        (c, actual["SI"][i], flat) for i, c in enumerate(SCALAR_INTS)
    ]
    messages = []
    for case, result, values in parts:
        with np.errstate(all="ignore"):
            bad = _differs(case, np.asarray(result), np.broadcast_to(case.expected(values), result.shape))
        if bad.any():
            at = tuple(int(i) for i in np.argwhere(bad)[0])
            with np.errstate(all="ignore"):
                expected = np.broadcast_to(case.expected(values), result.shape)[at]
            operands = {
                k: x[at]
                for k, x in values.items()
                if k.lower() in case.text.lower().replace("max", "").replace("abs", "") and x.shape == result.shape
            }
            messages.append(
                f"{case.text}: {int(bad.sum())} of {bad.size}; at {at} {result[at]!r} ({_hex(result[at])}) instead of {expected!r}, of {operands}"
            )
    return messages


def _hex(x: Any) -> str:
    return struct.pack(">f", x).hex() if isinstance(x, np.float32) else hex(int(x))


def _differs(case: Case, actual: np.ndarray, expected: np.ndarray) -> np.ndarray:
    if actual.dtype != np.float32:
        return actual != expected
    exact, nearest = expected.astype(np.float64), expected.astype(np.float32)
    same = (actual == nearest) & ((np.signbit(actual) == np.signbit(nearest)) | bool(EITHER_ZERO.match(case.text))) | (
        np.isnan(actual) & np.isnan(nearest)
    )
    if not case.ulps:
        return ~same
    unit = np.spacing(np.maximum(np.abs(nearest), np.float32(2.0**-126))).astype(np.float64)
    unit = np.where(np.isinf(nearest), 2.0**104, unit)
    error = np.abs(
        np.where(np.isinf(actual), np.copysign(2.0**128, actual), actual).astype(np.float64) - np.clip(exact, -(2.0**128), 2.0**128)
    )
    close = np.isfinite(exact) & (error <= case.ulps * unit)
    flushed = (np.abs(exact) < case.smallest * (1 + 2.0**-21)) & (actual == 0)
    return ~(same | close | flushed)


def on_gpu(seeds: int) -> list[str]:
    """Collect the wrong results of the compiled kernel, over inputs of so many seeds."""
    import torch

    from cuir.runtime.compiled import compile

    run, message = compile(kernel()), []
    for seed in range(seeds):
        arguments, result = inputs(seed), outputs()
        tensors = {k: torch.from_numpy(x).cuda() for k, x in {**arguments, **result}.items()}
        run(**tensors, **NUMBERS)
        message += [f"seed {seed}: {text}" for text in wrong(arguments, {k: tensors[k].cpu().numpy() for k in result})]
    return message


def test_every_operation() -> None:
    assert run_isolated(on_gpu, 4, seconds=300.0) == []
