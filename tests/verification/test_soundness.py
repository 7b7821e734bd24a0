"""Specifications that are none are refused by name; right ones pass, and what they leave untried is said."""

from __future__ import annotations

import collections
import itertools
import random
import time
import uuid
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import cuir
from cuir.checking.checker import check
from cuir.spec import FunctionSpecification, Specification
from cuir.spec.specification import Lengths
from cuir.syntax.parser import parse
from cuir.text.diagnostics import CuirError, Diagnostic
from cuir.verification.soundness import Soundness

TEXT = """
@kernel(arch="sm_80")
def double(X: Global[f32, M, 16], Y: Global[f32, M, 16]):
    work = tiles(cdiv(M, 16))
    with role("all", warps=1):
        for t in work:
            q = t * 16 + rows(16)
            store(Y[q, cols(16)], X[q, cols(16)] * 2.0)
"""
GATHER = """
@kernel(arch="sm_80")
def take(X: Global[f32, N], I: Global[i32, M], Y: Global[f32, M]):
    work = tiles(cdiv(M, 32))
    with role("all", warps=1):
        for t in work:
            q = t * 32 + cols(32)
            store(Y[q], X[I[q]])
"""
Reference = Callable[..., Any]
_calls: collections.Counter[str] = collections.Counter()


def refusal(reference: Reference, text: str = TEXT, **functions: Any) -> Diagnostic:
    report = cuir.verify(parse(text), FunctionSpecification("mine", reference, **functions), budget=2, seeded=0)
    assert not report.ok
    return report.diagnostics[0]


def counts(x: torch.Tensor) -> torch.Tensor:
    _calls["counts"] += 1
    return x * (2.0 if _calls["counts"] < 40 else 2.001)


def overwrites(retained: dict[Any, torch.Tensor] = {}) -> Reference:  # noqa: B006 - the cache is the point
    def reference(x: torch.Tensor) -> torch.Tensor:
        place = retained.setdefault((x.shape, x.dtype), torch.empty_like(x))
        return torch.mul(x, 2, out=place)

    return reference


def half_written(x: torch.Tensor) -> torch.Tensor:
    y = torch.empty(x.shape, dtype=x.dtype)
    y[1:] = x[1:] * 2
    return y


def large_only(x: torch.Tensor) -> torch.Tensor:
    return x * 2 + (torch.rand(()) if len(x) > 30 else 0)


_module = torch.nn.Sequential(torch.nn.Dropout(0.1))
_ticks = itertools.count()


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        (lambda x: _module(x * 2), "torch's global generator"),
        (lambda x: F.dropout(x * 2, 1e-3), "torch's global generator"),
        (lambda x: x * 2 + random.random() * 1e-9, "Python's `random`"),
        (lambda x: x * 2 + np.random.rand(), "NumPy's `random`"),
        (large_only, "torch's global generator"),
        (lambda x: x * 2 + time.time_ns() % 1009 * 1e-9, "asked twice"),
        (lambda x: x * 2 + uuid.uuid4().int % 1000003 * 1e-9, "asked twice"),
        (lambda x: x * 2 + next(_ticks) * 1e-9, "asked twice"),
        (half_written, "gives Y["),  # at the first element whose memory held something else
        (counts, "at the beginning and at the end"),
    ],
)
def test_other_results_for_the_same_inputs(reference: Reference, message: str) -> None:
    result = refusal(reference)
    assert result.code == "X118" and message in result.message and result.span is not None, result


def test_inputs_that_are_written() -> None:
    result = refusal(lambda x: x.mul_(2))
    assert result.code == "X126" and "`x`" in result.message
    result = refusal(lambda x: x * 2, inputs=lambda x: {"x": 1.0} if x.abs_() is None else {})
    assert result.code == "X126" and "inputs" in result.message


def plus_j(x: torch.Tensor) -> torch.Tensor:
    return x * 2 + 0j


