"""float32 in a call: as accurate as PyTorch's own, TF32 where PyTorch's settings allow it, and all else as for half precision.

Gradients of float32 inputs in the interpreter: as accurate as PyTorch's own, TF32 where the forward pass had it, for every head dim and whatever is asked for; the same bits always.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.attention.flex_attention import create_block_mask as their_mask
from torch.nn.attention.flex_attention import flex_attention as torch_flex

import corpus
import cuir
from cuir import Specification
from cuir.attn.capture.call_inputs import parts_for
from cuir.attn.kernels.backward_kernels import RequestedGradients
from cuir.flex import AuxRequest, attention, create_block_mask, flex_attention, packed_copies
from cuir.ops.meaning.tiles import round_operand
from cuir.text.diagnostics import CuirError
from cuir.verification.inputs import find_accumulated
from cuir.verification.schedules import run_under_all
from tests.strategies.selection import examples

from ..kernels.test_autograd import biased, causal, compute_gradients, dense, documents, late, masking, softcap, tensors
from .test_gradients import make_bias as of_a_table
from .test_gradients import record_launches, wide

DIMS = st.one_of(st.sampled_from([8, 32, 64, 96, 128, 192, 256]), st.integers(1, 256))
TF32 = 8e-4  # relative, in the norm: what rounding to 11 bits costs


@pytest.fixture
def precision() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(before)


def causal_of_float32(b: Any, h: Any, q: Any, k: Any) -> Any:
    return q >= k


def numbers(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def inputs(m: int, n: int, d: int, dv: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return numbers(1, 2, m, d), numbers(1, 1, n, d), numbers(1, 1, n, dv)


def off(x: torch.Tensor, expected: torch.Tensor) -> float:
    return float((x.double() - expected).norm() / (expected.norm() or 1.0))


def ours(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **options: Any) -> Any:
    mask = create_block_mask(causal_of_float32, None, None, q.shape[2], k.shape[2], "cpu")
    return flex_attention(q, k, v, block_mask=mask, enable_gqa=True, backend="interpret", verify="off", **options)


def reference(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """O and LSE of eager FlexAttention."""
    mask = their_mask(causal_of_float32, None, None, q.shape[2], k.shape[2], "cpu")
    return torch_flex(q, k, v, block_mask=mask, enable_gqa=True, return_lse=True)  # type: ignore[return-value]


@pytest.mark.usefixtures("precision")
@examples(0.15)
@given(dims=st.tuples(DIMS, DIMS), lengths=st.tuples(st.integers(1, 200), st.integers(1, 200)))
def test_within_twice_the_error_of_pytorch(dims: tuple[int, int], lengths: tuple[int, int]) -> None:
    torch.set_float32_matmul_precision("highest")
    q, k, v = inputs(*lengths, *dims)
    o, lse = ours(q, k, v, return_lse=True)
    expected, wanted_lse = reference(q.double(), k.double(), v.double())
    private = off(reference(q, k, v)[0], expected)
    assert o.dtype == torch.float32 and o.shape == expected.shape
    assert off(o, expected) <= 2 * private + 2.0**-23
    torch.testing.assert_close(lse.double(), wanted_lse.double(), rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("precision")
@pytest.mark.parametrize("level", ["high", "medium"])
def test_tf32_where_it_is_allowed(level: str) -> None:
    q, k, v = inputs(150, 130, 64, 64)
    expected = reference(q.double(), k.double(), v.double())[0]
    exact = ours(q, k, v)
    torch.set_float32_matmul_precision(level)
    rounded = ours(q, k, v)  # the same mods and tensors: a call that is known, but for the precision
    assert 5e-5 < off(rounded, expected) < TF32
    torch.set_float32_matmul_precision("highest")
    assert torch.equal(ours(q, k, v), exact) and not torch.equal(exact, rounded)


@pytest.mark.usefixtures("precision")
def test_the_switch_of_the_backend_counts() -> None:
    assert parts_for(torch.float32) == 2 and parts_for(torch.float16) == 0
    torch.backends.cuda.matmul.allow_tf32 = True
    assert parts_for(torch.float32) == 1
    torch.backends.cuda.matmul.allow_tf32 = False
    assert parts_for(torch.float32) == 2


@pytest.mark.usefixtures("precision")
def test_settings_of_each_backend_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def raise_mixed() -> str:
        raise RuntimeError("you have used mix of the legacy and new APIs")

    monkeypatch.setattr(torch, "get_float32_matmul_precision", raise_mixed)
    for message, parts in (("tf32", 1), ("ieee", 2)):
        monkeypatch.setattr(torch.backends.cuda, "matmul", SimpleNamespace(fp32_precision=message))
        assert parts_for(torch.float32) == parts


@pytest.mark.usefixtures("precision")
def test_rows_of_16_bytes_are_read_where_they_lie() -> None:
    packed_copies().reset()
    q, k, v = inputs(20, 30, 12, 20)
    ours(q, k, v)
    assert packed_copies().calls == 0
    ours(*inputs(20, 30, 13, 20))
    assert packed_copies().calls == 2  # of query and key


@pytest.mark.usefixtures("precision")
def test_autocast_takes_half_precision() -> None:
    q, k, v = inputs(20, 30, 16, 16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert ours(q, k, v).dtype == torch.bfloat16


@pytest.mark.usefixtures("precision")
def test_the_largest_scores() -> None:
    q, k, v = inputs(40, 50, 16, 16)
    _, aux = ours(q, k, v, return_aux=AuxRequest(lse=True, max_scores=True))
    scores = (q.double() @ k.double().mT * 0.25).masked_fill(~torch.ones(40, 50).tril().bool(), -torch.inf)
    torch.testing.assert_close(aux.max_scores.double(), scores.amax(-1), rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("precision")
def test_queries_without_keys() -> None:
    q, k, v = inputs(70, 40, 16, 16)
    mask = create_block_mask(lambda b, h, q, k: (q >= 64) & (k < 8), None, None, 70, 40, "cpu")
    o, lse = flex_attention(q, k, v, block_mask=mask, enable_gqa=True, return_lse=True, backend="interpret", verify="off")
    assert (o[:, :, :64] == 0).all() and (lse[:, :, :64] == -torch.inf).all() and lse[:, :, 64:].isfinite().all()


@pytest.mark.usefixtures("precision")
def test_float64_is_refused() -> None:
    q, k, v = (x.double() for x in inputs(8, 8, 16, 16))
    with pytest.raises(CuirError, match="found float64") as caught:
        ours(q, k, v)
    assert caught.value.diagnostics[0].code == "U109" and "query.float()" in str(caught.value.diagnostics[0].hint)
    with pytest.raises(CuirError, match="for f16, bf16, f32 and 8-bit floats") as caught:
        attention(Specification("causal", causal_of_float32), dtype=torch.float64, head_dim=16)
    assert caught.value.diagnostics[0].code == "U109" and "torch.float32" in str(caught.value.diagnostics[0].hint)
    with torch.autocast("cpu"), pytest.raises(CuirError, match="found float64"):
        ours(q, k, v)
    assert torch_flex(q, k, v, enable_gqa=True).dtype == torch.float64, "as the message says"


@pytest.mark.usefixtures("precision")
@pytest.mark.sweep
@pytest.mark.usefixtures("few_problems")
@pytest.mark.parametrize("parts", [1, 2])
def test_the_object_is_verified(parts: int) -> None:
    """Mask, schedules and numbers, by the error that the kernel's precision allows."""
    result = attention(
        Specification("causal", causal_of_float32), dtype="f32", head_dim=64, consts={"PARTS": parts, "BM": 128, "BN": 32, "ROWS": 128}
    )
    report = result.report
    assert report is not None and report.ok and result.program.kernels()["flash_fwd"].params[0].name == "Q"
    assert corpus.expert("f32") == "flash_fwd_f32"


