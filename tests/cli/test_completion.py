"""Tab completion, driven as shells do: by the variable _CUIR_COMPLETE and the words of the line."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import corpus
from cuir.cli import completion
from cuir.cli import run as run_command
from cuir.ops import TABLE
from cuir.performance.suites import SUITES
from cuir.text.codes import CODES


def complete(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], line: str) -> set[str]:
    """Candidates for the last word of a line in bash."""
    monkeypatch.setenv("_CUIR_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(line.split(" ")) - 1))
    capsys.readouterr()
    assert run_command([]) == 0
    return set(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("cuir ", {"check", "show", "ops", "explain", "corpus", "verify", "lower", "run", "bridge", "transfer", "lift", "mutate", "tune", "bench", "cache", "doctor", "eval"}),
        ("cuir verify --sch", {"--schedules", "--schedule"}),
        ("cuir check ge", {"gemm", "gemm_clusters"}),
        ("cuir bridge pre", {"prefix_lm", "prefix_document"}),
        ("cuir verify gemm --against gelu", {"gelu_gemm"}),
        ("cuir check decode_paged -k ", {"decode", "combine"}),
        ("cuir verify decode_paged --kernel co", {"combine"}),
        ("cuir verify causal --level ", {"quick", "full"}),
        ("cuir explain T16", {c for c in CODES if c.startswith("T16")}),
        ("cuir ops mba", {n for n in TABLE if n.startswith("mba")}),
        ("cuir lift ", set(corpus.cuda())),
        ("cuir bench back", {"backward", "backward_dims", "backward_masks"}),
        ("cuir check nothing_of_this_name -k ", set()),
    ],
)  # fmt: skip
def test_bash_completes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, line: str, expected: set[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert complete(monkeypatch, capsys, line) == expected


def test_files_are_completed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    for name in ("mine/a.cuir", "mine/a.py", "mine/a.txt", "mine/.hidden.py"):
        (tmp_path / name).touch()
    assert complete(monkeypatch, capsys, "cuir check mi") == {"mine/"}
    assert complete(monkeypatch, capsys, "cuir check mine/") == {"mine/a.cuir", "mine/a.py"}
    assert complete(monkeypatch, capsys, "cuir bridge mine/a") == {"mine/a.py"}
    assert complete(monkeypatch, capsys, "cuir check nowhere/") == set()


@pytest.mark.parametrize(("shell", "words"), [("zsh", "_TYPER_COMPLETE_ARGS"), ("fish", "_TYPER_COMPLETE_ARGS")])
def test_other_shells_show_the_help_of_candidates(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], shell: str, words: str
) -> None:
    monkeypatch.setenv("_CUIR_COMPLETE", f"complete_{shell}")
    monkeypatch.setenv("_TYPER_COMPLETE_FISH_ACTION", "get-args")
    monkeypatch.setenv(words, "cuir explain T111")
    assert run_command([]) == 0
    output = capsys.readouterr().out
    assert "T111" in output and CODES["T111"].title in output


def test_suites_are_those_of_the_benchmarks() -> None:
    assert set(completion.SUITES) == set(SUITES)


def test_completion_is_installed(tmp_path: Path) -> None:
    if shutil.which("bash") is None:
        pytest.skip("needs bash")
    listed = subprocess.run([sys.executable, "-m", "cuir", "--help"], capture_output=True, text=True, check=True).stdout
    assert "--install-completion" in listed and "--show-completion" in listed
    # bash runs another command behind it, so that it stays the parent, by which the shell is known
    line = f"{sys.executable} -m cuir --install-completion; echo code $?"
    env = {**os.environ, "HOME": str(tmp_path)}
    output = subprocess.run(["bash", "-c", line], capture_output=True, text=True, env=env, check=False)
    assert "code 0" in output.stdout, output.stderr
    script = (tmp_path / ".bash_completions" / "cuir.sh").read_text(encoding="utf-8")
    assert "_CUIR_COMPLETE=complete_bash" in script
