"""Samples of one question and several answers in a row."""

from __future__ import annotations

from typing import Any

import torch

from cuir.spec import Lengths, Specification


def share_question(ends: torch.Tensor | None = None, question: int = 64, answer: int = 48, answers: int = 3) -> Specification:
    """keep = k <= q and q < ends[k]; ends[k] is the end of k's sample if k lies in its question, else the end of k's answer.

    Every answer sees its question and itself. `ends`: i32 [max(M, N)]; samples follow one another without a gap, each a question and then its
    answers, of any lengths. Without it, samples of one question and `answers` answers of these lengths.
    """

    def made(lengths: Lengths) -> torch.Tensor:
        place = torch.arange(max(lengths.M, lengths.N))
        sample = question + answer * answers
        start = place // sample * sample
        within = place - start - question
        return torch.where(within < 0, start + sample, start + question + (within // answer + 1) * answer).to(torch.int32)

    def mask_mod(b: Any, h: Any, q_idx: Any, kv_idx: Any, *, ends: Any) -> Any:
        return (kv_idx <= q_idx) & (q_idx < ends[kv_idx])

    return Specification("share_question", mask_mod, captured={"ends": made if ends is None else ends}, doc=share_question.__doc__ or "")
