"""Messages to a model, its answers, and the protocol of what can be asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, Protocol

Role = Literal["system", "user", "assistant"]


@dataclass(frozen=True)
class Message:
    """Message of a conversation."""

    role: Role
    text: str


@dataclass(frozen=True)
class Answer:
    """Answer of a model with its cost.

    Attributes:
        cost_usd: None if the model's price is unknown.
        seconds: From the request to the last byte, of the try that succeeded; 0 if cached.
        cached: The answer was requested before; neither tokens nor money are spent again.
        finish: Why the text ended ("stop", "length": cut off, or what the provider says).
    """

    text: str
    prompt_tokens: int
    completion_tokens: int
    cost_usd: float | None
    seconds: float
    cached: bool
    finish: str
    model: str

    @property
    def tokens(self) -> int:
        """Tokens of request and answer."""
        return self.prompt_tokens + self.completion_tokens

    def as_json(self) -> dict[str, Any]:
        """Return the answer as JSON data."""
        return asdict(self)


class Asks(Protocol):
    """Source of answers: a client of a provider, a replayed transcript, a script in a test."""

    @property
    def model(self) -> str:
        """Name of the model, as litellm writes it."""
        ...

    def ask(self, messages: Sequence[Message], sample: int) -> Answer:
        """Return the answer to a conversation.

        `sample` distinguishes conversations that are led side by side. May be called from several threads. Raises
        CuirError (U60x) if no answer can be had.
        """
        ...
