"""Promises of flex_attention on a GPU, one function each; `test_flex.py` runs each in a process."""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.attention import flex_attention as torch_flex

from cuir import CuirError, Specification, create_block_mask, flex_attention, varlen_attention
from cuir.attn.kernels import attention_kernel
from cuir.runtime import compiled as api

Mod = Callable[..., Any]
SLACK = 2e-5


def tensors(heads: int, key_heads: int, m: int, n: int, dim: int, dtype: torch.dtype, batch: int = 2) -> tuple[torch.Tensor, ...]:
    g = torch.Generator("cuda").manual_seed(m + n)
    return tuple(
        torch.randn(batch, h, s, dim, device="cuda", generator=g).to(dtype) for h, s in ((heads, m), (key_heads, n), (key_heads, n))
    )


def causal(b: Any, h: Any, q: Any, k: Any) -> Any:
    return q >= k


def documents(seed: int, n: int, batch: int = 2) -> Mod:
    ids = torch.randint(0, 5, (batch, n), device="cuda", generator=torch.Generator("cuda").manual_seed(seed)).sort(-1).values
    return lambda b, h, q, k: ids[b, q] == ids[b, k]


def alibi(heads: int) -> Mod:
    slopes = torch.tensor([2.0 ** -(i + 1) for i in range(heads)], device="cuda")
    return lambda s, b, h, q, k: s + slopes[h] * (k - q)


def for_all_pairs(score: Mod) -> Mod:
    """A score_mod of one pair, as FlexAttention calls it, for a grid: scores [B, H, M, N] and indices that broadcast to it."""
    each = score
    for vector in range(4, 0, -1):
        each = torch.vmap(each, in_dims=(0, *(0 if i == vector else None for i in range(1, 5))))
    return lambda s, b, h, q, k: each(s, b.flatten(), h.flatten(), q.flatten(), k.flatten())


def check(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    score: Mod | None,
    mask: Mod | None,
    mine: Any = None,
    pairwise: bool = False,
    **options: Any,
) -> None:
    """Against float64: at most 1.5 x the error that PyTorch has in half precision. pairwise: the score_mod holds for one pair and not for a grid."""
    wanted_score = for_all_pairs(score) if pairwise and score is not None else score
    spec, scale = Specification("wanted", mask, wanted_score), options.get("scale") or q.shape[3] ** -0.5
    block_mask = mine if mine is not None else create_block_mask(mask, None, None, q.shape[2], k.shape[2]) if mask else None
    actual = flex_attention(q, k, v, score, block_mask, return_lse=True, **{"verify": "off", **options})
    assert isinstance(actual, tuple)
    k, v = (x.expand(q.shape[0], -1, -1, -1) for x in (k, v))
    expected, lse = spec.reference(q, k, v, scale)
    ours = (spec.half(q, k, v, scale)[0].double() - expected).norm()
    assert (actual[0].double() - expected).norm() <= 1.5 * ours + SLACK * expected.norm()
    torch.testing.assert_close(actual[1].double(), lse, atol=2e-3, rtol=1e-4)


def numbers() -> None:
    for dim, dtype in ((128, torch.float16), (64, torch.bfloat16)):
        for score, mask in (
            (None, None),
            (None, causal),
            (alibi(4), causal),
            (None, documents(0, 1000)),
            (None, lambda b, h, q, k: q >= k + 30),
        ):
            check(*tensors(4, 4, 700, 1000, dim, dtype), score, mask)  # type: ignore[misc]
    check(*tensors(8, 2, 300, 300, 128, torch.float16), None, causal, enable_gqa=True, scale=0.2)  # type: ignore[misc]


def largest_scores() -> None:
    q, k, v = tensors(4, 4, 700, 1000, 64, torch.float16)
    for mask in (causal, documents(0, 1000)):
        spec = Specification("wanted", mask, alibi(4))
        block_mask = create_block_mask(mask, None, None, 700, 1000)
        o, aux = flex_attention(q, k, v, alibi(4), block_mask, return_aux=torch_flex.AuxRequest(max_scores=True), verify="off")
        torch.testing.assert_close(aux.max_scores.double(), spec.most(q, k, 64**-0.5), atol=1e-3, rtol=1e-5)
        torch.testing.assert_close(o, flex_attention(q, k, v, alibi(4), block_mask, verify="off"))


