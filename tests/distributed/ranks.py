"""Processes of a gloo group on this machine, which run functions of tests."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["tests.distributed.ranks", "cuir.distributed", "cuir.interp", "cuir.attn.serving.cached"])
DIED = 7  # the exit code of a rank that a test ends


def run_ranks(count: int, function: Callable[..., object], *args: object, seconds: float = 20.0) -> list[object]:
    """Run a function of a test in `count` processes; return what it returns by rank, an exception as its text."""
    with tempfile.TemporaryDirectory() as folder:
        pipes = [CONTEXT.Pipe(duplex=False) for _ in range(count)]
        processes = [
            CONTEXT.Process(target=_run, args=(rank, count, folder, send, seconds, function, args), daemon=True)
            for rank, (_, send) in enumerate(pipes)
        ]
        for p in processes:
            p.start()
        for _, send in pipes:
            send.close()
        results: list[object] = []
        for receive, _ in pipes:
            try:
                results.append(receive.recv() if receive.poll(300.0) else "no answer")
            except EOFError:
                results.append("died")
        for p in processes:
            p.join(5.0)
            if p.is_alive():
                p.kill()
        return results


def _run(
    rank: int, count: int, folder: str, send: object, seconds: float, function: Callable[..., object], args: tuple[object, ...]
) -> None:
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    store = dist.FileStore(str(Path(folder) / "store"), count)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=count, timeout=timedelta(seconds=seconds))
    try:
        result = function(*args)
    except Exception as error:
        result = f"{type(error).__name__}: {error}" + ("" if hasattr(error, "diagnostics") else traceback.format_exc())
    send.send(result)  # type: ignore[attr-defined]
    dist.destroy_process_group()
