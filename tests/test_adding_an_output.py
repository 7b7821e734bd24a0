"""An output of the attention kernel is added in two files beside its test, and all that knows MAX_SCORES takes it: transfer, verification, calls and lowering."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
# The sum of the squared weights of each query: 1 for one key, 1 / n for n keys of the same weight.
FILE = '''\
"""The sum of the squared weights of each query, SQUARED_WEIGHTS."""

from __future__ import annotations

import torch

from .attention_output import AttentionOutput, RowState

SQUARED_WEIGHTS = AttentionOutput(
    name="SQUARED_WEIGHTS",
    description="sums of squared weights",
    states=(RowState("squares", "the sum of the squared weights", "zeros(f32, [R, 1])", "squares * (alpha * alpha) + row_sum(P * P)"),),
    write_value=lambda normalize: "normalise(normalise(squares))",
    compute=lambda scores, weights: (weights * weights).sum(-1),
    without_keys=0.0,
    # an error of the scores counts twice in a square, and that of LSE too
    allow=lambda expected, allowed_of_lse: expected * (4 * allowed_of_lse + 2.0**-18),
)
'''
NAME, TABLE = "SQUARED_WEIGHTS", "cuir/attn/outputs/output_table.py"
ENTRY = ("OUTPUTS: tuple[AttentionOutput, ...] = (MAX_SCORES,)", "OUTPUTS: tuple[AttentionOutput, ...] = (MAX_SCORES, SQUARED_WEIGHTS)")
IMPORT = ("from .max_scores import MAX_SCORES\n", "from .max_scores import MAX_SCORES\nfrom .squared_weights import SQUARED_WEIGHTS\n")
PREAMBLE = """
import json, re
from dataclasses import replace
import torch, corpus, cuir
from torch._subclasses import FakeTensorMode
from cuir.attn.api import dense_calls
from cuir.attn.capture.attention_request import AttentionRequest, Weighting
from cuir.attn.kernels.transfers import transfer_to_expert
from cuir.attn.tracing.read_ranges import trace_without_clashes
from cuir.verification import Case, check_numbers

NAME, EXPERT = "SQUARED_WEIGHTS", str(corpus.kernels()["flash_fwd_sm90"])
consts, said = {"T": cuir.f16, "D": 16, "BM": 64, "BN": 64}, {}

def causal(b, h, q, k): return k <= q - 20
def capped(s, b, h, q, k): return 20 * torch.tanh(s / 20) + h

base = cuir.Specification("squared", causal, outputs=(NAME,))
both = replace(base, max_scores=True)
made = cuir.transfer(EXPERT, base)
"""
SCRIPT = """
def find_error(call):
    try:
        call()
    except cuir.CuirError as error:
        return [error.diagnostics[0].code, error.diagnostics[0].message]
    return None

def judge(text, spec):
    program, case = cuir.parse(text), Case("growing", cuir.Lengths(1, 2, 2, 130, 130), "growing")
    return find_error(lambda: check_numbers(program, cuir.check(program, consts=consts), spec, case))

said["written"] = [t.name for t in cuir.check(cuir.transfer(EXPERT, both).program, consts=consts).tensors if t.written]
variants = base, replace(both, sink=0.5), replace(base, normalize="sigmoid"), replace(both, normalize="relu", score_mod=capped)
said["right"] = [judge(cuir.transfer(EXPERT, s).text, s) for s in variants]
divided = "softmax_end_inner(state[1], state[0], b, h)[0]"
store = re.search(r" *store\\(SQUARED_WEIGHTS.*?(?=    return)", made.text, re.S)[0]
rescaled, end = ("squares * (alpha * alpha)", "squares * alpha"), (f"softmax_end_inner({divided}, state[0], b, h)[0]", divided)
said["wrong"] = [judge(made.text.replace(*change), base) for change in (rescaled, end, (store, ""))]
said["missing"] = judge(cuir.transfer(EXPERT, replace(base, outputs=())).text, base)
said["unknown"] = find_error(lambda: cuir.Specification("x", outputs=("ENTROPY",)))
said["parted"] = find_error(lambda: cuir.transfer(str(corpus.kernels()["decode_sm90"]), base))
said["cuda"] = NAME in cuir.lower(cuir.check(made.program, consts=consts)).source
traced = trace_without_clashes(base)
for again in range(2):  # the second transfer is read from the cache folder
    said[f"cached {again}"] = [NAME in transfer_to_expert("flash_fwd_sm90", s, traced, True, True).text for s in (base, replace(base, outputs=()))]

