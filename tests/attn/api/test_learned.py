"""Gradients of what mods capture, and of sinks, in the interpreter: beside autograd of the dense formula in float64, for the biases of PyTorch's TestLearnableBiases and others.

Parameters that begin at 0, at a bound or at a tie train as they do behind PyTorch's own functions, and a projection of zeros has a gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import cuir
from cuir import create_block_mask, flex_attention
from cuir.attn.capture.first_call_progress import Progress
from cuir.attn.kernels.backward_kernels import RequestedGradients
from cuir.text.diagnostics import CuirError
from tests.gpu.test_backward import FUNCTIONS, begin_at_0, close, compute_reference

B, H, HK, N, D = 2, 2, 1, 70, 16
PLACES, BUCKETS = torch.arange(N).flip(0) // 2, (torch.arange(2 * N) - N).abs().clamp(max=20) // 4
Learned = dict[str, torch.Tensor]
ALL: dict[str, tuple[dict[str, tuple[int, ...]], Callable[..., Any]]] = {
    "of pairs": (
        {"square": (N, N), "cube": (H, N, N), "four": (B, H, N, N)},
        lambda t, s, b, h, q, k: s + t["square"][k, q] + t["cube"][h, q, k] * 0.5 + t["four"][b, h, q, k],
    ),
    "by distance": (
        {"line": (2 * N,), "window": (17,), "buckets": (H, 6)},
        lambda t, s, b, h, q, k: (
            s + t["line"][torch.abs(q - k)] + t["window"][torch.clamp(q - k + 8, 0, 16)] + t["buckets"][h, BUCKETS[q - k + N]]
        ),
    ),
    "of queries, of keys, of both": (
        {"rows": (N,), "keys": (B, N), "both": (N,)},
        lambda t, s, b, h, q, k: s * (1.0 + 0.3 * t["rows"][PLACES[q]]) + t["keys"][b, k] + t["both"][q] * t["both"][k],
    ),
    "of heads": (
        {"gate": (H,), "slopes": (B, H), "cap": (), "idle": (H,)},
        lambda t, s, b, h, q, k: (
            torch.where(t["idle"][h] < 9.0, 1.0, 0.0) * (2.0 + t["cap"]) * torch.tanh(s * torch.sigmoid(t["gate"][h]) / (2.0 + t["cap"]))
            + t["slopes"][b, h] * (k - q) / 16
        ),
    ),
}


def tensors(dtype: torch.dtype = torch.float16, dim: int = D) -> list[torch.Tensor]:
    g = torch.Generator().manual_seed(0)
    return [torch.randn(B, h, N, dim, generator=g).to(dtype).requires_grad_() for h in (H, HK, HK)]


def causal(b: Any, h: Any, q: Any, k: Any) -> Any:
    return q >= k


MASK = create_block_mask(causal, None, None, N, N, device="cpu")


def make_learned(sizes: dict[str, tuple[int, ...]], dtype: torch.dtype = torch.float32) -> Learned:
    g = torch.Generator().manual_seed(1)
    return {name: torch.randn(size, generator=g).to(dtype).requires_grad_() for name, size in sizes.items()}


def dense(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, score: Callable[..., Any], sink: torch.Tensor | None) -> Any:
    """O and LSE, of causal attention."""
    k, v = (x.repeat_interleave(H // HK, 1) for x in (k, v))
    at = [torch.arange(n).view([-1 if i == d else 1 for i in range(4)]) for d, n in enumerate((B, H, N, N))]
    s = score(q @ k.mT * q.shape[3] ** -0.5, *at).masked_fill(at[2] < at[3], -torch.inf)
    lse = s.logsumexp(-1)
    lse = lse if sink is None else torch.logaddexp(lse, sink[:, None])
    return (s - lse[..., None]).exp() @ v, lse


def compute_gradients(
    mod: Callable[..., Any], t: Learned, sink: bool = False, call: Callable[..., Any] = flex_attention
) -> tuple[Any, Any]:
    """Our gradients of query, key, value and what is learned, and those of the dense formula in float64; of O and LSE. sink: the last of those learned is one."""

    def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **t: torch.Tensor) -> Any:
        last = list(t.values())[-1] if sink else None
        score = lambda s, b, h, q, k: mod(t, s, b, h, q, k)  # noqa: E731
        if q.dtype == torch.float64:
            return dense(q, k, v, score, last)
        return call(q, k, v, score, MASK, enable_gqa=True, return_lse=True, sink=last, backend="interpret", verify="off")

    ours = tensors()
    exact, of_exact = ([x.detach().double().requires_grad_() for x in xs] for xs in (ours, t.values()))
    o, lse = run(*ours, **t)
    g = torch.Generator().manual_seed(2)
    do, dl = torch.randn(o.shape, generator=g).half(), torch.randn(lse.shape, generator=g)
    result = torch.autograd.grad((o, lse), (*ours, *t.values()), (do, dl), allow_unused=True)
    wide = run(*exact, **dict(zip(t, of_exact, strict=True)))
    return result, torch.autograd.grad(wide, (*exact, *of_exact), (do.double(), dl.double()), allow_unused=True)


def close_of_learned(result: Any, exact: Any, like: Any, bound: float = 2e-3) -> None:
    for x, y, z in zip(result, exact, like, strict=True):
        if y is None:
            assert x is None
            continue
        assert x.shape == z.shape and x.dtype == z.dtype and (x.double() - y).norm() <= bound * y.norm()


@pytest.mark.sweep(4)
@pytest.mark.parametrize("name", ALL)
def test_biases(name: str) -> None:
    sizes, mod = ALL[name]
    t = make_learned(sizes)
    close_of_learned(*compute_gradients(mod, t), (*tensors(), *t.values()))


F = torch.nn.functional
CHOOSING: dict[str, Callable[[Any], Any]] = {  # functions whose derivative is a choice
    "abs": torch.abs,
    "relu": torch.relu,
    "softplus": F.softplus,
    "elu": F.elu,
    "selu": F.selu,
    "mish": F.mish,
    "hardswish": F.hardswish,
    "softsign": F.softsign,
    "clamp": lambda x: x.clamp(min=0.1),
    "log sigmoid": F.logsigmoid,
    "sinh": torch.sinh,
    "asinh": torch.asinh,
    "maximum": lambda x: torch.maximum(x, 0.5 - x),
    "fmod": lambda x: torch.fmod(7 * x, x + 3.0),
    "power": lambda x: x.abs() ** 2.5,
    "reciprocal": lambda x: (1 + x * x) ** -1,
    "of nothing": lambda x: x + x**0,
}


@pytest.mark.sweep
@pytest.mark.parametrize("name", CHOOSING)
def test_functions_that_choose(name: str) -> None:
    """A number for each head, one for all, and the score: two choose between scalars, one a power."""
    f = CHOOSING[name]
    t = make_learned({"gate": (H,), "one": ()})
    close_of_learned(
        *compute_gradients(lambda t, s, b, h, q, k: s * f(t["gate"][h]) + f(t["one"]) * (k - q) / 16 + f(s), t),
        (*tensors(), *t.values()),
        bound=0.05,
    )  # of a sum over all pairs, which cancel


def test_a_learned_exponent() -> None:
    t = make_learned({"heads": (H,)})
    close_of_learned(*compute_gradients(lambda t, s, b, h, q, k: (1.5 + s * s) ** t["heads"][h], t), (*tensors(), *t.values()), bound=1e-2)


def test_a_sink_and_a_bias_in_half_precision() -> None:
    t = make_learned({"keys": (N,), "sink": (H,)}, torch.bfloat16)
    result, exact = compute_gradients(lambda t, s, b, h, q, k: s + t["keys"][k], t, sink=True)
    close_of_learned(result, exact, (*tensors(), *t.values()), bound=1e-2)


@pytest.mark.thorough("half a minute: whole verifications of backward kernels")
def test_kernels_of_bfloat16_are_verified() -> None:
    """Its largest numbers make logits whose differences float32 rounds by more than a weight's whole range."""
    table, pairs = (torch.randn(n, requires_grad=True) for n in ((4,), (4, 300, 300)))
    attention = cuir.attention(lambda s, b, h, q, k: s * torch.sigmoid(table[h]) + pairs[h, q, k], dtype=torch.bfloat16, head_dim=128)
    for part in attention.gradients(RequestedGradients(learned=(0, 1))).plan.parts:
        part.prove(Progress("learned"))


