"""The kernels of each architecture, by their task in an attention call, and the architecture that a GPU gets.

kernels.toml is the only place that says which kernel runs where: a kernel for another GPU is a line of it.
"""

from __future__ import annotations

import functools
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, NamedTuple

import torch

from ...ops.limits import TARGETS
from ...runtime.cards import HOPPER, Card, find_card
from ...syntax.types import F32, DType
from ...text.diagnostics import CuirError

CALLS: tuple[Task, ...] = (
    "forward",
    "keys",
    "cache",
    "cache of 8 bits",
    "latent cache",
    "latent cache of 8 bits",
    "varlen",
    "selected",
)  # of which a user hears
NEWER = "its own instructions are not used, so this is not what the GPU could do"
Kind = Literal[
    "forward",
    "decode",
    "cache",
    "cache of 8 bits",
    "latent cache",
    "latent cache of 8 bits",
    "latent cache, selected tokens",
    "varlen",
    "selected",
]
Task = (
    Kind
    | Literal["split forward", "split cache", "split cache of 8 bits", "split varlen"]
    | Literal["keys", "wide keys", "split keys", "queries", "split queries", "selected keys", "selected queries", "join"]
)
WIDEST = 256  # head dim of a product's columns; those of wider heads are split over warpgroups
_SPLIT: Mapping[Task, Task] = {
    "forward": "split forward",
    "cache": "split cache",
    "cache of 8 bits": "split cache of 8 bits",
    "varlen": "split varlen",
    "wide keys": "split keys",
    "queries": "split queries",
}
VARIABLE = "CUIR_ARCH"  # names an architecture in place of that of the GPU, which runs it too


class Kernels(NamedTuple):
    """The programs of a task, by name: for halves, for f32, and for 8-bit floats; "" where there is none."""

    halves: str
    single: str = ""
    narrow: str = ""


def _read_table() -> dict[str, dict[Task, Kernels]]:
    """Read the kernels of each architecture, by task."""
    text = Path(__file__).with_name("kernels.toml").read_text(encoding="utf-8")
    return {arch: {task: Kernels(*names) for task, names in tasks.items()} for arch, tasks in tomllib.loads(text).items()}


KERNELS: Mapping[str, Mapping[Task, Kernels]] = _read_table()
DEFAULT = next(iter(KERNELS))  # where no GPU is asked: in the interpreter, and on a machine without one
# What a task is called in messages, and what to do where a GPU has no kernel for it.
_WORDS: Mapping[Task, tuple[str, str]] = {
    "forward": ("attention", "PyTorch's flex_attention"),
    "decode": ("attention of few queries", "flex_attention with more than 64 queries of a key head"),
    "cache": ("attention over a KV cache", "flex_attention with the keys and values of the cache in order"),
    "cache of 8 bits": ("attention over a KV cache of 8-bit numbers", "a cache in the dtype of the queries"),
    "latent cache": ("attention over a latent cache", "keys and values of each head"),
    "latent cache of 8 bits": ("attention over a latent cache of 8-bit numbers", "a cache in the dtype of the queries"),
    "latent cache, selected tokens": (
        "attention to selected tokens of a latent cache",
        "keys and values of each head, with a mask of the selected tokens",
    ),
    "varlen": ("attention of packed sequences", "flex_attention of one sequence, with a mask that compares documents"),
    "selected": ("attention over selected blocks", "flex_attention with a BlockMask of these blocks"),
    "selected keys": ("gradients over selected blocks", "flex_attention with a BlockMask of these blocks"),
    "selected queries": ("gradients over selected blocks", "flex_attention with a BlockMask of these blocks"),
    "keys": ("gradients", "PyTorch's flex_attention for training, or torch.no_grad()"),
    "wide keys": ("gradients of such head dims", "PyTorch's flex_attention for training, or torch.no_grad()"),
    "queries": ("gradients", "PyTorch's flex_attention for training, or torch.no_grad()"),
    "split forward": ("attention of head dims above 256", "PyTorch's flex_attention"),
    "split cache": (
        "attention over a KV cache of head dims above 256",
        "PyTorch's flex_attention, or for latent vectors (MLA), which hold their values, v_cache=None and latent",
    ),
    "split cache of 8 bits": ("attention over a KV cache of 8-bit numbers, head dims above 256", "a cache in the dtype of the queries"),
    "split varlen": ("attention of packed sequences of head dims above 256", "flex_attention of each sequence"),
    "split keys": ("gradients of head dims above 256", "PyTorch's flex_attention for training, or torch.no_grad()"),
    "split queries": ("gradients of head dims above 256", "PyTorch's flex_attention for training, or torch.no_grad()"),
    "join": ("shares of the keys", "one share"),
}


class KernelTarget(NamedTuple):
    """Architecture and card that the kernels of a call are made for.

    Attributes:
        arch: their architecture.
        card: the GPU, where a model of cost chooses settings for it; None for Hopper's kernels, and without a GPU.
    """

    arch: str = DEFAULT
    card: Card | None = None


