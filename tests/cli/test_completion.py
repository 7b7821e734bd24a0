"""Tab completion, driven as shells do: by the variable _CUIR_COMPLETE and the words of the line."""

from __future__ import annotations

import os
import resource
import shlex
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

ROOT = Path(__file__).parent.parent.parent


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
        ("cuir ", {"check", "show", "ops", "explain", "corpus", "verify", "lower", "run", "bridge", "transfer", "port", "lift", "mutate", "tune", "bench", "cache", "doctor", "eval", "cuda", "judge"}),
        ("cuir cuda ", {"check", "run"}),
        ("cuir verify --sch", {"--schedules", "--schedule"}),
        ("cuir check ge", {"gemm", "gemm_clusters", "gemm_sm75", "gemm_sm89"}),
        ("cuir bridge pre", {"prefix_lm", "prefix_document"}),
        ("cuir verify gemm --against gelu", {"gelu_gemm"}),
        ("cuir check decode_paged -k ", {"decode", "combine"}),
        ("cuir verify decode_paged --kernel co", {"combine"}),
        ("cuir verify causal --level ", {"quick", "full"}),
        ("cuir explain T16", {c for c in CODES if c.startswith("T16")}),
        ("cuir ops mba", {n for n in TABLE if n.startswith("mba")}),
        ("cuir lift ", set(corpus.cuda())),
        ("cuir port gemm --to sm_8", {"sm_80", "sm_89"}),
        ("cuir bench back", {"backward", "backward_dims", "backward_masks"}),
        ("cuir check nothing_of_this_name -k ", set()),
        ("cuir check - -k ", set()),
        ("cuir verify gemm -c B", {"BM=128", "BN=256", "BK=64"}),
        ("cuir tune causal -c PING", {"PINGPONG=false", "PINGPONG=true"}),
        ("cuir bridge causal -c BM=64,STAGES=", {f"BM=64,STAGES={n}" for n in (2, 3, 4)}),
        ("cuir run decode_paged -k combine -c nothing", set()),
        ("cuir run gemm --on ", {"gpu", "interpreter"}),
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


