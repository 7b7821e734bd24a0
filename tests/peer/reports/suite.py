"""The registry of public reports, and a dense reference that differentiates their mods in any dtype."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch.nn.attention import flex_attention as pytorch

from tests.peer.cases import BACKWARD, NO_GRADIENTS, REPORTS, scenario
from tests.peer.judging import Differs, Wrong, expect, judge
from tests.peer.trial import TORCH_API, Make, Trial, as_tuple, refusal

CALLS = ("eager", "compiled")
TF32 = 2.0**-10  # the distance of 1 and the next number of TF32
FEW, DRAWS = 64, 8  # fewer numbers than FEW say little of an average error; then so many draws do


@dataclass(frozen=True)
class Report:
    """A public report or a file of a public project, rebuilt small. place: `owner/repository#number`, or `owner/repository: file`."""

    place: str
    title: str
    why: str = ""  # where it is refused: the reason, and what to write instead


@dataclass
class Attempt:
    """One comparison that a report asks for. make: an implementation -> the call of `tensors`; learned: captured tensors with gradients."""

    make: Make
    tensors: Sequence[torch.Tensor]
    learned: Sequence[torch.Tensor] = ()


class ReportTrial(Trial):
    """A trial against the dense reference, whose gradients are also measured against the effect of rounding the inputs once.

    On a GPU, a result that is too far off is judged once more with the error of PyTorch's compiled kernel as a further yardstick.
    """

    make: Make | None = None
    compiled: Callable[..., Any] | None = None  # PyTorch's call, while it is a yardstick

    def __init__(self, t: Trial) -> None:
        super().__init__(t.backend, t.verify, t.gradients, t.requires_gradients)
        self.torch_api = DENSE

    def _judge_gradients(self, golden: Any, eager: Any, result: Any, double: Any, tensors: Any, learned: Any) -> None:
        """Judge gradients by PyTorch's error, or by how far float64's move where each input moves by half a unit in its last place.

        Where the user allows TF32, that is the last place of TF32: eager products of small sizes keep more, and one number may be near by chance.
        A sum of a few thousand terms that cancel has no error of its own: PyTorch's may be 0 by chance, and then says nothing.
        """
        up = torch.randn_like(golden[0])
        names = [*("dQ", "dK", "dV")[: len(tensors)], *(f"d(bias {i})" for i in range(len(learned)))]
        a = self.gradients_of(golden[0], double, learned, up)
        b = self.gradients_of(eager[0], tensors, learned, up)
        c = self.gradients_of(result[0], tensors, learned, up)
        few = min((x.numel() for x in a), default=FEW) < FEW
        drawn = [self._compute_moved_gradients(double, tensors, learned, up, seed) for seed in range(DRAWS if few else 1)]
        if self.compiled:
            drawn.append(self.gradients_of(as_tuple(self.compiled(*tensors))[0], tensors, learned, up))
        for i, name in enumerate(names[: len(a)]):
            coarse = max((draw[i] for draw in drawn), key=lambda x: float((x.double() - a[i]).abs().mean()))
            judge(a[i], b[i], c[i], name, coarse=coarse)

    def _compute_moved_gradients(self, double: Any, tensors: Any, learned: Any, up: torch.Tensor, seed: int) -> tuple[Any, ...]:
        """Compute float64's gradients where inputs and learned tensors are moved by less than their rounding, as products take them."""
        generator = torch.Generator(up.device).manual_seed(seed)
        moved = [_move_by_rounding(x, self._rounding_of(tensors[i].dtype), generator) for i, x in enumerate(double)]
        if self.tf32 and tensors[0].dtype == torch.float32:
            up = _move_by_rounding(up, TF32, generator).detach()
        values = [x.detach().clone() for x in learned]
        for x in learned:
            x.data.copy_(_move_by_rounding(x, torch.finfo(x.dtype).eps, generator).detach())
        gradients = self.gradients_of(as_tuple(self.reference(*moved))[0], moved, learned, up)
        for x, value in zip(learned, values):
            x.data.copy_(value)
        return gradients

    def _rounding_of(self, dtype: torch.dtype) -> float:
        """Return the distance of 1 and the next number that factors of products of a dtype have."""
        return TF32 if self.tf32 and dtype == torch.float32 else torch.finfo(dtype).eps

    def expect_refusal(self, call: Callable[[], Any], description: str) -> None:
        """Expect an error of ours with the code `what`."""
        try:
            call()
        except Exception as error:
            result = refusal(error)
            if result is None:
                raise
            expect(
                result.diagnostics[0].code == description,
                f"refused by {result.diagnostics[0].code}, not {description}: {result.diagnostics[0].message}",
            )
            return
        raise Differs(f"no error, {description} is expected")

    def judge(self, make: Make, *sources: Any, **options: Any) -> Any:
        self.make = make
        return super().judge(make, *sources, **options)

    def judge_found(self, call: Any, reference: Any, *sources: Any, **options: Any) -> Any:
        self.reference = reference
        try:
            return super().judge_found(call, reference, *sources, **options)
        except Wrong:
            if not self.native or self.make is None:
                raise
            self.compiled = torch.compile(self.make(TORCH_API))
            try:
                return super().judge_found(call, reference, *sources, **options)
            finally:
                self.compiled = None

    def compute_coarsely(self, reference: Any, tensors: Sequence[torch.Tensor], eager: Any) -> Any:
        if self.compiled:
            return as_tuple(self.compiled(*tensors))
        return super().compute_coarsely(reference, tensors, eager)

    @staticmethod
    def gradients_of(o: torch.Tensor, leaves: Sequence[torch.Tensor], learned: Sequence[torch.Tensor], up: torch.Tensor) -> tuple[Any, ...]:
        """Compute gradients of an output; an input that it does not depend on has zeros."""
        expected = [x for x in (*leaves, *learned) if x.requires_grad]
        return torch.autograd.grad(o, expected, up.to(o.dtype), retain_graph=True, allow_unused=True, materialize_grads=True)


