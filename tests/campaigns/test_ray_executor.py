"""Tasks on a Ray cluster: the results of local processes, also when a node is killed; errors instead of hangs."""

from __future__ import annotations

import builtins
import http.server
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import corpus
from cuir.campaigns import ray_executor
from cuir.campaigns.campaign import Executor, run_tasks
from cuir.campaigns.local_executor import LocalExecutor
from cuir.campaigns.ray_executor import RayExecutor
from cuir.campaigns.tasks import Result, make_task
from cuir.checking.checker import check
from cuir.cli.validation_tasks import validate_in_tasks
from cuir.syntax.parser import parse
from cuir.syntax.types import F16
from cuir.text.diagnostics import CuirError
from llm.limited_processes import ClusterProcesses, OutOfTime
from tests.campaigns.calls import die_at_first, fail, square, tell_gpu, tell_threads, work


def test_missing_ray_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    importing = builtins.__import__

    def import_others(name: str, *rest: Any, **named: Any) -> Any:
        if name == "ray":
            raise ImportError(name)
        return importing(name, *rest, **named)

    monkeypatch.setattr(builtins, "__import__", import_others)
    with pytest.raises(CuirError) as caught:
        RayExecutor().connect()
    assert caught.value.diagnostics[0].code == "U514" and caught.value.diagnostics[0].hint == "pip install cubridge[ray]"


def test_a_start_that_fails_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = pytest.importorskip("ray", reason="pip install cubridge[ray]")

    def fail_to_start(**options: object) -> None:
        raise Exception("The current node timed out during startup.\nA hint of Ray's.")

    monkeypatch.setattr(ray, "init", fail_to_start)
    with pytest.raises(CuirError, match="Ray does not start: The current node timed out during startup") as caught:
        RayExecutor().connect()
    assert caught.value.diagnostics[0].code == "U515" and "again" in str(caught.value.diagnostics[0].hint)


@contextmanager
def serve_pages() -> Iterator[str]:
    """The address of a server that is no Ray cluster."""
    server = http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


def find_free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def connect_and_fail(address: str, limit: float) -> str:
    begin = time.monotonic()
    with pytest.raises(CuirError) as caught:
        RayExecutor(address).connect()
    assert caught.value.diagnostics[0].code == "U515" and time.monotonic() - begin < limit
    return caught.value.diagnostics[0].message


def test_an_address_that_does_not_answer_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray", reason="pip install cubridge[ray]")
    assert "nothing answers" in connect_and_fail(f"127.0.0.1:{find_free_port()}", 5)
    assert "no address" in connect_and_fail("head", 5)
    monkeypatch.setattr(ray_executor, "PROBING", 4.0)
    with serve_pages() as address:
        assert "no answer in 4 s" in connect_and_fail(address, 15)


def validate_gemm(executor: Executor) -> list[object]:
    """Return the results of the IR behind each pass, as `cuir lower --validate` runs them."""
    program = corpus.programs()["gemm"].read_text(encoding="utf-8")
    parsed = parse(program)
    lengths = {"M": 70, "N": 40, "K": 40}
    checked = check(parsed, None, {"T": F16, "BM": 64, "BN": 64})
    finished = validate_in_tasks(checked, parsed, (), (0, lengths), executor, None, lambda n, of: None)
    return [finished.results, finished.differences]


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A cluster of two nodes of this machine, with a core each and a made-up GPU at the first."""
    ray = pytest.importorskip("ray", reason="pip install cubridge[ray]")
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    built = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "num_gpus": 1, "include_dashboard": False})
    yield built
    ray.shutdown()
    built.shutdown()


@pytest.mark.thorough("starts a cluster of two nodes")
def test_a_killed_node_changes_no_result(cluster: Any, tmp_path: Path) -> None:
    second = cluster.add_node(num_cpus=1)
    tasks = [make_task(work, x, 300) for x in range(12)]
    taken: list[Result] = []

    def take(result: Result) -> None:
        taken.append(result)
        if len(taken) == 2:
            cluster.remove_node(second, allow_graceful=False)

    with RayExecutor(cluster.address) as executor:
        results = run_tasks(tasks, executor, take)
        assert [(r.key, r.value, r.error) for r in results] == [(r.key, r.value, r.error) for r in run_tasks(tasks, LocalExecutor())]
        (folder := tmp_path / "died").mkdir()
        others = [make_task(die_at_first, str(folder), 1), make_task(fail, "cuir"), make_task(fail, "other"), make_task(tell_threads)]
        died, ours, other, threads = run_tasks([*others], executor)
        assert died.value == 1 and threads.value == 1, "the task of a dead worker runs again"
        assert isinstance(ours.error, CuirError) and ours.error.diagnostics[0].code == "U101"
        assert str(other.error) == "tests.campaigns.calls:fail raised Unknown: lost"
        processes = ClusterProcesses(executor)
        assert processes(square, 3, seconds=60) == {"x": 3, "square": 9}
        with pytest.raises(OutOfTime):
            processes(work, 1, 10**6, seconds=0.5)
        with pytest.raises(CuirError, match="no such program"):
            processes(fail, "cuir", seconds=60)
        assert validate_gemm(executor) == validate_gemm(LocalExecutor())
        assert run_tasks([make_task(tell_gpu, gpus=1)], executor)[0].value == "0"
        with pytest.raises(CuirError, match="need a GPU"):
            run_tasks([make_task(tell_gpu, gpus=2)], executor)
