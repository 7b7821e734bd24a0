"""What goes to a model and comes back: messages, answers, and what can be asked. Owns no transport."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, Protocol

Role = Literal["system", "user", "assistant"]


@dataclass(frozen=True)
class Message:
    """One message of a conversation."""

    role: Role
    text: str


@dataclass(frozen=True)
class Answer:
    """What a model said, and what it cost.

    cost_usd: None if nobody knows the model's price. seconds: from the request to the last byte, of the try that succeeded; 0 if `cached`: then it was
    asked before, and neither tokens nor money are spent again. finish: why the text ended ("stop", "length": cut off, or what the provider says).
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
        return self.prompt_tokens + self.completion_tokens

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


class Asks(Protocol):
    """Anything that answers: a client of a provider, a transcript that is replayed, a script in a test."""

    @property
    def model(self) -> str:
        """The model's name, as litellm writes it."""
        ...

    def ask(self, messages: Sequence[Message], sample: int) -> Answer:
        """The answer to a conversation. `sample` tells apart conversations that are led side by side. May be called from several threads.

        Raises CuirError (U60x) if there is no answer to be had.
        """
        ...
