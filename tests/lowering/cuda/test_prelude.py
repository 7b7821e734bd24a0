"""Device functions: the parts of .cuh files, and that each file is C++ by itself."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

import cuir
from cuir.lowering.cuda.prelude import COMMON, FILES, INCLUDE, parse_parts, render
from cuir.lowering.targets import target_of
from cuir.ops.limits import TARGETS
from cuir.runtime.nvcc import include_dir

LOWERING = Path(cuir.__file__).parent / "lowering"
SOURCES = sorted(LOWERING.rglob("*.cuh"))
TEXT = """\
// A file.
#include "headers.cuh"

namespace cuir {

//@ section numbers

//@ note for readers
//@ part one defines other
// One
DEV int one() { return 1; }
DEV int other() { return 1; }

//@ for e4m3 e5m2
//@ part two_e4m3 needs one
DEV int two_e4m3() { return one() + e4m3; }
//@ end

}  // namespace cuir
"""


def list_includes(file: Path) -> set[Path]:
    """The file and all of the lowering that it includes."""
    files = {file}
    for name in re.findall(r'^#include "(.+)"$', file.read_text(encoding="utf-8"), re.M):
        files |= list_includes((file.parent / name).resolve())
    return files


def test_parts_of_a_file() -> None:
    parts = parse_parts(TEXT)
    assert list(parts) == ["one", "two_e4m3", "two_e5m2"]
    assert parts["one"].text == "// One\nDEV int one() { return 1; }\nDEV int other() { return 1; }" and parts["one"].names == ("other",)
    assert parts["two_e5m2"].text == "DEV int two_e5m2() { return one() + e5m2; }" and parts["two_e5m2"].needs == ("one",)
    assert render("cuir::two_e5m2();", {}, parts) == f"{parts['one'].text}\n{parts['two_e5m2'].text}"
    assert render("cuir::other();", {"x": "extra"}, parts) == f"{parts['one'].text}\nextra"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("section numbers", "section nowhere"),
        ("//@ section numbers", ""),
        ("part two_e4m3", "part one"),
        ("defines other", "define other"),
        ("//@ end", ""),
        ("//@ note for readers", "//@ note for readers\nDEV int lost();"),
    ],
)
def test_wrong_marks_are_refused(old: str, new: str) -> None:
    with pytest.raises(ValueError, match=r"mark|section|outside"):
        parse_parts(TEXT.replace(old, new, 1))


def test_every_file_is_read() -> None:
    assert {p.stem for p in INCLUDE.glob("*.cuh")} == {*FILES, "headers"}
    names = {name for arch in TARGETS for name in target_of(arch).all_parts}
    for path in SOURCES:
        assert set(parse_parts(path.read_text(encoding="utf-8"))) <= names, f"{path.name} is not read by its target"


@pytest.mark.parametrize("arch", sorted(TARGETS))
def test_parts_need_what_they_name(arch: str) -> None:
    """A function that a text calls is one of its part, or of those it needs."""
    parts = target_of(arch).all_parts
    homes = {name: home for home, part in parts.items() for name in (home, *part.names)}

    def closure(name: str) -> set[str]:
        return {name}.union(*(closure(n) for n in parts[name].needs))

    for name, part in parts.items():
        code = re.sub(r"//.*|\"[^\"]*\"", "", part.text)
        called = {homes[w] for w in re.findall(r"(?<![.\w:>])(\w+)(?:<[^;(){}=]*>)?\((?!&)", code) if w in homes}
        called -= {homes[w] for w in re.findall(r"DEV [^;{=(]*?(\w+)\(", code) if w in homes}  # an overload of its own
        assert called <= closure(name), f"{name} calls {called - closure(name)}"
        assert set(part.needs) <= parts.keys()


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: f"{p.parent.parent.name}-{p.stem}")
def test_files_include_what_they_need(path: Path) -> None:
    local = {name for file in list_includes(path) for name in parse_parts(file.read_text(encoding="utf-8"))}
    parts = parse_parts(path.read_text(encoding="utf-8"))
    assert {n for part in parts.values() for n in part.needs} <= local


@pytest.mark.sweep
@pytest.mark.nvcc
@pytest.mark.nvcc
@pytest.mark.parametrize(
    "folders",
    [("include",), ("targets/sm75/include",), ("targets/sm80/include", "targets/sm89/include", "targets/sm90/include")],
    ids=["common", "oldest", "later"],
)
def test_every_file_compiles(folders: tuple[str, ...], tmp_path: Path) -> None:
    files = [p for folder in folders for p in sorted((LOWERING / folder).glob("*.cuh"))]
    assert files
    source = tmp_path / "all.cu"
    source.write_text("".join(f'#include "{p}"\n' for p in files), encoding="utf-8")
    command = ["nvcc", "-std=c++17", "-arch=sm_90a", "-ptx", "-I", include_dir(), "-o", tmp_path / "all.ptx", source]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr


def test_common_functions_are_of_no_architecture() -> None:
    assert COMMON.keys() <= target_of("sm_80").all_parts.keys()
