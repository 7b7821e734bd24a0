"""Gradients of `flex_attention` in the interpreter: beside autograd of the dense formula in float64 (PyTorch's own has no backward pass on a CPU), for shapes, strides, masks and scores; refusals."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask as theirs_mask

import cuir
from cuir import create_block_mask, flex_attention
from cuir.attn.kernels.autograd import KNOWN_VALUES, Gradients, ReplayableBackward
from cuir.attn.kernels.backward_kernels import RequestedGradients
from cuir.flex import AuxRequest
from cuir.text.diagnostics import CuirError

DOCUMENTS = torch.arange(300) // 37
TABLE = torch.linspace(-1, 1, 700)
Mod = Callable[..., Any] | None


def causal(b: Any, h: Any, q: Any, k: Any) -> Any:
    return q >= k


def documents(b: Any, h: Any, q: Any, k: Any) -> Any:
    return (DOCUMENTS[q] == DOCUMENTS[k]) & (q >= k)


def late(b: Any, h: Any, q: Any, k: Any) -> Any:
    """The first queries have no keys."""
    return q >= k + 20


def softcap(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return 5.0 * torch.tanh(s / 5.0)


def biased(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return s * 1.5 + TABLE[q - k + 300] * (h + 1)


def masking(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return torch.where(torch.abs(q - k) < 40, s, -torch.inf)


def tensors(*shape: int, dtype: torch.dtype = torch.float16) -> list[torch.Tensor]:
    B, H, HK, M, N, D, *of_value = shape
    g = torch.Generator().manual_seed(sum(shape))
    sizes = (B, H, M, D), (B, HK, N, D), (B, HK, N, *(of_value or [D]))
    return [torch.randn(size, generator=g).to(dtype) for size in sizes]


def compute_gradients(
    inputs: list[torch.Tensor], mask_mod: Mod, score_mod: Mod
) -> tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]:
    """Our gradients, and those of the dense formula in float64."""
    H, M, HK, N = inputs[0].shape[1], inputs[0].shape[2], inputs[1].shape[1], inputs[1].shape[2]
    ours, exact = [x.detach().requires_grad_() for x in inputs], [x.detach().double().requires_grad_() for x in inputs]
    block_mask = create_block_mask(mask_mod, None, None, M, N, device="cpu") if mask_mod else None
    o, l = flex_attention(*ours, score_mod, block_mask, enable_gqa=H != HK, return_lse=True, backend="interpret")
    w = dense(*exact, mask_mod, score_mod)
    g = torch.Generator().manual_seed(1)
    do, dl = torch.randn(o.shape, generator=g).to(o.dtype), torch.randn(l.shape, generator=g)
    dl = torch.where(l > -torch.inf, dl, 0.0)
    result = torch.autograd.grad((o, l), ours, (do, dl))
    return result, torch.autograd.grad(w, exact, (do.double(), dl.double()))


def dense(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask_mod: Mod, score_mod: Mod) -> tuple[torch.Tensor, torch.Tensor]:
    """O and LSE; those of a query without keys depend on nothing."""
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    s = q @ k.mT * q.shape[3] ** -0.5
    at = [torch.arange(n).view([-1 if i == d else 1 for i in range(4)]) for d, n in enumerate(s.shape)]
    s = s if score_mod is None else score_mod(s, *at)
    s = s if mask_mod is None else s.masked_fill(~mask_mod(*at), -torch.inf)
    empty = (s == -torch.inf).all(-1, keepdim=True)
    s = s.masked_fill(empty, 0.0)
    return s.softmax(-1).masked_fill(empty, 0.0) @ v, s.logsumexp(-1).masked_fill(empty[..., 0], 0.0)


def close(result: tuple[torch.Tensor, ...], exact: tuple[torch.Tensor, ...], bound: float = 1e-3) -> None:
    for x, y in zip(result, exact, strict=True):
        assert x.shape == y.shape and (x.double() - y).norm() <= bound * y.norm()


@pytest.mark.sweep
@pytest.mark.parametrize("mask_mod", [None, causal, documents, late])
@pytest.mark.parametrize("score_mod", [None, softcap, biased, masking])
def test_masks_and_scores(mask_mod: Mod, score_mod: Mod) -> None:
    close(*compute_gradients(tensors(1, 2, 1, 150, 150, 64), mask_mod, score_mod))


@pytest.mark.sweep
@pytest.mark.parametrize(
    "shape",
    [
        (2, 4, 2, 70, 200, 128),
        (1, 2, 2, 130, 65, 40),
        (1, 2, 1, 64, 64, 128, 64),
        (1, 1, 1, 60, 60, 64, 128),
        (1, 3, 1, 33, 90, 20, 24),
        (1, 2, 2, 1, 1, 8),
        (1, 2, 1, 70, 130, 192),
        (1, 2, 1, 70, 130, 256),
        (1, 1, 1, 60, 140, 192, 128),
        (1, 1, 1, 70, 60, 40, 200),
    ],
)
def test_shapes(shape: tuple[int, ...]) -> None:
    close(*compute_gradients(tensors(*shape), None, softcap))


@pytest.mark.sweep(4)
@pytest.mark.parametrize("in_order", [False, True])
@pytest.mark.parametrize("dim", [64, 192])
def test_a_slope_that_is_infinite_where_no_pair_is(dim: int, in_order: bool) -> None:
    """Rows behind the end of a tensor are zeros in shared memory, where the root has a slope of infinity."""
    torch.use_deterministic_algorithms(in_order)
    try:
        close(*compute_gradients(tensors(1, 2, 1, 70, 90, dim), None, lambda s, b, h, q, k: torch.sqrt(torch.abs(s))))
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("dim", [64, 256])
def test_bfloat16(dim: int) -> None:
    close(*compute_gradients(tensors(1, 2, 2, 100, 100, dim, dtype=torch.bfloat16), causal, None), bound=8e-3)


@pytest.mark.sweep
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("requests", [RequestedGradients(), RequestedGradients(spread=True), RequestedGradients(in_order=True)])
def test_every_head_dim_has_kernels_that_fit(requests: RequestedGradients, dtype: torch.dtype) -> None:
    for keys, values in itertools.product((8, 64, 128, 192, 256), repeat=2):
        attention = cuir.attention(causal, dtype=dtype, head_dim=keys, value_dim=values, verify="off")
        for step in attention.gradients(requests).plan.steps.values():
            assert step.checked.name == step.kernel


@pytest.mark.parametrize(
    ("keys", "values", "requests", "kernels"),
    [
        (64, 64, RequestedGradients(spread=True), [("finish", 64), ("flash_bwd", 64), ("prepare", 64)]),
        (64, 128, RequestedGradients(spread=True), [("finish", 64), ("finish", 128), ("flash_bwd", 64), ("prepare", 64)]),
        (64, 64, RequestedGradients(), [("finish", 64), ("flash_bwd", 64), ("prepare", 64)]),
        (64, 64, RequestedGradients(in_order=True), [("flash_bwd", 64), ("flash_bwd_dq", 64)]),
    ],
)
def test_what_a_gpu_compiles(
    keys: int, values: int, requests: RequestedGradients, kernels: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each kernel once, by the name that its program has for it, and a kernel for each launch."""
    compilations: list[tuple[str, int]] = []

    def record_compilation(program: Any, *, kernel: str, consts: Any) -> str:
        assert kernel in program.kernels()
        compilations.append((kernel, consts["D"]))
        return kernel

    monkeypatch.setattr("cuir.runtime.compiled.compile", record_compilation)
    monkeypatch.setattr("cuir.attn.kernels.autograd.need_gpu", lambda device, arch: None)
    inputs = cuir.attention(causal, dtype=torch.float16, head_dim=keys, value_dim=values, verify="off").gradients(requests)
    result = inputs.compile_kernels(torch.device("cuda"))
    assert sorted(compilations) == kernels
    assert {name: step.kernel for name, step in inputs.plan.steps.items()} == result


