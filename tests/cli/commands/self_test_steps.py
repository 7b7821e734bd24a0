"""Stand-ins for the steps of the self-test, which its process runs."""

from __future__ import annotations

import os
import sys
import time

from cuir.cli.self_test import serve_steps


def succeed() -> str:
    return ""


def leave_out() -> str:
    return "no GPU"


def fail() -> str:
    raise AssertionError("numbers differ")


def fail_to_import() -> str:
    raise ImportError("no module named parts")


def crash() -> str:
    os._exit(9)


def hang() -> str:
    time.sleep(600.0)
    return ""


STEPS = {f.__name__: f for f in (succeed, leave_out, fail, fail_to_import, crash, hang)}
COMMAND = (sys.executable, "-m", "tests.cli.commands.self_test_steps")


if __name__ == "__main__":
    sys.exit(serve_steps(STEPS))
