"""Block masks: ours, which hold a mask_mod and lengths, and those of torch.nn.attention.flex_attention. Owns what a mask must agree with."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from ..spec.specification import Lengths, Specification
from ..text.diagnostics import CuirError
from ..variants import Traced
from ..variants.lists import block_lists
from ..variants.ranges import traced_apart
from .inputs import at_tracing, wrong
from .mods import identity
from .operator import steady

UNBOUNDED = 1 << 30  # FlexAttention's block size of a mask without blocks


@dataclass(frozen=True)
class BlockMask:
    """A mask_mod with the lengths that it is for; B and H are None where the mask does not depend on the batch or the head.

    It holds no blocks: a kernel's are made for its tile size, on the device, when it runs. What PyTorch's BlockMask tells of its blocks (`sparsity()`,
    `to_dense()`, `to_string()`) is asked of one that is made for the answer, on `device`, with blocks of `BLOCK_SIZE`.
    """

    mask_mod: Callable[..., Any]
    B: int | None
    H: int | None
    Q_LEN: int
    KV_LEN: int
    device: torch.device | str | None = None
    BLOCK_SIZE: int | tuple[int, int] = 128

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return (self.B or 1, self.H or 1, self.Q_LEN, self.KV_LEN)

    @property
    def seq_lengths(self) -> tuple[int, int]:
        return self.Q_LEN, self.KV_LEN

    def numel(self) -> int:
        return math.prod(self.shape)

    def to(self, device: torch.device | str) -> BlockMask:
        """For tensors on another device. What the mask_mod captures stays where it is."""
        return replace(self, device=device)

    def of_pytorch(self) -> Any:
        """PyTorch's BlockMask of the same mask_mod and lengths."""
        from torch.nn.attention.flex_attention import create_block_mask

        device = self.device or ("cuda" if torch.cuda.is_available() else "cpu")
        return create_block_mask(self.mask_mod, self.B, self.H, self.Q_LEN, self.KV_LEN, device=str(device), BLOCK_SIZE=self.BLOCK_SIZE)

    def sparsity(self) -> float:
        """How many percent of the blocks hold no kept pair."""
        return float(self.of_pytorch().sparsity())

    def to_dense(self) -> torch.Tensor:
        """Which blocks hold a kept pair: i32 [B, H, rows of blocks, columns of blocks]."""
        dense: torch.Tensor = self.of_pytorch().to_dense()
        return dense

    def to_string(self, grid_size: tuple[int, int] | int = (20, 20), limit: int = 4) -> str:
        """A picture of the blocks."""
        return str(self.of_pytorch().to_string(grid_size, limit))


def create_block_mask(
    mask_mod: Callable[..., Any],
    B: int | None,
    H: int | None,
    Q_LEN: int,
    KV_LEN: int,
    device: torch.device | str | None = None,
    BLOCK_SIZE: int | tuple[int, int] = 128,
    _compile: bool = False,
    separate_full_blocks: bool = True,
    compute_dq_write_order: bool = False,
    dq_kv_order: bool = True,
) -> BlockMask:
    """The mask that `flex_attention` takes: a pair (q_idx, kv_idx) counts where `mask_mod(b, h, q_idx, kv_idx)` is true.

    B and H: batch size and query heads, or None where the mask is the same for all. Q_LEN, KV_LEN: numbers of queries and keys. The others are there for
    callers of FlexAttention and change nothing for a kernel: nothing is computed here, and blocks are of the kernel's tile size.
    Raises CuirError X101 for a function of another signature, U412 for unusable lengths.
    """
    if not torch.compiler.is_compiling():  # a graph asks when it enters the mod
        Specification("mask", mask_mod)
        steady(identity(mask_mod).tensors)
    for name, length in (("B", B), ("H", H), ("Q_LEN", Q_LEN), ("KV_LEN", KV_LEN)):
        least = 0 if name in ("Q_LEN", "KV_LEN") else 1
        if length is None and least:
            continue
        if not isinstance(length, int) or isinstance(length, bool) or length < least:
            wrong("U412", f"{name} must be an integer of at least {least}{' or None' if least else ''}, found {length!r}")
    return BlockMask(mask_mod, B, H, Q_LEN, KV_LEN, device, BLOCK_SIZE)


