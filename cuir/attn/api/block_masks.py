"""Block masks: ours, with a mask_mod and lengths, and those of torch.nn.attention.flex_attention.

Masks that were edited, sliced or built from blocks are in materialised_block_masks.py.

Tensors that mods and masks hold, whose memory no graph reuses.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch
from torch.nn.attention import flex_attention as torch_flex

from ...caching import WeakValueMemo
from ...spec.specification import Lengths, Specification, list_requested_lengths
from ...text.notebook import render_in_notebook
from ..capture.attention_request import Mod
from ..capture.call_inputs import plain_integer, wrong
from ..capture.capture_keys import make_capture_key
from ..capture.graph_errors import at_tracing, has_tried_tracer
from ..capture.symbolic_sizes import are_equal, have_equal_sizes, is_known
from ..splicing.captured_arguments import State, memory_of, state_of

_STEADY: WeakValueMemo[int, torch.Tensor] = WeakValueMemo("flex.steady_tensors", key="id of the tensor", invalidation="the tensor died")


def mark_steady(tensors: tuple[torch.Tensor, ...]) -> None:
    """Register tensors that mods hold.

    Other tensors that reach the operator are results of the graph, which may reuse their memory.
    """
    for t in tensors:
        _STEADY[id(t)] = t


def is_steady(t: torch.Tensor) -> bool:
    """Return True if a call may be cached with a tensor that a graph passes."""
    return (_STEADY.get(id(t)) is t or isinstance(t, torch.nn.Parameter)) and not t.is_inference()


INITIAL_FIELDS = frozenset(("mask_mod", "seq_lengths", "BLOCK_SIZE"))  # fields that a LazyBlockMask has from the start
FIELDS = 5  # attributes of a LazyBlockMask without blocks
OTHER_MOD = "_other_mod"  # attribute that marks a replaced mask_mod
ASKED_FOR = tuple(n for n in torch_flex.BlockMask.__annotations__ if n not in INITIAL_FIELDS)
UNBOUNDED = 1 << 30  # FlexAttention's block size of a mask without blocks


class MaskRequest(NamedTuple):
    """The arguments of `create_block_mask`."""

    mask_mod: Mod
    B: int | None
    H: int | None
    lengths: tuple[int, int]  # of queries and of keys
    device: torch.device | str | None
    BLOCK_SIZE: tuple[int, int]
    more: tuple[tuple[str, bool], ...]  # options of PyTorch's create_block_mask that are not its defaults
    moved_to: torch.device | str | None = None  # blocks are made on `device`, where what the mask_mod captures is

    def make(self) -> torch_flex.BlockMask:
        """Make PyTorch's BlockMask.

        A mod with keyword-only parameters for lengths gets those of the mask.
        """
        mod, lengths = self.mask_mod, {"B": self.B, "H": self.H, "M": self.lengths[0], "N": self.lengths[1]}
        keywords = {name: lengths[name] for name in list_requested_lengths(mod) if lengths.get(name) is not None}
        device = self.device or ("cuda" if torch.cuda.is_available() else "cpu")
        mask = torch_flex.create_block_mask(
            functools.partial(mod, **keywords) if keywords else mod,
            self.B,
            self.H,
            *self.lengths,
            device=str(device),
            BLOCK_SIZE=self.BLOCK_SIZE,
            **dict(self.more),
        )
        mask.mask_mod = mod
        return mask if self.moved_to is None else mask.to(self.moved_to)


def is_edited_in_graph(mask: LazyBlockMask) -> bool:
    """Return True if a field was set; Dynamo of torch 2.11 has no length of an object's dict."""
    return any(name in mask.__dict__ for name in ASKED_FOR)