def test_a_bias_that_is_a_result_and_nothing_else_learns() -> None:
    """The gradient goes on to what the bias was made of; a tensor of integers, and one that the mask alone reads, have none."""
    y = torch.randn(B, N, generator=torch.Generator().manual_seed(3)).requires_grad_()
    limit = torch.tensor(30.0, requires_grad=True)
    q, k, v = (x.detach() for x in tensors())

    def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        bias = y[:, :, None] + 2 * y[:, None, :]
        score = lambda s, b, h, q, k: s + bias[b, q, k]  # noqa: E731
        if q.dtype == torch.float64:
            return dense(q, k, v, score, None)[0]  # type: ignore[no-any-return]
        mask = create_block_mask(lambda b, h, i, j: (i >= j) & (j < limit + 90.0), None, None, N, N, device="cpu")
        return flex_attention(q, k, v, score, mask, enable_gqa=True, backend="interpret")  # type: ignore[no-any-return]

    o = run(q, k, v)
    do = torch.randn(o.shape, generator=torch.Generator().manual_seed(4))
    result = torch.autograd.grad(o, (y, limit), do.half(), allow_unused=True)
    (exact,) = torch.autograd.grad(run(q.double(), k.double(), v.double()), y, do.double())
    assert result[1] is None
    close_of_learned(result[:1], (exact,), (y,))
    with torch.no_grad():
        assert not run(q, k, v).requires_grad


