"""Reports of JAX's GPU interpret mode on faults that `cuir verify` is measured with. It runs on a CPU.

    pip install jax==0.10.2 absl-py
    python -m benchmarks.other_tools.faults_in_pallas --cuir .venv/bin/cuir > benchmarks/other_tools/faults_in_pallas.md

Each fault is made in a Pallas kernel for Mosaic GPU, and in its twin in CuIR: a program of corpus/faulty, or a clean
one with lines changed. Each Pallas kernel is also lowered for a GPU (not compiled, not run), so Pallas accepts it.
Every fault has a separate process, since a deadlock never returns.
"""

import argparse
import collections
import contextlib
import datetime
import json
import re
import select
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax._src.pallas.mosaic_gpu.interpret import interpret_pallas_call as interpreter
from jax._src.pallas.mosaic_gpu.interpret.params import InterpretGPUParams
from jax.experimental.pallas import mosaic_gpu as plgpu

import corpus

from .pallas_kernels import BLOCKS, RAGGED, READERS, STAGES, TILE, double, product, writers
from .twins import Changes, answer, with_changes

RUNS, PATIENCE = 10, 90  # runs of each kernel; seconds without output after which one counts as hanging

BOTH_RELEASE = (("wg == 0", "wg < 2"), ("mbarrier(1, stages=STAGES)\n", "mbarrier(2, stages=STAGES)\n"))
DOUBLE_TWIN, PRODUCT_TWIN = "clean_pipeline", "clean_product"
WRITERS_TWIN = """@kernel(arch="sm_90a")
def writers(X: Global[f16, 192, 64], Y: Global[f16, PARTS, 64, 64], *, PARTS: const = {parts}):
    part = shared(f16, [3, 64, 64])
    ready = mbarrier({arrivals})
    work = tiles(1)

    with role("write", warpgroups=3, registers=96) as wg:
        for t in work:
            store(part[wg], load(X[wg * 64 : wg * 64 + 64, :]))
            ready.arrive()

    with role("read", warpgroups=1, registers=96):
        for t in work:
            ready.wait(0)
            for i in range(PARTS):
                store(Y[i, rows(64), cols(64)], load(part[i]))
"""
REFERENCES = {
    "double": "def reference(x):\n    return x + x",
    "readers": "def reference(x):\n    return torch.stack([x + x, x + x])",
    "product": "def reference(a, b):\n    return a.T @ b",
    "writers": "def reference(x, PARTS):\n    return x.reshape(3, 64, 64)[:PARTS]",
}


@dataclass(frozen=True)
class Case:
    """Fault of class `number` of docs/verification.md in `kernel`.

    `twin` is a program of corpus/faulty, with replacements made in it.
    """

    number: int | None
    kernel: str
    fault: str
    text: str
    twin: str
    changes: Changes = ()


