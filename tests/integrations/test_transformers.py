"""attn_implementation="cuir": models of transformers with tiny random configurations, in the interpreter, against the same weights in float32 and eager attention."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._dynamo.testing import CompileCounter

from cuir import CuirError, draw_dropout_seed, dropout_mask
from cuir.attn.api import dense_calls
from cuir.attn.capture import graph_errors
from cuir.integrations.transformers import mask_for, register

transformers = pytest.importorskip("transformers")
from transformers import masking_utils as masking_utils  # noqa: E402

TINY = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
MIXED_LAYERS = {"num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"]}
MODELS: dict[str, Callable[[], Any]] = {
    "llama": lambda: transformers.LlamaConfig(**TINY),
    "mistral, the window fills up while decoding": lambda: transformers.MistralConfig(**TINY, sliding_window=8),
    "gemma 2": lambda: transformers.Gemma2Config(
        **TINY | MIXED_LAYERS, sliding_window=4, attn_logit_softcapping=2.0, query_pre_attn_scalar=16
    ),
    "gpt-oss, all experts": lambda: transformers.GptOssConfig(
        **TINY | MIXED_LAYERS,
        sliding_window=4,
        num_local_experts=2,
        num_experts_per_tok=2,
        rope_parameters={"rope_type": "default", "rope_theta": 1e4},
    ),
}
PADDED = torch.tensor([[0, 0, 0, 1, 1, 1, 1], [1] * 7])  # at the left
NEW = 3


@pytest.fixture(autouse=True)
def registered() -> None:
    register(backend="interpret")


@pytest.mark.sweep
@pytest.mark.parametrize("name", MODELS)
def test_logits_are_those_of_eager(name: str) -> None:
    compare(MODELS[name](), PADDED, NEW, torch.float16)


@pytest.mark.sweep
@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_those_of_eager(name: str) -> None:
    """Of every parameter, sinks too, in float32, with padding at the right that no loss counts."""
    ids = torch.randint(3, TINY["vocab_size"], PADDED.shape, generator=torch.Generator().manual_seed(1))
    mask = PADDED.flip(1)
    grads = []
    for implementation in ("eager", "cuir"):
        model = model_of(MODELS[name](), torch.float32, ids.device).train()
        model.set_attn_implementation(implementation)
        model(input_ids=ids, attention_mask=mask, labels=ids.where(mask.bool(), -100), use_cache=False).loss.backward()
        grads.append({n: p.grad for n, p in model.named_parameters()})
    expected, actual = grads
    assert any("sinks" in n for n in expected) == name.startswith("gpt-oss")
    for n, of_eager in expected.items():
        assert of_eager is not None and error(actual[n], of_eager) < 1e-4, n


def compare(config: Any, padded: torch.Tensor, new: int, dtype: torch.dtype) -> None:
    """Prefill with padding at the right; generate() with padding at the left, over a dynamic and a static cache, to given tokens.

    No further from eager attention in float32 than eager attention in half precision, by half as much again.
    """
    g, device = torch.Generator().manual_seed(1), padded.device
    ids, forced = (torch.randint(3, config.vocab_size, (len(padded), n), generator=g).to(device) for n in (padded.shape[1], new))
    exact, model = model_of(config, torch.float32, device), model_of(config, dtype, device)

    def force(tokens: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return torch.full_like(scores, -math.inf).scatter(1, forced[:, tokens.shape[1] - ids.shape[1], None], 0.0)

    def generate(of: Any, cache: str) -> torch.Tensor:
        inputs = {
            "attention_mask": padded,
            "max_new_tokens": new,
            "do_sample": False,
            "cache_implementation": cache,
            "logits_processor": [force],
        }
        return torch.stack(of.generate(ids, **inputs, output_logits=True, return_dict_in_generate=True).logits)

    def prefill(of: Any) -> torch.Tensor:
        logits: torch.Tensor = of(ids, attention_mask=padded.flip(1)).logits
        return logits[padded.flip(1).bool()]

    with torch.no_grad():
        expected = prefill(exact), generate(exact, "dynamic")
        eager = error(prefill(model), expected[0]), error(generate(model, "dynamic"), expected[1])
        model.set_attn_implementation("cuir")
        assert error(prefill(model), expected[0]) < 1.5 * eager[0]
        for cache in ("dynamic", "static"):
            assert error(generate(model, cache), expected[1]) < 1.5 * eager[1], cache


def model_of(config: Any, dtype: torch.dtype, device: torch.device) -> Any:
    """The same weights in any dtype."""
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float16, attn_implementation="eager")
    return model.to(device, dtype).eval()


def error(x: torch.Tensor, expected: torch.Tensor) -> float:
    return float((x.float() - expected).norm() / expected.norm())


FUNCTIONS = {
    "causal": masking_utils.causal_mask_function,
    "window": masking_utils.sliding_window_causal_mask_function(3),
    "chunks": masking_utils.chunked_causal_mask_function(4, torch.tensor([0, 2])),
    "images": masking_utils.or_masks(
        masking_utils.causal_mask_function, masking_utils.blockwise_overlay(torch.tensor([[-1, 0, 0, 0, -1, 1, 1, -1, -1]] * 2))
    ),
    "all": masking_utils.bidirectional_mask_function,
}
TOKENS = {
    "none": None,
    "whole": torch.ones(2, 9, dtype=torch.bool),
    "left": torch.arange(9) >= torch.tensor([[0], [4]]),
    "right": torch.arange(9) < torch.tensor([[9], [4]]),
    "both sides, and nothing": (torch.arange(9) >= 2) & (torch.arange(9) < torch.tensor([[5], [0]])),
    "holes": torch.arange(9) % torch.tensor([[9], [3]]) > 0,
    "shorter than the cache": torch.ones(2, 6, dtype=torch.bool),
}


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("tokens", TOKENS)
def test_masks_are_those_of_transformers(function: str, tokens: str) -> None:
    """Of a prefill, of a later part of it, over a static cache, and of a window's cache that has dropped tokens."""
    for M, N, q_offset, kv_offset in ((9, 9, 0, 0), (3, 9, 6, 0), (1, 9, torch.tensor(5), 0), (2, 4, 7, 5)):
        at = (2, M, N, q_offset, kv_offset)
        mask = mask_for(*at, mask_function=FUNCTIONS[function], attention_mask=TOKENS[tokens])
        expected = masking_utils.sdpa_mask(
            *at, mask_function=FUNCTIONS[function], attention_mask=TOKENS[tokens], allow_is_causal_skip=False
        )
        b, h, q, k = (torch.arange(n).view([-1 if d == i else 1 for d in range(4)]) for i, n in enumerate((2, 1, M, N)))
        assert mask.shape == (2, 1, M, N)
        assert torch.equal(mask.mask_mod(b, h, q, k).expand(2, 1, M, N), expected)


