"""Client of a model behind a provider, through litellm: retries, time limits, a cache on disk.

This is the only importer of litellm. Keys come from the environment, where litellm looks for them (OPENAI_API_KEY,
ANTHROPIC_API_KEY, ...); no part of them is printed, recorded or cached.
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
    """Client that asks one model.

    Attributes:
        model: Name as litellm has it (`anthropic/claude-sonnet-4-5`, `openai/gpt-5`, `ollama/...`).
        temperature: None for the provider's default.
        max_tokens: Limit of one answer.
        timeout_s: Limit of one try.
        retries: Number of further tries after a rate limit, or a fault of the server or of the network.
        pause_s: First pause before such a try; it doubles each time, with some randomness.
        cache: Folder for answers; the same conversation, sample, model and settings are requested once.
        api_base: Address of an endpoint; None for litellm's default, which a provider's variables set
            (OPENAI_API_BASE, ...).
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
        """Return the model's answer. Raises CuirError U602-U605."""
        path = self._place(messages, sample)
        cached_answer = _read(path)
        if cached_answer is not None:
            return replace(cached_answer, cached=True, seconds=0.0)
        answer = self._request_answer(messages)
        if path is not None:
            _write(path, answer)
        return answer

    def _request_answer(self, messages: Sequence[Message]) -> Answer:
        """Request an answer from the provider, with retries."""
        litellm = library()
        options: dict[str, Any] = {"temperature": self.temperature, "api_base": self.api_base}
        conversation = [{"role": m.role, "content": m.text} for m in messages]
        for attempt in range(self.retries + 1):
            begin = time.monotonic()
            try:
                response = litellm.completion(
                    model=self.model,
                    messages=conversation,
                    timeout=self.timeout_s,
                    max_tokens=self.max_tokens,
                    num_retries=0,
                    max_retries=0,
                    drop_params=True,
                    **{name: value for name, value in options.items() if value is not None},
                )
                return _answer(litellm, response, self.model, time.monotonic() - begin)
            except Exception as error:  # litellm passes on what each provider's library raises
                if not _passing(litellm, error) or attempt == self.retries:
                    raise _failure(litellm, error, self.model, attempt + 1) from None  # the exception's own text may hold a key
                time.sleep(min(_LONGEST_PAUSE, self.pause_s * 2**attempt) * random.uniform(0.75, 1.25))
        raise AssertionError

    def _place(self, messages: Sequence[Message], sample: int) -> Path | None:
        """Return the file of the cache for a request, None without a cache."""
        if self.cache is None:
            return None
        key = [self.model, self.temperature, self.max_tokens, self.api_base, sample, [(m.role, m.text) for m in messages]]
        return self.cache / f"{hashlib.sha256(json.dumps(key).encode()).hexdigest()}.json"


@functools.cache
def library() -> Any:
    """Import litellm with its network access, telemetry and output off.

    Raises CuirError U602 if it is not installed.
    """
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
    """Return the installed version of litellm, or "" without one."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("litellm")
    except PackageNotFoundError:
        return ""


def _answer(litellm: Any, response: Any, model: str, seconds: float) -> Answer:
    """Convert a response of litellm, with its price if that is known."""
    choice, usage = response.choices[0], getattr(response, "usage", None)
    cost: float | None
    try:
        cost = float(litellm.completion_cost(completion_response=response, model=model))
    except Exception:  # the table of prices lacks the model; litellm raises various exceptions
        cost = None
    return Answer(
        choice.message.content or "",
        int(getattr(usage, "prompt_tokens", 0) or 0),
        int(getattr(usage, "completion_tokens", 0) or 0),
        cost,
        seconds,
        False,
        str(choice.finish_reason or "stop"),
        str(response.model or model),
    )


def _passing(litellm: Any, error: Exception) -> bool:
    """Return whether another try may help."""
    names = ("RateLimitError", "Timeout", "APIConnectionError", "InternalServerError", "ServiceUnavailableError", "BadGatewayError")
    kinds = tuple(kind for name in names if isinstance(kind := getattr(litellm.exceptions, name, None), type))
    return isinstance(error, kinds) and not _keyless(error)


def _keyless(error: Exception) -> bool:
    """Return whether an error reports a missing key.

    Some providers' clients cannot be made without a key, which litellm reports as a fault of the server.
    """
    return "missing credentials" in str(error).lower()


def _failure(litellm: Any, error: Exception, model: str, tries: int) -> CuirError:
    """Return the error for the user that explains an exception of litellm."""
    message = scrub(str(error).strip().split("\n")[0][:400])
    exceptions = litellm.exceptions
    if isinstance(error, exceptions.AuthenticationError) or _keyless(error):
        return CuirError.of(
            "U603",
            f"the provider of `{model}` refuses the key, or there is none: {message}",
            hint="keys are taken from the environment: OPENAI_API_KEY, ANTHROPIC_API_KEY, or what litellm names for the provider",
        )
    if isinstance(error, exceptions.Timeout):
        return CuirError.of("U604", f"`{model}` did not answer in time, {tries} times: {message}", hint="--timeout gives it longer")
    if isinstance(error, (exceptions.BadRequestError, exceptions.NotFoundError)):
        return CuirError.of(
            "U605", f"`{model}` cannot be asked like this: {message}", hint="models are named PROVIDER/NAME, as litellm lists them"
        )
    times = "once" if tries == 1 else f"{tries} times"
    return CuirError.of(
        "U604",
        f"`{model}` was asked {times} and gave no answer: {type(error).__name__}: {message}",
        hint="the provider's service or the way to it; OPENAI_API_BASE and its like name another endpoint",
    )


def scrub(text: str) -> str:
    """Remove values of variables that may hold secrets, and what looks like a key, from a text."""
    for name, value in os.environ.items():
        if _SECRET.search(name) and len(value) >= 8:  # a shorter one is a word: `none`
            text = text.replace(value, _HIDDEN)
    text = re.sub(r"(?i)\b(bearer |api[-_ ]?key(?: provided)?['\"]?\s?[:=] ?)['\"]?[\w.*-]{4,}", rf"\1{_HIDDEN}", text)
    return re.sub(r"\b(sk|pk|key|gsk|hf|AIza)[-_][\w-]{8,}", _HIDDEN, text)


def _read(path: Path | None) -> Answer | None:
    """Return the cached answer, or None if there is none that can be read."""
    if path is None or not path.is_file():
        return None
    try:
        return Answer(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None  # cut short, or of another version: ask again


def _write(path: Path, answer: Answer) -> None:
    """Write an answer to the cache atomically. Raises CuirError U108."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(f".{os.getpid()}.{random.getrandbits(32):08x}")
        partial.write_text(json.dumps(answer.as_json()), encoding="utf-8")
        partial.replace(path)
    except OSError as error:
        raise CuirError.of("U108", f"cannot write {path.parent}: {error.strerror}", hint="name another folder for the cache") from None
