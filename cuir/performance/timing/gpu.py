"""The GPU of this machine: whether it runs kernels, and the versions that a figure depends on."""

from __future__ import annotations

import datetime
import subprocess

import torch

from ...ops.limits import runs
from ...text.diagnostics import CuirError


def explain_missing_gpu() -> str:
    """Return why kernels cannot run here; empty if they can."""
    if not torch.cuda.is_available():
        return "no CUDA device (torch.cuda.is_available() is False)"
    major, minor = torch.cuda.get_device_capability()
    return "" if runs((major, minor), "wgmma") else f"kernels are for Hopper (compute capability 9.0), this device has {major}.{minor}"


def require_gpu(otherwise: str = "cuir.run and cuir.verify need none") -> None:
    """Check that a GPU runs kernels with wgmma.

    `otherwise` names for the hint what works without one.

    Raises: CuirError U501 if there is none.
    """
    reason = explain_missing_gpu()
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