def test_a_mask_keeps_the_offset_of_the_moment() -> None:
    """A static cache counts its tokens in place, in its first layer's update."""
    counted = torch.tensor(5)
    mask = mask_for(1, 1, 9, counted, 0, masking_utils.causal_mask_function)
    counted += 1
    assert [bool(mask.mask_mod(0, 0, 0, k)) for k in (5, 6)] == [True, False]


class Layer(torch.nn.Module):
    is_causal = True


def attend(*args: Any, **kwargs: Any) -> Any:
    return transformers.AttentionInterface()["cuir"](Layer(), *args, **kwargs)


def heads(M: int, N: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, h, n, 16, generator=g).half() for h, n in ((4, M), (2, N), (2, N)))
    return q, k, v


def test_prepared_masks_and_biases() -> None:
    """Bool and additive masks of 4 dims, longer than the keys as of a static cache, a bias of positions; a model that makes no mask is causal."""
    q, k, v = heads(5, 7)
    g = torch.Generator().manual_seed(1)
    keep = torch.rand(2, 1, 5, 9, generator=g) < 0.7
    keep[..., 0] = True
    bias = torch.randn(1, 4, 5, 7, generator=g).half()
    added = torch.where(keep, 0.0, -math.inf).clamp(min=torch.finfo(torch.float16).min).half()
    causal = torch.ones(5, 7, dtype=torch.bool).tril()
    for mask, inputs, expected in (
        (keep, {}, keep[..., :7]),
        (added, {"position_bias": bias}, bias.double().masked_fill(~keep[..., :7], -math.inf)),
        (None, {}, causal),
        (None, {"is_causal": False, "position_bias": bias}, bias.double()),
    ):
        o, weights = attend(q, k, v, mask, scaling=0.3, **inputs)
        exact = torch.nn.functional.scaled_dot_product_attention(q.double(), k.double(), v.double(), expected, scale=0.3, enable_gqa=True)
        assert weights is None
        torch.testing.assert_close(o.double(), exact.transpose(1, 2), atol=2e-3, rtol=2e-3)


def test_a_second_layer_finds_the_call_prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers share the mask of a forward pass; a soft cap and a sink are the same objects in the next one."""
    prepared: list[Any] = []
    prepare = dense_calls.prepare
    monkeypatch.setattr(dense_calls, "prepare", lambda *args: prepared.append(args) or prepare(*args))
    q, k, v = heads(1, 9)
    mask, sink = mask_for(2, 1, 9, 8, 0, masking_utils.causal_mask_function, TOKENS["left"]), torch.ones(4)
    with torch.no_grad():
        first, second = (attend(q, k, v, mask, softcap=2.0, s_aux=sink)[0] for _ in range(2))
    assert torch.equal(first, second) and len(prepared) == 1


@pytest.mark.parametrize("read", [True, False])
def test_a_soft_cap_in_a_compiled_model(read: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of PyTorch's versions whose torch.compile cannot be asked to read mods that are made inside."""
    if not read:
        monkeypatch.setattr(graph_errors, "TRACER_TRIED", (99, 0))
    q, k, v = heads(4, 4)
    torch.compiler.reset()
    tokens = torch.tensor([[True] * 4, [False, True, True, True]])  # the mask is made outside, and captures tensors
    compiled = torch.compile(lambda q, k, v, mask: attend(q, k, v, mask, softcap=2.0)[0], backend="eager", fullgraph=True)
    mask = mask_for(2, 4, 4, 0, 0, masking_utils.causal_mask_function, tokens, allow_is_causal_skip=False)
    with torch.no_grad():
        assert torch.equal(compiled(q, k, v, mask), attend(q, k, v, mask, softcap=2.0)[0])


