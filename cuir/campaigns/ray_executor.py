"""Tasks on a Ray cluster, which schedules them, runs those of dead workers again, and shows them on its dashboard."""

from __future__ import annotations

import contextlib
import itertools
import socket
import subprocess
import sys
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from .. import __version__
from ..text.diagnostics import CuirError
from .local_executor import use_one_thread
from .tasks import Result, Task, TaskError, run_task

RETRIES = 3  # of a task whose worker or node dies
AHEAD = 2  # tasks that wait or run for each core
CONNECTING, PROBING = 5.0, 30.0  # seconds in which an address accepts a connection, and then a driver
_PROBE = "import ray, sys; ray.init(address=sys.argv[1], log_to_driver=False, logging_level='ERROR')"


@dataclass
class RayExecutor:
    """Executor on a Ray cluster.

    Attributes:
        address: HOST:PORT of the cluster's head. Empty: RAY_ADDRESS, else the cluster of `ray start` on this machine,
            else one of this machine's cores, which ends with the campaign.
    """

    address: str = ""
    _link: str = field(default="", init=False)
    _connected: bool = field(default=False, init=False)

    def __enter__(self) -> RayExecutor:
        self.connect()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._connected:
            _import_ray().shutdown()
            self._connected = False

    def describe(self) -> str:
        """Return where tasks run, for people: the cluster, and the link to its dashboard once it runs."""
        return f"Ray{f' at {self.address}' if self.address else ''}{f', dashboard {self._link}' if self._link else ''}"

    def connect(self) -> ModuleType:
        """Connect to the cluster, unless the process is connected; return the module ray.

        Raises CuirError: U514 without Ray, U515 if Ray does not start or the address does not answer.
        """
        ray = _import_ray()
        if not ray.is_initialized():
            if self.address:
                _require_answer(self.address)
            try:
                context = ray.init(address=self.address or None, log_to_driver=False, logging_level="ERROR")
            except Exception as error:  # of no class of Ray's, as on a machine under load
                cause = str(error).strip().partition("\n")[0]
                hint = "the same command again; under load, start Ray first: `ray start --head --port 6379`"
                raise CuirError.of("U515", f"Ray does not start: {cause}", hint=hint) from None
            self._connected = True
            self._link = f"http://{context.dashboard_url}" if context.dashboard_url else ""
        return ray

    def call(self, function: Callable[..., Any], *arguments: object) -> Any:
        """Return `function(*arguments)`, computed on a node; raise what it raises.

        All are sent as they are, and nothing is kept. Several threads may call.
        """
        ray = self.connect()
        reference = ray.remote(function).options(num_cpus=1, max_retries=RETRIES).remote(*arguments)
        try:
            return ray.get(reference)
        except ray.exceptions.RayTaskError as error:
            raise (error.cause if isinstance(error.cause, Exception) else error) from None

    def run(self, tasks: Sequence[Task]) -> Generator[Result]:
        """Yield the result of each task as it finishes; see `Executor.run`.

        Raises CuirError: as `connect`; U501 for a task that needs more GPUs than there are.
        """
        ray = self.connect()
        gpus = int(ray.cluster_resources().get("GPU", 0))
        if any(task.gpus > gpus for task in tasks):
            raise CuirError.of(
                "U501", f"tasks of this campaign need a GPU, and the cluster has {gpus or 'none'}", hint="ray start --num-gpus"
            )
        remote = ray.remote(_run_remotely)
        todo, waiting = iter(tasks), dict[object, Task]()
        try:
            while True:
                most = AHEAD * max(1, int(ray.cluster_resources().get("CPU", 1)))  # nodes may join and leave
                for task in itertools.islice(todo, max(0, most - len(waiting))):
                    reference = remote.options(num_cpus=1, num_gpus=task.gpus, max_retries=RETRIES).remote(task, __version__)
                    waiting[reference] = task
                if not waiting:
                    return
                ready, _ = ray.wait(list(waiting), timeout=1.0)
                if ready:
                    ready, _ = ray.wait(list(waiting), num_returns=len(waiting), timeout=0)
                for reference in ready:
                    yield _collect(ray, reference, waiting.pop(reference))
        finally:
            for reference in waiting:
                with contextlib.suppress(Exception):
                    ray.cancel(reference, force=True)


def _collect(ray: ModuleType, reference: object, task: Task) -> Result:
    """Return the result of a finished task; a worker that died too often is its error.

    Raises CuirError U515 for a node that cannot run tasks of this package.
    """
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:  # nothing that a task raises comes here
        cause = str(error).strip().rpartition("\n")[2]
        raise CuirError.of("U515", f"a node of the cluster runs no tasks: {cause}", hint="install the same cubridge on each node") from None
    except ray.exceptions.RayError as error:
        cause = str(error).strip().partition("\n")[0]
        return Result(task.key, error=TaskError(f"Ray gave it up after {RETRIES} retries: {type(error).__name__}: {cause}"))


def _run_remotely(task: Task, version: str) -> Result:
    """Run a task in a worker of the cluster, whose package must be the driver's."""
    if version != __version__:
        raise RuntimeError(f"{socket.gethostname()} has cubridge {__version__}, the driver {version}")
    use_one_thread()
    return run_task(task)


def _import_ray() -> ModuleType:
    try:
        import ray
    except ImportError:
        raise CuirError.of("U514", "`--on ray` needs Ray", hint="pip install cubridge[ray]") from None
    return ray


def _require_answer(address: str) -> None:
    """Check that a Ray cluster answers at an address. Raises CuirError U515.

    Ray itself retries for two minutes, and hears no signal meanwhile: another process tries first.
    """
    host, _, port = address.rpartition("://")[2].rpartition(":")
    hint = "start one: `ray start --head --port 6379`, then --on ray:HOST:6379"
    if not host or not port.isdecimal():
        raise CuirError.of("U515", f"`{address}` is no address of a Ray cluster", hint="HOST:PORT, as `ray start --head` tells it")
    try:
        socket.create_connection((host, int(port)), CONNECTING).close()
    except OSError as error:
        raise CuirError.of("U515", f"nothing answers at {address}: {error.strerror or error}", hint=hint) from None
    try:
        probe = subprocess.run([sys.executable, "-c", _PROBE, address], capture_output=True, text=True, timeout=PROBING, check=False)
        failure = probe.stderr.strip().rpartition("\n")[2] if probe.returncode else ""
        if "InvalidAuthToken" in probe.stderr:  # `ray start` makes a token, which Ray reads if this variable says so
            failure, hint = "it wants a token", "export RAY_AUTH_MODE=token, with the head's ~/.ray/auth_token on each node"
    except subprocess.TimeoutExpired:
        failure = f"no answer in {PROBING:.0f} s"
    if failure:
        raise CuirError.of("U515", f"no Ray cluster answers at {address}: {failure}", hint=hint)


__all__ = ["RayExecutor"]
