"""Compilation of CUDA text to a cubin by nvcc, else by NVRTC, cached on disk, with resources read from ptxas."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import ModuleType

from ..caching.disk import cache_dir, mark_used, write_whole
from ..lowering import Cuda
from ..text.diagnostics import CuirError
from ..text.notebook import ShownInNotebooks
from .cards import list_codes
from .machine_code import count_exponentials_around_waits
from .nvrtc import compile_by_nvrtc, describe_version, import_nvrtc
from .slim_headers import write_slim_headers

FLAGS = ("-O3", "-std=c++17", "--expt-relaxed-constexpr", "-lineinfo", "-Xptxas=-v", "-diag-suppress=780")
HARMLESS = "(C7519)"  # "warpgroup.arrive is injected"
UNKNOWN_CARD = "is not defined for option 'gpu-code'"
TOOLKITS = ("/usr/local/cuda",)  # default folders of installers
# variables that nvcc, or the preprocessor that it starts, adds to its options
ENVIRONMENT = ("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS", "NVCC_CCBIN", "CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "CUTLASS_INCLUDE")
INSTALL = "install a CUDA toolkit (12.3 or newer) and put nvcc on the PATH, or name it in CUDA_HOME; or pip install cubridge[nvrtc]"


@dataclass(frozen=True)
class Resources:
    """Resources of a kernel from ptxas; `exponentials` from the machine code if a disassembler exists.

    registers: of a thread at launch; spill_*: bytes; shared_bytes: dynamic, of a CTA; warnings: messages of ptxas on
    products (C75xx), see `serialised`. exponentials: MUFU.EX2 instructions between consecutive waits for products, in
    order of the machine code.
    """

    kernel: str
    registers: int
    spill_stores: int
    spill_loads: int
    stack: int
    shared_bytes: int
    threads: int
    seconds: float
    compiler: str
    warnings: tuple[str, ...] = ()
    exponentials: tuple[int, ...] = ()
    choices: tuple[str, ...] = field(default=())

    @property
    def serialised(self) -> tuple[str, ...]:
        """The warnings of lost overlap.

        All products run one after another (C7510, C7514, ...), or a wait was added (C7517). The others are notes: an
        added wgmma.fence (C7519, warpgroup.arrive) waits for nothing.
        """
        return tuple(w for w in self.warnings if not w.startswith(HARMLESS))

    def as_json(self) -> dict[str, object]:
        return {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}

    def summary(self) -> str:
        spills = f"{self.spill_stores + self.spill_loads} bytes of spills" if self.spill_stores + self.spill_loads else "no spills"
        warned = f", {len(self.serialised)} warnings" if self.serialised else ""
        return f"{self.registers} registers, {spills}, {self.shared_bytes:,} bytes of shared memory{warned}"

    def as_text(self) -> str:
        lines = [f"{self.kernel}: {self.threads} threads, {self.summary()}", f"compiled in {self.seconds:.1f} s by {self.compiler}"]
        if self.exponentials:
            lines.append(f"exponentials between waits for products: {', '.join(map(str, self.exponentials))}")
        lines += [f"{'warning' if w in self.serialised else 'note'}: {w}" for w in self.warnings]
        lines += [f"choice: {c}" for c in self.choices]
        return "\n".join(lines)


@dataclass(frozen=True)
class Compiled(ShownInNotebooks):
    """A cubin (or a fatbin, see `target`) with the lowered kernel that it was made from."""

    html_renderer = "pages.notebook_forms:render_compiled"

    cuda: Cuda
    cubin: bytes
    resources: Resources

    def __repr__(self) -> str:
        return f"Compiled({self.cuda.name}, {self.cuda.arch}; {self.resources.summary()})"


def find_nvcc() -> str:
    """Return the path of nvcc.

    Raises CuirError U503 if there is none.
    """
    path = shutil.which("nvcc")
    for home in (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), *TOOLKITS):
        if path is None and home:
            path = shutil.which("nvcc", path=os.path.join(home, "bin"))
    if path is None:
        raise CuirError.of("U503", "nvcc is needed to compile a kernel, and none was found", hint=INSTALL)
    return path


def find_compiler() -> str:
    """Return the name and version of the compiler of kernels: nvcc, or NVRTC where there is no nvcc.

    Raises CuirError U503 if there is neither.
    """
    try:
        return compiler_version(find_nvcc())
    except CuirError:
        if (nvrtc := import_nvrtc()) is None:
            raise
        return describe_version(nvrtc)


def describe_environment() -> str:
    """Describe the variables of the environment that change what nvcc makes of a text; "" if none is set."""
    return " ".join(f"{name}={os.environ[name]}" for name in ENVIRONMENT if os.environ.get(name))


@functools.cache
def compiler_version(nvcc: str) -> str:
    text = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=False).stdout
    match = re.search(r"release [\d.]+, (V[\d.]+)", text)
    return f"nvcc {match[1]}" if match else "nvcc"


def include_dir() -> str:
    """Return the folder of the CuTe headers.

    Raises CuirError U504 if they are not installed.
    """
    variable = os.environ.get("CUTLASS_INCLUDE")
    spec = None if variable else importlib.util.find_spec("cutlass_library")
    path = Path(variable) if variable else Path(spec.origin).parent / "source" / "include" if spec and spec.origin else None
    if path is None or not (path / "cute" / "arch").is_dir():
        raise CuirError.of(
            "U504",
            "the CuTe headers are needed to compile a kernel, and were not found" + (f" in {variable}" if variable else ""),
            hint="pip install cubridge[gpu], or name their folder in CUTLASS_INCLUDE",
        )
    return str(path)


Run = Callable[[Cuda, str], tuple[bytes, str]]  # a kernel and the path of nvcc -> the cubin, the compiler's output


def compile_cuda(cuda: Cuda, run: Run | None = None, name: str = "") -> Compiled:
    """Compile a lowered kernel, or take the cubin from the cache.

    run: runs nvcc, if not by a process of ours; name: of that way in the cache key. Without nvcc a cached cubin of the
    same text, architecture and flags serves, whichever compiler made it, else NVRTC compiles. Raises CuirError U503, U504 (nothing to
    compile with) or L010 (the compiler refuses the text: a fault of the lowering).
    """
    key, folder = _key(cuda), cache_dir()
    try:
        nvcc = find_nvcc()
    except CuirError:
        entries = sorted(folder.glob(f"{key}-*.json"))
        compiled = _read_cached(cuda, entries[-1]) if entries else None
        if compiled is not None:
            return compiled
        if name or (nvrtc := import_nvrtc()) is None:
            raise
        if isinstance(run, Nvcc):
            run.note_end()  # a call of a library cannot be stopped
        nvcc, version, run = "", describe_version(nvrtc), functools.partial(_run_nvrtc, nvrtc)
    else:
        version = compiler_version(nvcc)
    entry = folder / f"{key}-{name}{re.sub(r'[^A-Za-z0-9.]+', '_', version)}.json"
    return _read_cached(cuda, entry) or _store(entry, _compile(cuda, nvcc, version, run or Nvcc()))


def _run_nvrtc(nvrtc: ModuleType, cuda: Cuda, _: str) -> tuple[bytes, str]:
    """Compile a kernel by NVRTC, and return the binary and its log. Raises CuirError L010 if it refuses the source."""
    output, log = compile_by_nvrtc(nvrtc, cuda, include_dir())
    if output is None:
        raise make_compiler_error(cuda, log)
    return output, log


def read_cached_resources(cuda: Cuda) -> Resources | None:
    """Return a kernel's resources from the cache, by whichever compiler; runs nothing."""
    entries = sorted(cache_dir().glob(f"{_key(cuda)}-*.json"))
    compiled = _read_cached(cuda, entries[-1]) if entries else None
    return compiled.resources if compiled is not None else None


