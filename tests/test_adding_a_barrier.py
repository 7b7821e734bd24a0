"""A kind of barrier is added in three files, and every machine takes it: checker, interpreter, explorer, verification, mutation and lowering."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
# A hardware barrier at which n workers meet, with a declaration and one method.
STEPS = {
    "cuir/ops/sync.py": """
@op(
    "rendezvous",
    "sync",
    _N,
    where="declaration",
    traits=Traits(declares=True, makes="barrier", hardware=True),
    doc="A hardware barrier at which n workers meet.",
)
def _rendezvous(cx: CallContext) -> Type:
    return _declare(cx, "rendezvous")


@op(
    "rendezvous.meet",
    "sync",
    Param("bar", "rendezvous"),
    effects=Effects(arrives="bar", waits="bar"),
    traits=Traits(joins_worker=True, hardware=True),
    spelling="bar.meet",
    doc="Arrives and waits for the phase (bar.sync).",
)
def _meet(cx: CallContext) -> Type:
    return Void()
""",
    "cuir/interp/ops/sync.py": """
@runs("rendezvous")
def rendezvous(b: Barrier, text: str, entry: int, workers: int, entries: int) -> NamedBarrier:
    return NamedBarrier(text, b.count, b.warps, b.span, workers, entries)


@runs("rendezvous.meet")
def meet(site: Site) -> Evaluate:
    bar, span = compile_barrier_place(site, "bar"), site.span
    return lambda w: join(w, bar(w), span)
""",
    "cuir/lowering/cuda/primitives/sync.py": '''
@prints("rendezvous.meet")
def meet(role: RolePrinter, op: ops.Perform) -> None:
    """Emit a wait at a rendezvous."""
    _emit_named(role, op, "bar_sync")
''',
}
PROGRAM = """\
@kernel(arch="sm_90a")
def swap(X: Global[f32, M, 64], Y: Global[f32, M, 64]):
    s = shared(f32, [64, 64])
    there = rendezvous(2)
    taken = rendezvous(2)
    work = tiles(cdiv(M, 64))
    with role("put", warpgroups=1):
        for t in work:
            store(s, load(X[t * 64 : t * 64 + 64, :]))
            there.meet()
            taken.meet()
    with role("take", warpgroups=1):
        for t in work:
            there.meet()
            store(Y[t * 64 : t * 64 + 64, :], load(s))
            taken.meet()
"""
RACE = PROGRAM.replace("            there.meet()\n", "")
DEADLOCK = PROGRAM.replace("load(s))\n            taken.meet()\n", "load(s))\n")
SCRIPT = """
import json, sys
import torch, cuir
from cuir.explore import explore
from cuir.interp.ops import gaps as interpreter_gaps
from cuir.lowering import Lowering
from cuir.lowering.targets import gaps as lowering_gaps
from cuir.lowering.validate import TensorRuns, ctas_for, random_arguments
from cuir.mutation import mutants

programs = json.load(open("programs.json"))
said = {"gaps": any([*interpreter_gaps(), *lowering_gaps()])}
for name, text in programs.items():
    checked = cuir.check(cuir.parse(text))
    x, y = torch.randn(130, 64), torch.zeros(130, 64)
    try:
        cuir.run(checked, {"X": x, "Y": y}, grid=1)
        run = torch.equal(x, y)
    except cuir.CuirError as error:
        run = error.diagnostics[0].code
    said[name] = [run, str(explore(checked, {"X": x, "Y": y}, grid=1)).removeprefix("Exploration(").split(" ")[0]]
program = cuir.parse(programs["right"])
said["verified"] = cuir.verify(program, cuir.FunctionSpecification("same", lambda X: X), seeded=0).ok
said["mutants"] = [m.description for m in mutants(program, "swap") if "meet" in m.description or "there" in m.description]
checked = cuir.check(program)
arguments = random_arguments(checked, torch.Generator().manual_seed(0), {"M": 130})
said["passes"] = all(s.outcome is None or s.outcome.ok for s in Lowering(checked, ()).stages(TensorRuns(arguments, ctas_for(checked))))
said["cuda"] = [line.strip() for line in cuir.lower(checked).source.splitlines() if "cuir::bar_sync(" in line]
print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict:
    """Run code in a process that imports the copy; return its output."""
    place = tmp_path_factory.mktemp("project")
    shutil.copytree(ROOT / "cuir", place / "cuir")
    for name, text in STEPS.items():
        with (place / name).open("a", encoding="utf-8") as file:
            file.write(f"\n{text}")
    (place / "programs.json").write_text(json.dumps({"right": PROGRAM, "race": RACE, "deadlock": DEADLOCK}), encoding="utf-8")
    output = subprocess.run([sys.executable, "-c", SCRIPT], cwd=place, capture_output=True, text=True, check=False)
    assert output.returncode == 0, output.stderr
    return json.loads(output.stdout)


def test_the_entry_is_complete(answers: dict) -> None:
    assert not answers["gaps"]


def test_right_and_wrong_programs_are_told_apart(answers: dict) -> None:
    assert answers["right"] == [True, "no"]
    assert answers["race"][0] == "R401" and answers["race"][1] == "R401"
    assert answers["deadlock"][0] is not True and answers["deadlock"][1] != "no"


def test_verification_and_mutation_know_it(answers: dict) -> None:
    assert answers["verified"] is True and answers["mutants"]


def test_it_lowers(answers: dict) -> None:
    assert answers["passes"] is True and answers["cuda"] == ["cuir::bar_sync(1, 256);", "cuir::bar_sync(2, 256);"] * 2
