"""The backend for vLLM against vLLM's own interface: its metadata, its pages, its way of choosing backends. Skipped where vLLM cannot be imported."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from cuir.integrations.batches import CallOptions
from tests.attn.serving.test_packed_cache import Problem

backend = pytest.importorskip("vllm.v1.attention.backend", reason="vLLM cannot be imported", exc_type=ImportError)

H, HK, D, PAGE = 4, 2, 64, 16


@pytest.fixture(autouse=True)
def ours() -> Any:
    from cuir.integrations import vllm

    vllm.register(backend="interpret", verify="off")
    vllm.register(backend="interpret", verify="off")  # vLLM loads plug-ins in each process, perhaps again
    return vllm


def builder(ours: Any, drafts: int | None = None) -> Any:
    """Return vLLM's builder for a model of these heads, whose drafts guess so many tokens."""
    parallel = SimpleNamespace(decode_context_parallel_size=1)
    model = SimpleNamespace(get_num_attention_heads=lambda _: H, get_num_kv_heads=lambda _: HK)
    speculative = None if drafts is None else SimpleNamespace(num_speculative_tokens=drafts, parallel_drafting=False)
    config = SimpleNamespace(model_config=model, parallel_config=parallel, speculative_config=speculative, use_v2_model_runner=True)
    return ours.CuirMetadataBuilder(SimpleNamespace(block_size=PAGE), ["layer.0"], config, torch.device("cpu"))


def metadata(problem: Problem, causal: Any = True) -> Any:
    queries, keys = problem.lengths
    starts, lengths = torch.tensor([0, *queries]).cumsum(0).int(), torch.tensor(keys, dtype=torch.int32)
    return backend.CommonAttentionMetadata(
        query_start_loc=starts,
        query_start_loc_cpu=starts,
        seq_lens=lengths,
        num_reqs=len(queries),
        num_actual_tokens=sum(queries),
        max_query_len=max(queries),
        max_seq_len=max(keys),
        block_table_tensor=problem.table,
        slot_mapping=slots(problem),
        causal=causal,
    )


