"""Limits on what a job may spend: money, tokens, time, requests.

Several samples that run side by side share one budget.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import Any

from .messages import Answer


@dataclass
class Budget:
    """Limits of a job, None for no limit, and the sums spent.

    Before a request it is known whether something remains, not what the answer will cost: the last answers (one a
    sample) may exceed a limit.

    Attributes:
        usd: US dollars.
        tokens: Tokens of requests and answers.
        seconds: Seconds since the budget was made.
        attempts: Requests.
        unpriced: Number of answers without a known price; where it is not 0, `spent_usd` is a lower bound.
        replayed: Number of answers from a transcript or a cache, which cost nothing now.
        replayed_tokens: Tokens that those answers took when they were requested.
    """

    usd: float | None = None
    tokens: int | None = None
    seconds: float | None = None
    attempts: int | None = None
    spent_usd: float = 0.0
    spent_tokens: int = 0
    requests: int = 0
    unpriced: int = 0
    replayed: int = 0
    replayed_tokens: int = 0
    _begun: float = field(default_factory=time.monotonic, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def spend(self, answer: Answer) -> None:
        """Add an answer to the sums; a cached one costs nothing, but counts as a request."""
        with self._lock:
            self.requests += 1
            if answer.cached:
                self.replayed += 1
                self.replayed_tokens += answer.tokens
                return
            self.spent_tokens += answer.tokens
            self.spent_usd += answer.cost_usd or 0.0
            self.unpriced += answer.cost_usd is None

    @property
    def elapsed(self) -> float:
        """Seconds since the budget was made."""
        return time.monotonic() - self._begun

    @property
    def exhausted(self) -> str | None:
        """Reason in words why no further request is allowed; None if one is."""
        with self._lock:
            if self.usd is not None and self.spent_usd >= self.usd:
                return f"the money is spent: ${self.spent_usd:.4f} of ${self.usd:.4f}"
            if self.tokens is not None and self.spent_tokens >= self.tokens:
                return f"the tokens are spent: {self.spent_tokens:,} of {self.tokens:,}"
            if self.attempts is not None and self.requests >= self.attempts:
                return f"the requests are spent: {self.requests} of {self.attempts}"
        if self.seconds is not None and self.elapsed >= self.seconds:
            return f"the time is over: {self.elapsed:.0f} of {self.seconds:.0f} s"
        return None

    def as_json(self) -> dict[str, Any]:
        """Return the sums as JSON data."""
        return {
            "usd": round(self.spent_usd, 6),
            "tokens": self.spent_tokens,
            "requests": self.requests,
            "unpriced": self.unpriced,
            "replayed": self.replayed,
            "replayed_tokens": self.replayed_tokens,
            "seconds": round(self.elapsed, 3),
        }

    def summary(self) -> str:
        """Return a line on what was requested and spent, with the tokens on record of replayed answers."""
        requested, parts = self.requests - self.replayed, list[str]()
        if requested or not self.replayed:
            money = (
                f"${self.spent_usd:.4f}" if not self.unpriced else f"at least ${self.spent_usd:.4f}" if self.spent_usd else "price unknown"
            )
            parts.append(f"{requested} {_plural('request', requested)}, {self.spent_tokens:,} tokens, {money}")
        if self.replayed:
            parts.append(f"{self.replayed} {_plural('answer', self.replayed)} replayed ({self.replayed_tokens:,} tokens on record)")
        return f"{', '.join(parts)}, {self.elapsed:.0f} s"


def _plural(word: str, count: int) -> str:
    """Return the word with an s unless the count is 1."""
    return word if count == 1 else f"{word}s"