@pytest.mark.parametrize("compiled", [False, True])
def test_the_largest_scores_have_none(compiled: bool) -> None:
    q, k, v = (x.requires_grad_() for x in tensors(1, 1, 1, 20, 20, 64))

    def call(*leaves: torch.Tensor) -> Any:
        return flex_attention(*leaves, return_aux=AuxRequest(lse=True, max_scores=True), backend="interpret", verify="off")

    o, aux = (torch.compile(call, fullgraph=True, backend="aot_eager") if compiled else call)(q, k, v)
    assert o.requires_grad and aux.lse.requires_grad and not aux.max_scores.requires_grad
    torch.autograd.grad((o, aux.lse), (q, k, v), (torch.ones_like(o), torch.ones_like(aux.lse)))


def test_none_without_grad_mode() -> None:
    q, k, v = (x.requires_grad_() for x in tensors(1, 1, 1, 20, 20, 64))
    with torch.no_grad():
        assert not flex_attention(q, k, v, backend="interpret").requires_grad  # type: ignore[union-attr]


def test_keys_of_all_batches_and_strides() -> None:
    q, k, v = tensors(2, 2, 1, 40, 60, 64)
    q = q.transpose(1, 2).contiguous().transpose(1, 2)
    ours = [q.requires_grad_(), k[:1].requires_grad_(), v[:1].requires_grad_()]
    o = flex_attention(*ours, enable_gqa=True, backend="interpret")
    do = torch.randn(o.shape, generator=torch.Generator().manual_seed(0)).half()  # type: ignore[union-attr]
    result = torch.autograd.grad(o, ours, do.mT.contiguous().mT)  # type: ignore[arg-type]
    exact = [x.detach().double().requires_grad_() for x in ours]
    p = (exact[0] @ exact[1].mT * 64**-0.5).softmax(-1) @ exact[2]
    close(result, torch.autograd.grad(p, exact, do.double()))


