"""Progress: an estimate of what is left on a terminal, nothing elsewhere, and a clean terminal after Ctrl-C."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cuir.cli import conversations_view, job_views, measurement_views
from cuir.cli.commands.eval import _EvalView
from cuir.cli.commands.mutate import _MutantsView
from cuir.cli.live_view import Estimate, LiveView, ProgressLine, format_seconds
from cuir.text.phrases import ProgressMessage, get_share

ROOT = Path(__file__).parent.parent.parent


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_steady_work_is_foreseen() -> None:
    clock = Clock()
    estimate = Estimate(clock)
    assert estimate.seconds() is None and estimate.describe() == ""
    for finished in range(1, 10):
        clock.now += 10
        estimate.update(finished / 10)
        assert estimate.seconds() == pytest.approx(10 * (10 - finished))
    assert estimate.describe() == " 90%, about 10 s left"
    estimate.update(1.0)
    assert estimate.describe() == "100%"


@given(st.lists(st.tuples(st.floats(0, 50), st.none() | st.floats(0, 1)), max_size=20))
def test_shares_never_shrink_and_what_is_left_is_positive(steps: list[tuple[float, float | None]]) -> None:
    clock = Clock()
    estimate, before = Estimate(clock), 0.0
    for seconds, share in steps:
        clock.now += seconds
        estimate.update(share)
        assert before <= estimate.share <= 1
        before = estimate.share
        remaining = estimate.seconds()
        assert remaining is None or remaining >= 1


def test_what_is_left_grows_again_where_nothing_is_heard() -> None:
    clock = Clock()
    estimate = Estimate(clock)
    clock.now += 10
    estimate.update(0.5)
    assert estimate.seconds() == pytest.approx(10)
    clock.now += 3
    assert estimate.seconds() == pytest.approx(7)
    clock.now += 90
    assert estimate.seconds() == pytest.approx(0.5 * 103)


@pytest.mark.parametrize(("seconds", "text"), [(3.4, "3 s"), (42, "40 s"), (130, "2 min"), (3000, "50 min"), (9000, "2.5 h")])
def test_durations_are_rounded(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


def test_messages_are_strings_with_a_share() -> None:
    message = ProgressMessage("numbers: problem 2 of 4", 0.25)
    assert message == "numbers: problem 2 of 4" and get_share(message) == 0.25
    assert get_share("plain") is None and get_share(ProgressMessage("x", 7)) == 1


def subclasses(kind: type) -> set[type]:
    return {kind}.union(*map(subclasses, kind.__subclasses__()))


def test_every_view_is_of_one_implementation() -> None:
    """Only live_view.py opens a live display."""
    views = {
        job_views.Steps,
        conversations_view.Conversations,
        measurement_views.TuneView,
        measurement_views.BenchView,
        _EvalView,
        _MutantsView,
    }
    assert views <= subclasses(LiveView)
    sources = {p: p.read_text(encoding="utf-8") for p in (ROOT / "cuir").rglob("*.py")}
    assert [p.name for p, text in sources.items() if "rich.live" in text or "rich.progress import" in text or ".status(" in text] == [
        "live_view.py"
    ]


@pytest.mark.sweep
@pytest.mark.parametrize(
    "argv",
    [
        ("verify", "gemm", "-c", "BM=64", "-c", "BN=64", "--schedules", "0"),
        ("verify", "gemm", "-c", "BM=64", "-c", "BN=64", "--exhaustive"),
        ("run", "gemm", "-c", "BM=64", "-c", "BN=64", "-d", "M=64,N=64,K=64", "--exhaustive"),
        ("lower", "gemm", "-c", "BM=64", "-c", "BN=64", "--validate"),
    ],
    ids=" ".join,
)
@pytest.mark.usefixtures("few_problems")
def test_nothing_is_shown_in_a_pipe(cuir: Callable, argv: tuple[str, ...]) -> None:
    output = cuir(*argv)
    assert output.code == 0 and output.err == "" and "\x1b" not in output.out and "\r" not in output.out
    output = cuir(*argv, "--json")
    assert output.code == 0 and output.err == "" and output.json["ok"]


def test_an_interruption_names_the_work_in_a_pipe_too(capsys: pytest.CaptureFixture[str]) -> None:
    from cuir.cli.process_setup import Interrupted

    with pytest.raises(Interrupted) as stop, ProgressLine("title") as view:
        view.update("candidate 3", 0.5)
        raise KeyboardInterrupt
    assert stop.value.step == "candidate 3" and capsys.readouterr().err == "  interrupted: candidate 3\n"


def read_terminal(argv: list[str], stop: str = "", environment: dict[str, str] | None = None) -> tuple[int, str]:
    """Run a command on a terminal of 100 columns; type Ctrl-C when `stop` is seen. Return its code, and all that it wrote."""
    ours, child_end = os.openpty()
    env = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "CUIR_DEBUG")} | {"TERM": "xterm", "COLUMNS": "100"}
    process = subprocess.Popen(
        [sys.executable, "-m", "cuir", *argv],
        cwd=ROOT,
        stdin=child_end,
        stdout=child_end,
        stderr=child_end,
        env={**env, **(environment or {})},
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler) and None,
    )
    os.close(child_end)
    output, deadline, typed = b"", time.monotonic() + 60, False
    with contextlib.suppress(OSError):  # the other side is closed: the command has ended
        while time.monotonic() < deadline:
            if select.select([ours], [], [], 0.1)[0]:
                if not (data := os.read(ours, 65536)):
                    break
                output += data
            if stop and not typed and stop.encode() in output:
                typed = True
                os.killpg(process.pid, signal.SIGINT)  # as the terminal does
    os.close(ours)
    return process.wait(timeout=30), output.decode(errors="replace")


@pytest.mark.thorough
def test_ctrl_c_leaves_the_terminal_clean() -> None:
    code, text = read_terminal(["lower", "flash_fwd_sm90", "-c", "D=64", "--validate"], stop="of ")
    assert code == 130 and "Traceback" not in text and "interrupted" in text
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") > 0 and text.rfind("\x1b[?25h") > text.rfind("\x1b[?25l")
    assert text.rstrip().endswith("interrupted")


@pytest.mark.thorough
def test_a_share_is_shown_on_a_terminal_without_colours_too() -> None:
    code, text = read_terminal(["lower", "gemm", "-c", "BM=64", "-c", "BN=64", "--validate"], environment={"NO_COLOR": "1"})
    assert code == 0 and "passes" in text and "100%" in text and "\x1b[3" not in text


def test_output_to_a_file_stays_there_while_a_view_is_open(tmp_path: Path) -> None:
    code = """
import sys
from cuir.cli.live_view import ProgressLine
with ProgressLine("title") as view:
    view.update("work", 0.5)
    print("a result")
"""
    ours, child_end = os.openpty()
    with open(tmp_path / "out", "w") as file:
        env = {**os.environ, "TERM": "xterm", "PYTHONPATH": str(ROOT)}
        process = subprocess.Popen([sys.executable, "-c", code], stdout=file, stderr=child_end, env=env)
        os.close(child_end)
        assert process.wait(timeout=60) == 0
    output = os.read(ours, 65536).decode()
    os.close(ours)
    assert (tmp_path / "out").read_text() == "a result\n" and "title" in output and "a result" not in output