def test_under_torch_compile() -> None:
    sizes = {"line": (2 * N,), "gate": (H,), "sink": (H,)}

    def mod(t: Learned, s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        return s * torch.sigmoid(t["gate"][h]) + t["line"][q - k + N]

    torch._dynamo.reset()
    t = make_learned(sizes)
    ours, exact = compute_gradients(mod, t, sink=True, call=torch.compile(flex_attention, fullgraph=True, backend="aot_eager"))
    close_of_learned(ours, exact, (*tensors(), *t.values()), bound=1e-2)


def test_of_a_module_that_makes_its_mod_inside() -> None:
    class Biased(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bias = torch.nn.Parameter(torch.randn(H, N, generator=torch.Generator().manual_seed(5)))

        def forward(self, q: Any, k: Any, v: Any) -> Any:
            return flex_attention(q, k, v, lambda s, b, h, i, j: s + self.bias[h, j], enable_gqa=True, backend="interpret")

    module, inputs = Biased(), tensors()
    bias = module.bias

    def plain(q: Any, k: Any, v: Any) -> Any:
        return flex_attention(q, k, v, lambda s, b, h, i, j: s + bias[h, j], enable_gqa=True, backend="interpret")

    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    grads = [torch.autograd.grad((f(*inputs).float() ** 2).sum(), (bias, *inputs)) for f in (plain, compiled)]
    assert all(torch.equal(x, y) for x, y in zip(*grads, strict=True))


def test_of_the_explicit_form() -> None:
    bias = torch.randn(H, N, generator=torch.Generator().manual_seed(6)).requires_grad_()
    attention = cuir.attention(
        cuir.Specification("biased", None, lambda s, b, h, q, k: s + bias[h, k]), dtype=torch.float16, head_dim=D, verify="off"
    )
    inputs = tensors()

    def call(q: Any, k: Any, v: Any) -> Any:
        return attention(q, k, v, backend="interpret")

    grads = [
        torch.autograd.grad((f(*inputs).float() ** 2).sum(), bias)[0]
        for f in (call, torch.compile(call, fullgraph=True, backend="aot_eager"))
    ]
    assert grads[0].norm() > 0 and torch.equal(*grads)


def test_a_bias_that_is_written_to_before_the_backward_pass() -> None:
    bias = torch.zeros(N, requires_grad=True)
    o = flex_attention(*tensors(), lambda s, b, h, q, k: s * (1 + bias[k]), enable_gqa=True, backend="interpret")
    with torch.no_grad():
        bias.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        o.sum().backward()


def test_what_has_no_gradients() -> None:
    bias = torch.zeros(N, requires_grad=True)
    q, k, v = (x.detach() for x in tensors())
    with pytest.raises(CuirError, match="X109"):
        flex_attention(q, k, v, lambda s, b, h, q, k: s + bias[k], enable_gqa=True, normalize="relu", backend="interpret")


def run_in_order(warn_only: bool, **options: Any) -> torch.Tensor:
    """The gradient of a bias in PyTorch's deterministic mode."""
    bias = torch.zeros(N, requires_grad=True)

    def add_bias(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        return s + bias[k]

    torch.use_deterministic_algorithms(True, warn_only=warn_only)
    try:
        o = flex_attention(*tensors(), add_bias, enable_gqa=True, backend="interpret", verify="off", **options)
        (gradient,) = torch.autograd.grad(o.sum(), bias)
    finally:
        torch.use_deterministic_algorithms(False)
    return gradient


def test_dropout_in_a_fixed_order_is_refused() -> None:
    """Additions of kernels to a captured tensor's gradient have no order, and nothing else drops weights."""
    with pytest.raises(CuirError, match="U410"):
        run_in_order(False, dropout_p=0.5)
    with pytest.warns(UserWarning, match="open order"):
        assert run_in_order(True, dropout_p=0.5).norm() > 0


# ---- what a mod detaches
@torch.no_grad()
def round_to_halves(x: Any) -> Any:
    return torch.round(x * 2) / 2


def under_no_grad(t: Any) -> Any:
    def score_mod(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        with torch.no_grad():
            x = t[k] * 2
        return s + x

    return score_mod


DETACHING: dict[str, Callable[[Any], Any]] = {
    "a score": lambda t: lambda s, b, h, q, k: s.detach() * t[q],
    "an element": lambda t: lambda s, b, h, q, k: s * t[q].detach(),
    "an item": lambda t: lambda s, b, h, q, k: s * t[3].item() + t[k],
    "an item of a row": lambda t: lambda s, b, h, q, k: s * t[3:4].item() + t[5:6][None].item(),
    "a tensor": lambda t: lambda s, b, h, q, k: s * t.detach()[q],
    "some of both": lambda t: lambda s, b, h, q, k: s * t[k] + s.detach() * t[q].detach() + torch.detach(s),
    "within torch.no_grad": under_no_grad,
    "rounding that has a slope": lambda t: lambda s, b, h, q, k: s + (torch.round(s * 2) / 2 - s).detach() + t[k],
    "a function without gradients": lambda t: lambda s, b, h, q, k: s + round_to_halves(s) * t[k],
    "a choice": lambda t: lambda s, b, h, q, k: torch.where(q >= k, s * t[k].detach().sigmoid(), s.detach()),
    "everything": lambda t: lambda s, b, h, q, k: (s * t[k]).detach(),
}


@pytest.mark.sweep
@pytest.mark.parametrize("result", DETACHING.values(), ids=DETACHING)
def test_no_gradient_goes_through_what_is_detached(result: Callable[[Any], Any]) -> None:
    """Also where the mod was traced before in a call without gradients."""
    n = 40
    ours = [torch.randn(1, 2, n, 16, generator=torch.Generator().manual_seed(i)) for i in range(3)] + [torch.linspace(-1, 1, n)]
    exact = [x.double().requires_grad_() for x in ours]
    ours = [x.requires_grad_() for x in ours]
    with torch.no_grad():
        flex_attention(*ours[:3], result(ours[3]), backend="interpret")
    actual = torch.autograd.grad(flex_attention(*ours[:3], result(ours[3]), backend="interpret").square().sum(), ours, allow_unused=True)
    q, k = torch.arange(n)[:, None], torch.arange(n)
    weights = result(exact[3])(exact[0] @ exact[1].mT / 4, 0, 0, q, k).softmax(-1)
    expected = torch.autograd.grad((weights @ exact[2]).square().sum(), exact, allow_unused=True)
    for x, y in zip(actual, expected, strict=True):
        x, y = (torch.zeros(()) if g is None else g.double() for g in (x, y))
        assert (x - y).abs().max() <= 1e-4


N_OF_KINKS, D_OF_KINKS = 16, 32


def qkv(dtype: torch.dtype = torch.float32, heads: int = 1) -> list[torch.Tensor]:
    return list(torch.randn(3, 1, heads, N_OF_KINKS, D_OF_KINKS, generator=torch.Generator().manual_seed(0)).to(dtype).unbind())


def ours(*x: torch.Tensor, score_mod: Callable[..., Any]) -> Any:
    return flex_attention(*x, score_mod=score_mod, backend="interpret", verify="off")


@pytest.mark.sweep
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_parameter_that_begins_at_0(name: str) -> None:
    """One for all pairs, and one of a query, which are differentiated as scalars and as tiles."""
    f, (q, k, v) = FUNCTIONS[name], qkv()
    scalar, each = torch.zeros((), requires_grad=True), torch.zeros(N_OF_KINKS, requires_grad=True)

    def mod(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        return s + f(scalar) * j + f(each[i]) * (i - j)

    result, exact = (torch.autograd.grad((call(q, k, v, score_mod=mod) * q).sum(), (scalar, each)) for call in (ours, compute_reference))
    assert close(result[0], exact[0]) and close(result[1], exact[1])


@pytest.mark.sweep(4)
@pytest.mark.parametrize("name", ["logsigmoid", "asinh", "selu", "leaky_relu", "clamp", "maximum"])
def test_a_projection_of_zeros(name: str) -> None:
    """All scores are 0."""
    q, k, v = qkv()
    zero = torch.zeros_like(q).requires_grad_()
    mod = lambda s, b, h, i, j: FUNCTIONS[name](s)  # noqa: E731
    result, exact = (torch.autograd.grad((call(zero, k, v, score_mod=mod) * q).sum(), zero)[0] for call in (ours, compute_reference))
    assert close(result, exact, 1e-2)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_gates_of_zeros_in_half_precision(dtype: torch.dtype) -> None:
    gates = torch.zeros(2, N_OF_KINKS, requires_grad=True)
    mod = lambda s, b, h, i, j: s + F.logsigmoid(gates[h, j]) * (i - j)  # noqa: E731
    q, k, v = qkv(dtype, 2)
    (result,) = torch.autograd.grad((ours(q, k, v, score_mod=mod) * q).float().sum(), gates)
    (exact,) = torch.autograd.grad((compute_reference(q.float(), k.float(), v.float(), mod) * q).sum(), gates)
    assert close(result, exact, 0.02)


def test_gates_of_zeros_in_a_compiled_call() -> None:
    gates = torch.zeros(1, N_OF_KINKS, requires_grad=True)
    mod = lambda s, b, h, i, j: s + F.logsigmoid(gates[h, j]) * (i - j)  # noqa: E731
    q, k, v = qkv()
    compiled = torch.compile(ours, backend="aot_eager")
    result, exact = (torch.autograd.grad((call(q, k, v, score_mod=mod) * q).sum(), gates)[0] for call in (compiled, compute_reference))
    assert close(result, exact)


def test_the_norm_of_zeros() -> None:
    """A distance of a point to itself."""
    q, k, v = qkv()
    at = torch.randn(N_OF_KINKS, 3, generator=torch.Generator().manual_seed(1)).requires_grad_()
    (result,) = torch.autograd.grad(ours(q, k, v, score_mod=lambda s, b, h, i, j: s - (at[i] - at[j]).norm()).square().sum(), at)
    s = q @ k.mT / D_OF_KINKS**0.5 - (at[:, None] - at).norm(dim=-1)
    (exact,) = torch.autograd.grad((s.softmax(-1) @ v).square().sum(), at)
    assert close(result, exact)


@pytest.mark.parametrize("name", ["amax", "max"])
def test_ties_within_a_row(name: str) -> None:
    """Equal elements share the gradient of amax; with a place, as max(-1) gives it, the first one has it."""
    q, k, v = qkv()
    rows = torch.tensor([[1.0, 1.0, 0.0], [2.0, 2.0, 2.0]]).repeat(N_OF_KINKS // 2, 1).requires_grad_()
    of = (lambda r: r.amax(-1)) if name == "amax" else (lambda r: r.max(-1).values)
    (result,) = torch.autograd.grad((ours(q, k, v, score_mod=lambda s, b, h, i, j: s + of(rows[j])) * q).sum(), rows)
    (exact,) = torch.autograd.grad((compute_reference(q, k, v, lambda s, b, h, i, j: s + of(rows)) * q).sum(), rows)
    assert close(result, exact)


def test_the_case_of_a_gpu() -> None:
    begin_at_0("cpu", "logsigmoid", "float16", 40)
