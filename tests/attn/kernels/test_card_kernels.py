"""The kernel that a GPU gets: by its compute capability, with settings that its shared memory holds, compiled for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

import corpus
import cuir
from cuir.attn.api import prepared_calls
from cuir.attn.capture.capture_keys import make_capture_key
from cuir.attn.kernels.attention_kernel import Attention, make_attention
from cuir.attn.kernels.backward_kernels import RequestedGradients, plan_gradients
from cuir.attn.kernels.card_kernels import (
    DEFAULT,
    KERNELS,
    VARIABLE,
    KernelTarget,
    Kind,
    check_invariant,
    choose_target,
    describe_attention,
    find_arch,
    find_counterpart,
    find_kernel,
)
from cuir.attn.kernels.experts import Form, origin_of
from cuir.attn.kernels.settings import SPILLED
from cuir.attn.tracing.splice_names import BACKWARD_POINTS, OPTIONAL, SPLICE_POINTS
from cuir.checking.resources import count_shared_bytes
from cuir.lowering import lower
from cuir.runtime.cards import CARDS
from cuir.runtime.nvcc import compile_cuda
from cuir.spec.specification import Lengths, Specification
from cuir.syntax.types import BF16, F16, F32
from cuir.text.diagnostics import CuirError
from tests.attn.launches import Launches
from tests.stand_in_cards import forget, stand_in

GPU = torch.device("cuda", 0)
ARCHS = {(7, 5): "sm_75", (8, 0): "sm_80", (8, 6): "sm_80", (8, 9): "sm_80", (9, 0): "sm_90a", (10, 0): "sm_80", (12, 0): "sm_80"}


def make(capability: tuple[int, int], dim: int) -> Attention:
    """Return the attention that calls on a card get."""
    with stand_in(CARDS[capability]):
        target = choose_target(GPU)
    spec = Specification("causal", lambda b, h, q, k: q >= k)
    return make_attention(spec, make_capture_key(spec.mask_mod, None), Form(torch.float16, dim, dim, target=target), "off")


@pytest.fixture
def forced(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Names the architecture of kernels in the environment."""

    def force(arch: str) -> None:
        monkeypatch.setenv(VARIABLE, arch)
        forget()

    yield force
    forget()


@pytest.mark.parametrize("arch", KERNELS)
def test_the_table_names_programs_of_its_architecture(arch: str) -> None:
    names = {name for task, kernels in KERNELS[arch].items() if task != "join" for name in kernels if name}
    assert names <= corpus.kernels().keys() | corpus.programs().keys()
    assert {kernel.arch for name in names for kernel in origin_of(name).kernels().values()} == {arch}


@pytest.mark.parametrize(("arch", "lacks"), [("sm_80", set()), ("sm_75", {"kv_rows"})])
def test_kernels_have_the_splice_points_of_those_for_hopper(arch: str, lacks: set[str]) -> None:
    """`kv_rows` only lets rows of a tile leave blocks out: the dense kernel for Turing visits whole tiles."""
    for task, kernels in KERNELS[arch].items():
        if task != "join":
            points, expected = (
                {f.name: len(f.params) for f in origin_of(name).funcs().values()}
                for name in (kernels.halves, KERNELS[DEFAULT][task].halves)
            )
            named = {name: count for name, count in expected.items() if name in {**SPLICE_POINTS, **OPTIONAL, **BACKWARD_POINTS}}
            assert len(named) >= len(SPLICE_POINTS) and named.items() - points.items() <= {(name, named.get(name)) for name in lacks}


@pytest.mark.parametrize(("capability", "arch"), ARCHS.items())
def test_a_card_gets_the_newest_kernels_that_it_runs(capability: tuple[int, int], arch: str) -> None:
    assert find_arch(capability) == arch
    with stand_in(CARDS[capability]):
        assert choose_target(GPU) == KernelTarget(arch, None if arch == DEFAULT else CARDS[capability])
        assert choose_target(GPU, "interpret") == choose_target(torch.device("cpu")) == KernelTarget(DEFAULT)


