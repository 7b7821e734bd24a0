"""Kernels kept on disk whole: what the second compilation skips, what it still knows, and what no file may do."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest

import cuir.runtime.compiled
from cuir.lowering import lower
from cuir.runtime import kernel_cache
from cuir.syntax.parser import parse
from tests.lowering.conftest import HEAD

Pretend = Callable[..., Callable[[], int]]
TEXT = HEAD + "        for t in work:\n            x = zeros(f32, [64, 1]) + scale\n            store(Y[rows(64)], x)\n"


def no_work(*_: object, **__: object) -> None:
    raise AssertionError("compiled again")


def test_the_second_compilation_neither_checks_nor_lowers(pretend: Pretend, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = pretend()
    first = cuir.runtime.compiled.compile(parse(TEXT), consts={"C": 5})
    monkeypatch.setattr("cuir.lowering.compiler.lower", no_work)
    monkeypatch.setattr(cuir.runtime.compiled, "compile_cuda", no_work)
    second = cuir.runtime.compiled.compile(parse(TEXT), consts={"C": 5})
    assert calls() == 1
    assert (
        second.source == first.source
        and second.compiled.cubin == first.compiled.cubin
        and second.compiled.resources == first.compiled.resources
    )
    assert repr(second) == repr(first)
    assert second.compiled.cuda.line_map == first.compiled.cuda.line_map


def test_what_comes_from_the_disk_can_be_checked_again(pretend: Pretend) -> None:
    pretend()
    first, second = (cuir.runtime.compiled.compile(parse(TEXT)) for _ in range(2))
    assert not any(r.body for r in second.compiled.cuda.checked.roles) and all(r.body for r in second.checked.roles)
    assert lower(second.checked).source == first.source
    assert second.checked is second.checked


def test_another_program_const_compiler_or_package_is_another_kernel(pretend: Pretend, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend()
    program = parse(TEXT)
    entries = [
        kernel_cache.make_entry_path(program, None, None),
        kernel_cache.make_entry_path(program, "k", None),
        kernel_cache.make_entry_path(program, None, {"C": 4}),
        kernel_cache.make_entry_path(program, None, {"C": True}),
        kernel_cache.make_entry_path(parse(TEXT.replace("+ scale", "- scale")), None, None),
        kernel_cache.make_entry_path(parse("# a line more\n" + TEXT), None, None),  # reports name lines
    ]
    monkeypatch.setattr(kernel_cache, "describe_package", lambda: "another version")
    entries.append(kernel_cache.make_entry_path(program, None, None))
    monkeypatch.setattr(kernel_cache, "_describe_compiler", lambda: "another compiler")
    entries.append(kernel_cache.make_entry_path(program, None, None))
    assert len(set(entries)) == len(entries)
    assert kernel_cache.make_entry_path(parse(TEXT), None, None) == kernel_cache.make_entry_path(program, None, None)


@pytest.mark.parametrize("damage", [b"", b"no pickle", None])
def test_a_damaged_file_is_made_anew(pretend: Pretend, damage: bytes | None) -> None:
    pretend()
    first = cuir.runtime.compiled.compile(parse(TEXT))
    entry = kernel_cache.make_entry_path(parse(TEXT), None, None)
    entry.write_bytes(entry.read_bytes()[:-100] if damage is None else damage)
    assert kernel_cache.load(entry) is None
    assert cuir.runtime.compiled.compile(parse(TEXT)).source == first.source and kernel_cache.load(entry) is not None


class Foreign:
    def __reduce__(self) -> tuple[Callable[[str], object], tuple[str]]:
        return os.mkdir, ("ran",)


def test_a_foreign_file_runs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.kernel").write_bytes(pickle.dumps(Foreign()))
    assert kernel_cache.load(tmp_path / "x.kernel") is None and not (tmp_path / "ran").exists()
    (tmp_path / "y.kernel").write_bytes(pickle.dumps(os.path.join))
    assert kernel_cache.load(tmp_path / "y.kernel") is None
