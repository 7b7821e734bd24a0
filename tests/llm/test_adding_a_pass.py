"""The worked example of docs/models.md, as it is printed there, in the loop with scripted answers."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType

import pytest

import cuir
from llm import client
from llm.budget import Budget
from llm.loop import improve
from llm.messages import Answer, Message
from llm.prompting import fence
from tests.page_blocks import find_block

PAGE = "docs/models.md"
TEXT = find_block("README.md", "check", "T=f16 D=64").text
COMMENTED = re.sub(r"( *)(with role\()", r"\1# a comment\n\1\2", TEXT)


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The module of the page."""
    (tmp_path / "comment_pass.py").write_text(find_block(PAGE, "file", "comment_pass.py").text, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("comment_pass", tmp_path / "comment_pass.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "comment_pass", module)
    spec.loader.exec_module(module)
    yield module


class Script:
    model = "a script"

    def __init__(self, *answers: str):
        self.remaining, self.requests = list(answers), list[Sequence[Message]]()

    def ask(self, messages: Sequence[Message], sample: int) -> Answer:
        self.requests.append(messages)
        return Answer(self.remaining.pop(0), 10, 10, None, 0.0, False, "stop", self.model)


def test_it_passes_what_only_comments(example: ModuleType) -> None:
    program = cuir.parse(TEXT)
    script = Script(
        "Gladly.",
        fence(COMMENTED.replace("STAGES: const = 2", "STAGES: const = 3"), "cuir"),
        fence(TEXT, "cuir"),
        fence(COMMENTED, "cuir"),
    )
    outcome = improve(example.Comment(program), script, Budget(), attempts=4)
    stages = [(a.verdict.stage, [d.code for d in a.verdict.diagnostics]) for a in outcome.samples[0].attempts]
    assert stages == [("parse", ["A001"]), ("check", ["A900"]), ("check", ["A901", "A901"]), ("passed", [])]
    assert outcome.ok and outcome.verdict and outcome.verdict.program == program and outcome.verdict.text.count("# a comment") == 2
    assert "A901" in script.requests[3][-1].text and 'with role("load"' in script.requests[3][-1].text


def test_its_call_runs(example: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The second block of the page, as a file; in place of a provider a script."""
    (tmp_path / "kernel.cuir").write_text(TEXT, encoding="utf-8")
    (tmp_path / "call.py").write_text(find_block(PAGE, "step", "call.py").text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(client, "Client", lambda model: Script(*[fence(COMMENTED, "cuir")] * 2))
    spec = importlib.util.spec_from_file_location("call", tmp_path / "call.py")
    assert spec and spec.loader
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
    assert "passed" in capsys.readouterr().out
