"""IR to CUDA: a file of `goldens` holds IR that has been through all passes, and the kernel that is printed of it.

`python -m tests.lowering.cuda.test_goldens` prints the kernels anew, for a change of the text that is meant.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from cuir.lowering.compiler import print_kernel
from cuir.lowering.cuda.registry import load_common
from cuir.lowering.ir.ir_text import parse, show
from cuir.lowering.targets import target_of
from cuir.lowering.targets.target import Target
from cuir.ops.limits import TARGETS

FILES = sorted((Path(__file__).parent / "goldens").glob("*.txt"))
LINE = "// ---- CUDA\n"  # between the two


def read_golden(path: Path) -> tuple[str, str]:
    """The IR and the CUDA of a file."""
    ir, _, cuda = path.read_text(encoding="utf-8").partition(LINE)
    return ir, cuda


def print_golden(ir: str) -> str:
    """The kernel without the device functions before it."""
    source = print_kernel(parse(ir)).source
    return source[source.index('extern "C"') :]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_ir_is_printed_as_it_was(path: Path) -> None:
    ir, cuda = read_golden(path)
    assert print_golden(ir) == cuda and show(parse(ir)) == ir


def test_the_code_of_each_way_is_in_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    printed, find_code = set[str](), Target.code

    def find_and_note(target: Target, step: str, way: str) -> Callable[..., None]:
        printed.add(f"{step}: {way}")
        return find_code(target, step, way)

    monkeypatch.setattr(Target, "code", find_and_note)
    for path in FILES:
        print_golden(read_golden(path)[0])
    assert printed == {
        code for arch in TARGETS for p in (load_common(), *(t.printers for t in target_of(arch).lineage)) for code in p.codes
    }


def main() -> None:
    """Print the kernels of all files anew."""
    for path in FILES:
        ir, _ = read_golden(path)
        path.write_text(ir + LINE + print_golden(ir), encoding="utf-8")


if __name__ == "__main__":
    main()