def _key(cuda: Cuda) -> str:
    environment = [text] if (text := describe_environment()) else []
    return hashlib.sha256("\n".join([cuda.source, *target(cuda.arch), *FLAGS, *environment]).encode()).hexdigest()[:32]


def _read_cached(cuda: Cuda, entry: Path) -> Compiled | None:
    try:
        data = json.loads(entry.read_text(encoding="utf-8"))
        cubin = entry.with_suffix(".cubin").read_bytes()
        mark_used(entry, entry.with_suffix(".cubin"))
        data = {k: tuple(v) if isinstance(v, list) else v for k, v in data.items()}
        return Compiled(cuda, cubin, Resources(**data))
    except (OSError, ValueError, TypeError):
        return None  # not there, or of another version: made anew


def _store(entry: Path, compiled: Compiled) -> Compiled:
    """Write the cubin, then the file that vouches for it."""
    write_whole({entry.with_suffix(".cubin"): compiled.cubin, entry: json.dumps(compiled.resources.as_json()).encode()})
    return compiled


def _compile(cuda: Cuda, nvcc: str, version: str, run: Run) -> Compiled:
    import time

    start = time.perf_counter()
    cubin, log = run(cuda, nvcc)
    return Compiled(cuda, cubin, _resources(cuda, cubin, log, time.perf_counter() - start, version))