def mod_of(block_mask: Any) -> Callable[..., Any] | None:
    """The mask_mod of a block mask, ours or PyTorch's; None for none. Raises CuirError U412."""
    if block_mask is None or isinstance(block_mask, BlockMask):
        return None if block_mask is None else block_mask.mask_mod
    mod = getattr(block_mask, "mask_mod", None)
    if mod is None or not hasattr(block_mask, "kv_num_blocks"):
        hint = "create_block_mask(mask_mod, B, H, Q_LEN, KV_LEN)" if callable(block_mask) else None
        wrong("U412", f"block_mask must be what create_block_mask gives, found {type(block_mask).__name__}", hint=hint)
    if getattr(mod, "__name__", "") == "_sliced_mask_mod_error":
        wrong("U412", "a sliced BlockMask has no mask_mod", hint="create a block mask for the part that is needed")
    return mod


def check_mask(block_mask: Any, at: Lengths) -> None:
    """Whether a block mask is for a problem of these lengths. Raises CuirError U412."""
    if block_mask is None:
        return
    batch, heads, queries, keys = block_mask.shape
    if not isinstance(block_mask, BlockMask) and min(block_mask.BLOCK_SIZE) >= UNBOUNDED:
        return  # FlexAttention's mask of everything
    if (queries, keys) != (at.M, at.N):
        wrong("U412", f"the block mask is for {queries} queries and {keys} keys, found {at.M} and {at.N}",
                           hint="create_block_mask costs nothing: make one for these lengths")  # fmt: skip
    for name, own, actual in (("batch size", batch, at.B), ("number of query heads", heads, at.H)):
        if own not in (1, actual):
            wrong("U412", f"the block mask is for a {name} of {own}, found {actual}", hint="None if the mask does not depend on it")


@at_tracing
def settled(block_mask: Any, device: str) -> bool:
    """`check_blocks` when a graph is traced, which is guarded by the mask itself. Raises CuirError U414."""
    batch, heads, queries, keys = block_mask.shape
    check_blocks(block_mask, Lengths(batch, heads, heads, queries, keys), torch.device(device))
    return True


_AGREED: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()  # masks of PyTorch whose blocks are those of their mask_mod


def mask_key(block_mask: Any) -> Any:
    """What calls with block masks share, whose mask_mods and lengths of tensors are the same. PyTorch's are told apart as objects. None for one that was not
    checked yet."""
    if block_mask is None:
        return ()
    if isinstance(block_mask, BlockMask):
        return block_mask.B, block_mask.H, block_mask.Q_LEN, block_mask.KV_LEN
    return id(block_mask) if _AGREED.get(id(block_mask)) is block_mask else None


def check_blocks(block_mask: Any, at: Lengths, device: torch.device, traced: Traced | None = None) -> None:
    """Whether the blocks of a mask of PyTorch are those of its mask_mod, which alone decides here. Asked once for each mask. traced: the mask_mod, where it was
    traced already. Raises CuirError U414."""
    if block_mask is None or isinstance(block_mask, BlockMask) or _AGREED.get(id(block_mask)) is block_mask:
        return
    BM, BN = block_mask.BLOCK_SIZE
    listed = block_mask.kv_num_blocks
    if block_mask.full_kv_num_blocks is not None:
        listed = listed + block_mask.full_kv_num_blocks
    if min(BM, BN) < UNBOUNDED and at.M > 0 and at.N > 0:
        spec = Specification("mask", block_mask.mask_mod)
        traced = traced_apart(spec) if traced is None else traced
        captured = {p.name: p.argument(spec, at, device) for p in traced.parameters}
        if traced.keep is None:
            wanted = torch.full_like(listed, -(-at.N // BN))
        else:
            wanted = block_lists(traced.keep, captured, Lengths(listed.shape[0], listed.shape[1], at.HK, at.M, at.N), BM, BN, device)[0][
                ..., 1
            ]
        if listed.shape[2] != -(-at.M // BM) or not bool((listed.to(device) == wanted.to(device)).all()):
            raise CuirError.of("U414", "the blocks of this BlockMask are not those of its mask_mod, and only the mask_mod says what is kept here",
                               hint="let the mask_mod drop all that the blocks leave out, and create the mask from it")  # fmt: skip
    _AGREED[id(block_mask)] = block_mask


__all__ = ["BlockMask", "check_blocks", "check_mask", "create_block_mask", "mask_key", "mod_of", "settled"]