def slots(problem: Problem) -> torch.Tensor:
    """Return the slots of the new tokens as vLLM says them, and a row that pads the batch."""
    assert problem.table is not None
    places = [
        int(problem.table[b, t // PAGE]) * PAGE + t % PAGE
        for b, (m, n) in enumerate(zip(*problem.lengths, strict=True))
        for t in range(n - m, n)
    ]
    return torch.tensor([*places, -1])


def pages(problem: Problem) -> torch.Tensor:
    """A cache as vLLM allocates it: keys and values of a token side by side, [pages, HK, page size, 2 D]."""
    return torch.cat(problem.caches, -1).transpose(1, 2).contiguous()


@pytest.mark.parametrize("queries", [[1, 1, 1], [1, 1, 40, 7], [30, 2]])
@pytest.mark.parametrize("order", ["NHD", "HND"])
def test_a_layer_of_a_step(queries: list[int], order: str, ours: Any) -> None:
    """Its tokens are written into the cache, then all of it attended to."""
    problem = Problem(queries, [n + 20 for n in queries], PAGE, (H, HK), new=True)
    layer = ours.CuirAttentionImpl(H, D, D**-0.5, HK)
    cache = pages(problem) if order == "HND" else pages(problem).transpose(1, 2).contiguous().transpose(1, 2)
    rows = [torch.cat([x[n:] for x, n in zip(tokens, problem.past)]) for tokens in (problem.k, problem.v)]
    padded = [torch.cat([x, torch.full((1, *x.shape[1:]), math.nan, dtype=x.dtype)]) for x in (torch.cat(problem.q), *rows)]
    layer.do_kv_cache_update(None, *padded[1:], cache, slots(problem))
    kernel = builder(ours).build(0, metadata(problem))
    out = torch.zeros(len(padded[0]), H, D, dtype=torch.float16)
    assert layer.forward(None, *padded, cache, kernel, out) is out
    expected, _ = problem.compute_expected(causal=True)
    assert torch.allclose(out[:-1].double(), expected, atol=4e-3)


def test_batches_of_vllms_invariant_mode_have_one_call(ours: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = Problem([1, 1], [600, 30], PAGE, (H, HK))
    layer, outs = ours.CuirAttentionImpl(H, D, D**-0.5, HK), []
    monkeypatch.setenv("VLLM_BATCH_INVARIANT", "1")
    for queries in ([1, 1], [1]):
        some = Problem(queries, problem.lengths[1][: len(queries)], PAGE, (H, HK))
        some.q, some.caches, some.table = problem.q[: len(queries)], problem.caches, problem.table[: len(queries)]
        kernel, out = builder(ours).build(0, metadata(some)), torch.zeros(len(queries), H, D, dtype=torch.float16)
        assert [part.each for part in kernel.batch.parts] == [0]
        outs.append(layer.forward(None, torch.cat(some.q), None, None, pages(some), kernel, out))
    assert torch.equal(outs[0][:1], outs[1])


def test_what_layers_ask_for(ours: Any) -> None:
    problem = Problem([1, 25], [40, 30], PAGE, (H, HK))
    sinks, slopes = torch.tensor([0.5, -1.0, 2.0, 0.0]), [0.5, 0.2, 0.1, 0.05]
    layer = ours.CuirAttentionImpl(H, D, 0.1, HK, slopes, 9, "auto", 3.0, sinks=sinks)
    result, out = builder(ours).build(0, metadata(problem)), torch.zeros(26, H * D, dtype=torch.float16)
    layer.forward(None, torch.cat(problem.q), None, None, pages(problem), result, out)

    def score(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        M, N = (lengths[b] for lengths in problem.lengths)
        return 3.0 * torch.tanh(s * (0.1 / D**-0.5) / 3.0) + torch.tensor(slopes)[h] * (k - (q + N - M))

    def mask(b: Any, h: Any, q: Any, k: Any) -> Any:
        M, N = (lengths[b] for lengths in problem.lengths)
        return k > q + N - M - 9

    expected, lse = problem.compute_expected(score, mask, causal=True)
    assert torch.allclose(out.view(26, H, D).double(), expected / (1 + (sinks[:, None] - lse).exp()).T[..., None], atol=4e-3)
    assert layer.forward(None, torch.cat(problem.q), None, None, pages(problem), None, out).abs().sum() == 0  # a run that measures memory


def test_queries_that_see_all(ours: Any) -> None:
    problem = Problem([3, 20], [40, 30], PAGE, (H, HK))
    result, out = builder(ours).build(0, metadata(problem, causal=False)), torch.zeros(23, H, D, dtype=torch.float16)
    ours.CuirAttentionImpl(H, D, D**-0.5, HK).forward(None, torch.cat(problem.q), None, None, pages(problem), result, out)
    assert torch.allclose(out.double(), problem.compute_expected()[0], atol=4e-3)
    with pytest.raises(NotImplementedError, match="some sequences"):
        builder(ours).build(0, metadata(problem, causal=torch.tensor([True, False])))


def test_vllm_finds_the_backend(ours: Any) -> None:
    from vllm.config.attention import AttentionConfig

    result = AttentionConfig(backend="cuir").backend.get_class()  # type: ignore[arg-type, union-attr]  # as `--attention-backend cuir`
    assert result is ours.CuirAttentionBackend and result.get_name() == "CUIR"
    assert issubclass(result.get_impl_cls(), backend.AttentionImpl) and issubclass(
        result.get_builder_cls(), backend.AttentionMetadataBuilder
    )
    assert result.get_builder_cls()._cudagraph_support is backend.AttentionCGSupport.UNIFORM_BATCH
    assert builder(ours).reorder_batch_threshold == 1 and builder(ours, drafts=4).reorder_batch_threshold == 5


def test_the_plug_in_keeps_the_options_of_another_one(ours: Any) -> None:
    ours.plugin()
    assert CallOptions("interpret", "off") == ours._OPTIONS


def test_another_interface_keeps_nobody_from_using_vllm(ours: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise AttributeError("register")

    monkeypatch.setattr(ours, "NAME", "CUIR_OF_TESTS")
    monkeypatch.setattr(ours, "register_backend", fail)
    with pytest.warns(UserWarning, match="another one than 0.33's"):
        ours.plugin()


@pytest.mark.parametrize(
    ("requests", "reasons"),
    [
        ({}, []),
        ({"head_size": 256, "has_sink": True, "has_sliding_window": True, "use_non_causal": True}, []),
        ({"head_size": 100}, ["head_size"]),
        ({"head_size": 320}, ["head_size"]),
        ({"dtype": torch.float32}, ["dtype"]),
        ({"kv_cache_dtype": "fp8"}, ["kv_cache_dtype"]),
        ({"use_mla": True}, ["MLA"]),
        ({"attn_type": "encoder_decoder"}, ["attention type"]),
        ({"device_capability": SimpleNamespace(major=7, minor=0)}, ["compute capability"]),
        ({"device_capability": SimpleNamespace(major=7, minor=5)}, ["kernels of sm_75 multiply f16, found bf16"]),
        ({"device_capability": SimpleNamespace(major=7, minor=5), "dtype": torch.float16}, []),
        ({"device_capability": SimpleNamespace(major=8, minor=0)}, []),
    ],
)
def test_vllm_is_told_what_it_takes(requests: dict[str, Any], reasons: list[str], ours: Any) -> None:
    inputs = {
        "head_size": 128,
        "dtype": torch.bfloat16,
        "kv_cache_dtype": "auto",
        "block_size": 16,
        "use_mla": False,
        "has_sink": False,
        "use_sparse": False,
        "use_mm_prefix": False,
        "use_per_head_quant_scales": False,
        "device_capability": SimpleNamespace(major=9, minor=0),
        "attn_type": "decoder",
    }
    result = ours.CuirAttentionBackend.validate_configuration(**{**inputs, **requests})
    assert len(result) == len(reasons) and all(word in text for word, text in zip(reasons, result))


def test_what_a_layer_does_not_take_is_refused(ours: Any) -> None:
    with pytest.raises(NotImplementedError, match="decoders"):
        ours.CuirAttentionImpl(H, D, 0.1, HK, attn_type="encoder_only")
    with pytest.raises(NotImplementedError, match="found fp8"):
        ours.CuirAttentionImpl(H, D, 0.1, HK, kv_cache_dtype="fp8")
    with pytest.raises(NotImplementedError, match="dtype of queries"):
        q = torch.zeros(1, H, D)
        ours.CuirAttentionImpl(H, D, 0.1, HK).forward(None, q, None, None, q, None, q, output_scale=torch.ones(1))
