"""Processes of this machine: in parallel, each task of a dead one again, one GPU each, quiet at Ctrl-C."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import closing
from multiprocessing import active_children
from pathlib import Path

import pytest

from cuir.campaigns import local_executor
from cuir.campaigns.campaign import run_tasks
from cuir.campaigns.local_executor import LocalExecutor, block_interrupts
from cuir.campaigns.tasks import TaskError, make_task
from cuir.text.diagnostics import CuirError
from tests.campaigns.calls import die_at_first, fail, make_squares, tell_gpu, tell_threads, work

ROOT = Path(__file__).parents[2]


def test_processes_give_what_this_process_gives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Among tasks that kill their process once, or always, and one that raises."""
    monkeypatch.setattr(local_executor, "DEATHS", 2)
    (again := tmp_path / "again").mkdir()
    (never := tmp_path / "never").mkdir()
    squares = make_squares(4)
    others = [
        make_task(die_at_first, str(again), 1),
        make_task(die_at_first, str(never), 99),
        make_task(fail, "other"),
        make_task(tell_threads),
    ]
    results = run_tasks([*squares, *others], LocalExecutor(2))
    assert [r.value for r in results[:4]] == [r.value for r in run_tasks(squares, LocalExecutor())]
    assert results[4].value == 1 and len(list(never.iterdir())) == 2
    assert isinstance(results[5].error, TaskError) and str(results[5].error) == "its process died 2 times, by signal 9"
    assert "Unknown: lost" in str(results[6].error) and results[7].value == 1
    assert not active_children()


def test_an_end_before_the_last_result_ends_the_processes() -> None:
    with closing(LocalExecutor(2).run([make_task(work, x, 0 if x == 0 else 60_000) for x in range(3)])) as results:
        assert next(results).value == {"x": 0, "square": 0} and len(active_children()) == 2
    assert not active_children()


def test_a_task_for_a_gpu_sees_one_alone() -> None:
    assert run_tasks([make_task(tell_gpu, gpus=1)], LocalExecutor(1, gpus=2))[0].value == "0"
    with pytest.raises(CuirError, match="need a GPU") as caught:
        run_tasks([make_task(tell_gpu, gpus=1)], LocalExecutor(2))
    assert caught.value.diagnostics[0].code == "U501"


def test_a_process_that_cannot_start_is_told(tmp_path: Path) -> None:
    """A script without a guard starts itself again in each process."""
    script = tmp_path / "unguarded.py"
    lines = ["from cuir.campaigns.local_executor import LocalExecutor", "from cuir.campaigns.tasks import make_task"]
    script.write_text("\n".join([*lines, "list(LocalExecutor(2).run([make_task(len, 'ab'), make_task(len, 'c')]))"]), encoding="utf-8")
    ended = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, timeout=60, env=os.environ | {"PYTHONPATH": str(ROOT)}, check=False
    )
    assert ended.returncode == 1 and "needs `if __name__ == '__main__':`" in ended.stderr


def test_a_process_interrupted_while_it_starts_says_nothing() -> None:
    script = "from cuir.campaigns.local_executor import set_up_worker; set_up_worker(); print('alive')"
    with block_interrupts():
        child = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        child.send_signal(signal.SIGINT)
    assert (*child.communicate(timeout=60), child.returncode) == (b"", b"", 130)
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())