def test_steps_over_a_static_cache_are_one_graph() -> None:
    q, k, v = heads(1, 9)
    torch.compiler.reset()
    graphs = CompileCounter()
    step = torch.compile(attend, backend=graphs, fullgraph=True)
    for n, kv_offset in ((6, 0), (7, 1), (9, 0)):  # in the end the cache is full
        tokens = torch.ones(2, n, dtype=torch.bool)
        at = (2, 1, 9, n - 1, kv_offset, masking_utils.sliding_window_causal_mask_function(4), tokens)
        with torch.no_grad():
            o, _ = step(q, k, v, mask_for(*at, allow_is_causal_skip=False))
        expected = masking_utils.sdpa_mask(*at, allow_is_causal_skip=False)
        exact = torch.nn.functional.scaled_dot_product_attention(q.double(), k.double(), v.double(), expected, enable_gqa=True)
        torch.testing.assert_close(o.double(), exact.transpose(1, 2), atol=2e-3, rtol=2e-3)
    assert graphs.frame_count == 1


def test_attention_dropout_while_training() -> None:
    """Weights of the replayed mask are dropped in training, and none in evaluation."""
    q, k, v = heads(5, 7)
    layer, attention = Layer(), transformers.AttentionInterface()["cuir"]
    torch.manual_seed(4)
    seed = draw_dropout_seed("cpu")
    torch.manual_seed(4)
    o, _ = attention(layer, q, k, v, None, dropout=0.5, is_causal=False)
    scores = q.double() @ k.double().repeat_interleave(2, 1).mT / 4
    exact = (scores.softmax(-1) * dropout_mask(seed, 0.5, 2, 4, 5, 7) * 2) @ v.double().repeat_interleave(2, 1)
    torch.testing.assert_close(o.double(), exact.transpose(1, 2), atol=3e-3, rtol=2e-3)
    evaluated, _ = attention(layer.eval(), q, k, v, None, dropout=0.5, is_causal=False)
    assert torch.equal(evaluated, attention(layer, q, k, v, None, is_causal=False)[0])


def test_a_model_with_attention_dropout_trains() -> None:
    """Gradients are the same for the same seed of PyTorch, with checkpointed layers too, and others for another one."""
    config = transformers.LlamaConfig(**TINY, attention_dropout=0.3)
    ids = torch.randint(3, 64, (2, 9), generator=torch.Generator().manual_seed(1))
    grads = []
    for seed, checkpointed in ((1, False), (1, True), (2, False)):
        model = model_of(config, torch.float32, ids.device).train()
        model.set_attn_implementation("cuir")
        if checkpointed:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        torch.manual_seed(seed)
        model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
        grads.append([p.grad for p in model.parameters()])
    assert all(torch.equal(x, y) for x, y in zip(*grads[:2], strict=True))
    assert not all(torch.equal(x, y) for x, y in zip(grads[0], grads[2], strict=True))


@pytest.mark.parametrize(
    ("inputs", "code", "message"),
    [
        ({"cache": object()}, "U413", "continuous batching"),
        ({"attention_mask": torch.ones(2, 5)}, "U412", r"found \[2, 5\]"),
    ],
)
def test_what_is_not_there_is_refused(inputs: dict[str, Any], code: str, message: str) -> None:
    with pytest.raises(CuirError, match=message) as caught:
        attend(*heads(5, 5), **inputs)
    assert caught.value.diagnostics[0].code == code


def test_attention_weights_are_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    warnings_seen: list[str] = []
    monkeypatch.setattr(
        type(transformers.utils.logging.get_logger("cuir.integrations.transformers")),
        "warning_once",
        lambda _, text: warnings_seen.append(text),
    )
    register(backend="interpret")
    assert attend(*heads(5, 5), output_attentions=True)[1] is None
    assert len(warnings_seen) == 1 and "output_attentions" in warnings_seen[0]


def test_registering_says_what_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CuirError, match="backend must be"):
        register(backend="gpu")
    monkeypatch.setattr(masking_utils, "sdpa_mask", lambda batch_size, cache_position: None)
    with pytest.raises(CuirError, match="is another one") as caught:
        register()
    assert caught.value.diagnostics[0].code == "U508"


def test_a_sequence_has_its_bits_in_any_batch() -> None:
    """Without the option two CTAs share the keys of a head of 16 sequences, and four those of one."""
    register(backend="interpret", verify="off", batch_invariant=True)
    attend, layer = transformers.AttentionInterface()["cuir"], torch.nn.Module()
    g = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(16, heads, n, 16, generator=g).half() for heads, n in ((4, 1), (2, 600), (2, 600)))
    together, _ = attend(layer.eval(), q, k, v, is_causal=False)
    for b in (0, 9):
        assert torch.equal(attend(layer, *(x[b : b + 1] for x in (q, k, v)), is_causal=False)[0], together[b : b + 1])
