"""Tasks of `cuir cuda check`: a schedule each, by a record of the command line that any process reads."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from ..campaigns.campaign import Executor, run_campaign
from ..campaigns.journal import Journal, JournalKind
from ..campaigns.tasks import Json, Task, make_task
from ..ptx.launch import LoadedModule, load
from ..text.diagnostics import CuirError
from ..verification.cuda_numbers import OutputJudge
from ..verification.cuda_runs import CheckRecorder, CudaCheck, read_check_state, write_check_state
from .launch_files import REFERENCE, load_function, load_launch

JOURNAL = JournalKind("U122", "cuir cuda check", "the kernel and its launches", "--journal")


@dataclass(frozen=True)
class CudaCheckWords:
    """Arguments of the command line: files, which kernel, how it is compiled and judged."""

    source: str
    launch: str
    against: str | None
    tolerance: float | None
    kernel: str | None
    arch: str
    include: Sequence[str]
    defines: Mapping[str, str]
    instantiate: str

    def load(self) -> LoadedModule:
        """Load the kernels. Raises CuirError as `cuir.cuda.load`."""
        return load(Path(self.source), self.arch, self.include, self.defines, instantiate=self.instantiate)

    def make_check(self, module: LoadedModule) -> CudaCheck:
        """Return a check of the launches. Raises CuirError X110 to X113."""
        judge = OutputJudge(load_function(self.against, REFERENCE, "the function"), self.tolerance) if self.against is not None else None
        replay = f"cuir cuda check {self.source} --launch {self.launch} --schedule {{}}"
        return CudaCheck(module, load_launch(self.launch), judge, self.kernel, replay)

    def hash_content(self, module: LoadedModule) -> str:
        """Return a hash of the kernels, the files of Python, and the words."""
        files = {n.partition(".py:")[0].removesuffix(".py") + ".py" for n in (self.launch, self.against) if n is not None}
        texts = [module.module.text, *(Path(f).read_text(encoding="utf-8") for f in sorted(files)), json.dumps(asdict(self))]
        return hashlib.sha256(json.dumps(texts).encode()).hexdigest()[:16]


def run_in_tasks(
    check: CudaCheck,
    words: CudaCheckWords,
    schedules: Sequence[str],
    executor: Executor,
    path: Path | None,
    progress: Callable[[int, int], None],
) -> None:
    """Run schedules in tasks, and merge what they found in the order of the schedules, also behind an interruption.

    path: of the journal. Raises CuirError as `CudaCheck.run`, and U122, U108.
    """
    content, folder = words.hash_content(check.module), str(Path.cwd())
    keys = [make_task(run_schedule, content, schedule).key for schedule in schedules]  # the folder is no part of it
    tasks = [Task(key, run_schedule, (json.dumps(asdict(words)), content, folder, s)) for key, s in zip(keys, schedules)]
    journal = Journal(path, {"check": Path(words.source).name, "content": content}, JOURNAL)
    try:
        for result in run_campaign(tasks, executor, journal, progress):
            if result.error is not None:
                raise result.error
    finally:
        for key in keys:
            if key in journal.rows:
                check.merge(read_check_state(journal.rows[key]["value"]))


def run_schedule(record: str, content: str, folder: str, schedule: str) -> Json:
    """Run the launches under a schedule. Raises CuirError U515 if the files are others here."""
    with contextlib.chdir(folder):
        check = _open(record, content)
        check.forget()
        check.run((schedule,))
        return write_check_state(CheckRecorder(check).export())


@functools.lru_cache(maxsize=2)
def _open(record: str, content: str) -> CudaCheck:
    words = CudaCheckWords(**json.loads(record))
    module = words.load()
    if words.hash_content(module) != content:
        raise CuirError.of("U515", f"the files of {words.source} are others on this node", hint="each node needs the same files")
    return words.make_check(module)


__all__ = ["CudaCheckWords", "run_in_tasks", "run_schedule"]
