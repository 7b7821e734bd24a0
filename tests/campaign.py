"""The tests of each file as a task: `python -m tests.campaign [--on ray:HOST:PORT] [--journal FILE] [FOLDER...]`, as `make thorough` runs them.

Each node has the working tree at the same path. Files that passed are in the journal, under a key of the whole tree.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from cuir.campaigns.campaign import run_campaign
from cuir.campaigns.executors import make_executor
from cuir.campaigns.journal import Journal, JournalKind
from cuir.campaigns.tasks import Json, TaskError, make_task
from cuir.cli.process_setup import Interrupted, report_interruption

ROOT = Path(__file__).parent.parent
KIND = JournalKind("U122", "tests.campaign", "the options of pytest", "--journal")
NO_TESTS = 5  # pytest's exit code, where all are left out


def hash_tree() -> str:
    """Return a hash of the contents of all files that git does not ignore."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    digest = hashlib.sha256()
    for name in sorted(filter(None, listed.stdout.split("\0"))):
        path = ROOT / name
        digest.update(name.encode() + b"\0" + (path.read_bytes() if path.is_file() else b"") + b"\0")
    return digest.hexdigest()[:16]


def find_files(folders: Sequence[str]) -> list[str]:
    """Return the files of tests below some folders, by their paths in the tree."""
    return sorted(
        {p.relative_to(ROOT).as_posix() for f in folders for p in ((ROOT / f).rglob("test_*.py") if (ROOT / f).is_dir() else [ROOT / f])}
    )


def run_file(path: str, options: Sequence[str], tree: str) -> Json:
    """Run the tests of a file; return the last line of pytest. Raises TaskError with the report of what failed."""
    if hash_tree() != tree:
        raise TaskError("the working tree of this node is another one")
    call = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", *options, path]
    ended = subprocess.run(call, cwd=ROOT, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"}, check=False)
    if ended.returncode not in (0, NO_TESTS):
        raise TaskError(ended.stdout[-4000:] + ended.stderr[-1000:])
    return ended.stdout.strip().rpartition("\n")[2]


def make_command(words: Sequence[str]) -> str:
    """Return the command line that continues from a journal."""
    return f"{shlex.quote(sys.executable)} -m tests.campaign {shlex.join(words)}".rstrip()


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folders", nargs="*", default=["tests"])
    parser.add_argument("--on", default="local", help="local, ray, or ray:HOST:PORT")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--journal", type=Path, help="file of what has passed")
    parser.add_argument("--thorough", default="all", help="all, rest or none, as of pytest")
    words = sys.argv[1:] if words is None else words
    given = parser.parse_args(words)
    again = f"{make_command(words)}\nruns what has not passed" if given.journal else ""
    options, tree = [f"--thorough={given.thorough}"], hash_tree()
    files = find_files(given.folders or ["tests"])
    journal = Journal(given.journal, {"options": options}, KIND)
    tasks = [make_task(run_file, path, options, tree) for path in files]
    executor = make_executor(given.on, given.jobs)
    tell = lambda n, of: print(f"\r{n} of {of} files ({executor.describe()})", end="", file=sys.stderr, flush=True)  # noqa: E731
    failed = 0
    try:
        results = run_campaign(tasks, executor, journal, tell)
    except (KeyboardInterrupt, Interrupted):
        return report_interruption(again)
    for path, result in zip(files, results, strict=True):
        failed += result.error is not None
        print(f"{path}: {result.value if result.error is None else 'FAILED'}")
        if result.error is not None:
            print(result.error)
    if failed and again:
        print(f"{failed} of {len(files)} files failed; {again}")
    return 1 if failed else 0


if __name__ == "__main__":
    from tests.campaign import main as run_main  # tasks name their function by its module

    sys.exit(run_main())