def _move_by_rounding(x: torch.Tensor, eps: float, generator: torch.Generator) -> torch.Tensor:
    """Move each number by at most half a unit in its last place, where 1 and the next number differ by `eps`."""
    by = (torch.rand(x.shape, generator=generator, device=x.device, dtype=torch.float64) - 0.5) * eps
    return (x.detach().double() * (1 + by)).to(x.dtype).requires_grad_(x.requires_grad)


REPORTED: dict[str, Report] = {}  # by the name of its scenario


def report(place: str, title: str, *, gradients: bool = True, calls: Sequence[str] = CALLS) -> Callable[[Any], Any]:
    """Register a report: the function takes a Trial and returns Attempts, each compared eager and compiled, forward and backward."""

    def enter(function: Callable[[Trial], Any]) -> Callable[[Trial], Any]:
        def run(t: Trial, call: str) -> None:
            t = ReportTrial(t)
            for attempt in _as_list(function(t)):
                t.judge(attempt.make, attempt.tensors, learned=attempt.learned, compiled=call == "compiled", dynamic=None)

        name = f"{place.split('/')[-1]} {function.__name__}"
        assert name not in REPORTED, name
        REPORTED[name] = Report(place, title)
        scenario(REPORTS, place.split("#")[0].split(":")[0], name=name, gradients=BACKWARD if gradients else NO_GRADIENTS, call=calls)(run)
        return function

    return enter


def behaviour(place: str, title: str, *, why: str = "", calls: Sequence[str] = CALLS) -> Callable[[Any], Any]:
    """Register a report that is no comparison of numbers: the function takes a Trial and `call`, and raises what it does not find.

    why: of a report that is refused.
    """

    def enter(function: Callable[[Trial, str], None]) -> Callable[[Trial, str], None]:
        name = f"{place.split('/')[-1]} {function.__name__}"
        assert name not in REPORTED, name
        REPORTED[name] = Report(place, title, why)
        scenario(REPORTS, place.split("#")[0].split(":")[0], name=name, call=calls)(lambda t, call: function(ReportTrial(t), call))
        return function

    return enter


