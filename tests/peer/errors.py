"""Calls for which the originals want an error, or which PyTorch's compiled kernels do not take: any error for people will do; and other dtypes of keys."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.attention.flex_attention import noop_mask

from tests.peer.cases import ATTENTION, BACKWARD, DECODING, INPUTS, aside, scenario
from tests.peer.judging import Wrong, close, expect
from tests.peer.mods import FAST, causal_mask, identity
from tests.peer.scores import block_mask
from tests.peer.trial import Trial, attention

ERRORS = "errors"


@scenario(ATTENTION, ERRORS)
def mixed_dtypes_fails(t: Trial) -> None:
    q, k, v = t.randn(1, 1, 512, 64), *t.qkv((1, 1, 512, 64), dtype=torch.float16)[1:]
    with t.allow_either():  # PyTorch's eager call takes them from 2.12 on
        o = t.ours.flex_attention(q, k, v, identity)
        close(o, t.torch_api.flex_attention(q, k, v, identity), 2e-3)


@scenario(ATTENTION, ERRORS, dtype=FAST)
def return_aux_deprecation_warnings(t: Trial, dtype: torch.dtype) -> None:
    q, k, v = t.qkv((2, 2, 64, 16), dtype=dtype)
    options = {"return_lse": True, "return_aux": t.torch_api.AuxRequest(lse=True)}
    t.expect_refusal(lambda: t.ours.flex_attention(q, k, v, **options), "return_lse and return_aux at once")


@scenario(ATTENTION, ERRORS)
def mixed_device_error_message(t: Trial) -> None:
    q, k, v = t.qkv((2, 2, 128, 16))
    moved_key = k.to("cpu" if t.native else "meta")
    t.expect_refusal(lambda: t.ours.flex_attention(q, moved_key, v), "query and key are on other devices")


@scenario(ATTENTION, ERRORS, native_only=True)
def captured_wrong_device_error_message(t: Trial) -> None:
    scales = torch.logspace(0.001, 0.1, 8, device="cpu")
    q, k, v = t.qkv((1, 8, 64, 64), dtype=torch.float16)
    t.expect_refusal(
        lambda: t.compile(attention(lambda score, b, h, q, kv: score * scales[h])(t.ours))(q, k, v), "a captured tensor on another device"
    )


@scenario(ATTENTION, ERRORS)
def invalid_block_size(t: Trial) -> None:
    with t.allow_either():  # blocks of 96 fit no block of Triton's kernel
        t.judge(attention(mask=block_mask(t, noop_mask, 1, 8, 128, 128, 96)), t.qkv((1, 8, 128, 64)))


@scenario(ATTENTION, ERRORS)
def zero_length_sequence_error(t: Trial) -> None:
    with t.allow_either():  # PyTorch's compiled call refuses it, the eager one gives what is as empty
        q, k, v = t.qkv((8, 8, 0, 64), dtype=torch.bfloat16)
        o = t.compile(t.ours.flex_attention, fullgraph=True)(q, k, v)
        expect(o.shape == q.shape, f"O has shape {list(o.shape)}")


@scenario(ATTENTION, ERRORS)
def validate_small_embedding_size_error_message(t: Trial) -> None:
    with t.allow_either():  # Triton has no products of 8 elements
        t.judge(attention(), t.qkv((2, 2, 128, 8)))


@scenario(ATTENTION, ERRORS)
def sliced_blockmask_mask_mod_error(t: Trial) -> None:
    mask = t.ours.create_block_mask(causal_mask, 1, 1, 256, 256, device=t.device)[:, :, 0]
    q, k, v = t.qkv((1, 1, 1, 64), (1, 1, 256, 64))
    call = t.compile(t.ours.flex_attention)
    t.expect_refusal(lambda: call(q, k, v, block_mask=mask), "the mask_mod of a sliced mask does not know which queries are left")


@scenario(ATTENTION, ERRORS, gradients=INPUTS, compile={"False": False, "True": True})
def block_mask_vs_sequence_lengths(t: Trial, compile: bool) -> None:
    call = t.compile(t.ours.flex_attention) if compile else t.ours.flex_attention

    def inputs(n: int) -> Any:
        return t.qkv((1, 8, n, 64), dtype=torch.float16)

    n = t.length(1024)
    mask = t.ours.create_block_mask(causal_mask, None, None, n, n, device=t.device)
    call(*inputs(n), block_mask=mask)
    t.expect_refusal(lambda: call(*inputs(2 * n), block_mask=mask), "the mask is for half of these lengths")
    mask = t.ours.create_block_mask(causal_mask, None, None, n - 1, n - 1, device=t.device)
    t.expect_refusal(lambda: call(*inputs(n), block_mask=mask), "the mask is for one query less")


def raises_assertion(make: Any) -> None:
    """Fields of a BlockMask that do not belong together: PyTorch asserts, and so does whatever has its constructor."""
    try:
        make()
    except (AssertionError, ValueError, RuntimeError):
        return
    raise Wrong("a block mask with counts and without indices was made")


def mismatch(t: Trial, selector: str) -> None:
    counts = torch.tensor([[[1]]], dtype=torch.int32, device=t.device)
    indices = torch.tensor([[[[1, -1]]]], dtype=torch.int32, device=t.device)
    fields = {f"{kind}_{description}": None for kind in ("full_kv", "full_q") for description in ("num_blocks", "indices")} | {
        f"{selector}_num_blocks": counts
    }
    raises_assertion(
        lambda: t.ours.BlockMask(
            kv_num_blocks=counts,
            kv_indices=indices,
            q_num_blocks=counts,
            q_indices=indices,
            **fields,
            BLOCK_SIZE=(64, 64),
            mask_mod=noop_mask,
            seq_lengths=(1, 1),
        )
    )


@scenario(ATTENTION, "fields of block masks")
def init_mismatched_full_kv(t: Trial) -> None:
    mismatch(t, "full_kv")


@scenario(ATTENTION, "fields of block masks")
def init_mismatched_full_q(t: Trial) -> None:
    mismatch(t, "full_q")


# ---- keys in 8 bits, and the scales that undo them
FLOAT8 = torch.float8_e4m3fn
EIGHT_BITS = "float8"


@scenario(DECODING, EIGHT_BITS)
def mixed_dtypes(t: Trial) -> None:
    q, k, v = t.qkv((1, 1, 8, 64), (1, 1, t.length(1024), 64), torch.float16)
    o = t.compile(t.ours.flex_attention)(q, k.to(FLOAT8), v.to(FLOAT8), identity, kernel_options={"BACKEND": "TRITON_DECODE"})
    expect(o.shape == q.shape and o.dtype == q.dtype, f"O is {o.dtype} {list(o.shape)}")


def quantise(t: Trial, heads: int, dims: tuple[int, ...] | None) -> None:
    shape = (1, heads, t.length(1024), 64)
    q, k, v = (18 * torch.rand(s, device=t.device, dtype=torch.bfloat16) - 9 for s in ((1, heads, 8, 64), shape, shape))
    most = torch.finfo(FLOAT8).max
    k_scale, v_scale = ((x.abs().amax(dims, keepdim=True) if dims else x.abs().max()) / most for x in (k, v))
    small_k, small_v = (k / k_scale).to(FLOAT8), (v / v_scale).to(FLOAT8)
    of_head = k_scale.flatten(1) if dims else k_scale

    def mod(score: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
        return score * (of_head[b, h] if dims else of_head)

    options = {"kernel_options": {"BACKEND": "TRITON_DECODE"}}
    actual = t.compile(attention(mod, **options)(t.ours), fullgraph=True)(q, small_k, small_v) * v_scale
    expected = t.torch_api.flex_attention(q, k, v)
    ratio = 20 * torch.log10(expected.float().norm() / (actual.float() - expected.float()).norm())
    if not ratio > 10:
        raise Wrong(f"the signal is {ratio:.1f} dB over the noise, and not 10")


@scenario(DECODING, EIGHT_BITS)
def mixed_dtypes_sqnr_per_tensor(t: Trial) -> None:
    quantise(t, 1, None)


@scenario(DECODING, EIGHT_BITS)
def mixed_dtypes_sqnr_per_head(t: Trial) -> None:
    quantise(t, 4, (-2, -1))


@scenario(DECODING, EIGHT_BITS, gradients=BACKWARD)
def mixed_dtype_backwards(t: Trial) -> None:
    q, k, v = t.qkv((1, 1, 8, 64), (1, 1, t.length(1024), 64), torch.float16)
    call = t.compile(t.ours.flex_attention, fullgraph=True)
    if t.gradients:
        t.expect_refusal(lambda: call(q, k.to(FLOAT8), v.to(FLOAT8), identity).mean().backward(), "a gradient of float8")
    else:
        with t.allow_either():
            call(q, k.to(FLOAT8), v.to(FLOAT8), identity)


aside(ATTENTION, "needs two GPUs", "test_qkv_and_block_mask_on_the_same_device", "test_device_cuda_1")
aside(
    ATTENTION,
    "reads graphs, generated code, logs or numbers of moved bytes of inductor",
    "test_subgraph_respect_decompostion",
    "test_epilogue_fused",
    "test_kernel_options_argument_is_respected",
    "test_fw_bw_graph_correctness",
    "test_flex_attention_logging",
)
aside(
    ATTENTION,
    "chooses among PyTorch's kernels, or looks at how it chooses",
    "test_backend_auto_matches_triton_large",
    "test_backend_triton_decode_matches_auto",
    "test_backend_triton_decode_errors_when_not_supported",
    "test_backend_triton_decode_errors_with_non_power_of_two_gqa",
    "test_backend_rejects_legacy_force_use_flag",
    "test_backend_defaults_and_rejects_invalid",
    "test_triton_template_warp_specialization",
)
aside(ATTENTION, "a warning of PyTorch's and the flag that turns its compiling off", "test_debug_flag_disables_internal_compilation")
aside(ATTENTION, "registers a tensor subclass with PyTorch's own operator", "test_tensor_subclass_dispatch_order")
aside(
    ATTENTION,
    "PagedAttention's own table of pages: calls neither function",
    "test_page_allocation",
    "test_allocate",
    "test_update",
    "test_convert_mask_mod",
)
aside(
    ATTENTION,
    "skipped by PyTorch itself, or for a device without CUDA",
    "test_max_autotune_with_captured",
    "test_cpu_error_message_return_lse",
)