def yields(x: torch.Tensor) -> Any:
    yield x * 2


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        (plus_j, "complex"),
        (lambda x: (x * 2).to_sparse(), "layout sparse"),
        (lambda x: (x * 2).to("meta"), "device meta"),
        (lambda x: torch.quantize_per_tensor(x.float() * 2, 0.1, 0, torch.quint8), "quantized"),
        (lambda x: (x * 2).to(torch.float8_e4m3fn), "rounded to float8_e4m3fn"),
        (lambda x: (x * 2).half(), "rounded to float16"),
        (lambda x: (x * 2).sum(), "shape []"),
        (lambda x: 3.0, "shape []"),
        (lambda x: None, "None"),
        (lambda x: [x * 2], "found list"),
        (yields, "found generator"),
        (lambda x: (x * 2).sum, "not called"),
        (lambda x: {"Y": "y"}, "`Y` as str"),
        (lambda x: {0: x * 2}, "`0`"),
        (lambda x: {}, "without entries"),
        (lambda x: x * torch.nan, "NaN for all"),
        (lambda x: torch.where(x.abs().amax() < 100, x * 2, torch.nan), "NaN for all"),
    ],
)
def test_results_of_other_kinds_are_refused_by_name(reference: Reference, message: str) -> None:
    result = refusal(reference)
    assert result.code == "X106" and message in result.message and result.span is not None, result


@pytest.mark.sweep
@pytest.mark.parametrize(
    "reference",
    [
        lambda x: x * 2,
        lambda x: x.numpy() * 2,
        lambda x: torch.nn.Parameter(x * 2),
        lambda x: (x * 2,),
        lambda x: {"y": x.requires_grad_() * 2},
        lambda x: x.clone().mul_(2),
        lambda x: (torch.manual_seed(0), x * 2 + 0 * torch.rand(()))[1],
        lambda x: torch.empty_like(x).copy_(x * 2),
        lambda x: (torch.set_default_dtype(torch.float16), torch.set_grad_enabled(False), print("a progress bar"), x * 2)[-1],
        overwrites(),
    ],
)
def test_right_functions_pass(reference: Reference) -> None:
    threads, dtype = torch.get_num_threads(), torch.get_default_dtype()
    report = cuir.verify(parse(TEXT), FunctionSpecification("mine", reference), seeded=0)
    assert report.ok and not report.warnings, report.diagnostics
    assert (torch.get_num_threads(), torch.get_default_dtype(), torch.is_grad_enabled()) == (threads, dtype, True)


def test_a_single_length_is_said() -> None:
    report = cuir.verify(parse(TEXT), FunctionSpecification("mine", lambda x: x * 2, sizes=lambda drawn: {"M": 64}), seeded=0)
    assert report.ok and "M=64" in report.warnings[0]
    assert report.warnings[0] in report.left_open and report.as_json()["warnings"] == report.warnings
    assert report.warnings[0][1:] in report.as_markdown()