@pytest.mark.usefixtures("precision")
@pytest.mark.thorough("a whole verification of a right program, whose numbers have their tests here")
@pytest.mark.parametrize("score", [lambda s, b, h, q, k: s * 2, lambda s, b, h, q, k: s * s], ids=["twice", "squared"])
def test_steep_scores_are_verified_in_tf32(score: Callable[..., Any]) -> None:
    """PyTorch has the same error as the kernel where TF32 rounds few weights, and an LSE."""
    report = attention(Specification("steep", score_mod=score), dtype="f32", head_dim=64, consts={"PARTS": 1}).report
    assert report is not None and report.ok


@pytest.mark.usefixtures("precision")
def test_a_call_takes_the_start_that_was_measured() -> None:
    """Tables and the model of cost are of the kernel for half precision."""
    from cuir.performance.selection import Device, Evidence, choose
    from cuir.spec.specification import Lengths

    created = attention(Specification("causal", causal_of_float32), dtype="f32", head_dim=64, consts={"PARTS": 2})
    fixed = {"T": created.settings.fixed["T"], "D": 64, "DV": 64, "PARTS": 2}
    result = choose(
        created.program,
        fixed,
        Lengths(2, 16, 16, 4096, 4096),
        Evidence(created.settings.starts, device=Device("NVIDIA H200 sm_90 132", 132)),
    )
    assert result.source == "start" and (result.consts["BM"], result.consts["ROWS"]) == (256, 128)


