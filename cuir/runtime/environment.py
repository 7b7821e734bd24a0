"""Inspection of a machine: cards, driver, compiler, packages, cache, and which kernels run on it."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ..caching import disk
from ..ops.limits import TARGETS
from ..text.diagnostics import CuirError
from .cards import list_cards
from .driver_api import driver
from .nvcc import compiler_version, find_nvcc, include_dir
from .nvrtc import describe_version, find_headers, import_nvrtc

COMPILERS = ("nvcc", "NVRTC")  # the first that is there compiles
TO_COMPILE = ("nvcc", "CuTe headers")
KERNEL_MODULE = Path("/proc/driver/nvidia/version")  # of Linux

# package, the extra that installs it, what it is for
OPTIONAL = (
    ("hypothesis", "testing", "property-based tests of kernels (cuir.testing)"),
    ("matplotlib", "bench", "plots and pictures of traces"),
    ("transformers", "transformers", "attention in Hugging Face models"),
    ("litellm", "llm", "language models that adapt kernels (transfer, lift, tune, eval)"),
    ("nvidia-cuda-nvrtc", "nvrtc", "kernels compiled without nvcc"),
    ("pycuda", "pycuda", "launches by PyCUDA (--loader pycuda)"),
)


@dataclass(frozen=True)
class Finding:
    """One property of the machine.

    Attributes:
        name: What was looked for.
        value: What was found.
        remedy: What to do about something missing; "" if nothing is needed.
        found: It is there.
    """

    name: str
    value: str
    remedy: str = ""
    found: bool = True

    @property
    def ok(self) -> bool:
        """True if nothing is missing."""
        return not self.remedy


def inspect_environment() -> list[Finding]:
    """Inspect this machine. Nothing is compiled and no kernel runs."""
    import torch

    findings = [
        Finding("system", f"{platform.system()} {platform.machine()}, Python {platform.python_version()}, {os.cpu_count()} cores"),
        Finding("PyTorch", f"{torch.__version__}, " + (f"CUDA {torch.version.cuda}" if torch.version.cuda else "without CUDA")),
        *_inspect_cards(),
        *_inspect_compilers(),
        _inspect("CuTe headers", lambda: f"{include_dir()}, for the compiler"),
        _inspect("cuda-bindings", lambda: str(driver().__name__) and f"{importlib.metadata.version('cuda-bindings')}, to launch kernels"),
        Finding("cache", f"{disk.cache_dir()}, at most {disk.size_limit() / 2**20:g} MiB of compiled kernels and verdicts"),
    ]
    return findings


def inspect_packages() -> list[Finding]:
    """List the optional packages. A missing one is no fault: `remedy` says how to get it."""
    packages = []
    for package, extra, purpose in OPTIONAL:
        try:
            packages.append(Finding(package, f"{importlib.metadata.version(package)}: {purpose}"))
        except importlib.metadata.PackageNotFoundError:
            packages.append(Finding(package, f"none: {purpose}", f"pip install cubridge[{extra}]"))
    return packages


def describe_reach(findings: list[Finding]) -> list[str]:
    """Say what runs on this machine, a line each."""
    missing = [f.name for f in findings if f.name in TO_COMPILE and not f.ok]
    lines = ["check, verify, mutate, bridge: yes, on the CPU"]
    compiler = next((f.name for f in findings if f.name in COMPILERS and f.found), "")
    lines.append(
        f"compile kernels: yes, by {compiler}; no GPU is needed for it"
        if not missing
        else f"compile kernels: no, without {' and '.join(missing)}"
    )
    cards = list_cards()
    launch = all(f.ok for f in findings if f.name in (*TO_COMPILE, "cuda-bindings"))
    for number, card in enumerate(cards):
        names = ", ".join(name for name, target in TARGETS.items() if target.runs_on(card.capability)) or "no architecture"
        lines.append(
            f"run kernels on cuda {number}: yes, of {names}" if launch else f"run kernels on cuda {number}: no, see what is missing"
        )
    if not cards:
        lines.append('run kernels on a GPU: no, there is none; attention calls run in the interpreter (backend="interpret"), slowly')
    return lines


def _inspect_cards() -> list[Finding]:
    import torch

    if not torch.cuda.is_available():
        remedy = "install PyTorch with CUDA" if not torch.version.cuda else "see nvidia-smi: a card and its driver"
        return [Finding("GPU", "none that PyTorch can use; only running and timing compiled kernels needs one", remedy)]
    cards = []
    for number, card in enumerate(list_cards()):
        memory = torch.cuda.get_device_properties(number).total_memory
        cards.append(
            Finding(
                f"cuda:{number}",
                f"{card.name}, compute capability {card.version}, {card.multiprocessors} multiprocessors, {memory / 2**30:.0f} GiB, "
                f"L2 cache of {card.l2_bytes / 2**20:.0f} MiB, {card.shared_bytes // 1024} KiB of shared memory a CTA",
            )
        )
    return [Finding("driver", describe_driver()), *cards]


def _inspect_compilers() -> list[Finding]:
    """Inspect nvcc and, in its place, NVRTC: of both, one is enough."""
    nvcc = _inspect("nvcc", lambda: f"{compiler_version(find_nvcc())} at {find_nvcc()}")
    nvrtc = import_nvrtc()
    if nvrtc is None:
        return [nvcc]
    if not nvcc.ok:
        nvcc = Finding("nvcc", "none; NVRTC takes its place", found=False)
    return [nvcc, Finding("NVRTC", f"{describe_version(nvrtc)}, with the headers in {find_headers()}")]


def describe_driver() -> str:
    """Return the version of the driver, where its kernel module tells it, and the newest CUDA that it supports."""
    try:
        version = int(driver().cuDriverGetVersion()[1])
        newest = f"CUDA {version // 1000}.{version % 1000 // 10}"
    except (CuirError, RuntimeError):
        newest = "CUDA of unknown version"
    try:
        module = re.search(r"Kernel Module.*?\s(\d+\.[\d.]+)\s", KERNEL_MODULE.read_text(encoding="utf-8"))
    except OSError:
        module = None
    return f"{module[1]}, {newest}" if module else newest


def _inspect(name: str, find: Callable[[], str]) -> Finding:
    try:
        return Finding(name, find())
    except CuirError as error:
        first = error.diagnostics[0]
        return Finding(name, "none", first.hint or first.message, found=False)
