"""Suites: the problems that are timed, and their contenders."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from ...text.diagnostics import CuirError
from ..timing.problem import Shape
from .cell_benchmark import Cell

TOKENS = 16384  # batch x sequence of every problem
MODELS: dict[str, tuple[int, ...]] = {
    "llama2-7b": (32, 32, 128),
    "qwen2.5-72b": (64, 8, 128),
    "llama3.1-405b": (128, 8, 128),
    "hd64": (32, 32, 64),
    "hd64-grouped": (64, 8, 64),
    "hd96": (32, 32, 96),
    "hd192": (32, 32, 192),
    "hd256": (32, 32, 256),
    "hd192-128": (32, 32, 192, 128),
}  # heads, key heads, head dim, that of values if different

Pass = Literal[
    "forward", "backward", "decode", "varlen"
]  # what is timed: kernels, gradients of a call, calls of few queries, of packed sequences

# Parameters of the variants follow the length: window of an eighth (at least 256), 8 blocks or documents, a prefix of a quarter, half a question.
# 2^(-(h + 1) / 4) is the slope of ALiBi for 32 heads; it is the same for all models.
_Parameters = Callable[[int], Mapping[str, int | float]]
VARIANTS: dict[str, _Parameters] = {
    "full": lambda n: {},
    "causal": lambda n: {},
    "sliding_window": lambda n: {"window": max(256, n // 8)},
    "prefix_lm": lambda n: {"prefix": n // 4},
    "global_sliding_window": lambda n: {"left": n // 16, "right": n // 16, "tokens": 16},
    "sliding_window_global": lambda n: {"window": max(256, n // 8), "tokens": 128},
    "causal_blockwise": lambda n: {"length": n // 8},
    "share_question": lambda n: {"question": n // 2, "answer": n // 8, "answers": 4},
    "causal_document": lambda n: {"length": n // 8, "stagger": 0},
    "relative_position": lambda n: {"weight": 0.01},
    "alibi_causal": lambda n: {"heads": 32},
    "softcap": lambda n: {"cap": 20.0},
    "softcap_causal": lambda n: {"cap": 20.0},
    "alibi": lambda n: {"heads": 32},
    "causal_top_left": lambda n: {},
    "combo": lambda n: {"prefix": n // 4, "cap": 20.0},
    "document": lambda n: {"length": n // 8, "stagger": 0},
    "local": lambda n: {"left": n // 16, "right": n // 16},
    "prefix_document": lambda n: {"length": n // 8, "prefix": n // 32, "stagger": 0},
    "qk_sparse": lambda n: {"start": n // 4, "length": n // 4},
    "relative_position_table": lambda n: {"radius": 128},
    "relu": lambda n: {},
    "sigmoid": lambda n: {},
    "sink_causal": lambda n: {},
}  # fmt: skip


@dataclass(frozen=True)
class Suite:
    """Suite of problems.

    `peers` are contenders; those that cannot express a variant are left out of its cells.
    """

    name: str
    about: str
    variants: tuple[str, ...]
    models: tuple[str, ...]
    lengths: tuple[int, ...]
    peers: tuple[str, ...]
    rounds: int = 3
    kind: Pass = "forward"

    def cells(self) -> list[Cell]:
        """Return the cells of the suite."""
        if self.kind == "decode":
            from .decode_suite import cells

            return cells()
        if self.kind == "varlen":
            from .packed_suite import cells

            return cells()
        return [cell(v, m, n) for n in self.lengths for v in self.variants for m in self.models]


def cell(variant: str, model: str, length: int) -> Cell:
    """Return the cell of a variant, model and length."""
    H, HK, *dims = MODELS[model]
    return Cell(variant, VARIANTS[variant](length), model, Shape(max(1, TOKENS // length), H, HK, length, length, *dims))


_DENSE = ("full", "causal")
_PAPER = (
    "sliding_window",
    "prefix_lm",
    "global_sliding_window",
    "causal_blockwise",
    "share_question",
    "causal_document",
    "relative_position",
    "softcap",
)
_MASKS = (
    "sliding_window",
    "causal_blockwise",
    "sliding_window_global",
    "prefix_lm",
    "share_question",
    "causal_document",
    "relative_position",
    "alibi_causal",
    "softcap_causal",
)
_LENGTHS = (1024, 2048, 4096, 8192, 16384)
_LLAMAS = ("llama2-7b", "qwen2.5-72b", "llama3.1-405b")
_NEWEST = ("fa4", "cudnn_flex")  # where their packages are installed
SUITES = {
    s.name: s
    for s in (
        Suite("smoke", "a few cells, under a minute", ("causal", "prefix_lm"), ("llama2-7b",), (1024,), ("cudnn", "fa2", "flex"), rounds=2),
        Suite("flash", "full and causal, 1k to 16k, head dims 128 and 64", _DENSE, ("llama2-7b", "hd64"), _LENGTHS, ("cudnn", "fa2", *_NEWEST)),
        Suite("models", "full and causal of two models with grouped key heads, 1k to 16k", _DENSE, _LLAMAS[1:], _LENGTHS, ("cudnn", "fa2", *_NEWEST)),
        Suite("masks", "causal masks and score rules beside FlexAttention, four models, 1k and 8k", _MASKS, (*_LLAMAS, "hd64"), (1024, 8192), ("flex", *_NEWEST)),
        Suite("variants", "every variant of the corpus beside FlexAttention, or compiled PyTorch where that cannot say it, two models, 2k and 8k",
              tuple(sorted(VARIANTS)), ("llama2-7b", "hd64"), (2048, 8192), ("flex", "otherwise")),
        Suite("backward", "gradients of full and causal, head dims 128 and 64, grouped key heads, 1k to 16k", _DENSE, ("llama2-7b", "qwen2.5-72b", "hd64", "hd64-grouped"), _LENGTHS,
              ("cudnn", "deterministic", *_NEWEST), kind="backward"),
        Suite("backward_dims", "gradients of full and causal, head dims 96, 192, 256 and 192 with values of 128, 4k and 16k", _DENSE, ("hd96", "hd192", "hd256", "hd192-128"),
              (4096, 16384), ("cudnn", "deterministic", *_NEWEST), kind="backward"),
        Suite("backward_masks", "gradients of causal masks and score rules beside FlexAttention, two models, 1k and 8k", _MASKS, ("llama2-7b", "hd64"), (1024, 8192),
              ("flex", *_NEWEST), kind="backward"),
        Suite("decode", "one and four queries over long keys, contiguous, in pages, of unequal lengths, of 8 bits, under rules", (), (), (),
              ("cudnn", "fa2", "fa3", "flashinfer", "flex", "16_bits"), kind="decode"),
        Suite("varlen", "packed sequences of equal, lognormal and one long length, 16k to 128k tokens", (), (), (), ("fa3", *_NEWEST, "varlen_attn"), kind="varlen"),
        Suite("paper", "the variants of the CuBridge paper, three models, 1k to 8k", _PAPER, _LLAMAS, (1024, 2048, 4096, 8192), ("flex", "compiled")),
    )
}  # fmt: skip


def suite(name: str) -> Suite:
    """Return a suite by name. Raises CuirError U117 for an unknown name."""
    if name not in SUITES:
        raise CuirError.of("U117", f"there is no suite `{name}`", hint="; ".join(f"{s.name}: {s.about}" for s in SUITES.values()))
    return SUITES[name]