SINGLE = torch.float32


@pytest.fixture
def precision_of_gradients_float32() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    yield
    torch.set_float32_matmul_precision(before)


def off_of_gradients_float32(x: torch.Tensor, exact: torch.Tensor) -> float:
    return float((x.double() - exact).norm() / (exact.norm() or 1.0))


def accurate(shape: tuple[int, ...], mask_mod: Any, score_mod: Any) -> None:
    """Within twice the error of PyTorch's autograd of the dense formula in float32; of a gradient that is 0, or nearly, what rounding the terms that cancel in it leaves."""
    leaves = tensors(*shape, dtype=SINGLE)
    result, exact = compute_gradients(leaves, mask_mod, score_mod)
    ours = [x.detach().requires_grad_() for x in leaves]
    o, lse = dense(*ours, mask_mod, score_mod)
    g = torch.Generator().manual_seed(1)
    do, dl = torch.randn(o.shape, generator=g), torch.randn(lse.shape, generator=g)
    alive = (lse.detach() != 0).float()
    expected = torch.autograd.grad((o, lse), ours, (do, dl * alive))
    for x, y, z in zip(result, exact, expected, strict=True):
        assert x.dtype == SINGLE and x.shape == y.shape
        assert float((x.double() - y).norm()) <= 2 * float((z.double() - y).norm()) + 2.0**-21 * (float(y.norm()) + y.numel() ** 0.5)


@pytest.mark.usefixtures("precision_of_gradients_float32")
@pytest.mark.sweep
@pytest.mark.parametrize("mask_mod", [None, causal, documents, late])
@pytest.mark.parametrize("score_mod", [None, softcap, biased, masking])
def test_masks_and_scores(mask_mod: Any, score_mod: Any) -> None:
    accurate((1, 2, 1, 150, 150, 64), mask_mod, score_mod)


@pytest.mark.usefixtures("precision_of_gradients_float32")
@examples(0.15)
@given(dims=st.tuples(DIMS, DIMS), lengths=st.tuples(st.integers(1, 150), st.integers(1, 200)))
def test_head_dims_and_lengths(dims: tuple[int, int], lengths: tuple[int, int]) -> None:
    accurate((1, 2, 1, *lengths, *dims), causal if lengths[0] >= lengths[1] else None, softcap)


@pytest.mark.usefixtures("precision_of_gradients_float32")
@pytest.mark.parametrize("dim", [64, 192])
def test_tf32_where_the_forward_pass_had_it(dim: int) -> None:
    """The setting at the time of the call counts, not that at the time of its gradients."""
    q, k, v = (x.requires_grad_() for x in tensors(1, 2, 1, 100, 130, dim, dtype=SINGLE))
    exact = [x.detach().double().requires_grad_() for x in (q, k, v)]
    expected = torch.autograd.grad(dense(*exact, None, None)[0].sum(), exact)

    def gradients(forward: str, backward: str) -> tuple[torch.Tensor, ...]:
        torch.set_float32_matmul_precision(forward)
        o = flex_attention(q, k, v, enable_gqa=True, backend="interpret", verify="off")
        torch.set_float32_matmul_precision(backward)
        return torch.autograd.grad(o.sum(), (q, k, v))  # type: ignore[union-attr]

    actual, rounded = gradients("highest", "high"), gradients("high", "highest")
    for x, y, z in zip(actual, rounded, expected, strict=True):
        assert off_of_gradients_float32(x, z) < 3e-6 < 5e-5 < off_of_gradients_float32(y, z) < 3e-3


