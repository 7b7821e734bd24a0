"""The recorded transcripts of real models: they replay without a network, and what was judged then is judged so today, as far as that is cheap."""

from __future__ import annotations

from pathlib import Path

import pytest

from cuir.checking.checker import check
from cuir.performance.search.space import from_plain
from cuir.syntax.parser import parse
from cuir.syntax.printer import show
from cuir.text.diagnostics import CuirError
from llm.answer import program_text, read
from llm.transcript import Exchange, Replayed, read_transcript

FILES = sorted((Path(__file__).parent.parent.parent / "llm/transcripts").glob("transfer-*.jsonl"))


def judged(e: Exchange) -> str:
    """Return how near the text of an answer is to a program: the first stages of a pass's judgement."""
    try:
        block = program_text(e.answer.text, e.answer.finish)
    except CuirError:
        return "answer"
    try:
        read(block)
    except CuirError:
        return "parse"
    return "program"


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_replays_and_is_judged_alike(path: Path) -> None:
    text = read_transcript(path)
    assert text.exchanges and text.model and text.outcome is not None and {"cubridge", "litellm", "prompts"} <= text.versions.keys()
    asks = Replayed(path, exact=True)
    for e in text.exchanges:
        assert asks.ask(e.request, e.sample).text == e.answer.text
        stage = e.verdict["stage"]
        assert judged(e) == (stage if stage in ("answer", "parse") else "program"), f"sample {e.sample}, attempt {e.attempt}"
        if stage in ("numbers", "speed", "passed"):  # it was well-formed, and is
            program = parse(e.verdict["text"])
            assert show(program) == e.verdict["text"]
            check(program, consts=from_plain(text.task["consts"]))
    assert text.outcome["ok"] == any(e.verdict["stage"] in ("speed", "passed") for e in text.exchanges)


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_nothing_secret_is_in_it(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert "sk-" not in text and "Bearer " not in text and "api_key" not in text.lower()
