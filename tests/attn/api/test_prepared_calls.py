"""A call that was prepared is found again, by the same mods with the same contents, and by no others."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from cuir.attn.api.prepared_calls import find_prepared, prepare
from cuir.attn.capture.attention_request import SOFTMAX, AttentionRequest, Weighting

Mod = Callable[..., torch.Tensor]


def make_request(length: int = 8, score_mod: Mod | None = None, scale: float | None = None, sink: object = None) -> AttentionRequest:
    q, k, v = (torch.zeros(1, 2, n, 16, dtype=torch.bfloat16) for n in (4, length, length))
    weighting = SOFTMAX if sink is None else Weighting(sink=sink)  # type: ignore[arg-type]
    return AttentionRequest(q, k, v, score_mod, None, scale, False, "interpret", "off", weighting)


def make_mods() -> tuple[Mod, Mod, dict[str, torch.Tensor]]:
    """Return a mask_mod and a score_mod with the tensors that they read."""
    ids, slopes = torch.zeros(8, dtype=torch.int32), torch.ones(2)
    return (lambda b, h, q, k: ids[k] == 0), (lambda score, b, h, q, k: score * slopes[h]), {"ids": ids, "slopes": slopes}


def test_a_call_is_found_again() -> None:
    mask_mod, score_mod, _ = make_mods()
    assert find_prepared(make_request(score_mod=score_mod), mask_mod) is None
    ready = prepare(make_request(score_mod=score_mod), mask_mod)
    assert find_prepared(make_request(score_mod=score_mod), mask_mod) is ready, "other tensors of one layout"


@pytest.mark.parametrize("other", [{"length": 9}, {"scale": 2.0}, {"sink": 1.0}, {"score_mod": None}])
def test_another_call_of_the_same_mask_is_not_found(other: dict[str, object]) -> None:
    mask_mod, score_mod, _ = make_mods()
    prepare(make_request(score_mod=score_mod), mask_mod)
    assert find_prepared(make_request(**({"score_mod": score_mod} | other)), mask_mod) is None  # type: ignore[arg-type]


@pytest.mark.parametrize("written", ["ids", "slopes"])
def test_a_call_is_not_found_once_what_its_mods_read_is_written(written: str) -> None:
    mask_mod, score_mod, captured = make_mods()
    prepare(make_request(score_mod=score_mod), mask_mod)
    captured[written].add_(1)
    assert find_prepared(make_request(score_mod=score_mod), mask_mod) is None


def test_mods_of_the_same_code_are_told_apart() -> None:
    mask_mod, score_mod, _ = make_mods()
    prepare(make_request(score_mod=score_mod), mask_mod)
    other, _, _ = make_mods()
    assert find_prepared(make_request(score_mod=score_mod), other) is None


def test_calls_with_gradients_are_told_apart() -> None:
    mask_mod, _, _ = make_mods()
    prepare(make_request(), mask_mod)
    request = make_request()
    request.query.requires_grad_()
    assert find_prepared(request, mask_mod) is None