@pytest.mark.usefixtures("precision_of_gradients_float32")
def test_tf32_of_keys_and_values_with_a_common_mean() -> None:
    """Errors of dO in row_sum(O * dO) and in dO V^T cancel, as in PyTorch's eager gradients: the mean of V multiplies what is left, that of K once more."""
    torch.set_float32_matmul_precision("high")
    g = torch.Generator().manual_seed(0)
    q, k, v = ((2.6 + 0.1 * torch.randn(1, 1, 192, 64, generator=g)).requires_grad_() for _ in range(3))
    do = torch.randn(q.shape, generator=g)
    result = torch.autograd.grad(flex_attention(q, k, v, backend="interpret", verify="off"), (q, k), do)  # type: ignore[arg-type]
    exact = [x.detach().double().requires_grad_() for x in (q, k, v)]
    dq, dk = torch.autograd.grad(dense(*exact, None, None)[0], exact[:2], do.double())
    o, weights = dense(*exact, None, None)[0].detach(), (q @ k.mT * 64**-0.5).softmax(-1).detach().double()
    difference = (o * (do - round_operand(do)).double()).sum(-1, keepdim=True) * (weights @ exact[1].detach()) * 64**-0.5  # if they did not
    assert float((result[0].double() - dq).norm()) < 0.15 * float(difference.norm()) and off_of_gradients_float32(result[1], dk) < 1e-2


@pytest.mark.usefixtures("precision_of_gradients_float32")
def test_an_infinite_slope_where_no_pair_is() -> None:
    """Queries and keys behind the last are zeros, of whose scores 1 / s has no derivative."""
    q, k, v = (x.requires_grad_() for x in tensors(1, 1, 1, 37, 45, 16, dtype=SINGLE))
    o = flex_attention(q, k, v, lambda s, b, h, q, k: 1 / s, backend="interpret", verify="off")
    assert all(g.isfinite().all() for g in torch.autograd.grad(o.sum(), (q, k, v)))  # type: ignore[union-attr]