def test_an_older_card_is_refused() -> None:
    assert find_arch((7, 0)) is None
    with stand_in(CARDS[7, 5].__class__(**{**vars(CARDS[7, 5]), "capability": (7, 0)})), pytest.raises(CuirError) as error:
        choose_target(GPU)
    (diagnostic,) = error.value.diagnostics
    assert diagnostic.code == "U501" and "compute capability 7.0" in diagnostic.message and "interpret" in (diagnostic.hint or "")


def test_the_environment_names_the_kernels(forced: Callable[[str], None]) -> None:
    forced("sm_75")
    assert choose_target(torch.device("cpu")).arch == choose_target(torch.device("cpu"), "interpret").arch == "sm_75"
    forced("sm_70")
    with pytest.raises(CuirError, match=f"{VARIABLE}=sm_70"):
        choose_target(torch.device("cpu"))


def test_a_dtype_that_a_card_does_not_multiply_names_another() -> None:
    with pytest.raises(CuirError) as error:
        find_kernel("sm_75", "forward", BF16)
    (diagnostic,) = error.value.diagnostics
    assert diagnostic.code == "U109" and "f16" in diagnostic.message and "float16" in (diagnostic.hint or "")


def test_a_task_without_a_kernel_names_what_to_use() -> None:
    with pytest.raises(CuirError) as error:
        find_kernel("sm_75", "cache of 8 bits", F16)
    (diagnostic,) = error.value.diagnostics
    assert diagnostic.code == "U501" and "8-bit numbers" in diagnostic.message and "dtype of the queries" in (diagnostic.hint or "")
    assert find_kernel(DEFAULT, "forward", F32) == "flash_fwd_f32"
    with pytest.raises(CuirError, match="sm_80 has no kernel for attention of few queries in f32"):
        find_kernel("sm_80", "decode", F32)
    with pytest.raises(CuirError, match="sm_80 has no kernel for attention over a KV cache in f32") as error:
        find_kernel("sm_80", "cache", F32)
    assert "float16 or bfloat16" in (error.value.diagnostics[0].hint or "")


@pytest.mark.sweep(4)
@pytest.mark.parametrize("dim", [64, pytest.param(128, marks=pytest.mark.thorough("another head dim"))])
@pytest.mark.parametrize("capability", ARCHS)
def test_settings_fit_the_shared_memory_of_the_card(capability: tuple[int, int], dim: int) -> None:
    attention, card = make(capability, dim), CARDS[capability]
    assert attention.arch == ARCHS[capability]
    with stand_in(card):
        choices = [attention.settings.choice(at) for at in (Lengths(1, 8, 8, 64, 4096), Lengths(2, 32, 8, 4096, 4096))]
    for consts in (attention.settings.start, *(choice.consts for choice in choices)):
        assert count_shared_bytes(attention.settings.check_program(consts)) <= card.shared_bytes
    assert all(("nobody measured" in choice.why) != card.is_measured for choice in choices)


def test_a_setting_of_the_user_that_the_card_does_not_hold_is_refused() -> None:
    spec = Specification("full")
    form = Form(torch.float16, 128, 128, consts=(("BM", 128), ("BN", 128)), target=KernelTarget("sm_75"))
    with pytest.raises(CuirError) as error:
        make_attention(spec, make_capture_key(None, None), form, "off")
    assert error.value.diagnostics[0].code == "M301"


