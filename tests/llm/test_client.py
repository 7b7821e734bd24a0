"""The client against an endpoint on loopback, through the real litellm: answers, faults and further tries, time limits, the cache, keys."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from cuir.text.diagnostics import CuirError
from llm.client import Client, scrub
from llm.messages import Message
from tests.llm.endpoint import KEY, Say, endpoint

MESSAGES = (Message("system", "be brief"), Message("user", "which block?"))


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)


def client(address: str, **options: Any) -> Client:
    return Client("openai/scripted", api_base=address, **{"pause_s": 0.01, "retries": 2, **options})


def failure(asks: Client) -> str:
    with pytest.raises(CuirError) as error:
        asks.ask(MESSAGES, 0)
    assert KEY not in str(error.value) and error.value.__cause__ is None
    return error.value.diagnostics[0].code


def test_an_answer_with_its_cost() -> None:
    with endpoint(Say("the first", tokens=(120, 7), finish="length")) as server:
        answer = client(server.address, temperature=0.3, max_tokens=50).ask(MESSAGES, 0)
    assert (answer.text, answer.prompt_tokens, answer.completion_tokens, answer.finish) == ("the first", 120, 7, "length")
    assert answer.cost_usd is None and not answer.cached and answer.seconds > 0  # nobody knows the price of `scripted`
    requests = server.requests[0]
    assert [m["role"] for m in requests["messages"]] == ["system", "user"] and requests["temperature"] == 0.3
    assert requests.get("max_tokens", requests.get("max_completion_tokens")) == 50
    assert server.keys == [f"Bearer {KEY}"]


def test_a_known_price_is_counted() -> None:
    with endpoint(Say("x", tokens=(1_000_000, 0))) as server:
        answer = Client("openai/gpt-4o", api_base=server.address).ask(MESSAGES, 0)
    assert answer.cost_usd is not None and 0.1 < answer.cost_usd < 100


@pytest.mark.parametrize("status", [429, 500, 503])
def test_another_try_after_what_passes(status: int) -> None:
    with endpoint(Say("busy", status), Say("busy", status), Say("there")) as server:
        assert client(server.address).ask(MESSAGES, 0).text == "there"
    assert len(server.requests) == 3


def test_tries_end() -> None:
    with endpoint(Say("down", 503)) as server:
        assert failure(client(server.address)) == "U604"
    assert len(server.requests) == 3


def test_a_slow_answer_is_given_up() -> None:
    with endpoint(Say("late", pause_s=1.5)) as server:
        begin = time.monotonic()
        assert failure(client(server.address, timeout_s=0.2, retries=1)) == "U604"
    assert time.monotonic() - begin < 1.4 and len(server.requests) == 2


@pytest.mark.parametrize(("status", "code"), [(401, "U603"), (400, "U605"), (404, "U605")])
def test_what_does_not_pass_is_told_at_once(status: int, code: str) -> None:
    with endpoint(Say(f"Incorrect API key provided: {KEY}", status)) as server:
        assert failure(client(server.address)) == code
    assert len(server.requests) == 1


def test_no_service() -> None:
    assert failure(client("http://127.0.0.1:9/v1", retries=0)) == "U604"


def test_an_unknown_provider() -> None:
    assert failure(Client("nobody-has-this/model")) == "U605"


def test_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY")
    assert failure(Client("openai/gpt-4o", retries=0)) == "U603"


def test_no_content_is_an_empty_answer() -> None:
    with endpoint(Say(content=False)) as server:
        assert client(server.address).ask(MESSAGES, 0).text == ""


def test_the_cache_asks_once(tmp_path: Path) -> None:
    with endpoint(Say("one"), Say("two"), Say("three")) as server:
        asks = client(server.address, cache=tmp_path / "answers")
        first, repeated, second = asks.ask(MESSAGES, 0), asks.ask(MESSAGES, 0), asks.ask(MESSAGES, 1)
        warmer = client(server.address, cache=tmp_path / "answers", temperature=1.0).ask(MESSAGES, 0)
    assert (first.text, repeated.text, second.text, warmer.text) == ("one", "one", "two", "three")
    assert not first.cached and repeated.cached and repeated.seconds == 0.0
    assert not any(KEY in f.read_text() for f in (tmp_path / "answers").iterdir())


def test_a_broken_file_of_the_cache_is_asked_again(tmp_path: Path) -> None:
    with endpoint(Say("one"), Say("two")) as server:
        asks = client(server.address, cache=tmp_path)
        asks.ask(MESSAGES, 0)
        for file in tmp_path.iterdir():
            file.write_text(file.read_text()[:20])
        assert asks.ask(MESSAGES, 0).text == "two"


def test_secrets_are_removed_from_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_PROVIDER_TOKEN", "hunter2hunter2")
    text = scrub(f"key {KEY} and hunter2hunter2, Authorization: Bearer abcdefgh, a sk-proj-ABCDEFGH123")
    assert KEY not in text and "hunter2" not in text and "abcdefgh" not in text and "ABCDEFGH123" not in text
    monkeypatch.setenv("OPENAI_API_KEY", "none")  # of a service that asks for none
    assert scrub("none of the blocks") == "none of the blocks"
    assert scrub("the kernel's key block k_full[s] of token 12") == "the kernel's key block k_full[s] of token 12"