def shared_keys() -> None:
    q = tensors(4, 4, 300, 300, 64, torch.float16)[0].repeat(3, 1, 1, 1)
    k, v = (x[:1] for x in tensors(4, 2, 300, 1000, 64, torch.float16)[1:])
    check(q, k, v, None, lambda b, h, i, j: i + 100 * b >= j, enable_gqa=True)


def verified_once() -> None:
    check(*tensors(2, 2, 300, 300, 64, torch.float16), None, causal, verify="quick")  # type: ignore[misc]
    rows = torch.randn(2, 300, 16, device="cuda") / 4  # a mod of rows is compared with what it traces to, pair by pair
    check(*tensors(2, 2, 300, 300, 64, torch.float16), lambda s, b, h, i, j: s + (rows[h, i] * rows[h, j]).sum(-1), None, verify="quick")  # type: ignore[misc]
    side = 16  # divided by what some other side would make 0
    check(
        *tensors(2, 2, 256, 256, 64, torch.float16), None, lambda b, h, i, j: i // 4 % (side // 4) >= j // 4 % (side // 4), verify="quick"
    )  # type: ignore[misc]


def block_masks_of_pytorch() -> None:
    q, k, v = tensors(4, 4, 640, 640, 64, torch.float16)
    for mask, batches in ((causal, None), (documents(1, 640), 2)):  # blocks of one batch would be obeyed in the other
        check(q, k, v, None, mask, torch_flex.create_block_mask(mask, batches, None, 640, 640, device="cuda"))
    count, first = torch.full((1, 1, 5), 2, dtype=torch.int32, device="cuda"), torch.arange(5, device="cuda").int().expand(1, 1, 5, 5)
    block_mask = torch_flex.BlockMask.from_kv_blocks(count, first.contiguous(), mask_mod=causal)
    check(q, k, v, None, lambda b, h, i, j: (i >= j) & (j < 256), block_mask)


def one_kernel() -> None:
    compilations = []
    compile = api.compile

    def count_compilation(*args: Any, **named: Any) -> Any:
        compilations.append(named)
        return compile(*args, **named)

    api.compile = count_compilation
    for seed, (m, n) in enumerate([(512, 512), (512, 512), (700, 333), (90, 1500)]):
        check(*tensors(4, 4, m, n, 64, torch.float16), None, documents(seed, max(m, n)))  # type: ignore[misc]
    assert len(compilations) == len({str(consts) for consts in compilations}), "a kernel was compiled twice"
    assert len(attention_kernel._SETTINGS) == 1


def errors() -> None:
    q, k, v = tensors(2, 2, 64, 64, 64, torch.float16)
    slopes = torch.ones(2)
    for code, call in (
        ("U502", lambda: flex_attention(q.cpu(), k.cpu(), v.cpu())),
        ("U407", lambda: flex_attention(q, k.cpu(), v)),
        ("U407", lambda: flex_attention(q, k, v, lambda s, b, h, i, j: s * slopes[h])),
    ):
        with pytest.raises(CuirError) as raised:
            call()
        assert raised.value.diagnostics[0].code == code


def reads_outside() -> None:
    q, k, v = tensors(2, 2, 200, 200, 64, torch.float16)
    short, starts, group = torch.zeros(199, device="cuda"), torch.arange(4, device="cuda") * 50, torch.arange(200, device="cuda") // 50
    window = torch.tensor(40, device="cuda")  # without dims: read on the device
    check(q, k, v, None, lambda b, h, i, j: (j >= starts[group[i]]) & (i - j <= window))
    for code, mod in (("U416", lambda s, b, h, i, j: s + short[j]), ("U416", lambda s, b, h, i, j: s + starts[group[i] + 1])):
        with pytest.raises(CuirError, match=code):
            flex_attention(q, k, v, mod, verify="off")
    wide = torch.full((200,), 2**40, device="cuda")
    with pytest.raises(CuirError, match="U417"):
        flex_attention(q, k, v, lambda s, b, h, i, j: s + wide[j], verify="off")


