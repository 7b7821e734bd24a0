"""Runs of a scenario: both implementations, the sizes and the device, the comparison, and smaller cases."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch.nn.attention import flex_attention as pytorch

import cuir.flex
from cuir.text.diagnostics import CuirError
from tests.peer.judging import Differs, close, expect, judge, tf32

Make = Callable[[Any], Callable[..., Any]]  # an implementation -> the call of q, k, v

BLOCK, BLOCKS, BATCHES = 128, 4, 16
ENOUGH, MOST_DRAWS = 1024, 16  # numbers of O that are judged by their average, and draws that give them
TORCH_API = pytorch


def ours(backend: str, verify: str) -> Any:
    """This package's functions under the names that PyTorch's module has them, all else as it is there."""

    def flex_attention(
        query: Any,
        key: Any,
        value: Any,
        score_mod: Any = None,
        block_mask: Any = None,
        scale: Any = None,
        enable_gqa: bool = False,
        return_lse: bool = False,
        kernel_options: Any = None,
        *,
        return_aux: Any = None,
    ) -> Any:
        return cuir.flex_attention(
            query,
            key,
            value,
            score_mod,
            block_mask,
            scale,
            enable_gqa,
            return_lse,
            kernel_options,
            return_aux=return_aux,
            backend=backend,
            verify=verify,
        )

    names = {name: getattr(cuir.flex, name, getattr(pytorch, name)) for name in pytorch.__all__}
    return SimpleNamespace(**{**names, "flex_attention": flex_attention})


@dataclass
class Trial:
    """A run of one case. gradients: the part of the case that wants them is run, instead of the forward part without them.

    Interpreted, lengths over 512 are shrunk to at most 4 blocks of 128 with the remainder that they had, windows and offsets in proportion, and batches to at
    most 16; head dims, heads, dtypes, strides and block sizes stay. torch.compile runs with its backend `eager` then, so that no C++ compiler is asked.

    backend "pytorch": PyTorch's functions in the place of ours, which shows whether a scenario asks for what PyTorch does.
    """

    backend: str = "interpret"
    verify: str = "quick"
    gradients: bool = False
    requires_gradients: bool = False  # the case is one whose tensors require gradients

    def __post_init__(self) -> None:
        self.native = self.backend == "native"
        self.device = "cuda" if self.native else "cpu"
        self.torch_api = TORCH_API
        self.ours = TORCH_API if self.backend == "pytorch" else ours("auto" if self.native else "interpret", self.verify)

    @property
    def tf32(self) -> bool:
        """Whether products of float32 may be made in TF32. PyTorch's eager ones of small sizes are not, and its tests skip a case in which its own kernel is
        therefore less accurate than eager."""
        return self.native and torch.get_float32_matmul_precision() != "highest"

    # ---- sizes
    def length(self, n: int) -> int:
        """A number of queries or keys. Ragged stays ragged: 2045 becomes 509."""
        return n if self.native or n <= BLOCK * BLOCKS else BLOCK * BLOCKS - (-n % BLOCK)

    def part(self, n: int, of: int) -> int:
        """An offset or a window that is `n` where the length is `of`."""
        return n if self.length(of) == of else max(1, n * self.length(of) // of)

    def batch(self, n: int) -> int:
        return n if self.native else min(n, BATCHES)

    # ---- tensors
    def randn(self, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Draw a tensor that requires a gradient in the original: query, key, value, a learned bias."""
        return self.wanting(torch.randn(shape, dtype=dtype, device=self.device))

    def wanting(self, x: torch.Tensor) -> torch.Tensor:
        return x.detach().requires_grad_(self.gradients and self.requires_gradients)

    def qkv(
        self, q: Sequence[int], kv: Sequence[int] | None = None, dtype: torch.dtype = torch.float32, v_dim: int | None = None
    ) -> tuple[torch.Tensor, ...]:
        """q [B, H, M, D], k and v [B, HK, N, D], lengths as they are given. v_dim: that of v, where it has one of its own."""
        kv = q if kv is None else kv
        return self.randn(*q, dtype=dtype), self.randn(*kv, dtype=dtype), self.randn(*kv[:3], v_dim or kv[3], dtype=dtype)

    # ---- calls
    def compile(self, function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
        """torch.compile as the original asks for it. What needs inductor (modes, options of its own) is only asked natively."""
        if not self.native:
            options = {name: value for name, value in options.items() if name in ("dynamic", "fullgraph")} | {"backend": "eager"}
        return torch.compile(function, **options)

    def judge(
        self,
        make: Make,
        tensors: Sequence[torch.Tensor],
        *,
        ours: Make | None = None,
        learned: Sequence[torch.Tensor] = (),
        compiled: bool = True,
        paged: bool = False,
        names: Sequence[str] = ("O", "LSE"),
        **options: Any,
    ) -> Any:
        """Compares a call of both implementations, and its gradients if they are what is run. ours: where it is another call there (a paged cache).

        make: gives the call of an implementation; masks are made then, outside of what is compiled. learned: captured tensors that have gradients. Gives our
        result. Raises Wrong, Differs, and what our call raises.
        """
        call = (ours or make)(self.ours)
        call = self.compile(call, **options) if compiled else call
        return self.judge_found(call, make(self.torch_api), tensors, learned=learned, paged=paged, names=names, drawn=ours is None)

    def judge_found(
        self,
        call: Callable[..., Any],
        reference: Callable[..., Any],
        tensors: Sequence[torch.Tensor],
        *,
        learned: Sequence[torch.Tensor] = (),
        paged: bool = False,
        names: Sequence[str] = ("O", "LSE"),
        drawn: bool = False,
    ) -> Any:
        """Judge two calls, like `judge`. drawn: they are of q, k and v alone.

        An average of few numbers tells little, so O of fewer is then judged together with those of further draws.
        """
        eager = as_tuple(reference(*tensors))
        double = [x.detach().double().requires_grad_(x.requires_grad) for x in tensors]
        golden = as_tuple(reference(*double))
        result = call(*tensors)
        actual = as_tuple(result)
        expect(len(actual) == len(golden), f"{len(actual)} results instead of {len(golden)}")
        judged = [(golden, eager, actual, self.compute_coarsely(reference, tensors, eager))]
        for rest in _draws(tensors, golden[0].numel()) if drawn else ():
            item, two, three = (as_tuple(x) for x in (reference(*(x.double() for x in rest)), reference(*rest), call(*rest)))
            judged.append((item, two, three, self.compute_coarsely(reference, rest, two)))
        for i, name in enumerate(names[: len(golden)]):
            a, b, c, d = (side[0][i] if len(side) == 1 else torch.cat([x[i] for x in side]) for side in zip(*judged))
            judge(a, b, c, name, paged=paged, coarse=d)
        if self.gradients and any(x.requires_grad for x in (*tensors, *learned)):
            self._judge_gradients(golden, eager, actual, double, tensors, learned)
        return result

    def compute_coarsely(self, reference: Callable[..., Any], tensors: Sequence[torch.Tensor], eager: Any) -> Any:
        """Compute the results of inputs that are rounded as products may round them: those of `eager` where that is no other rounding."""
        return as_tuple(reference(*map(tf32, tensors))) if self.tf32 else eager

    def _judge_gradients(self, golden: Any, eager: Any, result: Any, double: Any, tensors: Any, learned: Any) -> None:
        up = torch.randn_like(golden[0])
        names = [*("dQ", "dK", "dV")[: len(tensors)], *(f"d(bias {i})" for i in range(len(learned)))]
        sides = [(golden, double, up), (eager, tensors, up.to(eager[0].dtype)), (result, tensors, up.to(eager[0].dtype))]
        grads = [
            torch.autograd.grad(o[0], [x for x in (*leaves, *learned) if x.requires_grad], g, retain_graph=True) for o, leaves, g in sides
        ]
        for name, a, b, c in zip(names, *grads):
            judge(a, b, c, name)

    def close(
        self,
        make: Make,
        tensors: Sequence[torch.Tensor],
        tolerance: float,
        *,
        ours: Make | None = None,
        compiled: bool = True,
        **options: Any,
    ) -> Any:
        """Judge within a tolerance of PyTorch's eager result."""
        expected = as_tuple(make(self.torch_api)(*tensors))
        call = (ours or make)(self.ours)
        result = (self.compile(call, **options) if compiled else call)(*tensors)
        for name, a, b in zip(("O", "LSE"), as_tuple(result), expected):
            close(a, b, tolerance, name)
        return result

    def expect_refusal(self, call: Callable[[], Any], description: str) -> None:
        """The original wants an error here, of a text that is PyTorch's own: any of ours that is meant for people will do."""
        try:
            call()
        except Exception as error:
            if not self._for_people(error):
                raise
            return
        raise Differs(f"no error: {description}")

    @contextlib.contextmanager
    def allow_either(self) -> Iterator[None]:
        """The original says that this is not possible in PyTorch's kernels: right results and a refusal are both well."""
        try:
            yield
        except AssertionError:
            raise
        except Exception as error:
            if not self._for_people(error):
                raise

    def _for_people(self, error: Exception) -> bool:
        return self.ours is self.torch_api or refusal(error) is not None or isinstance(error, ValueError)


@contextlib.contextmanager
def eager_reference(gradients: bool) -> Iterator[None]:
    """PyTorch's eager calls as what others are compared with, on any device. Without Dynamo, which takes longer to read a mod than all else takes to compute
    it, where no gradients are asked for; those of captured tensors are known to Dynamo alone."""
    before = pytorch._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG, pytorch._validate_device
    pytorch._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG = not gradients
    if gradients:
        pytorch._validate_device = lambda *tensors: None  # it refuses gradients on a CPU, which the eager call has
    try:
        yield
    finally:
        pytorch._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG, pytorch._validate_device = before


def attention(score_mod: Any = None, mask: Callable[[Any], Any] | None = None, **options: Any) -> Make:
    """The call with these mods. mask: makes the block mask of an implementation."""

    def make(api: Any) -> Callable[..., Any]:
        block_mask = None if mask is None else mask(api)
        return functools.partial(api.flex_attention, score_mod=score_mod, block_mask=block_mask, **options)

    return make


def refusal(error: BaseException | None) -> CuirError | None:
    """The error of ours in a chain of causes, as torch.compile wraps what it meets."""
    reached: set[int] = set()
    while error is not None and id(error) not in reached:
        reached.add(id(error))
        if isinstance(error, CuirError):
            return error
        error = error.__cause__ or error.__context__
    return None


def _draws(tensors: Sequence[torch.Tensor], judged: int) -> Iterator[list[torch.Tensor]]:
    """Other numbers of the same size in the places of q, k and v that lie as they were made, until so many results and theirs are enough for an average."""
    if not judged or not all(x.is_contiguous() and x.is_floating_point() for x in tensors):
        return
    sizes = [x.detach().float().square().mean().sqrt().item() for x in tensors]
    g = torch.Generator(tensors[0].device).manual_seed(0)
    for _ in range(min(MOST_DRAWS, ENOUGH // judged)):
        yield [size * torch.randn(x.shape, dtype=x.dtype, device=x.device, generator=g) for size, x in zip(sizes, tensors)]


def as_tuple(result: Any) -> tuple[Any, ...]:
    return tuple(result) if isinstance(result, (tuple, list)) else (result,)