def _as_list(attempts: Any) -> list[Attempt]:
    return [attempts] if isinstance(attempts, Attempt) else list(attempts)


def dense_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    score_mod: Any = None,
    block_mask: Any = None,
    scale: float | None = None,
    enable_gqa: bool = False,
    return_lse: bool = False,
    **_: Any,
) -> Any:
    """Compute attention from its definition with plain differentiable operations; rows without keys give 0 and -inf.

    query [B, H, M, D], key [B or 1, HK, N, D], value [B or 1, HK, N, DV]. Mods run under vmap, as PyTorch's create_mask runs them.
    """
    B, H, M, D = query.shape
    N, group = key.shape[2], query.shape[1] // key.shape[1]
    key, value = (x.repeat_interleave(group, 1) for x in (key, value))
    wide = torch.float64 if query.dtype == torch.float64 else torch.float32
    score = (query @ key.mT).to(wide) * (
        D**-0.5 if scale is None else scale
    )  # products in the dtype of the inputs, as PyTorch's eager call
    indices = [torch.arange(n, device=query.device) for n in (B, H, M, N)]
    if score_mod is not None:
        mod = score_mod
        for dims in ((0, None, None, None, 0), (0, None, None, 0, None), (0, None, 0, None, None), (0, 0, None, None, None)):
            mod = torch.vmap(mod, in_dims=dims)
        score = mod(score, *indices).to(wide)
    keep = torch.ones_like(score, dtype=torch.bool) if block_mask is None else expand_pairs(block_mask, B, H, M, N, query.device)
    score = score.masked_fill(~keep, -torch.inf)
    lse = score.logsumexp(-1)
    weights = torch.where(lse[..., None] > -torch.inf, (score - lse[..., None].clamp(min=torch.finfo(wide).min)).exp(), 0.0)
    o = weights.to(query.dtype) @ value
    return (o, lse) if return_lse else o


def expand_pairs(block_mask: Any, B: int, H: int, M: int, N: int, device: Any) -> torch.Tensor:
    """Expand a BlockMask to the pairs that take part, [B, H, M, N]: whole blocks as they are, partial ones by their mask_mod."""
    mod = pytorch.create_mask(block_mask.mask_mod, B, H, M, N, device=str(device))
    partial = _expand(block_mask, block_mask.kv_num_blocks, block_mask.kv_indices, M, N)
    keep = partial & mod
    if block_mask.full_kv_num_blocks is not None:
        keep = keep | _expand(block_mask, block_mask.full_kv_num_blocks, block_mask.full_kv_indices, M, N)
    return keep.expand(B, H, M, N)


def _expand(block_mask: Any, count: torch.Tensor, indices: torch.Tensor, M: int, N: int) -> torch.Tensor:
    """Expand lists of blocks to pairs, [B', H', M, N]."""
    rows, columns = block_mask.BLOCK_SIZE
    columns_of_blocks = -(-block_mask.seq_lengths[1] // columns)
    listed = torch.arange(indices.shape[-1], device=indices.device) < count[..., None]
    places = torch.where(listed, indices, columns_of_blocks).long()  # a column beyond the others takes what is not listed
    blocks = torch.zeros(*count.shape, columns_of_blocks + 1, dtype=torch.bool, device=count.device).scatter_(-1, places, True)[..., :-1]
    return blocks.repeat_interleave(rows, -2).repeat_interleave(columns, -1)[..., :M, :N]


DENSE = SimpleNamespace(**{**{name: getattr(pytorch, name) for name in pytorch.__all__}, "flex_attention": dense_attention})