CASES = [
    Case(None, "double", "", "none: copies into a ring, a bulk store", DOUBLE_TWIN),
    Case(None, "double", "ragged", "none: the last block sticks out of the tensor", DOUBLE_TWIN),
    Case(None, "readers", "", "none: the same with two readers", "R401_second_reader_not_waited_for", BOTH_RELEASE),
    Case(None, "product", "", "none: a product of tiles from a ring", PRODUCT_TWIN),
    Case(None, "writers", "", "none: three writers of one barrier, a reader", "", (("{parts}", "3"), ("{arrivals}", "3"))),
    Case(1, "double", "no wait", "a stage is read without waiting for its copy", "R401_missing_wait"),
    Case(1, "double", "no wait, two blocks", "the same with as many blocks as stages", "R401_missing_wait"),
    Case(2, "double", "released early", "a stage is released before it is read", "R401_released_too_early"),
    Case(2, "double", "loader does not wait", "the loader refills stages without waiting", "S402_loader_does_not_wait"),
    Case(2, "readers", "one reader releases", "only one of two readers releases a stage", "R401_second_reader_not_waited_for"),
    Case(2, "double", "no store wait", "the buffer of a bulk store is refilled without waiting", "R401_missing_store_wait"),
    Case(3, "product", "released early", "a stage is released while wgmma may read it", "R401_released_under_a_product"),
    Case(3, "product", "overwritten", "an operand is overwritten while wgmma may read it", "R401_operand_overwritten"),
    Case(4, "product", "no product wait", "the accumulator is read without waiting for wgmma", "M405_value_in_flight"),
    Case(5, "double", "no fence", "ordinary stores reach the bulk store without a fence", "R403_missing_fence"),
    Case(6, "double", "counts two", "a barrier counts two arrivals and one comes", "D401_count_of_arrivals"),
    Case(6, "double", "released twice", "a stage is released twice", "S401_released_twice"),
    Case(6, "product", "one copy of two", "a barrier waits for one copy of two", "R401_bytes_of_one_copy"),
    Case(6, "writers", "counts two", "three writers, and the barrier counts two", "", (("{parts}", "3"), ("{arrivals}", "2"))),
    Case(7, "double", "", "the barrier expects fewer bytes than land", "S403_too_few_bytes"),
    Case(7, "double", "", "the barrier expects bytes that never come", "D401_bytes_never_come"),
    Case(8, "double", "", "the reader waits for the other parity", "R401_swapped_parity_of_reader"),
    Case(8, "double", "lap behind", "the loader waits for a stage a lap too late", DOUBLE_TWIN, (("                empty[s].wait(phase ^ 1)\n", "                if it >= 2 * STAGES:\n                    empty[s].wait(phase)\n"),)),
    Case(9, "double", "never released", "nobody releases a stage", "D401_never_released"),
    Case(10, "writers", "first part, counts two", "three writers, the barrier counts two, the first one's part is read", "", (("{parts}", "1"), ("{arrivals}", "2"))),
    Case(11, "double", "wrong value", "x + x + x in place of x + x", DOUBLE_TWIN, (("x + x)", "x + x + x)"),)),
    Case(12, "double", "never written", "a buffer is read that nobody has written", "M401_never_written"),
    Case(12, "double", "other stage", "the reader reads the other stage", DOUBLE_TWIN, (("load(sX[s])", "load(sX[(it + 1) % STAGES])"),)),
    Case(13, "double", "one block more", "the reader takes one block more than the loader brings", "D401_one_block_too_many"),
    Case(13, "double", "other order", "the loader brings the blocks from the last to the first", DOUBLE_TWIN, (("copy_async(X[j * 64 : j * 64 + 64, :]", "copy_async(X[(cdiv(M, 64) - 1 - j) * 64 : (cdiv(M, 64) - 1 - j) * 64 + 64, :]"),)),
    Case(14, "double", "shared memory", "32 stages: 264 KB of shared memory", "M301_shared_memory"),
    Case(14, "readers", "registers", "the roles take more registers than a CTA has", "R401_second_reader_not_waited_for", (*BOTH_RELEASE, ("registers=232", "registers=256"))),
    Case(15, "double", "aliased", "the buffer of the bulk store lies over the ring", DOUBLE_TWIN, (("sY = shared(f16, [64, 64])", "sY = shared(f16, [64, 64], over=sX)"),)),
]  # fmt: skip
UNSAID = {7: "cannot be said: a copy sets its bytes itself", 8: "cannot be said: the compiler keeps the parity"}


def build(case: Case) -> tuple[Any, Any, list[np.ndarray]]:
    """Return the kernel for a GPU and the same in the interpreter, with its inputs."""
    parts = (
        double(case.fault, READERS)
        if case.kernel == "readers"
        else {"double": double, "product": product, "writers": writers}[case.kernel](case.fault)
    )
    body, scratch, shape, threads = parts
    dtype = jnp.float32 if case.kernel == "product" else jnp.float16

    def kernel(**how: Any) -> Any:
        types = {"out_type": jax.ShapeDtypeStruct(shape, dtype), "scratch_types": scratch}
        return jax.jit(plgpu.kernel(body, num_threads=threads, thread_name="wg", **types, **how))

    rows = {"writers": 3 * TILE}.get(
        case.kernel, (STAGES if "two blocks" in case.fault else BLOCKS) * TILE - (RAGGED if case.fault == "ragged" else 0)
    )
    rng = np.random.default_rng(0)
    shapes = [(TILE, rows), (rows, TILE)] if case.kernel == "product" else [(rows, TILE)]
    inputs = [rng.integers(-3, 4, shape).astype(np.float16) for shape in shapes]
    return kernel(), kernel(interpret=InterpretGPUParams(detect_races=True)), inputs


def compute_expected(case: Case, inputs: list[np.ndarray], shape: tuple[int, ...]) -> np.ndarray:
    """Compute the result of the kernel without a fault."""
    x = inputs[0]
    if case.kernel == "product":
        return x.astype(np.float32) @ inputs[1].astype(np.float32)
    return x.reshape(3, TILE, TILE)[: shape[0]] if case.kernel == "writers" else np.broadcast_to(x + x, shape)


