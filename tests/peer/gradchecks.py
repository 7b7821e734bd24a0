"""Log-sum-exp and maxima beside the result, and the numeric checks of gradients, which PyTorch does in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tests.peer.cases import ATTENTION, BACKWARD, INPUTS, scenario
from tests.peer.judging import close, expect
from tests.peer.mods import DTYPES, FAST, SCORE_MODS, causal, identity, name_mod, squared, times_two, trig, trig2
from tests.peer.scores import B, D, H, S, block_mask
from tests.peer.trial import Trial, attention

LSE, CHECKS = "log-sum-exp", "gradients in float64"


@scenario(ATTENTION, LSE, gradients=INPUTS, dtype=DTYPES, score_mod={"_identity": identity, "_causal": causal})
def logsumexp_correctness(t: Trial, dtype: torch.dtype, score_mod: Any) -> None:
    q, k, v = t.qkv((B, H, S, D), dtype=dtype)
    o, lse = t.compile(attention(score_mod, return_lse=True)(t.ours))(q, k, v)
    golden = attention(score_mod, return_lse=True)(t.torch_api)(q.double(), k.double(), v.double())
    expect(lse.dtype == torch.float32, f"LSE is {lse.dtype}")
    close(o, golden[0], 2e-2)
    close(lse, golden[1], 2e-2, "LSE")


@scenario(ATTENTION, LSE, gradients=INPUTS)
def logsumexp_only_return(t: Trial) -> None:
    def make(api: Any) -> Callable[..., Any]:
        flex_attention = api.flex_attention
        return lambda q, k, v: flex_attention(q, k, v, identity, return_lse=True)[1] * 2

    t.judge(make, t.qkv((B, H, S, D)), names=("LSE",))


@scenario(ATTENTION, LSE)
def force_write_lse(t: Trial) -> None:
    from tests.peer.paging import judge_paged

    tensors = t.qkv((2, 2, 128, 16))
    t.judge(attention(return_lse=True), tensors)
    judge_paged(t, identity, tensors)


@scenario(ATTENTION, LSE, gradients=BACKWARD, backend=("flex_attention", "flex_decode", "eager"))
def lse_masked_output(t: Trial, backend: str) -> None:
    """A window and what lies before it, attended to apart and put together by their LSE: causal attention."""
    n = 96 if backend == "flex_decode" else 196
    options = {} if backend == "eager" else {"kernel_options": {"FORCE_USE_FLEX_ATTENTION": backend == "flex_attention"}}
    tensors = t.qkv((2, 2, n, 64))

    def ours(q: Any, k: Any, v: Any) -> Any:
        results = [part(q, k, v) for part in parts]
        most = torch.maximum(*(lse for _, lse in results))
        weights = [torch.exp(lse - most)[..., None] for _, lse in results]
        return sum(o * w for (o, _), w in zip(results, weights)) / sum(weights)

    def attend_by_pytorch(q: Any, k: Any, v: Any) -> Any:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    mods = (lambda b, h, q, kv: (q >= kv) & (q - kv <= 64), lambda b, h, q, kv: (q >= kv) & (q - kv > 64))
    parts = [attention(mask=block_mask(t, mod, None, None, n, n), return_lse=True, **options)(t.ours) for mod in mods]
    if backend != "eager":
        parts = [t.compile(part, fullgraph=True) for part in parts]
    t.judge_found(ours, attend_by_pytorch, tensors)


AUX = "return_aux"


@scenario(ATTENTION, AUX, gradients=BACKWARD, dtype=FAST, score_mod=SCORE_MODS)
def return_max(t: Trial, dtype: torch.dtype, score_mod: Any) -> None:
    tensors = t.qkv((2, 2, 243, 16), dtype=dtype)

    def make_calls(*names: str) -> tuple[Callable[..., Any], Callable[..., Any]]:
        request = t.ours.AuxRequest(**dict.fromkeys(names, True))
        return lambda q, k, v: t.ours.flex_attention(q, k, v, score_mod, return_aux=request), lambda q, k, v: compute_expected(
            names, score_mod, q, k, v
        )

    def run(call: Callable[..., Any], reference: Callable[..., Any], *names: str) -> Any:
        def flat(q: Any, k: Any, v: Any) -> Any:
            o, aux = call(q, k, v)
            return (o, *(getattr(aux, name) for name in names))

        return t.judge_found(flat, reference, tensors, names=("O", *names))

    for names in (("max_scores",), ("lse", "max_scores")):
        call, reference = make_calls(*names)
        run(call, reference, *names)
    call, reference = make_calls("max_scores")
    _, largest = run(t.compile(call, fullgraph=True), reference, "max_scores")
    expect(largest.shape == (2, 2, 243), f"max_scores has shape {list(largest.shape)}")
    expect(not largest.requires_grad, "max_scores requires a gradient")


def compute_expected(names: tuple[str, ...], score_mod: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """O and what is asked for, by hand: PyTorch's eager call has no max_scores on a CPU."""
    from torch.nn.attention.flex_attention import flex_attention

    o, lse = flex_attention(q, k, v, score_mod, return_lse=True)
    scores = (q @ k.transpose(-2, -1)).to(lse.dtype) * q.shape[-1] ** -0.5
    mod = score_mod
    for axis in range(4):  # the keys first, then queries, heads, batches
        axes = [None] * 4
        axes[3 - axis] = 0
        mod = torch.vmap(mod, (0, *axes))
    at = [torch.arange(n, device=q.device) for n in scores.shape]
    largest = mod(scores, *at).amax(-1).detach()
    return (o, *({"lse": lse, "max_scores": largest}[name] for name in names))