@pytest.mark.usefixtures("precision_of_gradients_float32")
@pytest.mark.sweep
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("dim", [64, 192])
@pytest.mark.parametrize(
    ("requests", "kernels"),
    [
        ("q", ["prepare", "flash_bwd_dq"]),
        ("kv", ["prepare", "flash_bwd"]),
        ("v", ["prepare", "flash_bwd"]),
        ("t", ["prepare", "flash_bwd"]),
        ("qt", ["prepare", "flash_bwd_dq", "flash_bwd"]),
        ("qkvts", ["prepare", "flash_bwd_dq", "flash_bwd"]),
        ("s", ["prepare"]),
    ],
)
def test_only_what_is_asked_for(requests: str, kernels: list[str], dim: int, compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two warpgroups that share keys add the gradient of what is captured once."""
    torch._dynamo.reset()
    launches, N = record_launches(monkeypatch), 70
    q, k, v = tensors(1, 2, 2, N, N, dim, dtype=SINGLE)
    g = torch.Generator().manual_seed(3)
    inputs = {"q": q, "k": k, "v": v, "t": torch.randn(2, N, generator=g), "s": torch.randn(2, generator=g)}
    for name in requests:
        inputs[name].requires_grad_()
    score_mod, sink = of_a_table(inputs["t"]), inputs["s"]

    def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        return flex_attention(q, k, v, score_mod, sink=sink, enable_gqa=True, backend="interpret", verify="off")

    o = (torch.compile(call, fullgraph=True, backend="aot_eager") if compiled else call)(q, k, v)
    do = torch.randn(o.shape, generator=g)
    actual = torch.autograd.grad(o, [inputs[name] for name in requests], do)
    exact = {n: x.detach().double().requires_grad_() for n, x in inputs.items()}
    expected = torch.autograd.grad(wide(*exact.values()), [exact[name] for name in requests], do.double())
    assert all(x.shape == y.shape and off_of_gradients_float32(x, y) < 3e-6 for x, y in zip(actual, expected, strict=True))
    assert [name for name, _ in launches] == kernels
    sizes = {n: x.untyped_storage().nbytes() for _, inputs in launches for n, x in inputs.items() if n in ("dQ", "dK", "dV")}
    written = {"dQ"} if "q" in requests else set()
    written |= {"dK", "dV"} if "v" in requests else set()
    assert all((size > 1024) == (name in written) for name, size in sizes.items()), sizes


@pytest.mark.usefixtures("precision_of_gradients_float32")
@pytest.mark.sweep
@pytest.mark.parametrize("requests", [RequestedGradients(), RequestedGradients(in_order=True)])
@pytest.mark.parametrize("step", ["flash_bwd", "flash_bwd_dq"])
def test_the_same_bits_under_every_schedule(step: str, requests: RequestedGradients) -> None:
    q, k, v = tensors(1, 2, 1, 140, 140, 64, dtype=SINGLE)
    attention = cuir.attention(causal, dtype=SINGLE, head_dim=64, verify="off")
    checked = attention.gradients(requests).plan.steps[step].checked
    assert not find_accumulated(checked)
    inputs = {"Q": q, "K": k, "V": v, "dO": q.flip(2), "L": torch.ones(1, 2, 256), "DL": torch.zeros(1, 2, 256), "scale": 0.125}
    outputs = {"dK": k.clone(), "dV": v.clone()} if step == "flash_bwd" else {"dQ": q.clone()}
    assert len(run_under_all(checked, inputs | outputs, grid=2)) > 10


@pytest.mark.usefixtures("precision_of_gradients_float32")
def test_deterministic() -> None:
    """The same kernels, so the same bits as without the setting."""
    leaves = [x.requires_grad_() for x in tensors(2, 4, 2, 70, 130, 64, dtype=SINGLE)]
    mask = create_block_mask(documents, None, None, 70, 130, device="cpu")

    def gradients() -> tuple[torch.Tensor, ...]:
        o = flex_attention(*leaves, softcap, mask, enable_gqa=True, backend="interpret", verify="off")
        return torch.autograd.grad(o.square().sum(), leaves)  # type: ignore[union-attr]

    expected = gradients()
    torch.use_deterministic_algorithms(True)
    try:
        assert all(torch.equal(x, y) for x, y in zip(gradients(), expected, strict=True))
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("precision_of_gradients_float32")
@pytest.mark.thorough("half a minute each: whole verifications of backward kernels")
@pytest.mark.parametrize(("dims", "parts"), [((64, 64), 2), ((40, 136), 1)])  # what dims choose and what parts choose are apart
def test_kernels_are_verified(dims: tuple[int, int], parts: int) -> None:
    """Kernels of a variant are verified before they first run: by the error of TF32 products, or of float32."""
    from cuir.attn.capture.first_call_progress import Progress

    spec = Specification("capped", causal, softcap)
    attention = cuir.attention(spec, dtype=SINGLE, head_dim=dims[0], value_dim=dims[1], consts={"PARTS": parts})
    plan = attention.gradients().plan
    assert {part.kernel: part.step.consts["PARTS"] for part in plan.parts} == {"flash_bwd": parts, "flash_bwd_dq": parts}
    for part in plan.parts:
        part.prove(Progress("capped"))


@pytest.mark.usefixtures("precision_of_gradients_float32")
@pytest.mark.usefixtures("no_schedules")
def test_a_wrong_kernel_of_tf32_is_found() -> None:
    """Rounding to TF32 hides no slope that is off by 1 %."""
    from cuir.syntax.parser import parse
    from cuir.verification import verify

    spec = Specification("capped", causal, softcap)
    part = cuir.attention(spec, dtype=SINGLE, head_dim=64, consts={"PARTS": 1}).gradients().plan.by_keys
    assert part is not None
    wrong = part.transferred.text.replace("return 1.0 - tanh", "return 1.01 - tanh")
    assert wrong != part.transferred.text
    report = verify(parse(wrong, "wrong.cuir"), spec, kernel=part.kernel, consts=part.step.consts, seeded=0, shrink=False)
    assert not report.ok and report.diagnostics[0].code == "V301"