def take(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    return x[i]


def indices(sizes: dict[str, int], generator: torch.Generator) -> dict[str, torch.Tensor]:
    return {"I": torch.randint(sizes["N"], (sizes["M"],), generator=generator)}


def lengths(drawn: dict[str, int]) -> dict[str, int]:
    return {"N": max(1, drawn["N"])}


def test_tables_that_are_always_the_same_are_said() -> None:
    spec = FunctionSpecification("mine", take, lambda sizes: {"I": torch.arange(sizes["M"]) % sizes["N"]}, lengths)
    report = cuir.verify(parse(GATHER), spec, seeded=0)
    assert report.ok and len(report.warnings) == 1 and "the same I" in report.warnings[0]
    report = cuir.verify(parse(GATHER), FunctionSpecification("mine", take, indices, lengths), seeded=0)
    assert report.ok and not report.warnings


def test_inputs_and_sizes_that_cannot_be_drawn_again() -> None:
    def draw(sizes: dict[str, int]) -> dict[str, torch.Tensor]:
        return {"I": torch.randint(sizes["N"], (sizes["M"],))}

    result = refusal(take, GATHER, inputs=draw, sizes=lengths)
    assert result.code == "X118" and "inputs" in result.message
    result = refusal(lambda x: x * 2, sizes=lambda draw: {"M": random.randint(1, 90)})
    assert result.code == "X118" and "sizes" in result.message
    result = refusal(lambda x: x * 2, sizes=lambda draw: {"M": 1 + next(_ticks) % 89})
    assert result.code == "X118" and "sizes" in result.message


@pytest.mark.parametrize("table", [[1, 2], "x", None, torch.ones(3, 3).to_sparse(), torch.ones(3, dtype=torch.complex64)])
def test_inputs_of_other_kinds(table: object) -> None:
    result = refusal(take, GATHER, inputs=lambda: {"I": table}, sizes=lengths)
    assert result.code == "X106" and "`I`" in result.message


def loops_when_large(x: torch.Tensor) -> torch.Tensor:
    while len(x) > 20:
        pass
    return x * 2


def test_a_loop_without_end_is_given_up_once() -> None:
    began = time.process_time()
    report = cuir.verify(parse(TEXT), FunctionSpecification("mine", loops_when_large), budget=0.3)
    result = report.diagnostics[0]
    first = loops_when_large.__code__.co_firstlineno
    assert result.code == "X125" and result.span is not None and first < result.span.line <= first + 2
    assert time.process_time() - began < 4


# ---- mods
def random_mask(b: Any, h: Any, q: Any, k: Any) -> Any:
    return q - k <= random.randint(0, 5)


def ticking_mask(b: Any, h: Any, q: Any, k: Any) -> Any:
    return q - k <= next(_ticks) % 7


def noisy_score(s: torch.Tensor, b: Any, h: Any, q: Any, k: Any) -> torch.Tensor:
    return s + torch.rand_like(s)


def in_place_score(s: torch.Tensor, b: Any, h: Any, q: Any, k: Any) -> torch.Tensor:
    return s.mul_(2)


def leaving_score(s: torch.Tensor, b: Any, h: Any, q: Any, k: Any) -> torch.Tensor:
    raise SystemExit(0)


@pytest.mark.parametrize(
    ("spec", "code"),
    [
        (Specification("mine", random_mask), "X118"),
        (Specification("mine", ticking_mask), "X118"),
        (Specification("mine", score_mod=noisy_score), "X118"),
        (Specification("mine", score_mod=in_place_score), "X126"),
        (Specification("mine", score_mod=leaving_score), "X119"),
        (Specification("mine", lambda b, h, q, k, *, t: q < t[k], captured={"t": lambda lengths: torch.randint(9, (lengths.N,))}), "X118"),
    ],
)
def test_mods_that_are_none(spec: Specification, code: str) -> None:
    with pytest.raises(CuirError) as caught:
        Soundness(check(parse(TEXT)), spec).begin()
    assert caught.value.diagnostics[0].code == code


@pytest.mark.parametrize(
    "spec",
    [
        Specification("mine", lambda b, h, q, k: q >= k),
        Specification("mine", score_mod=lambda s, b, h, q, k: s * 2 - (q - k).abs()),
        Specification("mine", lambda b, h, q, k, *, t: q < t[k], captured={"t": lambda lengths: torch.arange(lengths.N)}),
    ],
)
def test_right_mods_pass(spec: Specification) -> None:
    soundness = Soundness(check(parse(TEXT)), spec)
    soundness.begin()
    soundness.end({})
    assert len(soundness.questions) >= 2 and not soundness.warnings([])
    assert spec.mask(Lengths(1, 1, 1, 3, 3)).shape == (1, 1, 3, 3)


def test_a_mod_that_exits_is_told_by_verify() -> None:
    import corpus

    program = parse(corpus.programs()["flash_fwd"].read_text(encoding="utf-8"))
    report = cuir.verify(program, Specification("mine", score_mod=leaving_score), consts={"D": 64})
    assert [d.code for d in report.diagnostics] == ["X119"]
