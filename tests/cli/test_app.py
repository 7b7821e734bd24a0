"""Properties of all commands: exit codes, --json, help, wrong calls, interruptions."""

from __future__ import annotations

import importlib
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cuir.cli import reference_pages as reference
from cuir.cli import run as run_command
from tests.cli.programs import GOOD

ROOT = Path(__file__).parent.parent.parent
COMMANDS = ("check", "show", "ops", "explain", "corpus", "verify", "lower", "run", "bridge")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_and_json(cuir: Callable, command: str) -> None:
    output = cuir(command, "--help")
    assert output.code == 0 and "--json" in output.out


@pytest.mark.parametrize("command", ["check", "show", "verify", "lower", "run", "bridge"])
def test_errors_are_one_json_object(cuir: Callable, command: str) -> None:
    output = cuir(command, "nothing_of_this_name", "--json")
    assert output.code == 2 and not output.err
    assert output.json["ok"] is False and output.json["diagnostics"][0]["code"].startswith("U")


@pytest.mark.parametrize(
    ("argv", "part", "hint"),
    [
        (["chek"], "did you mean 'check'", "`cuir --help` lists the commands"),
        (["--nothing"], "no such option", "`cuir --help` lists the commands"),
        (["check"], "missing argument", "`cuir check --help` lists what it takes"),
        (["verify", "gemm", "--schedulez", "3"], "did you mean --schedule or --schedules?", "`cuir verify --help` lists what it takes"),
        (["verify", "gemm", "--lev", "full"], "did you mean --level?", "`cuir verify --help` lists what it takes"),
        (["check", "a", "b"], "unexpected extra argument", "`cuir check --help` lists what it takes"),
        (["ops", "--nothing"], "no such option", "`cuir ops --help` lists what it takes"),
        (["mutate", "--class"], "requires an argument", "`cuir mutate --help` lists what it takes"),
        (["ops", "--json=3"], "does not take a value", "`cuir ops --help` lists what it takes"),
    ],
)
def test_wrong_calls_end_with_2(cuir: Callable, argv: list[str], part: str, hint: str) -> None:
    output = cuir(*argv)
    assert output.code == 2 and part in output.err.lower() and "error[U100]" in output.err and hint in output.err


@pytest.mark.parametrize("option", ["--no", "--x", "--level2", "-z"])
def test_an_unknown_option_names_no_far_ones(cuir: Callable, option: str) -> None:
    output = cuir("check", "gemm", option)
    assert output.code == 2 and "--json" not in output.err and "--kernel" not in output.err


def test_a_closed_standard_input_is_a_fault_of_the_call() -> None:
    output = subprocess.run(
        f"{sys.executable} -m cuir check - --json <&-", shell=True, capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert output.returncode == 2 and "standard input is closed" in json.loads(output.stdout)["diagnostics"][0]["message"]


@pytest.mark.parametrize("argv", [("show",), ("lower",), ("verify", "--against", "causal")], ids=" ".join)
def test_each_command_says_that_standard_input_is_closed(cuir: Callable, argv: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)  # as Python has it then
    output = cuir(argv[0], "-", *argv[1:], "--json")
    assert output.code == 2 and "standard input is closed" in output.json["diagnostics"][0]["message"]


def test_programs_come_from_standard_input(cuir: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    def put_on_stdin(content: bytes) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content), encoding="ascii"))

    put_on_stdin(GOOD.encode())
    assert cuir("check", "-").code == 0
    put_on_stdin(GOOD.replace("load(", "laod(").encode())
    output = cuir("check", "-")
    assert output.code == 1 and "<stdin>:6:47: error[N105]" in output.err
    put_on_stdin(b"\xff\xfe")
    output = cuir("check", "-")
    assert output.code == 2 and "no UTF-8 text" in output.err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_no_fault_of_ours() -> None:
    output = subprocess.run(
        f"{sys.executable} -m cuir check gemm > /dev/full", shell=True, capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert output.returncode == 2 and "No space left" in output.stderr and "Traceback" not in output.stderr


def test_without_arguments_there_is_help(cuir: Callable) -> None:
    output = cuir()
    assert output.code == 0 and "bridge" in output.out


def test_a_fault_of_ours_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("boom\nmore")

    monkeypatch.setattr(reference, "entries", fail)
    monkeypatch.delenv("CUIR_DEBUG", raising=False)
    assert run_command(["ops"]) == 70
    err = capsys.readouterr().err
    assert "error[U999]: internal error: RuntimeError: boom" in err and "Traceback" not in err and "report" in err
    monkeypatch.setenv("CUIR_DEBUG", "1")
    with pytest.raises(RuntimeError, match="boom"):
        run_command(["ops"])


def test_module_and_closed_pipe() -> None:
    output = subprocess.run(f"{sys.executable} -m cuir ops | head -1", shell=True, capture_output=True, text=True, cwd=ROOT, check=False)
    assert output.returncode == 0 and "Traceback" not in output.stderr


@pytest.mark.parametrize("as_json", [False, True])
def test_interrupt_ends_with_130(tmp_path: Path, as_json: bool) -> None:
    path = tmp_path / "pipe.cuir"
    os.mkfifo(path)  # reading blocks until somebody writes, so the command is surely under way
    # What is started in the background by a shell without job control ignores interrupts, and so does all that it starts:
    # the command here begins as one that is typed at a terminal does, whoever runs the tests.
    process = subprocess.Popen(
        [sys.executable, "-m", "cuir", "show", str(path), *["--json"][: int(as_json)]],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler) and None,
    )
    deadline = time.monotonic() + 60
    writer = -1
    while writer < 0 and time.monotonic() < deadline:
        try:
            writer = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
        except OSError:  # nobody reads yet
            time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    os.close(writer)
    assert process.returncode == 130
    if as_json:
        assert json.loads(out) == {"ok": False, "interrupted": True, "diagnostics": [], "step": None, "goes_on": None} and not err
    else:
        assert err == "\ninterrupted\n" and not out