def compiled() -> None:
    """torch.compile, with inductor: one graph, other data without another one, numbers as without it."""
    torch._dynamo.reset()
    graphs = []

    def block(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, score: Mod | None, mask: Any) -> torch.Tensor:
        o = flex_attention(q * 1.0, k, v, score, mask, verify="off")
        assert isinstance(o, torch.Tensor)
        return o.transpose(1, 2).flatten(2) * 2.0

    def count_graph(graph: Any, inputs: Any) -> Any:
        from torch._inductor.compile_fx import compile_fx

        graphs.append(graph)
        return compile_fx(graph, inputs)

    call = torch.compile(block, fullgraph=True, backend=count_graph)
    q, k, v = tensors(4, 4, 512, 512, 128, torch.bfloat16)
    for seed in range(3):
        score, mask = alibi(4), create_block_mask(documents(seed, 512), None, None, 512, 512)
        with torch.no_grad():
            expected = block(q, k, v, score, mask)
            torch.testing.assert_close(call(q, k, v, score, mask), expected, atol=1e-2, rtol=1e-2)
    assert len(graphs) == 1
    overhead = torch.compile(block, fullgraph=True, mode="reduce-overhead")
    mask = create_block_mask(causal, None, None, 512, 512)
    with torch.no_grad():
        expected = block(q, k, v, None, mask)
        for _ in range(4):
            torch.testing.assert_close(overhead(q, k, v, None, mask), expected, atol=1e-2, rtol=1e-2)


def learned() -> None:
    """Gradients of captured tensors, of a sink, and of the inputs beside them, against float64 autograd of the dense formula; a bias of pairs may be large, so lengths are short."""
    gradients_of_all(64, torch.float16, 2e-3)
    gradients_of_all(128, torch.bfloat16, 1.6e-2)


