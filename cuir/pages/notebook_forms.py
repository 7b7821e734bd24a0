"""Forms of objects in a notebook that are made of several pictures."""

from __future__ import annotations

from html import escape

from ..attn.splicing.splice import TransferResult
from ..checking.checked import Checked
from ..explore import Exploration
from ..interp.event_trace import Trace
from ..lowering import Cuda
from ..runtime.nvcc import Compiled
from ..spec.specification import Lengths, Specification
from .listing_html import map_code, render_listing, render_map
from .mask_picture import count_blocks, render_blocks, render_variant
from .program_html import render_program, render_unified_diff
from .resources_section import render_compiled_kernel
from .run_section import render_trace
from .verification_page import render_diagnostics

_BLOCK, _BLOCKS = 128, 8  # of the picture of a mask


def render_transfer(result: TransferResult) -> str:
    """Render an adapted program: what differs from its origin, then the whole."""
    diff = render_unified_diff(result.diff) if result.diff else "<p>The origin is this variant already.</p>"
    return f"<p>{escape(repr(result))}</p>{diff}{render_program(result.program)}"


def render_checked(checked: Checked) -> str:
    """Render a checked kernel: a line about it, and its text."""
    return f"<p>{escape(repr(checked))}</p>{render_listing(checked.origin.span.source)}"


def render_lowered(cuda: Cuda) -> str:
    """Render a lowered kernel: the lines of program and CUDA."""
    return f"<p>{escape(repr(cuda))}</p>{render_map(map_code(cuda))}"


def render_compiled(compiled: Compiled) -> str:
    """Render a compiled kernel: resources, and the lines of program, CUDA and SASS."""
    return f"<p>{escape(repr(compiled))}</p>{render_compiled_kernel(compiled)}"


def render_recorded_run(trace: Trace) -> str:
    """Render a trace with its steps and the fault that ended it."""
    fault = trace.fault
    line = fault.span.line if fault is not None and fault.span is not None else None
    fault_html = render_diagnostics((fault,)) if fault is not None else ""
    return render_trace(trace, fault, line) + fault_html


def render_exploration(result: Exploration) -> str:
    """Render the result of an exploration: its summary, the fault, the steps of its schedule."""
    steps = "".join(f"<li>{escape(step)}</li>" for step in result.schedule.steps) if result.schedule is not None else ""
    schedule = f"<details><summary>the schedule</summary><ol>{steps}</ol></details>" if steps else ""
    return f"<p>{escape(result.summary())}</p>{render_diagnostics(result.diagnostics)}{schedule}"


def render_specification(spec: Specification) -> str:
    """Render a variant: its description, its code, the blocks of its mask for 1024 queries and keys."""
    length = _BLOCK * _BLOCKS
    mask = spec.compute_kept(Lengths(1, 1, 1, length, length))[0, 0]
    picture = render_blocks(count_blocks(mask, _BLOCK, _BLOCK), f"mask of {spec.name}")
    return f"{render_variant(spec)}<p>{length} queries and keys, blocks of {_BLOCK}</p>{picture}"
