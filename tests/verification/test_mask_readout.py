"""Masks off by one, in every comparison of every variant: the readout names a query and a key, and they are right. Traps of conventions by name."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from dataclasses import replace
from importlib.resources import files
from typing import Any

import numpy as np
import pytest
import torch

import corpus
from cuir import attention
from cuir.attn.splicing.captured_arguments import compute_captured_arguments
from cuir.attn.splicing.specification_copies import bound_reads
from cuir.attn.splicing.splice import transfer
from cuir.attn.verification.splice_evaluator import Evaluator, collect_kernel_values
from cuir.checking.checker import check
from cuir.mutation.mutation_sites import list_sites, replace_node
from cuir.spec.loading import as_specification
from cuir.spec.specification import Lengths, Specification
from cuir.syntax.nodes import Binary, Literal, Program, Subscript
from cuir.syntax.parser import parse
from cuir.syntax.printer import show
from cuir.syntax.types import F16
from cuir.verification import check_mask
from tests.verification.small_kernels import read_diagnostic

CONSTS = {"T": F16, "D": 64, "BM": 64, "BN": 64}
AT = Lengths(1, 1, 1, 90, 110)
EXPERT = files("corpus").joinpath("kernels/flash_fwd_sm90.cuir").read_text(encoding="utf-8")
NEIGHBOURS = {"<": "<=", "<=": "<", ">": ">=", ">=": ">"}
SMALL = {
    "prefix_lm": {"prefix": 40},
    "combo": {"prefix": 40},
    "sliding_window": {"window": 30},
    "local": {"left": 20, "right": 9},
    "qk_sparse": {"start": 0, "length": 37},
    "global_sliding_window": {"left": 20, "right": 11, "tokens": 5},
    "sliding_window_global": {},
    "document": {"length": 60, "stagger": 7},
    "causal_document": {"length": 60, "stagger": 7},
}


@functools.cache
def variant(name: str) -> Specification:
    return as_specification(corpus.variant(name), name, SMALL.get(name, {}))


def kernel(name: str) -> Program:
    return parse(transfer(parse(EXPERT), variant(name)).text)


def off_by_one(name: str) -> Iterator[tuple[str, Program]]:
    """The kernel of a variant with a comparison of its mask strict or not, or a gather from the next place."""
    program = kernel(name)
    for site in list_sites(program):
        func = site.parents[1] if len(site.parents) > 1 else None
        if getattr(func, "name", "") != "keep":
            continue
        node, put = site.node, None
        if isinstance(node, Binary) and node.op in NEIGHBOURS:
            put = replace(node, op=NEIGHBOURS[node.op])
        elif isinstance(node, Subscript) and not isinstance(node.indices[-1], Literal):
            put = replace(node, indices=(*node.indices[:-1], Binary("+", node.indices[-1], Literal(1))))  # type: ignore[arg-type]
        if put is not None:
            yield f"{show(node)} -> {show(put)}", parse(show(replace_node(program, site.path, put)))


def keeps(program: Program, spec: Specification) -> np.ndarray:
    """The pairs that a program's own `keep` lets pass."""
    kernel = next(iter(program.kernels().values()))
    dims = {"B": AT.B, "H": AT.H, "HK": AT.HK, "M": AT.M, "N": AT.N}
    captured = compute_captured_arguments(program, kernel, spec, AT, consts=CONSTS)
    run = Evaluator(program, collect_kernel_values(kernel, dims, CONSTS, {"scale": 0.125, **captured}))
    result = run.call("keep", 0, 0, np.arange(AT.M)[:, None], np.arange(AT.N)[None])
    return np.broadcast_to(np.asarray(result, bool), (AT.M, AT.N))


@pytest.mark.sweep
@pytest.mark.parametrize("name", [n for n in sorted(corpus.variants()) if variant(n).mask_mod is not None])
def test_off_by_one_is_found_by_name(name: str) -> None:
    spec, observed = variant(name), 0
    for description, program in off_by_one(name):
        actual, expected = keeps(program, spec), spec.mask(AT)[0, 0].numpy()
        if (actual == expected).all():
            check_mask(program, check(program, None, CONSTS), spec, AT)  # another part of the mask says the same
            continue
        first = read_diagnostic(program, spec, CONSTS, AT)
        named = re.match(r"query (\d+) (also attends|does not attend) to key (\d+) \(head 0\)", first.message)
        assert first.code == "V305" and named is not None, (description, first.message)
        q, k = int(named[1]), int(named[3])
        assert actual[q, k] == (named[2] == "also attends") != expected[q, k], description
        observed += 1
    assert observed, "no comparison of this mask was changed to an effect"


@pytest.mark.sweep(4)
@pytest.mark.parametrize(
    ("name", "old", "new", "message"),
    [
        ("prefix_lm", "k < prefix", "k <= prefix", "query 0 also attends to key 40"),
        ("sliding_window", "<= window", "<= window + 1", "query 11 also attends to key 0"),
        ("sliding_window", "<= window", "< window", "query 10 does not attend to key 0"),
        ("local", "+ right", "+ right + 1", "query 0 also attends to key 30"),
        ("causal", "k <= q + (N - M)", "k <= q", "query 0 does not attend to key 1"),
        ("causal_top_left", "k <= q", "k <= q + (N - M)", "query 0 also attends to key 1"),
    ],
)
def test_traps_of_conventions(name: str, old: str, new: str, message: str) -> None:
    """`<` or `<=` at a prefix, a window of W or W + 1 keys, top-left or bottom-right."""
    text = show(kernel(name))
    keep = text.index("def keep")
    assert old in text[keep:]
    result = read_diagnostic(parse(text[:keep] + text[keep:].replace(old, new, 1)), variant(name), CONSTS, AT)
    assert result.message.startswith(message), result.message


def test_weights_that_each_batch_has_of_its_own() -> None:
    """A launch reads a window of keys with each batch entry: what is too faint to see is known by the weights of that one."""
    bias = torch.zeros(3, 20)
    bias[1, :8] = 12.0  # and the window of the second batch entry are keys 64 to 127
    spec = bound_reads(Specification("batches", score_mod=lambda s, b, h, q, k: s + bias[b, k // 8]))
    program = transfer(parse(EXPERT), spec).program
    read = check_mask(program, check(program, None, CONSTS), spec, replace(AT, N=150))
    assert (read.read, read.hidden) == (90 * 86, 90 * 64)


@pytest.mark.sweep
@pytest.mark.usefixtures("few_problems")
@pytest.mark.parametrize("most", [0.3, 1.0])
def test_pairs_that_a_score_decides(most: float) -> None:
    """where(score <= most, ..., -inf) cannot be a mask of blocks: `keep` has the part that asks for places alone, and the kernel's sum leaves the rest out."""
    lengths = torch.tensor([20, 70])

    def score(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        causal = torch.where(q >= k, s, -torch.inf)
        return torch.where(s <= most, torch.where(k < lengths[b], causal, -torch.inf), -torch.inf)

    spec = Specification("decided", score_mod=score)
    keep = show(transfer(parse(EXPERT), spec).program.funcs()["keep"])
    assert keep.endswith("return (k < lengths[b]) & (q >= k)\n") or keep.endswith("return (k < lengths[b]) & (q >= k)"), keep
    assert spec.compute_kept(AT).equal(spec.compute_kept(AT) & (torch.arange(AT.N) < 20))
    report = attention(spec, head_dim=64, consts={"BM": 64, "BN": 64}).report
    assert report is not None and report.ok, report
