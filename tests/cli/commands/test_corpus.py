"""`cuir corpus`: what is listed."""

from __future__ import annotations

from collections.abc import Callable


def test_corpus_lists_what_is_there(cuir: Callable) -> None:
    data = cuir("corpus", "--json").json
    messages = [text for shelf in data.values() if isinstance(shelf, dict) for text in shelf.values()]
    assert len(messages) > 40 and all(text.endswith(".") and ". " not in text for text in messages), "each is told in one whole sentence"
    assert "flash_fwd_sm90" in data["kernels"] and "gemm" in data["programs"] and "prefix_lm" in data["variants"]
    assert all(about for shelf in ("kernels", "programs", "variants", "cuda") for about in data[shelf].values())
    assert "prefix_lm" in cuir("corpus").out