def find_arch(capability: tuple[int, int]) -> str | None:
    """Return the newest architecture with kernels that a compute capability runs; None if it runs none."""
    return next((name for name in reversed(TARGETS) if name in KERNELS and TARGETS[name].runs_on(capability)), None)


@functools.cache
def choose_target(device: torch.device, backend: str = "auto") -> KernelTarget:
    """Return what the kernels of calls with tensors on a device are made for.

    Raises CuirError U501 for a GPU without kernels.
    """
    card = None if backend == "interpret" else find_card(device)
    arch = os.environ.get(VARIABLE) or (DEFAULT if card is None else find_arch(card.capability))
    if arch is None or arch not in KERNELS:
        found = f"{VARIABLE}={arch}" if arch or card is None else f"compute capability {card.version}"
        raise CuirError.of(
            "U501",
            f"attention kernels are for {', '.join(KERNELS)}, found {found}",
            hint='backend="interpret" runs the kernel in the interpreter, on any machine, slowly',
        )
    return KernelTarget(arch, None if arch == DEFAULT else card)


def check_invariant(target: KernelTarget, dropout: bool = False) -> None:
    """Raise CuirError U413 where no kernel adds up a query's keys in an order that depends on its keys alone."""
    if target.arch != DEFAULT:
        raise CuirError.of("U413", f"batch_invariant is for kernels of {DEFAULT}, found {target.arch}")
    if dropout:
        raise CuirError.of("U413", "batch_invariant is for calls without dropout, which drops weights by their place in the batch")


def get_current_device() -> torch.device:
    """Return PyTorch's current GPU, or the CPU where there is none."""
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")


def choose_task(task: Task, *head_dims: int) -> Task:
    """Return the task of a kernel for head dims of keys and values."""
    return _SPLIT.get(task, task) if max(head_dims, default=0) > WIDEST else task


def has_kernel(arch: str, task: Task, dtype: DType) -> bool:
    """Return whether an architecture has a kernel of a task for a dtype."""
    return _find(arch, task, dtype) != ""


def find_kernel(arch: str, task: Task, dtype: DType) -> str:
    """Return the name of the program for a task.

    Raises CuirError U109 for a dtype that the architecture does not multiply, U501 where there is no kernel.
    """
    if name := _find(arch, task, dtype):
        return name
    multiplied = _list_multiplied(arch)
    if dtype.name not in multiplied:
        raise CuirError.of(
            "U109", f"kernels of {arch} multiply {' and '.join(multiplied)}, found {dtype}", hint="tensor.half(), float16, on this GPU"
        )
    words, instead = _WORDS[task]
    if dtype.itemsize == 1:
        instead = "tensors of bfloat16, the numbers times their scales"
    if dtype == F32 and task in KERNELS[arch]:
        instead = "tensors of float16 or bfloat16 on this GPU"
    raise CuirError.of("U501", f"{arch} has no kernel for {words} in {dtype}", hint=f"use {instead}")


def find_counterpart(name: str, arch: str, dtype: DType) -> str:
    """Return the program of an architecture for the task of another program; "" if there is none."""
    tasks = dict.fromkeys(task for table in KERNELS.values() for task, names in table.items() if name in names)
    return next(filter(None, (_find(arch, task, dtype) for task in tasks)), "")


def _find(arch: str, task: Task, dtype: DType) -> str:
    entry = KERNELS[arch].get(task, Kernels(""))
    name = entry.single if dtype == F32 else entry.narrow if dtype.itemsize == 1 else entry.halves
    return name if dtype.name in _list_multiplied(arch) else ""


def _list_multiplied(arch: str) -> tuple[str, ...]:
    """Return the dtypes that products of an architecture take, those of its kernels first."""
    operands = TARGETS[arch].operands
    return tuple(dict.fromkeys((*operands.get("mma_sync", ()), *operands.get("wgmma", ()))))


def describe_attention(card: Card) -> str:
    """Say which attention calls a GPU runs, by which kernels, and what was not measured."""
    arch = find_arch(card.capability)
    if arch is None:
        return "no kernel; the interpreter runs them"
    has = [_WORDS[task][0] for task in CALLS if task in KERNELS[arch]]
    lacks = [_WORDS[task][0] for task in CALLS if task not in KERNELS[arch]]
    parts = [f"{', '.join(has)}, by kernels for {arch}" + ("" if card.is_measured else f" that are compiled for {card.code}")]
    parts += [f"not {', '.join(lacks)}"] if lacks else []
    parts.append("with measured settings" if card.is_measured else "with settings that a model of cost chooses and nobody measured")
    parts += [NEWER] if card.capability > HOPPER else []
    return "; ".join(parts)


__all__ = [
    "DEFAULT",
    "KERNELS",
    "VARIABLE",
    "WIDEST",
    "KernelTarget",
    "Kernels",
    "Kind",
    "Task",
    "check_invariant",
    "choose_target",
    "choose_task",
    "describe_attention",
    "find_arch",
    "find_counterpart",
    "find_kernel",
    "get_current_device",
    "has_kernel",
]