def gradients_of_all(dim: int, dtype: torch.dtype, bound: float) -> None:
    q, k, v = (x.requires_grad_() for x in tensors(4, 2, 300, 300, dim, dtype))
    g = torch.Generator("cuda").manual_seed(1)
    sizes = {"pairs": (4, 300, 300), "line": (600,), "keys": (2, 300), "gate": (4,), "sink": (4,)}
    t = {name: torch.randn(size, device="cuda", generator=g).requires_grad_() for name, size in sizes.items()}
    pairs, line, keys, gate, sink = t.values()

    def score(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        return s * torch.sigmoid(gate[h]) + line[i - j + 300] + pairs[h, i, j] + keys[b, j]

    mask = create_block_mask(causal, None, None, 300, 300)
    leaves = (q, k, v, *t.values())
    outputs = flex_attention(q, k, v, score, mask, enable_gqa=True, return_lse=True, sink=sink)
    ends = [torch.randn(x.shape, device="cuda", generator=g).to(x.dtype) for x in outputs]
    result = torch.autograd.grad(outputs, leaves, ends)
    wide = [x.detach().double().requires_grad_() for x in leaves]
    q, k, v, pairs, line, keys, gate, sink = wide
    at = [torch.arange(n, device="cuda").view([-1 if i == d else 1 for i in range(4)]) for d, n in enumerate((2, 4, 300, 300))]
    k, v = (x.repeat_interleave(2, 1) for x in (k, v))
    s = score(q @ k.mT * dim**-0.5, *at).masked_fill(at[2] < at[3], -torch.inf)
    lse = torch.logaddexp(s.logsumexp(-1), sink[:, None])
    exact = torch.autograd.grad(((s - lse[..., None]).exp() @ v, lse), wide, [x.double() for x in ends])
    for name, x, y in zip(("q", "k", "v", *t), result, exact, strict=True):
        assert (x.double() - y).norm() <= bound * (5 if name == "sink" else 1) * y.norm(), name


def captured() -> None:
    """A CUDA graph: refused cold, replayed with other inputs, and after what the call was prepared with was forgotten."""
    q, k, v = tensors(4, 4, 700, 700, 128, torch.float16)
    mod = documents(3, 700)
    mask = create_block_mask(mod, None, None, 700, 700)
    cold = torch.cuda.CUDAGraph()
    with pytest.raises(CuirError, match="U415"), torch.cuda.graph(cold):
        flex_attention(q, k, v, None, mask, verify="off")
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        flex_attention(q, k, v, None, mask, verify="off")
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        o, lse = flex_attention(q, k, v, None, mask, return_lse=True, verify="off")  # type: ignore[misc]
    for seed in range(8):  # more problems than are kept
        flex_attention(q, k, v, None, create_block_mask(documents(10 + seed, 700), None, None, 700, 700), verify="off")
    for seed in range(3):
        for x in (q, k, v):
            x.copy_(torch.randn(x.shape, device="cuda", generator=torch.Generator("cuda").manual_seed(seed)))
        o.zero_()
        graph.replay()
        torch.cuda.synchronize()
        repeated, again_lse = flex_attention(q, k, v, None, mask, return_lse=True, verify="off")  # type: ignore[misc]
        assert torch.equal(o, repeated) and torch.equal(lse, again_lse)


def side_streams() -> None:
    """Calls on two streams at once, each after work of its own stream; what the first one prepares on its stream, the other one waits for."""
    streams, results = [torch.cuda.Stream() for _ in range(2)], []
    mod = documents(5, 4096, batch=1)
    spec, mask = Specification("wanted", mod), create_block_mask(mod, None, None, 4096, 4096)
    with torch.cuda.stream(streams[0]):
        torch.cuda._sleep(100_000_000)
    for step in range(6):
        with torch.cuda.stream(streams[step % 2]):
            q, k, v = (x * (1 + step / 8) for x in tensors(2, 2, 4096, 4096, 64, torch.float16, batch=1))
            results.append((q, k, v, flex_attention(q, k, v, None, mask, verify="off")))
    torch.cuda.synchronize()
    for q, k, v, o in results:
        expected = spec.reference(q, k, v, 0.125)[0]
        ours = (spec.half(q, k, v, 0.125)[0].double() - expected).norm()
        assert (o.double() - expected).norm() <= 1.5 * ours + SLACK * expected.norm()  # type: ignore[union-attr]


def warm_calls() -> None:
    """Calls of one mask, warm from the second on: other tensors, one tensor three times, starts that are not aligned, keys for all batches, other strides."""
    mask = create_block_mask(causal, None, None, 256, 256)
    room = torch.randn(2, 2, 256, 72, device="cuda").half()
    for _ in range(2):
        for _ in range(2):
            check(*tensors(2, 2, 256, 256, 64, torch.float16), None, causal, mask)
        x = tensors(2, 2, 256, 256, 64, torch.float16)[0]
        check(x, x, x, None, causal, mask)
        check(x, x[:1], x[:1], None, causal, mask)
        check(x.transpose(1, 2).contiguous().transpose(1, 2), x, x, None, causal, mask)
        for start in (0, 8, 4):
            check(*(room[..., start : start + 64] + 0 * i if i else room[..., start : start + 64] for i in range(3)), None, causal, mask)


def _median(call: Callable[[], Any], calls: int = 400) -> float:
    """Host time of a warm call, in microseconds."""
    times = []
    for i in range(calls):
        if i % 50 == 0:
            torch.cuda.synchronize()  # a full queue of launches would make the host wait
        start = time.perf_counter()
        call()
        times.append((time.perf_counter() - start) * 1e6)
    torch.cuda.synchronize()
    return statistics.median(times[50:])


def host_cost() -> dict[str, float]:
    """Measure the microseconds of a warm call for several kinds of mods, beside the kernel's own call.

    In turns, the best of three: a host's speed changes.
    """
    q, k, v = tensors(2, 2, 128, 128, 64, torch.float16)
    explicit = attention_kernel.attention(documents(0, 128), head_dim=64, verify="off")
    ready = explicit.ready(q, k, v, None, "auto")
    assert ready.kernel is not None
    kernel, o, arguments = ready.kernel, torch.empty_like(q), ready.arguments
    calls: dict[str, Callable[[], Any]] = {"kernel": lambda: kernel(Q=q, K=k, V=v, O=o, **arguments)}
    for name, mask, score in (("causal", causal, None), ("documents", documents(0, 128), None), ("alibi causal", causal, alibi(2))):
        block_mask = create_block_mask(mask, None, None, 128, 128)
        calls[name] = functools.partial(flex_attention, q, k, v, score, block_mask, verify="off")
    calls["explicit"] = lambda: explicit(q, k, v)
    slopes = torch.rand(2, device="cuda")
    calls["a lambda made for each call"] = lambda: flex_attention(q, k, v, lambda s, b, h, i, j: s * slopes[h], verify="off")
    torch._dynamo.reset()
    block_mask = create_block_mask(documents(0, 128), None, None, 128, 128)
    compiled = torch.compile(lambda q, k, v: flex_attention(q, k, v, None, block_mask, verify="off"), fullgraph=True)
    calls["compiled"] = lambda: compiled(q, k, v)
    with torch.no_grad():
        for call in calls.values():
            call()
        rounds = [{name: _median(call) for name, call in calls.items()} for _ in range(3)]
    return {name: min(r[name] for r in rounds) for name in calls}


def first_result(dim: int) -> dict[str, float]:
    """Seconds from a new specification to its first result, verification and nvcc included, in a cache folder of its own; then of its second call."""
    q, k, v = tensors(4, 4, 1024, 1024, dim, torch.bfloat16)
    torch.cuda.synchronize()
    mod, cap = documents(0, 1024), 30.0
    times = []
    for _ in range(2):
        start = time.perf_counter()
        block_mask = create_block_mask(lambda b, h, i, j: mod(b, h, i, j) & (i >= j), None, None, 1024, 1024)
        flex_attention(q, k, v, lambda s, b, h, i, j: cap * torch.tanh(s / cap), block_mask)
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return {"first": times[0], "second": times[1]}


class Packed:
    """Random lengths in one buffer, causal; with what each sequence gives by itself."""

    def __init__(self) -> None:
        self.lengths = [0, 700, 1, 64, 129, 1300, 0]
        self.cu = torch.tensor([0, *self.lengths], device="cuda").cumsum(0).to(torch.int32)
        g = torch.Generator("cuda").manual_seed(1)
        self.q, self.k, self.v = (torch.randn(sum(self.lengths), heads, 128, device="cuda", generator=g).half() for heads in (8, 2, 2))

    def call(self) -> torch.Tensor:
        most = max(self.lengths)
        o: torch.Tensor = varlen_attention(self.q, self.k, self.v, self.cu, self.cu, most, most, causal=True, enable_gqa=True)
        return o

    def close(self, o: torch.Tensor, first: int, n: int) -> None:
        q, k, v = (x[first : first + n].transpose(0, 1)[None].double() for x in (self.q, self.k, self.v))
        expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)[0].transpose(0, 1)
        torch.testing.assert_close(o[first : first + n].double(), expected, atol=4e-3, rtol=1e-2)