@pytest.mark.sweep(4)
@pytest.mark.parametrize(
    ("arch", "dim", "dim_v", "dtype"),
    [
        *((arch, 64, 64, torch.float16) for arch in sorted(KERNELS.keys() - {DEFAULT})),
        ("sm_80", 64, 64, torch.float32),
        ("sm_75", 192, 128, torch.float16),
    ],
)
def test_kernels_of_other_cards_compute_attention(
    arch: str, dim: int, dim_v: int, dtype: torch.dtype, forced: Callable[[str], None]
) -> None:
    forced(arch)
    q, k, v = (torch.randn(1, n, 70, d, dtype=dtype) for n, d in ((2, dim), (1, dim), (1, dim_v)))
    mask = cuir.create_block_mask(lambda b, h, q, k: q >= k, None, None, 70, 70, "cpu")
    out = cuir.flex_attention(q, k, v, block_mask=mask, enable_gqa=True, backend="interpret", verify="off")
    expected = torch.nn.functional.scaled_dot_product_attention(q.float(), k.float(), v.float(), is_causal=True, enable_gqa=True)
    bound = 2e-3 if dtype == torch.float16 else 1e-5
    torch.testing.assert_close(out.float(), expected, atol=bound, rtol=bound)


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Return causal attention [H, M, DV] in float32."""
    return torch.nn.functional.scaled_dot_product_attention(q.float(), k.float(), v.float(), is_causal=True, enable_gqa=True)


@pytest.mark.sweep(4)
@pytest.mark.parametrize(
    ("arch", "dim", "in_order", "dtype"),
    [
        ("sm_80", 64, False, torch.float16),
        ("sm_80", 64, True, torch.float16),
        ("sm_80", 192, False, torch.float16),
        ("sm_80", 64, False, torch.float32),
        ("sm_75", 64, True, torch.float16),
        ("sm_75", 128, False, torch.float16),
    ],
)
def test_gradients_by_kernels_of_other_cards(
    arch: str, dim: int, in_order: bool, dtype: torch.dtype, forced: Callable[[str], None]
) -> None:
    forced(arch)
    q, k, v = (torch.randn(1, n, 70, dim, dtype=dtype, requires_grad=True) for n in (2, 1, 1))
    mask = cuir.create_block_mask(lambda b, h, q, k: q >= k, None, None, 70, 70, "cpu")
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(in_order)
    try:
        out = cuir.flex_attention(q, k, v, block_mask=mask, enable_gqa=True, backend="interpret", verify="off")
        do = torch.randn_like(out)
        actual = torch.autograd.grad(out, (q, k, v), do)
    finally:
        torch.use_deterministic_algorithms(before)
    expected = torch.autograd.grad(attend(q, k, v), (q, k, v), do.float())
    bounds = (8e-3, 4e-3) if dtype == torch.float16 else (2e-5, 2e-5)
    for x, y in zip(actual, expected, strict=True):
        torch.testing.assert_close(x.float(), y.float(), atol=bounds[0], rtol=bounds[1])


@pytest.mark.parametrize("arch", ["sm_75", "sm_80"])
def test_packed_sequences_by_kernels_of_other_cards(arch: str, forced: Callable[[str], None]) -> None:
    forced(arch)
    edges = torch.tensor([0, 30, 30, 95], dtype=torch.int32)
    q, k, v = (torch.randn(95, n, 64, dtype=torch.float16) for n in (2, 1, 1))
    out = cuir.varlen_attention(q, k, v, edges, edges, causal=True, enable_gqa=True, backend="interpret", verify="off")
    for a, b in ((0, 30), (30, 95)):
        expected = attend(*(x[a:b].transpose(0, 1)[None] for x in (q, k, v)))[0].transpose(0, 1)
        torch.testing.assert_close(out[a:b].float(), expected, atol=2e-3, rtol=2e-3)


@pytest.mark.sweep
def test_gradients_of_packed_sequences_by_kernels_of_turing(forced: Callable[[str], None]) -> None:
    forced("sm_75")
    edges = torch.tensor([0, 30, 30, 95], dtype=torch.int32)
    q, k, v = (torch.randn(95, n, 64, dtype=torch.float16, requires_grad=True) for n in (2, 1, 1))
    out = cuir.varlen_attention(q, k, v, edges, edges, causal=True, enable_gqa=True, backend="interpret", verify="off")
    do = torch.randn_like(out)
    expected = torch.cat([attend(*(x[a:b].transpose(0, 1)[None] for x in (q, k, v)))[0].transpose(0, 1) for a, b in ((0, 30), (30, 95))])
    gradients = torch.autograd.grad(out, (q, k, v), do), torch.autograd.grad(expected, (q, k, v), do.float())
    for x, y in zip(*gradients, strict=True):
        torch.testing.assert_close(x.float(), y.float(), atol=8e-3, rtol=8e-3)


@pytest.mark.parametrize("arch", ["sm_75", "sm_80"])
def test_sinks_and_other_weights_by_kernels_of_other_cards(arch: str, forced: Callable[[str], None]) -> None:
    """Each head has its sink; a weight that is no softmax rescales nothing."""
    forced(arch)
    q, k, v = (torch.randn(1, n, 40, 64, dtype=torch.float16) for n in (2, 1, 1))
    edges, sink = torch.tensor([0, 40], dtype=torch.int32), torch.tensor([1.0, -2.0])
    scores = q.float() @ k.float().mT / 8
    sums = torch.cat([scores, sink[None, :, None, None].expand(1, 2, 40, 1)], -1)
    for weighting, weights in (({"sink": sink}, sums.softmax(-1)[..., :-1]), ({"normalize": "sigmoid"}, scores.sigmoid())):
        expected = weights @ v.float()
        dense = cuir.flex_attention(q, k, v, enable_gqa=True, backend="interpret", verify="off", **weighting)  # type: ignore[arg-type]
        rows = (x[0].transpose(0, 1) for x in (q, k, v))
        packed = cuir.varlen_attention(*rows, edges, edges, enable_gqa=True, backend="interpret", verify="off", **weighting)  # type: ignore[arg-type]
        for out in (dense, packed.transpose(0, 1)[None]):
            torch.testing.assert_close(out.float(), expected, atol=1e-2, rtol=4e-3)


@pytest.mark.sweep
@pytest.mark.parametrize("arch", ["sm_75", "sm_80"])
@pytest.mark.parametrize(
    ("page", "tokens", "M", "dim"), [(0, 700, 1, 64), (16, 200, 5, 128), (4, 100, 1, 64), (48, 300, 12, 64), (0, 2500, 1, 64)]
)
def test_caches_by_kernels_of_other_cards(arch: str, page: int, tokens: int, M: int, dim: int, forced: Callable[[str], None]) -> None:
    """A contiguous cache and pages, of more and fewer tokens than a copy's; the longest is shared among CTAs."""
    forced(arch)
    lengths, each = torch.tensor([tokens - 3, 37], dtype=torch.int32), -(-tokens // page) if page else 1
    q, table = torch.randn(2, M, 4, dim, dtype=torch.float16), torch.randperm(2 * each).view(2, each).int()
    keys, values = (torch.randn(2 * each, page or tokens, 2, dim, dtype=torch.float16) for _ in range(2))
    if not page:
        table = torch.arange(2, dtype=torch.int32)[:, None]
    out = cuir.attention_with_kv_cache(
        q, keys, values, cache_seqlens=lengths, page_table=table if page else None, causal=True, backend="interpret", verify="off"
    )
    for b, n in enumerate(lengths.tolist()):
        k, v = (x[table[b].long()].flatten(0, 1)[:n].transpose(0, 1).float().repeat_interleave(2, 0) for x in (keys, values))
        scores = q[b].transpose(0, 1).float() @ k.mT * dim**-0.5
        later = torch.arange(n)[None] > torch.arange(M)[:, None] + n - M
        expected = scores.masked_fill(later, -torch.inf).softmax(-1) @ v
        torch.testing.assert_close(out[b].transpose(0, 1).float(), expected, atol=2e-3, rtol=2e-3)


@pytest.mark.sweep
@pytest.mark.parametrize("arch", ["sm_75", "sm_80"])
@pytest.mark.parametrize(("page", "M", "heads", "dim", "latent"), [(16, 1, 20, 576, 512), (4, 3, 5, 192, 128), (0, 2, 16, 320, 256)])
def test_latent_caches_by_kernels_of_other_cards(
    arch: str, page: int, M: int, heads: int, dim: int, latent: int, forced: Callable[[str], None]
) -> None:
    """Heads that fill a tile or not, pages that copies take or not; what lies behind the last token is NaN."""
    forced(arch)
    lengths, room = [130, 0, 61], 144
    q = torch.randn(3, M, heads, dim, dtype=torch.float16)
    pages = room // page if page else 1
    table = torch.randperm(3 * pages).view(3, pages).int() if page else torch.arange(3, dtype=torch.int32)[:, None]
    cache = torch.full((3 * pages, page or room, 1, dim), torch.nan, dtype=torch.float16)
    tokens = [torch.randn(n, dim, dtype=torch.float16) for n in lengths]
    for b, x in enumerate(tokens):
        for t, row in enumerate(x):
            cache[table[b, t // cache.shape[1]], t % cache.shape[1], 0] = row
    sink = torch.randn(heads)
    out = cuir.attention_with_kv_cache(
        q,
        cache,
        None,
        cache_seqlens=torch.tensor(lengths, dtype=torch.int32),
        page_table=table if page else None,
        causal=True,
        latent=latent,
        sink=sink,
        backend="interpret",
        verify="off",
    )
    for b, x in enumerate(tokens):
        scores = q[b].transpose(0, 1).float() @ x.float().mT * dim**-0.5
        later = torch.arange(len(x))[None] > torch.arange(M)[:, None] + len(x) - M
        sums = torch.cat([scores.masked_fill(later, -torch.inf), sink[:, None, None].expand(heads, M, 1)], -1)
        expected = sums.softmax(-1)[..., :-1] @ x[:, :latent].float()
        torch.testing.assert_close(out[b].transpose(0, 1).float(), expected, atol=2e-3, rtol=2e-3)


@pytest.mark.sweep
@pytest.mark.parametrize(("capability", "tallest"), [((7, 5), 16), ((8, 0), 64), ((8, 6), 32), ((12, 0), 32)])
def test_settings_over_latent_caches_fit_the_card(capability: tuple[int, int], tallest: int) -> None:
    """A tile is the tallest that the queries fill and the card holds."""
    card, spec = CARDS[capability], Specification("causal", lambda b, h, q, k: q >= k)
    form = Form(torch.float16, 576, 512, "latent cache", (("CHUNK", 16),), KernelTarget(ARCHS[capability], card))
    settings = make_attention(spec, make_capture_key(spec.mask_mod, None), form, "off").settings
    rows = {}
    for at in (Lengths(1, 16, 1, 1, 32768), Lengths(64, 128, 1, 1, 4096), Lengths(2, 3, 1, 2, 100)):
        consts = settings.choose_untuned(at)
        assert count_shared_bytes(settings.check_program(consts)) <= card.shared_bytes
        rows[at.H] = int(consts["BM"]) * int(consts["GROUP"])  # type: ignore[call-overload]
    assert rows == {16: 16, 128: tallest, 3: 16}


@pytest.mark.sweep
@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("dim", [64, 128, 256])
def test_settings_of_single_precision_fit_the_card(dim: int, parts: int) -> None:
    card, spec = CARDS[8, 0], Specification("causal", lambda b, h, q, k: q >= k)
    target, key = KernelTarget("sm_80", card), make_capture_key(spec.mask_mod, None)
    kinds: tuple[tuple[Kind, tuple[tuple[str, int], ...]], ...] = (("forward", ()), ("varlen", ()), ("varlen", (("CHUNK", 16),)))
    for kind, consts in kinds:
        settings = make_attention(spec, key, Form(torch.float32, dim, dim, kind, (*consts, ("PARTS", parts)), target), "off").settings
        assert count_shared_bytes(settings.check_program(settings.start)) <= card.shared_bytes


@pytest.mark.sweep
@pytest.mark.parametrize("dim", [64, 128, 256])
@pytest.mark.parametrize("capability", [(8, 0), (8, 6), (12, 0)])
def test_settings_of_other_kernels_fit_the_card(capability: tuple[int, int], dim: int) -> None:
    card, spec = CARDS[capability], Specification("causal", lambda b, h, q, k: q >= k)
    target, key = KernelTarget("sm_80", card), make_capture_key(spec.mask_mod, None)
    for in_order in (False, True):
        plan = plan_gradients(make(capability, dim), RequestedGradients(in_order=in_order))
        assert ("flash_bwd_dq" in plan.steps) == in_order != plan.adds
        assert all(count_shared_bytes(step.checked) <= card.shared_bytes for step in plan.steps.values())
    kinds: tuple[tuple[Kind, tuple[tuple[str, int], ...]], ...] = (("varlen", ()), ("cache", (("CHUNK", 16),)))
    for kind, consts in kinds:
        settings = make_attention(spec, key, Form(torch.float16, dim, dim, kind, consts, target), "off").settings
        for at in (Lengths(1, 32, 8, 1, 32768), Lengths(64, 32, 8, 4096, 4096)):
            assert count_shared_bytes(settings.check_program(settings.choose_untuned(at))) <= card.shared_bytes


@pytest.mark.sweep
@pytest.mark.parametrize(("dim", "dim_v"), [(64, 64), (128, 128), (192, 128)])
def test_settings_of_packed_sequences_fit_turing(dim: int, dim_v: int) -> None:
    card, spec = CARDS[7, 5], Specification("causal", lambda b, h, q, k: q >= k)
    target, key = KernelTarget("sm_75", card), make_capture_key(spec.mask_mod, None)
    for consts in ((), (("CHUNK", 16),)):
        settings = make_attention(spec, key, Form(torch.float16, dim, dim_v, "varlen", consts, target), "off").settings
        for at in (Lengths(1, 32, 8, 1, 1), Lengths(1, 32, 8, 4096, 1)):
            assert count_shared_bytes(settings.check_program(settings.choose_untuned(at))) <= card.shared_bytes


def test_calls_without_a_kernel_are_refused_before_they_run(forced: Callable[[str], None]) -> None:
    forced("sm_75")
    q = torch.randn(1, 1, 16, 64, dtype=torch.bfloat16)
    with pytest.raises(CuirError, match="float16"):
        cuir.flex_attention(q, q, q, backend="interpret")
    half = torch.randn(1, 1, 16, 192, dtype=torch.float16)
    with pytest.raises(CuirError, match="sm_75 has no kernel for attention of head dims 192 and 192"):
        cuir.flex_attention(half, half, half, backend="interpret", verify="off")
    with pytest.raises(CuirError, match="no kernel for gradients of such head dims"):
        find_kernel("sm_75", "wide keys", F16)


def test_a_warm_call_does_not_ask_for_the_card(launches: Launches, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def ask(device: torch.device, backend: str) -> KernelTarget:
        asked.append(device)
        return KernelTarget()

    monkeypatch.setattr(prepared_calls, "choose_target", ask)
    q = torch.randn(1, 2, 40, 64, dtype=torch.float16)
    for _ in range(3):
        cuir.flex_attention(q, q, q, verify="off")
    assert len(asked) == 1


def test_the_report_says_what_runs_and_what_is_unmeasured() -> None:
    assert "measured settings" in describe_attention(CARDS[9, 0]) and "compiled for" not in describe_attention(CARDS[9, 0])
    ampere, newest = describe_attention(CARDS[8, 6]), describe_attention(CARDS[12, 0])
    assert "compiled for sm_86" in ampere and "nobody measured" in ampere and "could do" not in ampere
    assert "attention over selected blocks" in ampere.partition("; not ")[2]
    assert "compiled for sm_120" in newest and "not what the GPU could do" in newest


def test_counterparts_have_the_same_task() -> None:
    assert find_counterpart("flash_fwd_sm90", "sm_75", F16) == "flash_fwd_sm75" and find_counterpart("flash_fwd_sm90", "sm_75", BF16) == ""
    assert find_counterpart("selected_fwd_sm90", "sm_75", F16) == "" and find_counterpart("gemm", "sm_80", F16) == ""
    for task, names in KERNELS["sm_80"].items():
        assert find_counterpart(KERNELS["sm_90a"][task].halves, "sm_80", BF16) == names.halves


@pytest.mark.nvcc
@pytest.mark.thorough
@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.parametrize("capability", [c for c in ARCHS if c != (9, 0)])
def test_the_kernel_of_a_card_is_compiled_for_it(capability: tuple[int, int], dim: int) -> None:
    attention = make(capability, dim)
    cuda = lower(attention.settings.check_program(attention.settings.start))
    with stand_in(CARDS[capability]):
        compiled = compile_cuda(cuda)
    assert compiled.cubin and compiled.resources.spill_stores <= SPILLED


@pytest.mark.parametrize(("arch", "dropout"), [("sm_80", False), ("sm_75", False), (DEFAULT, True)])
def test_an_order_that_no_kernel_has_is_refused(arch: str, dropout: bool) -> None:
    check_invariant(KernelTarget(DEFAULT))
    with pytest.raises(CuirError) as error:
        check_invariant(KernelTarget(arch), dropout)
    assert error.value.diagnostics[0].code == "U413"
