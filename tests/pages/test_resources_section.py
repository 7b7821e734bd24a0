"""Resources and machine code: what ptxas says where the kernel was compiled, else why nothing is known."""

from __future__ import annotations

import pytest

import cuir
from cuir.pages import resources_section
from cuir.pages.resources_section import make_compiled_sections
from cuir.runtime.machine_code import Instruction
from cuir.runtime.nvcc import Compiled, Resources
from cuir.text.diagnostics import CuirError
from tests.pages.html_text import read_text
from tests.testing.programs import SCALE


def test_without_a_compiler_the_reason_stands_there(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(cuda: object) -> Compiled:
        raise CuirError.of("U503", "nvcc is needed <here>")

    monkeypatch.setattr(resources_section, "compile_cuda", refuse)
    resources, code = (read_text(s.body) for s in make_compiled_sections(cuir.check(SCALE)))
    assert (
        "not known: nvcc is needed <here>" in resources
        and "No SASS: nvcc is needed <here>" in code
        and "all (1 of 128 threads)" in resources
    )


def test_registers_spills_and_instructions_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = Resources("scale", 53, 16, 24, 8, 4096, 128, 1.5, "nvcc V13", ("(C7510) waits",))
    monkeypatch.setattr(resources_section, "compile_cuda", lambda cuda: Compiled(cuda, b"", counts))
    monkeypatch.setattr(resources_section, "list_instructions", lambda cubin: [Instruction(0, "EXIT", ())])
    resources, code = (read_text(s.body) for s in make_compiled_sections(cuir.check(SCALE)))
    for words in ("53", "16 bytes stored, 24 bytes loaded", "8 bytes", "warning(C7510) waits"):
        assert words in resources
    assert "EXIT" in code and "No SASS" not in code
    assert "No SASS: the kernel was not compiled" in read_text(make_compiled_sections(cuir.check(SCALE), compiles=False)[1].body)
