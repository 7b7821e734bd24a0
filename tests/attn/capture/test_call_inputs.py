"""What a call may be given: each mistake has its message, before anything is compiled or launched."""

from __future__ import annotations

import enum
import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.attention.flex_attention import flex_attention as flex_attention_of_pytorch

from cuir import CuirError, attention, create_block_mask, flex_attention
from cuir.testing import assert_attention_matches

M, N, D = 40, 60, 64


def tensors(heads: int = 4, m: int = M, n: int = N) -> list[torch.Tensor]:
    g = torch.Generator().manual_seed(0)
    return [torch.randn(1, heads, s, D, generator=g).half() for s in (m, n, n)]


Q, K, V = tensors()


def causal(b: Any, h: Any, q: Any, k: Any) -> Any:
    return q >= k


def call(q: Any = Q, k: Any = K, v: Any = V, score: Any = None, mask: Any = None, **options: Any) -> Any:
    return flex_attention(q, k, v, score, mask, **{"backend": "interpret", **options})


def make_mask(mod: Any, m: int = M, n: int = N, heads: int | None = None) -> Any:
    return create_block_mask(mod, None, heads, m, n, device="cpu")


def branches(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return s if s > 0 else -s


def three(b: Any, h: Any, q: Any) -> Any:
    return q > 0


def writes(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    SHORT[0] = 3.0
    return s + SHORT[k]


S, VAST, SPARSE, WAVES = torch.ones(N), -1e39, torch.ones(N).to_sparse(), torch.ones(N, dtype=torch.complex64)
ELSEWHERE, LEARNED, SHORT = torch.zeros(N, device="meta"), torch.zeros(N, requires_grad=True), torch.zeros(N - 1)

# name, code, what the message says, what its hint says, the call
BAD: list[tuple[str, str, str, str, Callable[[], Any]]] = [
    ("fewer key heads", "U411", "query has 4 heads, key and value have 2", "enable_gqa=True", lambda: call(k=K[:, :2], v=V[:, :2])),
    ("heads that do not divide", "U411", "must be a multiple of the key heads, found 4 and 3", "", lambda: call(k=K[:, :3], v=V[:, :3], enable_gqa=True)),
    ("no tensor", "U403", "`value` must be a tensor, found list", "", lambda: call(v=[1])),
    ("a sparse tensor", "U403", "`key` must be a dense tensor", "key.to_dense()", lambda: call(k=K.to_sparse())),
    ("rank", "U405", "`query` must have 4 dims (batch, heads, length, head dim), found shape (4, 40, 64)", "query.unsqueeze(0)", lambda: call(q=Q[0])),
    ("float64", "U109", "`query` must be float16, bfloat16 or float32, found float64", "query.float()", lambda: call(Q.double(), K.double(), V.double())),
    ("two dtypes", "U404", "`key` must have the dtype of `query`, float16, found bfloat16", "key.to(query.dtype)", lambda: call(k=K.bfloat16())),
    ("two devices", "U407", "`key` must be on the device of `query`, cpu, found meta", "key.to(query.device)", lambda: call(k=K.to("meta"))),
    ("torch.func", "U403", "`query` is within torch.func", "torch.autograd.grad", lambda: torch.func.grad(lambda q: call(q).float().sum())(Q)),
    ("what is captured within torch.func", "U403", "what a mod captures is within torch.func", "batch", lambda: torch.vmap(lambda x: call(score=lambda s, b, h, q, k: s + x[k]))(torch.zeros(1, 400))),
    ("numbers of some", "U407", "`key` must be on the device of `query`, meta, found cpu", "key.to(query.device)", lambda: call(q=Q.to("meta"))),
    ("batch", "U408", "`key` must have the batch size of `query`, 3, or 1 for all batches, found 2", "", lambda: call(Q.repeat(3, 1, 1, 1), K.repeat(2, 1, 1, 1), V.repeat(2, 1, 1, 1))),
    ("lengths", "U408", "key and value must have the same heads and length", "", lambda: call(v=V[:, :, :9])),
    ("head dim", "U110", "the head dim of query and key must be from 1 to 576, found 577", "PyTorch's flex_attention", lambda: call(*(torch.zeros(1, 1, 4, 577).half() for _ in range(3)))),
    ("head dim of V", "U110", "the head dim of value must be from 1 to 576, found 0", "", lambda: call(v=V[..., :0])),
    ("another head dim of K", "U408", "query and key must have one head dim, found 64 and 32", "", lambda: call(k=K[..., :32])),
    ("8-bit floats", "U109", "`query` must be float16, bfloat16 or float32, found float8_e4m3fn", "q_scale=, k_scale= and v_scale=", lambda: call(*(x.to(torch.float8_e4m3fn) for x in (Q, K, V)))),
    ("gradient", "X109", "there are gradients of a softmax, found normalize='relu'", "torch.no_grad()", lambda: call(*(x.clone().requires_grad_() for x in (Q, K, V)), normalize="relu")),
    ("scale", "U413", "scale must be a finite number, found nan", "", lambda: call(scale=math.nan)),
    ("a scale beyond float32", "U413", "scale must be from 1.2e-38 to 1e+38, found 1e+300", "", lambda: call(scale=1e300)),
    ("a scale in a tensor", "U413", "scale must be a finite number, found tensor(0.1000)", "scale.item()", lambda: call(scale=torch.tensor(0.1))),
    ("an aux that is no request", "U413", "return_aux must be an AuxRequest, found True", "AuxRequest(lse=True)", lambda: call(return_aux=True)),
    ("backend", "U413", 'backend must be "auto" or "interpret", found \'cpu\'', "", lambda: call(backend="cpu")),
    ("verify", "U413", 'verify must be "quick", "full" or "off", found \'much\'', "", lambda: call(verify="much")),
    ("a mask of two", "X101", "takes (b, h, q_idx, kv_idx), found 2 positional parameters", "close over them", lambda: make_mask(lambda q, k: q >= k)),
    ("a score of four", "X101", "score_mod of `causal` takes (score, b, h, q_idx, kv_idx), found 4", "close over them", lambda: call(score=causal)),
    ("a mod of three", "X116", "`three` takes 3 arguments, so it is no mod", "a mask_mod takes (b, h, q_idx, kv_idx)", lambda: attention(three)),
    ("no mask_mod", "X101", "mask_mod must be a function (b, h, q_idx, kv_idx), found None", "block_mask=None", lambda: make_mask(None)),
    ("a builtin", "X101", "score_mod of `add` must be a Python function, found <built-in method add", "lambda score", lambda: call(score=torch.add)),
    ("a write", "X120", "a mod writes to the captured tensor `SHORT`", "write to it before the call", lambda: call(score=writes)),
    ("a name that the kernel has", "X120", "`S` has 1 dims, found 2 indices", "", lambda: call(score=lambda s, b, h, q, k: s + S[h, k])),
    ("a captured sparse tensor", "X120", "`SPARSE` is a tensor of layout torch.sparse_coo", "SPARSE.to_dense()", lambda: call(score=lambda s, b, h, q, k: s + SPARSE[k])),
    ("a number beyond float32", "U417", "floats of a kernel are those of f32, found -1e+39", "-math.inf", lambda: call(score=lambda s, b, h, q, k: s + VAST)),
    ("an integer beyond 32 bits", "U417", "integers of a kernel have 32 bits, found 4294967296", "4294967296.0 is a float", lambda: call(mask=make_mask(lambda b, h, q, k: k < 2**32))),
    ("complex numbers", "X120", "`WAVES` holds torch.complex64", "WAVES.real", lambda: call(score=lambda s, b, h, q, k: s + WAVES[k])),
    ("no function", "X101", "must be a function, found int", "", lambda: call(score=3)),
    ("a mask_mod for a mask", "U412", "must be what create_block_mask gives, found function", "create_block_mask(mask_mod", lambda: call(mask=causal)),
    ("lengths of a mask", "U412", "KV_LEN must be an integer of at least 0, found -1", "", lambda: make_mask(causal, M, -1)),
    ("a mask of other lengths", "U412", "for 40 queries and 40 keys, found 40 and 60", "make one for these lengths", lambda: call(mask=make_mask(causal, M, M))),
    ("a mask of other heads", "U412", "for a number of query heads of 3, found 4", "None if the mask does not", lambda: call(mask=make_mask(causal, M, N, 3))),
    ("control flow on a score", "X121", "needs a value, found one that is only known when the kernel runs", "torch.where", lambda: call(score=branches)),
    ("control flow on an index", "X121", "`if`, `and`, `or`, `not`, or a chained comparison", "& | ~", lambda: call(mask=make_mask(lambda b, h, q, k: q >= k and k > 3))),
    ("an operation", "X120", "`erfinv` cannot become part of a kernel", "what can: operators and abs", lambda: call(score=lambda s, b, h, q, k: torch.erfinv(s))),
    ("a tensor elsewhere", "U407", "`ELSEWHERE`, which a mod captures, must be on the device of `query`, cpu, found meta", "ELSEWHERE.to(query.device)",
     lambda: call(score=lambda s, b, h, q, k: s + ELSEWHERE[k])),
    ("a learned bias", "X109", "there are gradients of a softmax, found normalize='sigmoid'", "torch.no_grad()", lambda: call(score=lambda s, b, h, q, k: s + LEARNED[k], normalize="sigmoid")),
    ("a table too short", "U416", "`SHORT` has 59 elements, and its element 59 is read (b=0, h=0, q_idx=0, kv_idx=59)", "a tensor that covers the lengths",
     lambda: call(score=lambda s, b, h, q, k: s + SHORT[k])),
    ("a tensor by a name that the kernel has", "U416", "`t` has 59 elements, and its element 59 is read", "",
     lambda: (lambda t: call(score=lambda s, b, h, q, k: s + t[k]))(SHORT)),
    ("a tensor elsewhere by a name that the kernel has", "U407", "`t`, which a mod captures", "t.to(query.device)",
     lambda: (lambda t: call(score=lambda s, b, h, q, k: s + t[k]))(ELSEWHERE)),
    ("too many indices", "X120", "`SHORT` has 1 dims, found 2 indices", "", lambda: call(score=lambda s, b, h, q, k: s + SHORT[h, k])),
    ("dtype of the explicit form", "U109", "attention kernels are for f16, bf16, f32 and 8-bit floats, found `torch.float64`", "", lambda: attention(causal, dtype=torch.float64)),
    ("head dim of the explicit form", "U110", "the head dim of query and key must be from 1 to 576, found 584", "", lambda: attention(causal, head_dim=584)),
]  # fmt: skip


@pytest.mark.parametrize(("code", "says", "hint", "wrong"), [case[1:] for case in BAD], ids=[case[0] for case in BAD])
def test_bad_calls(code: str, says: str, hint: str, wrong: Callable[[], Any]) -> None:
    with pytest.raises(CuirError) as raised:
        wrong()
    result = raised.value.diagnostics[0]
    assert result.code == code and says in result.message and hint in (result.hint or ""), str(raised.value)


def test_a_number_on_the_cpu_may_be_captured_anywhere() -> None:
    """As PyTorch takes tensors without dims; only a tensor with dims must be where the others are."""
    from cuir.attn.api.prepared_calls import _check_captured

    _check_captured("cap", torch.tensor(3.0), Q.to("meta"))
    with pytest.raises(CuirError, match="U407"):
        _check_captured("cap", torch.ones(1), Q.to("meta"))


@pytest.mark.parametrize("scale", [-0.2, -3, 0, 0.0, 1e-46, 1e-40, 1e-30])
@pytest.mark.parametrize("mod", [None, lambda s, b, h, q, k: s + k / 8])
def test_scales_that_are_not_positive(scale: float, mod: Any) -> None:
    """As PyTorch takes them, with gradients."""
    assert_attention_matches(mod, M=M, N=N, H=1, D=D, scale=scale)


def test_a_scale_that_is_not_positive_in_a_graph() -> None:
    compiled = torch.compile(lambda q, k, v, scale: call(q, k, v, scale=scale), backend="eager", fullgraph=True)
    for scale in (-0.5, 0.0, -0.25, 0.125):
        torch.testing.assert_close(compiled(Q, K, V, scale), call(scale=scale))


def test_a_number_that_no_kernel_holds_may_be_there_unread() -> None:
    """As the attributes of an object whose others are read: of a module that torch.compile wraps, it numbers them."""

    class Bias:
        table, number, most = torch.ones(N), 2**40, 1e300

        def __init__(self) -> None:
            self.own, self.id = torch.ones(N), 2**62

        def __call__(self, s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
            return s + self.own[k] if self.id > 2**33 else s

    torch.testing.assert_close(call(score=Bias()), call(score=lambda s, b, h, q, k: s + 1))


def test_an_index_that_the_mod_makes_a_tensor_of() -> None:
    table = torch.randn(N)
    torch.testing.assert_close(call(score=lambda s, b, h, q, k: s * table[torch.tensor(3)]), call(score=lambda s, b, h, q, k: s * table[3]))


def test_mistakes_in_a_mod_show_its_line() -> None:
    for wrong in (
        lambda: call(score=branches),
        lambda: make_mask(lambda q, k: q >= k),
        lambda: call(score=lambda s, b, h, q, k: s + SHORT[k]),
        lambda: call(score=lambda s, b, h, q, k: s + WAVES[k]),
        lambda: call(score=lambda s, b, h, q, k: s + SPARSE[k]),
    ):
        with pytest.raises(CuirError) as raised:
            wrong()
        assert __file__ in str(raised.value) and "^" in str(raised.value)


def test_a_tensor_of_another_shape_in_the_same_mod() -> None:
    """A mod may capture another tensor in the next call: longer is right, shorter and of another rank is said."""
    table = torch.arange(N) // 10

    def mask(b: Any, h: Any, q: Any, k: Any) -> Any:
        return table[q] == table[k]

    block_mask = make_mask(mask)
    call(mask=block_mask)
    table = torch.arange(2 * N) // 10
    call(mask=block_mask)
    table = torch.arange(N - 1)
    with pytest.raises(CuirError, match=r"U416.*`table` has 59 elements"):
        call(mask=block_mask)
    table = torch.zeros(2, N)
    with pytest.raises(CuirError, match=r"X123.*elements of shape"):
        call(mask=block_mask)


def test_the_last_element_is_that_of_the_tensor_of_the_call() -> None:
    """A negative constant counts from the end, of a longer tensor in a later call, too."""
    table = torch.tensor([0.0, 3.0])

    def bias(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        return s + table[-1] * k + table[-2]

    for more in ([0.0, 3.0], [0.0, 3.0, 0.0, -2.0]):
        table = torch.tensor(more)
        actual = call(score=bias)
        expected = (Q.double() @ K.double().mT * D**-0.5 + more[-1] * torch.arange(N)).softmax(-1) @ V.double()
        torch.testing.assert_close(actual.double(), expected, rtol=2e-2, atol=2e-2)


# ---- operations that are written in other ways
TABLE, PAIRS, NARROW = torch.randn(N), torch.randn(4, N, 3), torch.full((N,), 2)


class Three(enum.IntEnum):
    X = 3


class Loud(int):
    def __repr__(self) -> str:
        return "7"


SCORES: dict[str, Callable[..., Any]] = {
    "where as a method": lambda s, b, h, q, k: s.where(q >= k, -1.0),
    "and by name": lambda s, b, h, q, k: s.where(condition=q >= k, other=-math.inf),
    "of an element": lambda s, b, h, q, k: s + TABLE[q].where(q > k, TABLE[k]),
    "of an index": lambda s, b, h, q, k: s + q.where(q > k, k) / 8,
    "of rows": lambda s, b, h, q, k: s + PAIRS[h, q].where(PAIRS[h, q] > 0, PAIRS[h, k]).sum(),
    "where by names": lambda s, b, h, q, k: torch.where(condition=q >= k, input=s, other=s * 2),
    "operands by name": lambda s, b, h, q, k: torch.mul(input=s, other=0.5) + torch.pow(input=q / 40, exponent=2) + torch.tanh(input=s),
    "a partial of a function": lambda s, b, h, q, k: functools.partial(torch.mul, other=0.5)(s),
    "an enumeration": lambda s, b, h, q, k: s + q % Three.X,
    "a number with a text of its own": lambda s, b, h, q, k: s + q * Loud(3) / 64,
    "numbers of NumPy on the left": lambda s, b, h, q, k: np.float32(0.5) * s + np.int64(3) * q / 64 + np.float64(0.3) * k / 64,
    "powers of integers below 0": lambda s, b, h, q, k: s + 2 ** (h - 3) + 3 ** (h - 1) + 1 ** (h - 1),
    "divisors that are 0 behind the last key": lambda s, b, h, q, k: s + (q // (N - k)) / 8 + (k % (M - q)) / 8 + torch.fmod(k, M - q) / 8 + q // NARROW[k] / 8,
}  # fmt: skip


@pytest.mark.sweep(4)
@pytest.mark.parametrize("score", SCORES.values(), ids=SCORES)
def test_spellings_that_mean_the_same(score: Any) -> None:
    q, k, v = (x.float() for x in (Q, K, V))
    torch_results = flex_attention_of_pytorch(q, k, v, score_mod=score, return_lse=True)
    for ours, expected in zip(call(q, k, v, score=score, return_lse=True), torch_results, strict=True):
        torch.testing.assert_close(ours, expected, atol=1e-4, rtol=1e-4)