def target(arch: str) -> tuple[str, str, str]:
    """Return nvcc's options for an architecture: output form, virtual architecture, and real ones.

    A kernel that several cards run comes with the code of `list_codes`, and with PTX for other cards.
    """
    code = list_codes(arch)
    return "cubin" if len(code) == 1 else "fatbin", arch.replace("sm_", "compute_"), f"-code={','.join(code)}"


SPAWNING = threading.Lock()  # held while pipes to a process are made: a fork at this time would keep them open


class Nvcc:
    """A process of nvcc that another thread may stop, with its child processes."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[str] | None = None
        self.begun = threading.Event()
        self.stopped = False

    def __call__(self, cuda: Cuda, nvcc: str) -> tuple[bytes, str]:
        """Compile a kernel, and return the binary and nvcc's log.

        Raises CuirError L010 if nvcc rejects the source, or if another thread stopped this compilation.

        Args:
            nvcc: path of the compiler.
        """
        form, arch, codes = target(cuda.arch)
        with tempfile.TemporaryDirectory() as folder:
            source, out = Path(folder) / f"{cuda.name[:100]}.cu", Path(folder) / f"kernel.{form}"
            source.write_text(cuda.source, encoding="utf-8")
            include, slim = include_dir(), Path(folder) / "include"
            command = [nvcc, f"-{form}", f"-arch={arch}", codes, *FLAGS, "-I", include, "-o", str(out), str(source)]
            code, log = 1, ""
            if write_slim_headers(cuda.source, include, slim):
                code, log = self._run([*command[:1], "-I", str(slim), *command[1:]])
            if code and not self.stopped:
                code, log = self._run(command)
            if code and UNKNOWN_CARD in log and not self.stopped:  # the driver compiles PTX for a card newer than nvcc
                code, log = self._run([f"-code={codes.rpartition(',')[2]}" if part == codes else part for part in command])
            if code:
                raise make_compiler_error(cuda, log.replace(folder + os.sep, ""))
            return out.read_bytes(), log

    def _run(self, command: list[str]) -> tuple[int, str]:
        """Run a command; return its exit code and output."""
        with SPAWNING:
            if self.stopped:
                return 1, "stopped"
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0)
        self.begun.set()
        try:
            outputs = self.process.communicate()
        except BaseException:
            self.stop()
            self.process.wait()
            raise
        return self.process.returncode, "".join(outputs)

    def note_end(self, _: object = None) -> None:
        """Release threads that wait for the process to begin: its purpose has ended, perhaps without it."""
        self.begun.set()

    def stop(self) -> None:
        """Kill the process, if it runs, or keep it from being started."""
        with SPAWNING:
            self.stopped = True
            if self.process is not None and self.process.poll() is None:
                with contextlib.suppress(OSError):
                    os.killpg(self.process.pid, signal.SIGKILL)


def make_compiler_error(cuda: Cuda, log: str) -> CuirError:
    """Make the compiler's first error, at the CuIR statement that its line came from."""
    match = re.search(r"\((\d+)\): error: (.*)", log)
    span = cuda.line_map.get(int(match[1])) if match else None
    words = match[2] if match else next((line for line in log.splitlines() if "error" in line or "fatal" in line), log.strip()[-300:])
    return CuirError.of(
        "L010",
        f"the compiler refuses the CUDA text of this statement: {words}",
        span or cuda.checked.origin.span,
        "this is a fault of the lowering (or of an old compiler); please report it with the program",
    )


def _number(pattern: str, log: str) -> int:
    match = re.search(pattern, log)
    return int(match[1]) if match else 0


def _resources(cuda: Cuda, cubin: bytes, log: str, seconds: float, version: str) -> Resources:
    warned = tuple(dict.fromkeys(m[0].strip() for m in re.finditer(r"\(C75\d\d\)[^\n]*", log)))
    return Resources(
        cuda.name,
        _number(r"Used (\d+) registers", log),
        _number(r"(\d+) bytes spill stores", log),
        _number(r"(\d+) bytes spill loads", log),
        _number(r"(\d+) bytes stack frame", log),
        cuda.shared_bytes,
        cuda.threads,
        round(seconds, 2),
        version,
        warned,
        count_exponentials_around_waits(cubin),
        cuda.choices,
    )
