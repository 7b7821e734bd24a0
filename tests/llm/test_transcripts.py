"""The recorded transcripts of real models: they replay without a network, and what was judged then is judged so today, as far as that is cheap."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from cuir.checking.checker import check
from cuir.performance.search.space import from_plain
from cuir.syntax.parser import parse
from cuir.syntax.printer import show
from cuir.text.diagnostics import CuirError
from llm.answer import program_text, read
from llm.messages import Answer
from llm.transcript import Exchange, Replayed, read_transcript, share_texts

FILES = sorted((Path(__file__).parent.parent.parent / "llm/transcripts").glob("t*-*.jsonl"))


def judge_stage(e: Exchange) -> str:
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
        assert judge_stage(e) == (stage if stage in ("answer", "parse") else "program"), f"sample {e.sample}, attempt {e.attempt}"
        if stage in ("numbers", "speed", "passed"):  # it was well-formed, and is
            program = parse(e.verdict["text"])
            assert show(program) == e.verdict["text"]
            if "consts" in text.task:  # a proposal of `tune` is judged under settings of its own
                check(program, consts=from_plain(text.task["consts"]))
    assert text.outcome["ok"] == any(e.verdict["stage"] in ("speed", "passed") for e in text.exchanges)


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_nothing_secret_is_in_it(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert "sk-" not in text and "Bearer " not in text and "api_key" not in text.lower()


def test_shared_texts_are_read_from_one_file(tmp_path: Path) -> None:
    """Transcripts of a folder leave out the system's message, which stands once beside them."""
    lines = [
        {"kind": "head", "format": 1, "task": {}, "model": "m", "versions": {}},
        {"kind": "message", "id": "a", "role": "system", "text": "the language"},
        {"kind": "message", "id": "b", "role": "user", "text": "a task"},
        {"kind": "message", "id": "c", "role": "user"},
        {
            "kind": "exchange",
            "sample": 0,
            "attempt": 1,
            "request": ["a", "b", "c"],
            "answer": asdict(Answer("x", 1, 1, None, 0.0, False, "stop", "m")),
            "verdict": {},
        },
    ]
    paths = [tmp_path / "one.jsonl", tmp_path / "two.jsonl"]
    for path in paths:
        path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    before = [read_transcript(path) for path in paths]
    for _ in range(2):
        share_texts(tmp_path)
        assert [read_transcript(path) for path in paths] == before
        assert all("the language" not in path.read_text(encoding="utf-8") for path in paths)
    assert [m.text for m in before[0].exchanges[0].request] == ["the language", "a task", ""]
    (tmp_path / "messages.json").write_text("[]", encoding="utf-8")
    with pytest.raises(CuirError, match="U606"):
        read_transcript(paths[0])