@pytest.mark.sweep
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 2, 1, 3), (2, 0, 1, 3), (0, 1, 3, 2), (3, 2, 1, 0)])
@pytest.mark.parametrize("dim", [20, 64])
def test_gradients_lie_as_their_tensors_do(dim: int, order: tuple[int, ...], compiled: bool) -> None:
    """Dense, with the dims in memory in that order, whatever torch.compile's graph has to say of strides; the numbers are those of tensors that are contiguous."""
    torch._dynamo.reset()
    leaves = tensors(2, 3, 3, 30, 40, dim)
    back = [order.index(d) for d in range(4)]
    ours = [x.permute(order).contiguous().permute(back).requires_grad_() for x in leaves]

    def call(*leaves: torch.Tensor) -> Any:
        return flex_attention(*leaves, softcap, backend="interpret", verify="off")

    o = (torch.compile(call, fullgraph=True, backend="aot_eager") if compiled else call)(*ours)
    do = torch.randn(o.shape, generator=torch.Generator().manual_seed(0)).half()
    actual = torch.autograd.grad(o, ours, do)
    assert [g.stride() for g in actual] == [x.stride() for x in ours]
    plain = [x.detach().requires_grad_() for x in leaves]
    expected = torch.autograd.grad(call(*plain), plain, do)
    for x, y in zip(actual, expected, strict=True):
        torch.testing.assert_close(x, y, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("shape", [(2, 1, 30, 8), (1, 3, 1, 8), (2, 3, 30, 1), (1, 1, 1, 1)])
def test_of_tensors_that_repeat_elements(shape: tuple[int, ...]) -> None:
    """A gradient of each element that a call sees, dense: autograd adds up those of one that `expand` has shown several times."""
    ours = [torch.randn(shape, generator=torch.Generator().manual_seed(n)).half().requires_grad_() for n in range(3)]
    o = flex_attention(*(x.expand(2, 3, 30, 8) for x in ours), backend="interpret", verify="off")
    exact = [x.detach().double().requires_grad_() for x in ours]
    wide, _ = dense(*(x.expand(2, 3, 30, 8) for x in exact), None, None)
    do = torch.randn(o.shape, generator=torch.Generator().manual_seed(4))  # type: ignore[union-attr]
    result = torch.autograd.grad(o, ours, do.half())  # type: ignore[arg-type]
    for x, y in zip(result, torch.autograd.grad(wide, exact, do.half().double()), strict=True):
        assert x.shape == y.shape and (x.double() - y).norm() <= 1e-2 * y.norm() + 1e-3


def test_of_the_explicit_form() -> None:
    q, k, v = (x.requires_grad_() for x in tensors(1, 1, 1, 60, 60, 64))
    attention = cuir.attention(causal, dtype=torch.float16, head_dim=64, verify="off")
    ours = torch.autograd.grad(attention(q, k, v, backend="interpret").sum(), (q, k, v))  # type: ignore[union-attr]
    mask = create_block_mask(causal, None, None, 60, 60, device="cpu")
    second = torch.autograd.grad(flex_attention(q, k, v, None, mask, backend="interpret").sum(), (q, k, v))  # type: ignore[union-attr]
    assert all(torch.equal(x, y) for x, y in zip(ours, second, strict=True))


@pytest.mark.parametrize("mask", [create_block_mask, theirs_mask])
def test_under_torch_compile(mask: Callable[..., Any]) -> None:
    block_mask = mask(documents, None, None, 90, 90, device="cpu")

    def loss(call: Callable[..., Any], *leaves: torch.Tensor) -> torch.Tensor:
        o, lse = call(*(x * 1.0 for x in leaves))
        return (o.float() ** 2).sum() + lse.sum()

    def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        return flex_attention(q, k, v, softcap, block_mask, return_lse=True, backend="interpret", verify="off")

    leaves = [x.requires_grad_() for x in tensors(1, 2, 2, 90, 90, 64)]
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    ours, expected = (torch.autograd.grad(loss(f, *leaves), leaves) for f in (compiled, call))
    assert all(torch.equal(x, y) for x, y in zip(ours, expected, strict=True))


@pytest.mark.parametrize(
    ("code", "options"),
    [("X109", {"normalize": "sigmoid"}), ("X109", {"normalize": "relu"})],
)
def test_what_has_no_gradients(code: str, options: dict[str, Any]) -> None:
    inputs = [x.requires_grad_() for x in tensors(1, 2, 2, 20, 20, 64)]
    with pytest.raises(CuirError) as caught:
        flex_attention(*inputs, backend="interpret", **options)
    assert caught.value.diagnostics[0].code == code


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_backward_pass_within_autocast(dtype: torch.dtype) -> None:
    """In the dtypes of its forward pass, wherever that was."""
    ours = [torch.randn(1, 2, 40, 16, generator=torch.Generator().manual_seed(i)).to(dtype).requires_grad_() for i in range(3)]
    expected = torch.autograd.grad(flex_attention(*ours, backend="interpret").float().square().sum(), ours)
    o = flex_attention(*ours, backend="interpret").float().square().sum()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        actual = torch.autograd.grad(o, ours)
    assert all(torch.equal(x, y) for x, y in zip(actual, expected, strict=True))


def test_passes_of_one_shape_and_several_captured_values_are_replayed() -> None:
    """Keep a pass for each offset, where tensors have equal shapes, as parts of a rank do."""

    def make_pass(values: object) -> ReplayableBackward:
        launch = lambda *tensors: (values, values)  # noqa: E731
        return ReplayableBackward(launch, launch, None, (), values, ())  # type: ignore[arg-type]

    def replay(values: object) -> object:
        ready = SimpleNamespace(device_arguments=values, kernel="", seed=(), arguments={})
        result = passes.replay(ready, 1.0, *tensors(1, 1, 1, 8, 8, 16), *[TABLE] * 3)  # type: ignore[arg-type]
        return None if result is None else result[0]

    passes, values = object.__new__(Gradients), [object() for _ in range(KNOWN_VALUES + 1)]
    passes.replayable = {}
    numbers = (torch.Size([1, 1, 8, 16]), torch.Size([1, 1, 8, 16]), 1.0)
    for x in values:
        passes.keep(numbers, make_pass(x))
    assert [replay(x) for x in values] == [None, *values[1:]]