q, k, v = (torch.randn(1, 2, 40, 16, dtype=torch.float16, generator=torch.Generator().manual_seed(i)) for i in range(3))
def measure(spec, outputs):
    expected = [spec.compute_output(n, q, k, 0.25) for n in spec.output_names]
    return [(x.double() - y).masked_fill(x == y, 0).abs().max().item() for x, y in zip(outputs[2:], expected, strict=True)]

one = cuir.attention(base, head_dim=16, verify="off")
said["attention"] = measure(base, one(q, k, v, return_lse=True, backend="interpret"))
said["operator"] = measure(base, one.in_graph(q, k, v, None, "interpret"))
with FakeTensorMode() as mode:
    said["fake"] = [list(x.shape) for x in one(*map(mode.from_tensor, (q, k, v)), return_lse=True, backend="interpret")]
mask = cuir.create_block_mask(causal, None, None, 40, 40, "cpu")
request = AttentionRequest(q, k, v, None, mask, None, False, "interpret", "off", Weighting(outputs=both.output_names))
for again in range(2):  # the second call is warm
    said[f"request {again}"] = measure(both, dense_calls.run(request))
long = request._replace(query=q[:, :, :1], key=k.repeat(1, 1, 30, 1), value=v.repeat(1, 1, 30, 1), block_mask=None)
said["few queries"] = [list(x.shape) for x in dense_calls.run(long)]  # whose kernel else shares out the keys
print(json.dumps(said))
"""
VERIFICATION = """
program, consts["D"] = cuir.transfer(str(corpus.programs()["flash_fwd"]), base), 64
wrong = cuir.parse(program.text.replace("squares * (alpha * alpha)", "squares * alpha"))
reports = [cuir.verify(p, base, consts=consts, seeded=0) for p in (program.program, wrong)]
said["verdicts"] = [[d.code for stage in report.stages for d in stage.diagnostics] for report in reports]
said["blamed"] = [n.message for d in reports[1].diagnostics for n in d.notes]
print(json.dumps(said))
"""


pytestmark = pytest.mark.thorough("in a copy of the project, whose kernels are judged")


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package with the output."""
    place = tmp_path_factory.mktemp("project")
    for name in ("cuir", "corpus"):
        shutil.copytree(ROOT / name, place / name)
    (place / "cuir/attn/outputs/squared_weights.py").write_text(FILE, encoding="utf-8")
    table = (place / TABLE).read_text(encoding="utf-8")
    for old, new in (IMPORT, ENTRY):
        assert old in table
        table = table.replace(old, new)
    (place / TABLE).write_text(table, encoding="utf-8")
    return place


def run(place: Path, script: str) -> dict:
    """Run code in a process that imports the copy; return its output."""
    output = subprocess.run([sys.executable, "-c", PREAMBLE + script], cwd=place, capture_output=True, text=True, check=False)
    assert output.returncode == 0, output.stderr
    return json.loads(output.stdout)


@pytest.fixture(scope="module")
def answers(project: Path) -> dict:
    return run(project, SCRIPT)


def test_the_transfer_writes_it_behind_the_others(answers: dict) -> None:
    assert answers["written"] == ["O", "LSE", "MAX_SCORES", NAME]
    assert answers["cached 0"] == answers["cached 1"] == [True, False]


def test_right_and_wrong_statements_are_told_apart(answers: dict) -> None:
    assert answers["right"] == [None] * 4
    *differ, not_stored = answers["wrong"]
    assert all(code == "V309" and message.startswith(f"{NAME} differs from float64 by ") for code, message in differ)
    assert not_stored[0] == "V302" and not_stored[1].startswith(f"{NAME} is NaN")


def test_errors_name_it(answers: dict) -> None:
    assert answers["missing"] == ["V309", f"`squared` asks for sums of squared weights, and the kernel gives no {NAME}"]
    assert answers["unknown"] == ["X101", f"`outputs` of `x` are among MAX_SCORES, {NAME}, found 'ENTROPY'"]
    assert answers["parted"][0] == "X130" and "cannot join sums of squared weights" in answers["parted"][1]


def test_calls_return_it(answers: dict) -> None:
    for of_call, count in (("attention", 1), ("operator", 1), ("request 0", 2), ("request 1", 2)):
        assert len(answers[of_call]) == count and max(answers[of_call]) < 1e-5, of_call
    assert answers["fake"] == [[1, 2, 40, 16], [1, 2, 40], [1, 2, 40]]
    assert answers["few queries"] == [[1, 2, 1, 16], *[[1, 2, 1]] * 3]


def test_it_lowers(answers: dict) -> None:
    assert answers["cuda"]


def test_verification_judges_it(project: Path) -> None:
    answers = run(project, VERIFICATION)
    assert answers["verdicts"] == [[], ["V309"]] and any(note.startswith(f"{NAME}[") for note in answers["blamed"])
