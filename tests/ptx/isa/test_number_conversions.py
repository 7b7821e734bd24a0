"""Conversions against PyTorch's, and against Python's integers where PyTorch has none."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from cuir.ptx.isa.float_formats import decode, decode_fp8
from cuir.ptx.isa.instruction_table import DTYPES, compute
from tests.ptx.isa.reference import draw_bits, round_exactly

ROUND = {"rni": round, "rzi": math.trunc, "rmi": math.floor, "rpi": math.ceil}


@pytest.mark.parametrize("mode", ROUND)
@pytest.mark.parametrize("t", ["s8", "u8", "s16", "u16", "s32", "u32", "s64", "u64"])
def test_numbers_become_integers_of_the_range(t: str, mode: str) -> None:
    x = draw_bits(32).view(np.float32)
    x[:60] = np.linspace(-300, 300, 60) + 0.5
    limits = np.iinfo(np.dtype(DTYPES[t]))
    of_nan = {"s64": -(1 << 63), "u64": 1 << 63}.get(t, 0)
    for value, r in zip(x.tolist(), np.asarray(compute(f"cvt.{mode}.{t}.f32", x)).tolist()):
        whole = of_nan if math.isnan(value) else value if math.isinf(value) else ROUND[mode](value)
        assert r == min(max(whole, int(limits.min)), int(limits.max)), value


@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
@pytest.mark.parametrize("t", ["s32", "u32", "s64", "u64"])
@pytest.mark.parametrize("target", ["f32", "f16"])
def test_integers_are_rounded_into_a_format(target: str, t: str, mode: str) -> None:
    from fractions import Fraction

    a = draw_bits(64, 200).astype(f"u{int(t[1:]) // 8}").view(DTYPES[t])
    a[:40] = np.arange(40) + (1 << 24)
    for x, r in zip(a.tolist(), np.asarray(compute(f"cvt.{mode}.{target}.{t}", a)).tolist()):
        assert r == (round_exactly(Fraction(x), target, mode) if x else 0), x


@pytest.mark.parametrize(("source", "target"), [("s32", "s8"), ("u32", "u8"), ("s64", "s32"), ("s32", "u16"), ("u8", "s64"), ("s8", "u32")])
def test_integers_are_cut_or_clamped(source: str, target: str) -> None:
    a = draw_bits(64, 200).astype(f"u{int(source[1:]) // 8}").view(DTYPES[source])
    np.testing.assert_array_equal(compute(f"cvt.{target}.{source}", a), a.astype(DTYPES[target]))
    limits = np.iinfo(np.dtype(DTYPES[target]))
    expected = [min(max(x, int(limits.min)), int(limits.max)) for x in a.tolist()]
    assert np.asarray(compute(f"cvt.sat.{target}.{source}", a)).tolist() == expected


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_pairs_of_halves_are_packed_as_pytorch_rounds(dtype: torch.dtype) -> None:
    name = "f16x2" if dtype is torch.float16 else "bf16x2"
    a, b = draw_bits(32, 400, 1).view(np.float32), draw_bits(32, 400, 2).view(np.float32)
    packed = np.asarray(compute(f"cvt.rn.{name}.f32", a, b))
    for half, x in ((packed & 0xFFFF, b), (packed >> 16, a)):
        mine = torch.from_numpy(half.astype(np.uint16).view(np.int16)).view(dtype)
        torch.testing.assert_close(mine, torch.from_numpy(x).to(dtype), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(("name", "dtype"), [("e4m3", torch.float8_e4m3fn), ("e5m2", torch.float8_e5m2)])
def test_8_bit_numbers_agree_with_pytorchs(name: str, dtype: torch.dtype) -> None:
    every = np.arange(256, dtype=np.uint8)
    expected = torch.from_numpy(every).view(dtype).double().numpy()
    np.testing.assert_array_equal(decode_fp8(every, name), expected)
    x = np.random.default_rng(0).standard_normal(600).astype(np.float32) * np.float32(60)
    x[:200] /= 4096
    pair = np.asarray(compute(f"cvt.rn.satfinite.{name}x2.f32", x, x[::-1].copy()))
    low = torch.from_numpy((pair & 255).astype(np.uint8)).view(dtype).float()
    torch.testing.assert_close(low, torch.from_numpy(x[::-1].copy()).to(dtype).float(), rtol=0, atol=0)
    large = np.asarray(compute(f"cvt.rn.satfinite.{name}x2.f32", np.float32([1e9]), np.float32([-1e9])))
    assert abs(decode_fp8(large.view(np.uint8), name)).tolist() == [448.0 if name == "e4m3" else 57344.0] * 2
    halves = np.asarray(compute(f"cvt.rn.f16x2.{name}x2", pair)).view(np.float16).reshape(-1, 2)
    np.testing.assert_array_equal(halves[:, 0].astype(np.float32), low.numpy())


@pytest.mark.parametrize("mode", ROUND)
def test_numbers_are_rounded_to_whole_ones(mode: str) -> None:
    x = np.linspace(-4, 4, 33, dtype=np.float32)
    assert np.asarray(compute(f"cvt.{mode}.f32.f32", x)).tolist() == [ROUND[mode](v) for v in x.tolist()]


def test_widening_is_exact() -> None:
    bits = np.arange(1 << 16, dtype=np.uint16)
    for name, dtype in (("f16", torch.float16), ("bf16", torch.bfloat16)):
        expected = torch.from_numpy(bits.view(np.int16)).view(dtype).float().numpy()
        np.testing.assert_array_equal(compute(f"cvt.f32.{name}", bits.view(DTYPES[name])), expected)


def test_tf32_keeps_10_bits() -> None:
    x = draw_bits(32).view(np.float32)
    x = x[np.isfinite(x) & (np.abs(x) > 1e-30) & (np.abs(x) < 1e30)]
    result = np.asarray(compute("cvt.rna.tf32.f32", x))
    assert not (result & 0x1FFF).any()
    np.testing.assert_allclose(decode(result, "tf32"), x, rtol=2.0**-11)