def last_error(log: str) -> str:
    """Return the last message of an exception in a log, without what differs from run to run."""
    messages = re.findall(r"^.*?\w*Error: (.*)$", log, re.MULTILINE)
    message = re.sub(r"HostAllocationKey\([^)]*\)", "a buffer", messages[-1]) if messages else ""
    return re.sub(r"(phase|Thread|thread) \d+", r"\1 _", message).split(". (This")[0].rstrip(".")


def observe(case: Case) -> None:
    """Print a line of JSON for the lowering, and one for each run of the interpreter."""
    on_gpu, interpreted, inputs = build(case)
    try:
        on_gpu.trace(*inputs).lower(lowering_platforms=("cuda",))
        print(json.dumps({"lowered": "yes"}), flush=True)
    except Exception as error:  # a refusal is what is observed, whatever JAX raises
        print(json.dumps({"lowered": str(error).strip().splitlines()[0]}), flush=True)
    for _ in range(RUNS):
        try:
            with contextlib.redirect_stdout(sys.stderr):
                y = np.asarray(interpreted(*inputs))
            result = "right" if np.array_equal(y, compute_expected(case, inputs, y.shape)) else "wrong"
            message = "race" if interpreter.get_races().races_found else ""
        except Exception as error:  # likewise: it becomes the message of this run
            result, message = "", last_error(str(error)) or str(error)
        interpreter.reset_gpu_interpret_mode_state()
        print(json.dumps({"result": result, "message": message}), flush=True)


def watch(index: int) -> str:
    """Describe what a separate process observes of a case."""
    records, hangs = [], False
    with tempfile.TemporaryFile() as log:
        child = subprocess.Popen([sys.executable, "-m", __spec__.name, "--case", str(index)], stdout=subprocess.PIPE, stderr=log, bufsize=0)
        assert child.stdout
        while child.poll() is None and not hangs:
            if select.select([child.stdout], [], [], PATIENCE)[0]:
                records += [json.loads(line) for line in [child.stdout.readline()] if line]
            else:
                hangs = True
                child.kill()
        records += [json.loads(line) for line in child.stdout.readlines()]
        child.wait()
        log.seek(0)
        logged = log.read().decode(errors="replace")
    lowered, *runs = records
    counts = collections.Counter(
        "race reported" if r["message"] == "race" else f"error: {r['message']}" if r["message"] else f"silent, result {r['result']}"
        for r in runs
    )
    words = [f"{observation} ({n} of {RUNS})" for observation, n in counts.most_common()]
    if hangs:
        printed = ["a race"] if "RACE DETECTED" in logged else []
        printed += [f"the error: {last_error(logged)}"] if last_error(logged) else []
        words.append(f"hangs in run {len(runs) + 1}, " + (f"in the log {' and '.join(printed)}" if printed else "says nothing"))
    if lowered["lowered"] != "yes":
        words.append(f"lowering for a GPU: {lowered['lowered']}")
    return "; ".join(words)


def table(cuir: str) -> None:
    """Print the table, each line as soon as it is known."""
    print(
        f"jax {version('jax')}, jaxlib {version('jaxlib')}, {datetime.date.today()}: {RUNS} runs each, with `detect_races=True`. Hangs: no word for {PATIENCE} s.\n"
    )
    print("| class | kernel | fault | GPU interpret mode | `cuir verify` of the twin | the twin |\n|---|---|---|---|---|---|")
    for index, case in enumerate(CASES):
        pallas = UNSAID[case.number] if case.number in UNSAID and not case.fault else watch(index)
        text = WRITERS_TWIN if not case.twin else corpus.faulty()[case.twin]
        twin = answer(cuir, with_changes(text, case.changes), REFERENCES[case.kernel])
        name = f"`{case.twin or 'writers'}`" + (", changed" if case.changes and case.twin else "")
        print(f"| {case.number or ''} | {case.kernel} | {case.text} | {pallas} | {twin} | {name} |", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cuir", default="cuir", help="the command that verifies the twins")
    parser.add_argument("--case", type=int, help="observe one case alone, in this process")
    chosen = parser.parse_args()
    table(chosen.cuir) if chosen.case is None else observe(CASES[chosen.case])