@scenario(ATTENTION, AUX, gradients=INPUTS, dtype=FAST, score_mod=SCORE_MODS)
def return_aux(t: Trial, dtype: torch.dtype, score_mod: Any) -> None:
    q, k, v = t.qkv((2, 2, 243, 16), dtype=dtype)
    call = t.compile(t.ours.flex_attention, fullgraph=True)
    alone = call(q, k, v, score_mod)
    expect(isinstance(alone, torch.Tensor), f"a call that asks for nothing gives a {type(alone).__name__}")
    lse = None
    for description in ({"lse": True}, {"max_scores": True}, {"lse": True, "max_scores": True}, {}):
        _, aux = call(q, k, v, score_mod, return_aux=t.ours.AuxRequest(**description))
        expect(isinstance(aux, t.ours.AuxOutput), f"it gives a {type(aux).__name__}")
        for name in ("lse", "max_scores"):
            x = getattr(aux, name)
            expect((x is not None) == (name in description), f"{name} is {'missing' if x is None else 'there'}, asked for {description}")
            expect(x is None or (x.shape == (2, 2, 243) and x.dtype == torch.float32), f"{name} is not f32 [2, 2, 243]")
        lse = aux.lse if lse is None else lse
    o, legacy = t.compile(t.ours.flex_attention)(q, k, v, score_mod, return_lse=True)
    close(o, alone, 1e-6)
    close(legacy, lse, 1e-6, "LSE")


# ---- torch.autograd.gradcheck, which needs float64
def check_gradients(
    t: Trial,
    score_mod: Any,
    backend: str = "aot_eager",
    mask: Any = None,
    shape: tuple[int, ...] = (2, 2, 11, 4),
    output: int | None = None,
) -> None:
    tensors = t.qkv(shape, dtype=torch.float64)

    def make(api: Any) -> Callable[..., Any]:
        call = attention(score_mod, mask, return_lse=output is not None)(api)
        return call if output is None else lambda q, k, v: call(q, k, v)[output]

    t.judge_found(torch.compile(make(t.ours), backend=backend, fullgraph=True), make(t.torch_api), tensors)
    if t.gradients:
        expect(torch.autograd.gradcheck(make(t.ours), tensors, raise_exception=True), "gradcheck")


CHECKED = {"_identity": identity, "_causal": causal, "_times_two": times_two, "_squared": squared, "_trig": trig, "_trig2": trig2}


@scenario(ATTENTION, CHECKS, gradients=BACKWARD, score_mod=CHECKED)
def aot_eager_gradcheck(t: Trial, score_mod: Any) -> None:
    check_gradients(t, score_mod)


@scenario(ATTENTION, CHECKS, gradients=BACKWARD)
def differentiable_logsumexp_gradcheck(t: Trial) -> None:
    check_gradients(t, None, output=1)


@scenario(ATTENTION, CHECKS, gradients=BACKWARD, score_mod_name=("_head_offset",), mode=("eager", "aot_eager"))
def captured_score_mod_aot_eager_gradcheck(t: Trial, score_mod_name: str, mode: str) -> None:
    of_head = torch.rand(H, device=t.device, dtype=torch.float64)
    check_gradients(t, name_mod(score_mod_name, lambda score, b, h, q, kv: score * of_head[h]), mode)


@scenario(ATTENTION, CHECKS, gradients=BACKWARD, mode=("eager", "aot_eager"))
def document_masking_edge_case(t: Trial, mode: str) -> None:
    document = (torch.arange(128, device=t.device) >= 64).to(torch.int32).expand(2, 128).contiguous()
    mask = block_mask(t, lambda b, h, q, kv: document[b, q] == document[b, kv], 2, 1, 128, 128)
    tensors = t.qkv((2, 1, 128, 4), dtype=torch.float64)
    make = attention(mask=mask)
    t.judge_found(torch.compile(make(t.ours), backend=mode, fullgraph=True), make(t.torch_api), tensors)


@scenario(ATTENTION, LSE, gradients=BACKWARD)
def differentiable_logsumexp_compiled(t: Trial) -> None:
    weights = torch.randn(2, 2, 128, device=t.device)
    tensors = t.qkv((2, 2, 128, 64))
    t.judge(attention(return_lse=True), tensors)
    if t.gradients:
        losses = []
        for call in (t.compile(t.ours.flex_attention), t.torch_api.flex_attention):
            o, lse = call(*tensors, return_lse=True)
            losses.append(torch.autograd.grad(o.mean() + (lse * weights).sum(), tensors))
        for name, item, second in zip(("dQ", "dK", "dV"), *losses):
            close(item, second, 0.1, name)


@scenario(ATTENTION, "precision", gradients=BACKWARD)
def float32_matmul_precision(t: Trial) -> None:
    tensors = [t.wanting(torch.full((2, 2, 128, 32), x, device=t.device)) for x in (0.2, 0.3, 0.4)]
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("highest")
        t.judge(attention(times_two), tensors, fullgraph=True)
    finally:
        torch.set_float32_matmul_precision(before)


@scenario(ATTENTION, LSE, gradients=BACKWARD)
def small_q_kv_len(t: Trial) -> None:
    tensors = [t.wanting(torch.ones(1, 1, 1, 16, device=t.device)) for _ in range(3)]
    t.judge(attention(return_lse=True, kernel_options={"FORCE_USE_FLEX_ATTENTION": True}), tensors, fullgraph=True)
