"""The expert CUDA sources of the corpus: they compile without a warning; on a GPU they are right, and what models lifted from them gives the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import corpus
import llm
from cuir.syntax.nodes import Program
from cuir.syntax.parser import parse
from cuir.syntax.printer import show
from cuir.syntax.types import DTYPES
from llm.expert_source import SourceKernel, compile_source, read_expert_source
from llm.source_comparison import beside_source
from llm.transcript import read_transcript
from tests.gpu.isolation import run_isolated
from tests.gpu.test_attention import CASES, compare, tensors

TRANSCRIPTS = Path(llm.__file__).parent / "transcripts"


def right(name: str, dim: int) -> list[int]:
    """Count the right cases, and all."""
    source = read_expert_source(corpus.launch_of(name))
    kernel = SourceKernel(source, dim)
    good = 0
    for case in CASES:
        ok, text = compare(kernel, corpus.variant(source.spec)(), case, torch.float16, dim)
        good += ok
        print("ok  " if ok else "FAIL", text, flush=True)
    assert good == len(CASES), f"{len(CASES) - good} of {len(CASES)} are wrong"
    return [good, len(CASES)]


def fast(name: str, dim: int) -> float:
    """Effective TFLOP/s at 8k (B 2, 32 heads): that a source is an expert's and not a toy is seen in its speed."""
    kernel = SourceKernel(read_expert_source(corpus.launch_of(name)), dim)
    q, k, v = tensors((2, 32, 32, 8192, 8192, ""), dim, torch.float16)
    o, lse = torch.empty_like(q), torch.empty(q.shape[:-1], device=q.device)
    for _ in range(3):
        kernel(q, k, v, o, lse, dim**-0.5)
    times = []
    for _ in range(30):  # the fastest: other tests may run on the same GPU meanwhile
        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        kernel(q, k, v, o, lse, dim**-0.5)
        stop.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(stop))
    speed = 4 * dim * (8192 * 8193 / 2) * 32 * 2 / min(times) / 1e9
    print(f"{name} D {dim}: {speed:.0f} TFLOP/s", flush=True)
    return speed


def read_lifted_program(name: str) -> Program:
    """Return the program that a model lifted from the source, out of its transcript."""
    transcript = read_transcript(next(p for p in TRANSCRIPTS.glob("lift*.jsonl") if p.stem.endswith(name)))
    return parse(transcript.exchanges[-1].verdict["text"], f"{name}.cuir")


def compare_speeds(name: str) -> dict[str, Any]:
    """The lifted kernel and its source on the same inputs: every problem agrees. Returns their speeds."""
    source = read_expert_source(corpus.launch_of(name))
    result = beside_source(read_lifted_program(name), {"T": DTYPES["f16"], "D": 128}, source, corpus.variant(source.spec)())
    print(result["summary"], result["cases"], flush=True)
    assert not result["diagnostics"], result["diagnostics"]
    return {"speed": result["speed"]}


def count_told_apart(name: str) -> int:
    """Count the problems that differ if the factor of the scores is off by a hundredth.

    None would mean that nothing is compared.
    """
    source = read_expert_source(corpus.launch_of(name))
    text = show(read_lifted_program(name)).replace("scale * LOG2E", "scale * LOG2E * 1.01")
    result = beside_source(parse(text, "wrong.cuir"), {"T": DTYPES["f16"], "D": 128}, source, corpus.variant(source.spec)())
    return len(result["diagnostics"])


SPEED = {"flash_fwd_sm80": 100, "flash_fwd_sm90": 250}  # TFLOP/s at 8k, D 128: half of what such kernels reach


def test_every_source_has_a_launch_description() -> None:
    assert set(corpus.cuda()) == set(SPEED)
    for name in corpus.cuda():
        source = read_expert_source(corpus.launch_of(name))
        assert source.path.is_file() and source.spec in corpus.variants()


@pytest.mark.thorough("compiles whole expert sources")
@pytest.mark.nvcc
@pytest.mark.parametrize("name", sorted(SPEED))
def test_source_compiles_without_a_warning(name: str) -> None:
    image, message = compile_source(read_expert_source(corpus.launch_of(name)), 64)
    assert len(image) > 1000 and not message


@pytest.mark.gpu
@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.parametrize("name", sorted(SPEED))
def test_source_is_right(name: str, dim: int) -> None:
    run_isolated(right, name, dim, seconds=240)


@pytest.mark.gpu
@pytest.mark.parametrize("name", sorted(SPEED))
def test_source_is_an_experts(name: str) -> None:
    assert run_isolated(fast, name, 128, seconds=120) >= SPEED[name]


@pytest.mark.gpu
@pytest.mark.parametrize("name", sorted(SPEED))
def test_what_was_lifted_agrees_with_its_source(name: str) -> None:
    run_isolated(compare_speeds, name, seconds=240)


@pytest.mark.gpu
def test_a_lift_that_disagrees_with_its_source_is_told() -> None:
    assert run_isolated(count_told_apart, "flash_fwd_sm90", seconds=240) >= 3


@pytest.mark.parametrize("name", sorted(SPEED))
def test_a_lift_of_every_source_is_on_record(name: str) -> None:
    assert read_lifted_program(name).kernels()