@pytest.mark.parametrize(
    ("words", "current", "expected", "at", "before"),
    [
        (["cuir", "verify", "gemm", "-c", "BM"], 4, ["cuir", "verify", "gemm", "-c", "BM"], 4, ""),
        (["cuir", "verify", "gemm", "-c", "BM", "="], 5, ["cuir", "verify", "gemm", "-c", ""], 4, "BM="),
        (["cuir", "verify", "gemm", "-c", "BM", "=", "6"], 6, ["cuir", "verify", "gemm", "-c", "6"], 4, "BM="),
        (["cuir", "verify", "gemm", "-c", "BM", "=", "64,BN", "="], 7, ["cuir", "verify", "gemm", "-c", ""], 4, "BM=64,BN="),
        (["cuir", "verify", "-c", "BM", "=", "64", "ge"], 6, ["cuir", "verify", "-c", "BM=64", "ge"], 4, ""),
        (["cuir", "verify", "-c", "BM", "=", "64", "-p", "a", "=", "1"], 9, ["cuir", "verify", "-c", "BM=64", "-p", "1"], 5, "a="),
        (["cuir", "verify", "x", "--level", "=", "q"], 5, ["cuir", "verify", "x", "--level", "q"], 4, ""),
        (["cuir", "verify", "x", "--const", "=", "BM", "=", "6"], 7, ["cuir", "verify", "x", "--const", "6"], 4, "BM="),
    ],
)
def test_assignments_that_bash_parts_are_joined(words: list[str], current: int, expected: list[str], at: int, before: str) -> None:
    environment = {"COMP_WORDS": "\n".join(words), "COMP_CWORD": str(current)}
    completion.join_assignments(environment)
    assert environment == {"COMP_WORDS": "\n".join(expected), "COMP_CWORD": str(at)} and [before] == completion.ASSIGNED
    completion.join_assignments({"COMP_WORDS": "cuir", "COMP_CWORD": "0"})
    assert completion.ASSIGNED == [""]


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a command `cuir`, for shells to find."""
    folder = tmp_path_factory.mktemp("bin")
    (folder / "cuir").write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m cuir "$@"\n', encoding="utf-8")
    (folder / "cuir").chmod(0o755)
    return folder


def run_shell(shell: str, options: list[str], script: str, folder: Path) -> str:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    env = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    return subprocess.run([shell, *options, "-c", script], capture_output=True, text=True, env=env, check=True, cwd=folder).stdout


def test_bash_completes_by_the_script_that_is_installed(command: Path) -> None:
    script = """
        eval "$(_CUIR_COMPLETE=source_bash cuir)"
        complete -p cuir
        try() { COMP_WORDS=("$@"); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); COMPREPLY=(); _cuir_completion cuir; echo "${COMPREPLY[*]}"; }
        try cuir check gem
        try cuir verify gemm -c BM = ""
    """
    lines = run_shell("bash", ["--norc", "--noprofile"], script, command).splitlines()
    assert lines == ["complete -o default -F _cuir_completion cuir", "gemm gemm_clusters gemm_sm75 gemm_sm89", "128"]


def test_zsh_completes_by_the_script_that_is_installed(command: Path) -> None:
    script = """
        compdef() { print -r -- "compdef $@" }
        _arguments() { print -r -- "$@" }
        eval "$(_CUIR_COMPLETE=source_zsh cuir)"
        words=(cuir check gem) CURRENT=3
        _cuir_completion
    """
    lines = run_shell("zsh", ["-f"], script, command).splitlines()
    assert lines[0] == "compdef _cuir_completion cuir" and zsh_candidates("_arguments " + shlex.quote(lines[1])) == {
        "gemm",
        "gemm_clusters",
        "gemm_sm75",
        "gemm_sm89",
    }


def zsh_candidates(text: str) -> set[str]:
    """Candidates of what zsh's script evaluates: `_arguments '*: :(("NAME":"HELP" ...))'`."""
    function, argument = shlex.split(text)
    assert function == "_arguments" and argument.startswith("*: :((") and argument.endswith("))")
    return {word.split(":")[0] for word in shlex.split(argument.removeprefix("*: :((").removesuffix("))"))}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("cuir ver", {"verify"}),
        ("cuir verify gem", {"gemm", "gemm_clusters", "gemm_sm75", "gemm_sm89"}),
        ("cuir bridge pre", {"prefix_lm", "prefix_document"}),
        ("cuir explain T11", {c for c in CODES if c.startswith("T11")}),
        ("cuir verify gemm -c BM=", {"BM=128"}),
        ("cuir check decode_paged -k c", {"combine"}),
        ("cuir check mine/", {"mine/a.cuir"}),
    ],
)
def test_zsh_is_told_candidates(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, line: str, expected: set[str]
) -> None:
    """The request of zsh's completion script, made without zsh."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/a.cuir").touch()
    monkeypatch.setenv("_CUIR_COMPLETE", "complete_zsh")
    monkeypatch.setenv("_TYPER_COMPLETE_ARGS", line)
    assert run_command([]) == 0
    output = capsys.readouterr().out
    assert zsh_candidates(output) == expected and len(output.splitlines()) <= max(1, len(expected))


def test_a_fault_while_completing_is_silent(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fail(incomplete: str) -> None:
        raise RuntimeError("boom")

    monkeypatch.setattr(completion, "_files", lambda *_: fail(""))
    monkeypatch.delenv("CUIR_DEBUG", raising=False)
    monkeypatch.setenv("_CUIR_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "cuir check gem")
    monkeypatch.setenv("COMP_CWORD", "2")
    assert run_command([]) == 1 and capsys.readouterr() == ("", "")


@pytest.mark.parametrize("line", ["cuir verify flash_fwd_sm90 -c BM=", "cuir explain T1"])
def test_completion_takes_less_than_a_second_and_no_pytorch(line: str) -> None:
    code = "import sys, cuir.cli as c; code = c.run([]); sys.exit(code or ('torch' in sys.modules) * 3)"
    env = {**os.environ, "_CUIR_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": line, "PYTHONPATH": str(ROOT)}

    def measure() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
        assert subprocess.run([sys.executable, "-c", code], env=env, stdout=subprocess.DEVNULL, check=False).returncode == 0
        return resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before

    assert min(measure(), measure()) < 1
