"""Verification verdicts of programs, cached in the cache folder with the kernels."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from ...caching.disk import VERDICTS, mark_used, write_whole
from ...checking.checked import Const
from ...performance.search.space import from_plain
from ...runtime.content_digests import describe_package, digest
from ...spec.function_specification import AnySpecification
from ...syntax.nodes import Program
from ...syntax.printer import show
from ...text.diagnostics import CuirError
from ...text.jsontext import to_json
from ...verification.report import Stage, VerifyReport
from ..capture.capture_keys import CaptureKey
from ..capture.first_call_progress import Progress


def verify_or_recall(
    program: Program,
    spec: AnySpecification,
    capture_key: CaptureKey,
    consts: Mapping[str, Const],
    level: Literal["quick", "full"],
    progress: Progress,
    kernel: str | None = None,
) -> VerifyReport:
    """Return the report of a right program: of a run on the CPU now, or of an earlier one.

    An earlier verdict counts for the same program, consts and level, and for mods of the same structure: other
    documents, or another window, are the same program on other data. Raises CuirError with the findings of
    verification.
    """
    entry = _entry(program, capture_key, consts, level)
    report = _read(entry)
    if report is not None:
        return report
    from ...verification import verify
    from ...verification.side_processes import count_usable_processes

    with progress.step(f"verifying ({level})") as step:
        report = verify(program, spec, kernel=kernel, consts=consts, level=level, progress=step.tell, processes=count_usable_processes())
    if not report.ok:
        raise CuirError(report.diagnostics)
    write_whole({entry: to_json(report.as_json()).encode()})
    return report


def _entry(program: Program, capture_key: CaptureKey, consts: Mapping[str, Const], level: str) -> Path:
    values = sorted((name, str(value)) for name, value in consts.items())
    parts = [describe_package(), show(program), capture_key.digest(), repr(values), level]
    return VERDICTS.path(digest(parts))


def _read(entry: Path) -> VerifyReport | None:
    """Return the report of a file; None if it is missing, damaged, or has a failure."""
    try:
        data = json.loads(entry.read_text(encoding="utf-8"))
        stages = [Stage(s["name"], s["question"], s["verdict"], s["reason"], (), s["seconds"], s["rows"]) for s in data["stages"]]
        mark_used(entry)
        report = VerifyReport(data["variant"], data["kernel"], data["level"], from_plain(data["consts"]), stages)
        return report if data["ok"] and report.ok else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


__all__ = ["verify_or_recall"]
