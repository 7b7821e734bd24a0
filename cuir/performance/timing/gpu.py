"""The GPU of this machine: whether it runs kernels, and the versions that a figure depends on."""

from __future__ import annotations

import datetime
import subprocess

import torch

from ...ops.limits import TARGETS
from ...text.diagnostics import CuirError


def explain_missing_gpu(arch: str | None = None) -> str:
    """Return why kernels of an architecture, or of any, cannot run here; empty if they can."""
    if not torch.cuda.is_available():
        return "no CUDA device (torch.cuda.is_available() is False)"
    major, minor = torch.cuda.get_device_capability()
    archs = list(TARGETS) if arch is None else [arch]
    if any(TARGETS[a].runs_on((major, minor)) for a in archs):
        return ""
    return f"kernels are for {' or '.join(archs)}, this device has compute capability {major}.{minor}"


def require_gpu(otherwise: str = "cuir.run and cuir.verify need none", arch: str | None = None) -> None:
    """Check that a GPU runs kernels of an architecture, or of any.

    `otherwise` names for the hint what works without one.

    Raises: CuirError U501 if there is none.
    """
    reason = explain_missing_gpu(arch)
    if reason:
        raise CuirError.of(
            "U501",
            f"a GPU was demanded: {reason}",
            hint=f"{otherwise}; on a GPU machine: pip install cubridge[gpu]",
        )


def versions() -> dict[str, str | None]:
    """Return the date, the device and the versions that belong to a figure."""
    cuda = torch.cuda.is_available()
    return {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
        "device": torch.cuda.get_device_name() if cuda else None,
        "driver": _driver() if cuda else None,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
    }


def _driver() -> str | None:
    try:
        answer = subprocess.run(
            ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"], capture_output=True, text=True, check=False, timeout=20
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip().split("\n")[0] or None
