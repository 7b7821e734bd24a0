"""A model behind a provider, asked through litellm: retries, time limits, the cache on disk. The only importer of litellm.

Keys come from the environment, where litellm looks for them (OPENAI_API_KEY, ANTHROPIC_API_KEY, ...); nothing of them is printed, recorded or cached.
"""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import os
import random
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cuir.text.diagnostics import CuirError

from .messages import Answer, Message

_SECRET = re.compile(r"(KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL)", re.IGNORECASE)
_HIDDEN = "[removed]"
_LONGEST_PAUSE = 30.0


@dataclass(frozen=True)
class Client:
    """Asks `model`, named as litellm names it (`anthropic/claude-sonnet-4-5`, `openai/gpt-5`, `ollama/...`).

    temperature: None for the provider's own. max_tokens: of one answer. timeout_s: of one try. retries: further tries after a rate limit, a fault of the
    server or of the network; the pause before them begins with `pause_s` and doubles, with some randomness. cache: a folder for answers; the same conversation, sample,
    model and settings are asked once. api_base: the address of an endpoint; left out: litellm's own, which a provider's variables set (OPENAI_API_BASE, ...).
    """

    model: str
    temperature: float | None = None
    max_tokens: int = 16384
    timeout_s: float = 600.0
    retries: int = 4
    pause_s: float = 1.0
    cache: Path | None = None
    api_base: str | None = None

    def ask(self, messages: Sequence[Message], sample: int) -> Answer:
        """The model's answer. Raises CuirError U602-U605."""
        place = self._place(messages, sample)
        known = _read(place)
        if known is not None:
            return replace(known, cached=True, seconds=0.0)
        answer = self._asked(messages)
        if place is not None:
            _write(place, answer)
        return answer

    def _asked(self, messages: Sequence[Message]) -> Answer:
        litellm = library()
        options: dict[str, Any] = {"temperature": self.temperature, "api_base": self.api_base}
        told = [{"role": m.role, "content": m.text} for m in messages]
        for tried in range(self.retries + 1):
            begin = time.monotonic()
            try:
                response = litellm.completion(
                    model=self.model, messages=told, timeout=self.timeout_s, max_tokens=self.max_tokens, num_retries=0, max_retries=0,
                    drop_params=True, **{name: value for name, value in options.items() if value is not None},
                )  # fmt: skip
                return _answer(litellm, response, self.model, time.monotonic() - begin)
            except Exception as error:  # litellm passes on what each provider's library raises
                if not _passing(litellm, error) or tried == self.retries:
                    raise _failure(litellm, error, self.model, tried + 1) from None  # the exception's own text may hold a key
                time.sleep(min(_LONGEST_PAUSE, self.pause_s * 2**tried) * random.uniform(0.75, 1.25))
        raise AssertionError

    def _place(self, messages: Sequence[Message], sample: int) -> Path | None:
        if self.cache is None:
            return None
        key = [self.model, self.temperature, self.max_tokens, self.api_base, sample, [(m.role, m.text) for m in messages]]
        return self.cache / f"{hashlib.sha256(json.dumps(key).encode()).hexdigest()}.json"


@functools.cache
def library() -> Any:
    """litellm, without what it would fetch or print by itself. Raises CuirError U602 if it is not installed."""
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # else importing it fetches a table of prices
    os.environ.setdefault("LITELLM_LOG", "CRITICAL")
    try:
        import litellm
    except ImportError:
        raise CuirError.of("U602", "asking a model needs litellm, which is not installed", hint="pip install cubridge[llm]") from None
    litellm.suppress_debug_info = True
    litellm.telemetry = False
    for name in ("LiteLLM", "litellm", "httpx"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    return litellm


def library_version() -> str:
    """The version of litellm that is installed, "" if none is."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("litellm")
    except PackageNotFoundError:
        return ""


def _answer(litellm: Any, response: Any, model: str, seconds: float) -> Answer:
    choice, usage = response.choices[0], getattr(response, "usage", None)
    cost: float | None
    try:
        cost = float(litellm.completion_cost(completion_response=response, model=model))
    except Exception:  # the table of prices does not have the model; litellm raises all sorts of things
        cost = None
    return Answer(
        choice.message.content or "", int(getattr(usage, "prompt_tokens", 0) or 0), int(getattr(usage, "completion_tokens", 0) or 0),
        cost, seconds, False, str(choice.finish_reason or "stop"), str(response.model or model),
    )  # fmt: skip


def _passing(litellm: Any, error: Exception) -> bool:
    """Whether another try may help."""
    names = ("RateLimitError", "Timeout", "APIConnectionError", "InternalServerError", "ServiceUnavailableError", "BadGatewayError")
    kinds = tuple(kind for name in names if isinstance(kind := getattr(litellm.exceptions, name, None), type))
    return isinstance(error, kinds) and not _keyless(error)


def _keyless(error: Exception) -> bool:
    """Some providers' clients are not even made without a key, which litellm reports as a fault of the server."""
    return "missing credentials" in str(error).lower()


def _failure(litellm: Any, error: Exception, model: str, tries: int) -> CuirError:
    said = scrubbed(str(error).strip().split("\n")[0][:400])
    known = litellm.exceptions
    if isinstance(error, known.AuthenticationError) or _keyless(error):
        return CuirError.of("U603", f"the provider of `{model}` refuses the key, or there is none: {said}",
                            hint="keys are taken from the environment: OPENAI_API_KEY, ANTHROPIC_API_KEY, or what litellm names for the provider")  # fmt: skip
    if isinstance(error, known.Timeout):
        return CuirError.of("U604", f"`{model}` did not answer in time, {tries} times: {said}", hint="--timeout gives it longer")
    if isinstance(error, (known.BadRequestError, known.NotFoundError)):
        return CuirError.of(
            "U605", f"`{model}` cannot be asked like this: {said}", hint="models are named PROVIDER/NAME, as litellm lists them"
        )
    times = "once" if tries == 1 else f"{tries} times"
    return CuirError.of("U604", f"`{model}` was asked {times} and gave no answer: {type(error).__name__}: {said}",
                        hint="the provider's service or the way to it; OPENAI_API_BASE and its like name another endpoint")  # fmt: skip


def scrubbed(text: str) -> str:
    """A text without the values of variables that may hold secrets, and without what looks like a key."""
    for name, value in os.environ.items():
        if _SECRET.search(name) and len(value) >= 8:  # a shorter one is a word: `none`
            text = text.replace(value, _HIDDEN)
    text = re.sub(r"(?i)\b(bearer |api[-_ ]?key(?: provided)?['\"]?\s?[:=] ?)['\"]?[\w.*-]{4,}", rf"\1{_HIDDEN}", text)
    return re.sub(r"\b(sk|pk|key|gsk|hf|AIza)[-_][\w-]{8,}", _HIDDEN, text)


def _read(place: Path | None) -> Answer | None:
    if place is None or not place.is_file():
        return None
    try:
        return Answer(**json.loads(place.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None  # cut short, or of another version: ask again


def _write(place: Path, answer: Answer) -> None:
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        half = place.with_suffix(f".{os.getpid()}.{random.getrandbits(32):08x}")
        half.write_text(json.dumps(answer.as_json()), encoding="utf-8")
        half.replace(place)
    except OSError as error:
        raise CuirError.of("U108", f"cannot write {place.parent}: {error.strerror}", hint="name another folder for the cache") from None
