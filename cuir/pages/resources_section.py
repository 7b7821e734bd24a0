"""Sections of the compiled kernel: resources by ptxas, and the lines of program, CUDA and SASS."""

from __future__ import annotations

from html import escape

from ..checking.checked import Checked
from ..lowering import Cuda, lower
from ..runtime.launchable import describe_spills, find_lowered
from ..runtime.machine_code import find_disassembler, list_instructions
from ..runtime.nvcc import Compiled, compile_cuda
from ..text.diagnostics import CuirError
from .html_table import render_fields
from .listing_html import map_code, render_map
from .page import Section

_NO_DISASSEMBLER = "nvdisasm is not here; a CUDA toolkit has it, or pip install nvidia-cuda-nvdisasm"


def make_compiled_sections(checked: Checked, compiles: bool = True) -> list[Section]:
    """Return the sections on resources and on CuIR beside CUDA and SASS.

    compiles: False leaves out the cubin's.
    """
    cuda = find_lowered(checked) or lower(checked)
    compiled, missing = _compile(cuda) if compiles else (None, "the kernel was not compiled")
    sections = [Section("Resources", _render_resources(checked, cuda, compiled, missing))]
    return [*sections, Section("CuIR, CUDA, SASS", _render_code(cuda, compiled, missing))]


def render_compiled_kernel(compiled: Compiled) -> str:
    """Render resources and machine code of a compiled kernel."""
    return _render_resources(compiled.cuda.checked, compiled.cuda, compiled, "") + _render_code(compiled.cuda, compiled, "")


def _render_code(cuda: Cuda, compiled: Compiled | None, missing: str) -> str:
    instructions = list_instructions(compiled.cubin) if compiled is not None else []
    if compiled is not None and not instructions:
        missing = _NO_DISASSEMBLER if find_disassembler() is None else "nvdisasm gives lines, cuobjdump does not, and only that is here"
    return render_map(map_code(cuda, instructions), missing)


def _compile(cuda: Cuda) -> tuple[Compiled | None, str]:
    """Return the cubin, or the reason why there is none."""
    try:
        return compile_cuda(cuda), ""
    except CuirError as error:
        return None, error.diagnostics[0].message


def _render_resources(checked: Checked, cuda: Cuda, compiled: Compiled | None, missing: str) -> str:
    roles = ", ".join(f"{r.name} ({r.workers} of {r.threads} threads)" for r in checked.roles)
    fields: list[tuple[str, object]] = [
        ("kernel", cuda.name),
        ("architecture", cuda.arch),
        ("roles", roles),
        ("threads of a CTA", cuda.threads),
        ("CTAs of a cluster", cuda.cluster),
        ("shared memory of a CTA", f"{cuda.shared_bytes:,} bytes, barriers included"),
    ]
    if compiled is not None:
        r = compiled.resources
        fields += [
            ("registers at launch", r.registers),
            ("spills of a thread", f"{r.spill_stores:,} bytes stored, {r.spill_loads:,} bytes loaded"),
            ("stack of a thread", f"{r.stack:,} bytes"),
            ("compiler", f"{r.compiler}, {r.seconds:.1f} s"),
            *(("warning" if w in r.serialised else "note", w) for w in r.warnings),
            ("warning", describe_spills(cuda, r)),
        ]
    fields += [("choice", text) for text in cuda.choices]
    note = f"<p>Registers and spills are not known: {escape(missing)}.</p>" if compiled is None else ""
    return render_fields(fields) + note