class LazyBlockMask(torch_flex.BlockMask):
    """PyTorch's BlockMask with blocks that are made on demand; `create_block_mask` returns it.

    It holds a mask_mod and lengths until then. A kernel needs no blocks of it: its own have the size of its tiles. All
    else is as in PyTorch: `kv_num_blocks`, `kv_indices`, `full_*`, `q_*`, `sparsity()`, `to_dense()`, slices and the
    like use blocks of `BLOCK_SIZE` that PyTorch makes, once, on `device`. Slices, `_adjust` and `from_kv_blocks` return
    masks of PyTorch. Edits (another mask_mod, a tensor that is set or written to) take effect, as in PyTorch.
    """

    def __init__(self, asked_for: MaskRequest) -> None:
        self.mask_mod = asked_for.mask_mod
        self.seq_lengths = asked_for.lengths
        self.BLOCK_SIZE = asked_for.BLOCK_SIZE
        self._request = asked_for
        # of the fields that were made: name, value, state and memory of the tensor
        self._states: tuple[tuple[str, object, State, object], ...] | None = None

    def __setattr__(self, name: str, value: object) -> None:
        """Record that the mask_mod was replaced."""
        object.__setattr__(self, name, value)
        if name == "mask_mod" and "_request" in self.__dict__:
            if torch.compiler.is_compiling() or value is not self._request.mask_mod:
                object.__setattr__(self, OTHER_MOD, True)
            else:
                self.__dict__.pop(OTHER_MOD, None)

    def __getattr__(self, name: str) -> Any:
        """Make a field when it is first read."""
        if name in ASKED_FOR:
            if torch.compiler.is_dynamo_compiling() and not has_tried_tracer():
                torch._dynamo.graph_break()
            if _make_blocks_for(self, name):
                return getattr(self, name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def _repr_html_(self) -> str:
        return render_in_notebook("pages.mask_picture:render_block_mask", self)

    @property
    def shape(self) -> tuple[int, ...]:
        if self._states is None:
            return (self._request.B or 1, self._request.H or 1, *self.seq_lengths)
        return (*self.kv_indices.shape[:-2], *self.seq_lengths)

    @property
    def unmade(self) -> bool:
        """True while no blocks were made, and no blocks, other mask_mod or other lengths were set."""
        first = self._request
        if torch.compiler.is_compiling():
            if self._states is not None or is_edited_in_graph(self):
                return False
            if isinstance(
                first.mask_mod, functools.partial
            ):  # torch.compile cannot ask whether two are one, but by id, which ties a graph to the mod
                return OTHER_MOD not in self.__dict__ and self._as_asked
            return self.mask_mod is first.mask_mod and self._as_asked
        return self._states is None and self.still() is not None

    @property
    def _as_asked(self) -> bool:
        """True while lengths and block size are those with which the mask was created."""
        first = self._request
        return self.seq_lengths == first.lengths and self.BLOCK_SIZE == first.BLOCK_SIZE

    def still(self) -> MaskRequest | None:
        """Return the arguments of its creation if it is still equivalent to its mask_mod.

        Every call that is not traced runs this.
        """
        now = self.__dict__
        first: MaskRequest = now["_request"]
        if now["_states"] is not None:
            return first if self.is_untouched() else None
        unset = len(now) == FIELDS and now["mask_mod"] is first.mask_mod
        return first if unset and now["seq_lengths"] == first.lengths and now["BLOCK_SIZE"] == first.BLOCK_SIZE else None

    def is_untouched(self) -> bool:
        """Return True if it is still equivalent to its mask_mod.

        Nothing was set, and no tensor of its blocks was written to.
        """
        if self._states is None:
            return self.unmade
        now = self.__dict__
        return self._request.mask_mod is now["mask_mod"] and all(now[n] is v and state_of(v) == state for n, v, state, _ in self._states)

    def to(self, device: torch.device | str) -> torch_flex.BlockMask:
        """Return the mask for tensors on another device; captured tensors of the mask_mod stay where they are."""
        return LazyBlockMask(self._request._replace(moved_to=device)) if self.is_untouched() else super().to(device)

    def contiguous(self) -> torch_flex.BlockMask:
        """Return itself: transformers calls this on masks of static caches, be they tensors or not."""
        return self

    def __reduce__(self) -> tuple[object, ...]:
        """Copy or pickle an unedited mask as a lazy one, and an edited one as PyTorch's own."""
        if self.is_untouched():
            return LazyBlockMask, (self._request,)
        fields = {n: getattr(self, n) for n in vars(torch_flex.BlockMask.from_kv_blocks(self.kv_num_blocks, self.kv_indices))}
        return _empty, (), fields

    @classmethod
    def from_kv_blocks(cls, *args: Any, **kwargs: Any) -> torch_flex.BlockMask:  # type: ignore[override]
        """Return a mask of PyTorch."""
        return torch_flex.BlockMask.from_kv_blocks(*args, **kwargs)

    @classmethod
    def _unflatten(cls, *args: Any) -> torch_flex.BlockMask:  # type: ignore[override]
        return torch_flex.BlockMask._unflatten(*args)


@at_tracing
def _make_blocks_for(mask: LazyBlockMask, name: str) -> bool:
    """Have PyTorch make the blocks, in a compiled function once, when it is traced.

    Returns whether there then is such a field. Raises CuirError U418 for a mask that the graph makes.
    """
    attributes = vars(mask)
    if "_request" not in attributes:
        if torch.compiler.is_compiling():
            wrong(
                "U418",
                "a block mask that is made inside of a compiled function is asked for its blocks",
                hint="make it outside, or by PyTorch's create_block_mask",
            )
        return False  # pickle asks before it has set anything
    unmade, fields = mask.unmade, vars(mask._request.make())
    attributes.update({n: v for n, v in fields.items() if n not in attributes})
    if unmade:
        fields |= {"seq_lengths": mask.seq_lengths, "BLOCK_SIZE": mask.BLOCK_SIZE}
    mask._states = tuple((n, v, state_of(v), memory_of(v)) for n, v in fields.items())
    return name in attributes


def _empty() -> torch_flex.BlockMask:
    """Return a mask without fields, which pickle sets."""
    return object.__new__(torch_flex.BlockMask)


def create_block_mask(
    mask_mod: Mod,
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
) -> torch_flex.BlockMask:
    """Create a mask for `flex_attention`.

    It keeps the pairs (q_idx, kv_idx) where `mask_mod(b, h, q_idx, kv_idx)` holds.

    Nothing is computed here, and a kernel has blocks of its own tile size.

    Args:
        B: batch size, or None where the mask is the same for all batches.
        H: query heads, or None where the mask is the same for all heads.
        Q_LEN: number of queries.
        KV_LEN: number of keys.
        device: of blocks that PyTorch makes when an attribute of the mask is read.
        BLOCK_SIZE: of these blocks; those after it are PyTorch's options for them.

    Raises CuirError X101 for a function of another signature, U412 for unusable lengths and sizes.
    """
    if not torch.compiler.is_compiling():  # a graph asks when it enters the mod
        if mask_mod is None:
            wrong("X101", "mask_mod must be a function (b, h, q_idx, kv_idx), found None", "block_mask=None is the mask of all pairs")
        Specification("mask", mask_mod)
        mark_steady(make_capture_key(mask_mod).tensors)
    B, H, Q_LEN, KV_LEN = map(plain_integer, (B, H, Q_LEN, KV_LEN))
    rows, columns = BLOCK_SIZE if isinstance(BLOCK_SIZE, (tuple, list)) and len(BLOCK_SIZE) == 2 else (BLOCK_SIZE, BLOCK_SIZE)
    rows, columns = plain_integer(rows), plain_integer(columns)
    for name, length in (("B", B), ("H", H), ("Q_LEN", Q_LEN), ("KV_LEN", KV_LEN), ("BLOCK_SIZE", rows), ("BLOCK_SIZE", columns)):
        least = 0 if name in ("Q_LEN", "KV_LEN") else 1
        if length is None and name in ("B", "H"):
            continue
        if not isinstance(length, (int, torch.SymInt)) or isinstance(length, bool) or is_known(length < least):
            wrong("U412", f"{name} must be an integer of at least {least}{' or None' if name in ('B', 'H') else ''}, found {length!r}")
    options = (
        ("separate_full_blocks", separate_full_blocks, True),
        ("compute_dq_write_order", compute_dq_write_order, False),
        ("dq_kv_order", dq_kv_order, True),
    )
    more = tuple((name, value) for name, value, default in options if value is not default)
    return LazyBlockMask(MaskRequest(mask_mod, B, H, (Q_LEN, KV_LEN), device, (rows, columns), more))


def create_nested_block_mask(
    mask_mod: Mod, B: int | None, H: int | None, q_nt: torch.Tensor, kv_nt: torch.Tensor | None = None, **options: Any
) -> torch_flex.BlockMask:
    """Create the mask of nested tensors [B, H, j, D] for `flex_attention`.

    q_idx and kv_idx are indices in a sequence.

    Args:
        kv_nt: the keys, q_nt by default.
        options: as for `create_block_mask`.

    Raises CuirError U403 for tensors that are not nested, and the errors of `create_block_mask`.
    """
    for name, x in (("q_nt", q_nt), ("kv_nt", kv_nt)):
        if x is not None and not (isinstance(x, torch.Tensor) and x.is_nested and x.layout == torch.jagged):
            wrong(
                "U403",
                f"`{name}` must be a nested tensor of layout torch.jagged, found {type(x).__name__}",
                "create_block_mask is for dense ones",
            )
    lengths = [x._maybe_max_seqlen or x._values.shape[x._ragged_idx - 1] for x in (q_nt, q_nt if kv_nt is None else kv_nt)]  # type: ignore[attr-defined]
    return create_block_mask(mask_mod, B, H, *lengths, **{"device": q_nt.device.type, **options})


def get_mask_mod(block_mask: object) -> Mod | None:
    """Return the mask_mod of a block mask, ours or PyTorch's; None without a mask.

    Raises CuirError U412.
    """
    if block_mask is None:
        return None
    if not isinstance(block_mask, torch_flex.BlockMask):
        hint = "create_block_mask(mask_mod, B, H, Q_LEN, KV_LEN)" if callable(block_mask) else None
        wrong("U412", f"block_mask must be what create_block_mask gives, found {type(block_mask).__name__}", hint=hint)
    mod: Mod = block_mask.mask_mod
    if getattr(mod, "__name__", "") == "_sliced_mask_mod_error":
        wrong(
            "U412",
            "a sliced BlockMask has no mask_mod",
            hint="part = mask[...]; part.mask_mod = ..., in the indices of the part; part.seq_lengths = its lengths",
        )
    return mod


def check_mask(block_mask: torch_flex.BlockMask | None, at: Lengths) -> None:
    """Check that a block mask is for a problem of these lengths.

    Raises CuirError U412.
    """
    if block_mask is None:
        return
    if not isinstance(block_mask, LazyBlockMask) and (block_mask.kv_indices.dim() != 4 or block_mask.kv_num_blocks.dim() != 3):
        wrong(
            "U412",
            f"kv_num_blocks and kv_indices of a block mask are [B, H, rows] and [B, H, rows, columns], found {tuple(block_mask.kv_num_blocks.shape)} and {tuple(block_mask.kv_indices.shape)}",
            hint="a dim of 1 stands for all batches, or all heads: tensor[None]",
        )
    batch, heads, queries, keys = block_mask.shape
    # FlexAttention's mask of everything
    unbounded = not isinstance(block_mask, LazyBlockMask) and min(block_mask.BLOCK_SIZE) >= UNBOUNDED
    if not unbounded and not have_equal_sizes((queries, keys), (at.M, at.N)):
        wrong(
            "U412",
            f"the block mask is for {queries} queries and {keys} keys, found {at.M} and {at.N}",
            hint="create_block_mask costs nothing: make one for these lengths",
        )
    for name, expected, actual in (("batch size", batch, at.B), ("number of query heads", heads, at.H)):
        if not are_equal(expected, actual) and not are_equal(expected, 1):
            wrong("U412", f"the block mask is for a {name} of {expected}, found {actual}", hint="None if the mask does not depend on it")


__all__ = ["LazyBlockMask", "check_mask", "create_block_mask", "create_nested_block_mask", "get_mask_mod", "is_steady", "mark_steady"]
