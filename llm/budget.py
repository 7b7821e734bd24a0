"""What a job may spend: money, tokens, time, requests. Owns the sums; several samples that run side by side share one."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import Any

from .messages import Answer


@dataclass
class Budget:
    """Limits, None for none: US dollars, tokens (asked and answered), seconds since the budget was made, requests.

    Known before a request is whether something is left, not what the answer will cost: the last answers (one a sample) may go beyond a limit.
    `unpriced` counts answers without a known price: where it is not 0, `spent_usd` is a lower bound. `replayed`, `replayed_tokens`: answers of a transcript or a
    cache, which cost nothing now, and the tokens that they took when they were asked for.
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
        """Counts an answer; one out of a cache costs nothing, but counts as a request."""
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
        """Why nothing more may be asked, in words; None if something may."""
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
        return {"usd": round(self.spent_usd, 6), "tokens": self.spent_tokens, "requests": self.requests, "unpriced": self.unpriced,
                "replayed": self.replayed, "replayed_tokens": self.replayed_tokens, "seconds": round(self.elapsed, 3)}  # fmt: skip

    def summary(self) -> str:
        """In a line: what was asked and spent; answers that were replayed, with the tokens on record."""
        asked, parts = self.requests - self.replayed, list[str]()
        if asked or not self.replayed:
            money = (
                f"${self.spent_usd:.4f}" if not self.unpriced else f"at least ${self.spent_usd:.4f}" if self.spent_usd else "price unknown"
            )
            parts.append(f"{asked} {_plural('request', asked)}, {self.spent_tokens:,} tokens, {money}")
        if self.replayed:
            parts.append(f"{self.replayed} {_plural('answer', self.replayed)} replayed ({self.replayed_tokens:,} tokens on record)")
        return f"{', '.join(parts)}, {self.elapsed:.0f} s"


def _plural(word: str, count: int) -> str:
    return word if count == 1 else f"{word}s"