INTERRUPTED = [
    (("verify", "gemm"), "cuir.verification.verify", "verify"),
    (("verify", "gemm", "--exhaustive"), "cuir.verification.exhaustive.check_exhaustively", "explore"),
    (("verify", "gemm", "--problem", "M=1,N=8,K=8"), "cuir.verification.spec_dispatch.run", ""),
    (("bridge", "causal", "--out", "OUT"), "cuir.verification.verify", "verify"),
    (("transfer", "flash_fwd_sm90", "--to", "prefix_lm", "--out", "OUT"), "cuir.verification.verify", "verify"),
    (("mutate", "gemm", "--limit", "2", "--jobs", "1"), "cuir.mutation.mutant_judging.verify", "mutant 1"),
    (("tune", "causal", "--dry-run"), "cuir.performance.search.tune", ""),
    (("run", "gemm", "-d", "M=8,N=8,K=8"), "cuir.cli.kernel_run.bind", ""),
    (("lower", "gemm"), "cuir.lowering.lower", ""),
    (("check", "gemm"), "cuir.checking.checker.check", ""),
]


@pytest.mark.parametrize(("argv", "position", "step"), INTERRUPTED, ids=[" ".join(a) for a, _, _ in INTERRUPTED])
def test_the_running_step_reads_interrupted(
    cuir: Callable, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, argv: tuple[str, ...], position: str, step: str
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    module, _, name = position.rpartition(".")
    importlib.import_module(module)
    monkeypatch.setattr(f"{module}.{name}", interrupt)
    words = [str(tmp_path) if word == "OUT" else word for word in argv]
    display = cuir(*words)
    assert display.code == 130 and display.err.endswith("interrupted\n") and "error[" not in display.err
    if step:
        assert any(
            line.split()[:2] == [step, "interrupted"] or line.strip().startswith("interrupted after") for line in display.err.splitlines()
        )
    output = cuir(*words, "--json")
    assert output.code == 130 and output.json["interrupted"] is True and output.json["ok"] is False and (output.json["step"] or "") == step


def test_every_command_has_a_file_of_its_name() -> None:
    from cuir.cli.app import app

    named = {(c.name or c.callback.__name__): c.callback.__module__ for c in app.registered_commands}  # type: ignore[union-attr]
    for group in app.registered_groups:
        named |= {f"{group.name}_{c.name}": c.callback.__module__ for c in group.typer_instance.registered_commands}  # type: ignore[union-attr]
    assert named == {name: f"cuir.cli.commands.{name}" for name in named}
    assert set(named) == {p.stem for p in (ROOT / "cuir/cli/commands").glob("*.py")} - {"__init__"}
    assert set(named) == {p.stem.removeprefix("test_") for p in (ROOT / "tests/cli/commands").glob("test_*.py")}
