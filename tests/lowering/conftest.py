"""Small kernels to lower, and a compiler that only pretends."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from cuir.checking.checked import Checked, Const
from cuir.checking.checker import check
from cuir.lowering import Cuda, lower
from cuir.syntax.parser import parse

HEAD = """\
@kernel(arch="sm_90a")
def k(X: Global[f16, M, 64], Y: Global[f32, M], Z: Global[f32, M, 64], I: Global[i32, M], n: i32, scale: f32, *, C: const = 4):
    s = shared(f16, [2, 64, 64])
    full = mbarrier(1, stages=2)
    turn = named_barrier(1)
    work = tiles(cdiv(M, 64))
    with role("all", warpgroups=1) as w:
"""


def kernel(body: str, head: str = HEAD, **consts: Const) -> Checked:
    """The checked kernel whose one role has this body; its first line is the 8th of the text."""
    return check(parse(head + "".join(f"        {line}\n" for line in body.strip("\n").split("\n")), "k.cuir"), consts=consts)


def text(body: str, **kw: str) -> str:
    return lower(kernel(body, **kw)).source


def one_file(sources: list[str]) -> str:
    """Kernels in namespaces of one file: most of the compiler's time goes into the headers."""
    lines = [line for source in sources for line in source.split("\n")]
    parts = [line for line in dict.fromkeys(lines) if line.startswith(("#include", "#define"))]
    for i, source in enumerate(sources):
        body = "\n".join(line for line in source.split("\n") if not line.startswith(("#include", "#define"))).replace('extern "C" ', "")
        parts.append(f"namespace program_{i} {{\n{body}\n}}")
    return "\n".join(parts) + "\n"


@pytest.fixture
def cuda() -> Cuda:
    return lower(kernel("x = zeros(f32, [64, 1])\nstore(Y[rows(64)], x)"))


PRETENDER = """\
#!/bin/sh
for last; do :; done
if [ "$1" = --version ]; then echo "Cuda compilation tools, release 99.1, V99.1.7"; exit 0; fi
echo call >> "{log}"
{body}
"""
GOOD = """\
while [ $# -gt 0 ]; do [ "$1" = -o ] && echo cubin > "$2"; shift; done
echo "ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized due to ..." >&2
echo "    16 bytes stack frame, 24 bytes spill stores, 32 bytes spill loads" >&2
echo "ptxas info    : Used 168 registers, used 3 barriers" >&2
"""


@pytest.fixture
def pretend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Callable[[], int]]:
    """Puts an nvcc on the PATH that does what a shell script says, with an empty cache; gives a counter of its compilations."""

    def make(body: str = GOOD) -> Callable[[], int]:
        folder = tmp_path / "bin"
        folder.mkdir(exist_ok=True)
        log = tmp_path / "log"
        (folder / "nvcc").write_text(PRETENDER.format(log=log, body=body))
        (folder / "nvcc").chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
        monkeypatch.setenv("CUIR_CACHE", str(tmp_path / "cache"))
        return lambda: len(log.read_text().splitlines()) if log.exists() else 0

    return make


@pytest.fixture
def no_nvcc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.delenv("CUDA_PATH", raising=False)
    monkeypatch.setenv("CUIR_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("cuir.runtime.nvcc.TOOLKITS", ())
    monkeypatch.setattr("cuir.runtime.nvcc.import_nvrtc", lambda: None)
