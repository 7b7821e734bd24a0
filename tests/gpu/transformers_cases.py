"""Models of transformers on a GPU; `test_transformers.py` runs them in processes of their own."""

from __future__ import annotations

from typing import Any

import torch
import transformers

from cuir.integrations.transformers import register
from tests.integrations.test_transformers import MODELS, compare

WIDER = {
    "hidden_size": 512,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "initializer_range": 0.05,
}
HEAD_DIMS = {"gemma 2": 256, "gpt-oss, all experts": 64}


def logits(name: str) -> None:
    """Prompts of 300 tokens and 20 more, past a window; over the static cache the model is one that transformers compiles."""
    register()
    small: Any = MODELS[name]()
    of = {"head_dim": HEAD_DIMS.get(name, 128), **({"sliding_window": 310} if hasattr(small, "sliding_window") else {})}
    if getattr(small, "layer_types", None):
        of["layer_types"] = small.layer_types * 2
    config = type(small)(**{**small.to_dict(), **WIDER, **of})
    padded = (torch.arange(300) >= torch.tensor([[0], [130]])).long().cuda()
    compare(config, padded, 20, torch.bfloat16)
    print(transformers.__version__, name, "is right")