def packed_sequences() -> None:
    result = Packed()
    o = result.call()
    for first, n in zip(result.cu.tolist(), result.lengths):
        result.close(o, first, n)


def packed_sequences_in_a_graph() -> None:
    """Lengths that are written in place; NaN and infinities in other sequences change no bit."""
    result = Packed()
    result.call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        o = result.call()
    result.cu.copy_(torch.tensor([0, 40, 40, 900, 1000, 1001, 1600, sum(result.lengths)]))
    graph.replay()
    result.close(o, 40, 860)
    before = o[40:900].clone()
    for x in (result.q, result.k, result.v):
        x[:40], x[900:] = torch.nan, torch.inf
    graph.replay()
    assert torch.equal(before, o[40:900])


def captured_state() -> None:
    """A captured tensor that was written to before the backward pass raises, and so does a second derivative; warm passes, too."""
    q, k, v = (x.requires_grad_() for x in tensors(2, 2, 200, 200, 64, torch.bfloat16))
    ids = torch.arange(200, device="cuda") // 50
    mask = create_block_mask(lambda b, h, q, k: ids[q] == ids[k], None, None, 200, 200)
    for _ in range(3):
        o = flex_attention(q, k, v, None, mask)
        torch.autograd.grad(o.float().square().sum(), (q, k, v))  # type: ignore[union-attr]
        o = flex_attention(q, k, v, None, mask)
        ids.copy_(torch.arange(200, device="cuda") // 50)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            torch.autograd.grad(o.float().square().sum(), (q, k, v))  # type: ignore[union-attr]
    o = flex_attention(q, k, v, None, mask)
    (dq,) = torch.autograd.grad(o.float().square().sum(), q, create_graph=True)  # type: ignore[union-attr]
    with pytest.raises(RuntimeError, match="no second derivatives"):
        torch.autograd.grad(o.float().sum() + dq.float().square().sum(), q)  # type: ignore[union-attr]


def captured_names() -> None:
    """Names that CUDA, PyTorch and this package use themselves, forward and backward."""
    q, k, v = (x.requires_grad_() for x in tensors(2, 2, 130, 130, 64, torch.float16))
    step, self, out, asm, int32_t, threadIdx, x, x_d0 = (torch.linspace(-1, i, 130, device="cuda").requires_grad_() for i in range(8))

    def score(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        return s + step[k] + self[k] + out[k] + asm[k] + int32_t[k] + threadIdx[k] + x[k] + x_d0[k]

    learned = (step, self, out, asm, int32_t, threadIdx, x, x_d0)
    o = flex_attention(q, k, v, score)
    result = torch.autograd.grad(o.double().square().sum(), (q, *learned))  # type: ignore[union-attr]
    bias: torch.Tensor = sum(learned).double()  # type: ignore[union-attr, assignment]
    w = (q.double() @ k.double().mT / 8 + bias).softmax(-1) @ v.double()
    for a, b in zip(result, torch.autograd.grad(w.square().sum(), (q, *learned)), strict=True):
        torch.testing.assert_close(a.double(), b.double(), atol=2e-2 * float(b.abs().max()), rtol=2e-2)


def captured_float64() -> None:
    """Refused where rounding changes which pairs count, else what PyTorch gives."""
    times = 1.7e9 + torch.arange(300, device="cuda", dtype=torch.float64) * 7
    gates = torch.rand(300, device="cuda", dtype=torch.float64)
    q, k, v = tensors(2, 2, 300, 300, 64, torch.float16)
    with pytest.raises(CuirError, match="U417"):
        flex_attention(q, k, v, None, create_block_mask(lambda b, h, q, k: (times[q] - times[k]).abs() < 20, None, None, 300, 300))
    near = times - times[0]
    check(q, k, v, lambda s, b, h, q, k: s + gates[k], lambda b, h, q, k: ((near[q] - near[k]).abs() < 2000) & (gates[k] > 0.25))


def nested_made_apart() -> None:
    """Key and value of equal lengths are compared once; a warm call waits for nothing."""
    parts = [torch.randn(n, 2, 64, device="cuda", dtype=torch.float16) for n in (50, 90)]
    q, k, v = (torch.nested.nested_tensor(parts, layout=torch.jagged).transpose(1, 2) for _ in range(3))
    o = flex_attention(q, k, v)
    torch.cuda.set_sync_debug_mode("error")
    try:
        repeated = flex_attention(q, k, v)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(o._values, repeated._values)  # type: ignore[union-attr]
    for part, actual in zip(parts, o.transpose(1, 2).unbind(), strict=True):  # type: ignore[union-attr]
        x = part.transpose(0, 1).double()
        expected = (x @ x.mT / 8).softmax(-1) @ x
        torch.testing.assert_close(actual.transpose(0, 1).double(), expected, atol=4e-3, rtol=1e-2)
