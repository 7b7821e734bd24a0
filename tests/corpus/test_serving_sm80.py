"""Decoding over caches, also of latent vectors, and packed sequences, by the kernels for sm_80, in the interpreter beside float64: lengths, heads, pages, settings, faults."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import corpus
from cuir.attn.kernels import split_kv
from cuir.checking.checker import check
from cuir.interp import run
from cuir.spec.function_specification import FunctionSpecification
from cuir.syntax.parser import parse
from cuir.syntax.types import BF16, F16, F32, DType
from cuir.verification import verify
from cuir.verification.spec_dispatch import check_case
from cuir.verification.values.cases import Draw
from tests.strategies.selection import examples

Consts = dict[str, Any]
DECODE, PACKED = ("decode_cache_sm80", "flash_decode", "cached_decode"), ("flash_fwd_varlen_sm80", "flash_fwd_varlen", "causal_packed")
LATENT = ("mla_decode_sm80", "mla_decode", "cached_latent_decode")
# pages of the copies' size and smaller ones; one warp, several, of one or two slabs of queries; another dim of values
DECODE_SETTINGS: list[Consts] = [
    {"D": 64, "BM": 4, "GROUP": 4, "WG": 2},
    {"D": 64, "BM": 16, "WG": 4, "BN": 32, "STAGES": 2},
    {"D": 64, "BM": 2, "GROUP": 8, "WG": 2, "STAGES": 4, "QREGS": True},
    {"D": 40, "BM": 8, "GROUP": 2, "WG": 1, "CHUNK": 4},
    {"D": 64, "DV": 32, "BM": 4, "GROUP": 8, "ROWS": 32, "WG": 2, "BN": 32, "STAGES": 2, "CHUNK": 8},
    {"D": 128, "BM": 16, "WG": 2, "BN": 64, "STAGES": 2},
]
# tiles of one to four slabs of rows, pairs of blocks in one to three buffers, keys that are no whole panels
LATENT_SETTINGS: list[Consts] = [
    {"D": 192, "DV": 128, "BM": 4, "GROUP": 4},
    {"D": 192, "DV": 128, "BM": 1, "GROUP": 64},
    {"D": 144, "DV": 128, "BM": 16, "GROUP": 2, "STAGES": 1},
    {"D": 192, "DV": 128, "BM": 2, "GROUP": 16, "STAGES": 3, "CHUNK": 4},
    {"D": 320, "DV": 256, "BM": 32, "GROUP": 1, "BN": 32, "CHUNK": 8},
]
PACKED_SETTINGS: list[Consts] = [
    {"D": 64, "BM": 64, "BN": 64, "ROWS": 16},
    {"D": 64, "BM": 64, "BN": 32},
    {"D": 40, "BM": 128, "BN": 64, "STAGES": 3, "DYNAMIC": False},
    {"D": 64, "BM": 64, "BN": 64, "CHUNK": 16},
    {"D": 64, "DV": 32, "BM": 64, "BN": 64, "CHUNK": 4},
]


def text_of(name: str) -> str:
    return corpus.kernels()[name].read_text(encoding="utf-8")


def specification(name: str) -> FunctionSpecification:
    spec = corpus.specification(name)()
    assert isinstance(spec, FunctionSpecification) and spec.sizes is not None
    return spec


def check_sizes(kernel: tuple[str, str, str], consts: Consts, drawn: dict[str, int], dtype: DType, seed: int) -> None:
    """Run a problem of these sizes, as the specification admits them, and judge its numbers."""
    name, entry, function = kernel
    program, spec = parse(text_of(name), f"{name}.cuir"), specification(function)
    checked = check(program, entry, {"T": dtype, **consts})
    sizes = dict(spec.sizes({**dict.fromkeys(checked.dims, 1), **drawn, "CHUNK": int(checked.consts["CHUNK"])}))  # type: ignore[misc, arg-type]
    rows = check_case(program, checked, spec, Draw("any", {d: sizes.get(d, 1) for d in checked.dims}, seed=seed))
    assert rows and all(float(row["error / allowed"]) <= 1 for row in rows)  # type: ignore[arg-type]


DRAWN = {"B": (1, 3), "HK": (1, 2), "H": (0, 4), "PAGE": (1, 200), "MP": (0, 6)}
COMMON = {n: st.integers(*bounds) for n, bounds in DRAWN.items()}


@pytest.mark.sweep
@pytest.mark.parametrize("setting", DECODE_SETTINGS, ids=str)
@examples(0.2)
@given(st.fixed_dictionaries({**COMMON, "M": st.integers(0, 19)}), st.sampled_from([F16, BF16]), st.integers(0, 9))
def test_decoding_of_any_lengths(setting: Consts, drawn: dict[str, int], dtype: DType, seed: int) -> None:
    check_sizes(DECODE, setting, drawn, dtype, seed)


@pytest.mark.sweep
@pytest.mark.parametrize("setting", LATENT_SETTINGS, ids=str)
@examples(0.2)
@given(st.fixed_dictionaries({**COMMON, "M": st.integers(0, 19)}), st.sampled_from([F16, BF16]), st.integers(0, 9))
def test_decoding_of_latent_vectors_of_any_lengths(setting: Consts, drawn: dict[str, int], dtype: DType, seed: int) -> None:
    check_sizes(LATENT, setting, drawn, dtype, seed)


@pytest.mark.sweep
@pytest.mark.parametrize("setting", PACKED_SETTINGS, ids=str)
@examples(0.2)
@given(st.fixed_dictionaries({**COMMON, "TQ": st.integers(1, 200)}), st.sampled_from([F16, BF16]), st.integers(0, 9))
def test_packed_sequences_of_any_lengths(setting: Consts, drawn: dict[str, int], dtype: DType, seed: int) -> None:
    check_sizes(PACKED, setting, drawn, dtype, seed)


@pytest.mark.sweep(4)
@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("chunk", [0, 16])
def test_packed_sequences_of_single_precision(parts: int, chunk: int) -> None:
    setting = {"D": 40, "BM": 64, "BN": 32, "ROWS": 16, "PARTS": parts, "CHUNK": chunk}
    check_sizes(PACKED, setting, {"B": 3, "HK": 1, "H": 2, "PAGE": 48, "MP": 3, "TQ": 90}, F32, seed=1)


@pytest.mark.parametrize("splits", [2, 8])
def test_shares_of_the_keys_are_joined(splits: int) -> None:
    """Each CTA has O and LSE of its blocks, and the program that joins them those of all; a share without keys counts nothing."""
    g = torch.Generator().manual_seed(0)
    B, H, HK, M, PAGE, MP, D = 2, 4, 2, 3, 16, 12, 64
    q = torch.randn(B, H, M, D, generator=g).half()
    keys, values = (torch.randn(B * MP, HK, PAGE, D, generator=g).half() for _ in range(2))
    pages, lengths = torch.randperm(B * MP, generator=g).view(B, MP).int(), torch.tensor([190, 21], dtype=torch.int32)
    parts, sums = torch.full((B * splits, H, M, D), torch.nan), torch.full((B * splits, H, M), torch.nan)
    arguments = {
        "Q": q,
        "KEYS": keys,
        "VALUES": values,
        "PAGES": pages,
        "LENGTHS": lengths,
        "ORDER": torch.tensor([1, 0], dtype=torch.int32),
    }
    consts = {"T": F16, "D": D, "G": F32, "BM": 8, "GROUP": 2, "WG": 2, "SPLITS": splits, "ORDERED": True}
    decode = check(parse(text_of("decode_cache_sm80"), "decode.cuir"), "flash_decode", consts)
    run(decode, {**arguments, "O": parts, "LSE": sums, "scale": D**-0.5}, grid=3)
    o, lse = torch.full((B, H, M, D), torch.nan).half(), torch.full((B, H, M), torch.nan)
    program = split_kv.PROGRAM.with_name("joined_shares_sm80.cuir")
    joined = check(parse(program.read_text(encoding="utf-8"), program.name), None, {"T": F16, "DV": D, "SPLITS": splits})
    run(joined, {"PO": parts, "PL": sums, "O": o, "LSE": lse}, grid=2)
    exact, exact_lse = specification("cached_decode").reference(  # type: ignore[misc]
        q.double(), keys.double(), values.double(), pages, lengths, D**-0.5
    )
    assert (o.double() - exact).norm() <= 1e-3 * exact.norm() and torch.allclose(lse.double(), exact_lse, atol=1e-4)


FAULTS = [
    pytest.param(
        DECODE,
        "BN], LENGTHS[b] - start)",
        "BN], BN)",
        "what lies behind the last token",
        marks=pytest.mark.thorough("its numbers take long"),
    ),
    (DECODE, "sync()                                       # all are done with keys and values", "pass_by = 0", "sums over values in use"),
    (
        DECODE,
        "                s = i % STAGES\n                copy_wait(STAGES - 2)",
        "                s = i % STAGES\n                copy_wait(STAGES - 1)",
        "a block has not landed",
    ),
    (LATENT, "sync()                                       # the first block's weights", "pass_by = 0", "weights have not landed"),
    (LATENT, "sync()                                           # before the next unit's", "# before the next unit's", "queries in use"),
    pytest.param(
        LATENT,
        "clear(sK[s + c], LENGTHS[b] - start_of(b, first, m, y, i + c), g)",
        "clear(sK[s + c], BN, g)",
        "what lies behind the last token",
        marks=pytest.mark.thorough("its numbers take long"),
    ),
    pytest.param(
        PACKED,
        "cleared(sV[s], w * C, C, keys(b) - start)",
        "cleared(sV[s], w * C, C, BN)",
        "rows of another sequence",
        marks=pytest.mark.thorough("its numbers take long"),
    ),
    (PACKED, "copy_wait(STAGES - 2)", "copy_wait(STAGES - 1)", "a block has not landed"),
    (
        PACKED,
        "                sync()                                       # before the next",
        "                # before the next",
        "a stage is overwritten",
    ),
]


@pytest.mark.usefixtures("few_problems")
@pytest.mark.sweep
@pytest.mark.parametrize(("kernel", "old", "new", "what"), FAULTS)
def test_faults_are_found(kernel: tuple[str, str, str], old: str, new: str, what: str, request: pytest.FixtureRequest) -> None:
    if "clear" in old or "LENGTHS" in old:  # numbers alone say so
        request.getfixturevalue("no_schedules")
    name, entry, function = kernel
    text = text_of(name)
    assert text.count(old) == 1, what
    consts = {"T": F16, **{DECODE: DECODE_SETTINGS, LATENT: LATENT_SETTINGS, PACKED: PACKED_SETTINGS}[kernel][0]}
    report = verify(parse(text.replace(old, new), f"{name}.cuir"), specification(function), entry, consts, seeded=0, shrink=False)
    assert not report.ok, what
