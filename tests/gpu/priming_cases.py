"""Compilations of one process for FlexAttention and torch.compile are found in PyTorch's caches by the next."""

from __future__ import annotations

import os

import torch

from cuir.cli.command_inputs import read_variant
from cuir.performance.suites.cell_benchmark import Cell
from cuir.performance.suites.peers import contenders
from cuir.performance.suites.suite_run import prime_peers
from cuir.performance.timing.problem import Shape, make_tensors

CELL = Cell("causal_document", {"length": 128, "stagger": 0}, "small", Shape(2, 4, 2, 512, 512, 64))


def prime(folder: str) -> str:
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
    return prime_peers(CELL, read_variant(CELL.variant, CELL.arguments), torch.float16, ("flex", "compiled"), 0.1)


def hits_and_misses(folder: str) -> list[int]:
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
    from torch._dynamo.utils import counters

    spec = read_variant(CELL.variant, CELL.arguments)
    for call in contenders(("flex", "compiled"), spec, make_tensors(CELL.shape, torch.float16), 0.125).values():
        call()
    return [counters["inductor"]["fxgraph_cache_hit"], counters["inductor"]["fxgraph_cache_miss"]]
