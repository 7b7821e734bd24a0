"""`cuir verify`: variants, programs against variants, and the command that replays a failure."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.programs import KERNEL, SMALL, write_changed


@pytest.mark.usefixtures("few_problems")
def test_verify_a_variant(cuir: Callable) -> None:
    output = cuir("verify", "sliding_window", "-p", "window=40", *SMALL, "--json")
    assert output.code == 0 and output.json["verification"]["ok"]


@pytest.mark.thorough
def test_verify_a_program_against_a_variant(cuir: Callable, tmp_path: Path) -> None:
    path = write_changed(tmp_path / "k.cuir", "return k <= q + (N - M)", "return k < q + (N - M)")
    output = cuir("verify", path, "--against", "causal", *SMALL, "--json")
    d = output.json["diagnostics"][0]
    line = KERNEL.splitlines().index("    return k <= q + (N - M)") + 1
    assert output.code == 1 and d["code"] == "V107" and abs(d["span"]["line"] - line) <= 1
    assert cuir("verify", path, "--against", "causal", *SMALL).code == 1


def test_a_failing_verification_tells_the_command_that_replays_it(cuir: Callable, tmp_path: Path) -> None:
    path = write_changed(
        tmp_path / "k.cuir", "mma_wait(acc)\n                        v_empty[u].arrive(cluster=True)", "v_empty[u].arrive(cluster=True)"
    )
    output = cuir("verify", path, "--against", "causal", *SMALL)
    command = next(line.split("replay: ")[1] for line in output.err.splitlines() if "replay: cuir verify" in line)
    repeated = cuir(*shlex.split(command)[1:])
    code = output.err.split("error[")[1][:4]
    assert repeated.code == 1 and f"error[{code}]" in repeated.err


@pytest.mark.usefixtures("few_problems")
def test_the_order_of_sums_is_a_question(cuir: Callable) -> None:
    consts = ("-c", "D=64", "-c", "BM=64", "-c", "BN=64", "--dtype", "bf16")
    output = cuir("verify", "flash_fwd_sm90", "--against", "causal", *consts, "--order-of-sums", "--json")
    assert output.code == 0, output.err
    last = output.json["verification"]["stages"][-1]
    assert (last["name"], last["verdict"]) == ("order of sums", "passed") and last["reason"].startswith("the same tree in 6 runs")


@pytest.mark.nvcc
@pytest.mark.usefixtures("few_problems")
def test_the_last_question_is_about_ptx(cuir: Callable) -> None:
    output = cuir("verify", "decode_paged", "-k", "combine", "--ptx", "--json")
    assert output.code == 0, output.err
    last = output.json["verification"]["stages"][-1]
    assert (last["name"], last["verdict"]) == ("ptx", "passed") and "million instructions of threads" in last["reason"]
    assert cuir("verify", "decode_paged", "-k", "combine", "--ptx", "--problem", "B=1").code == 2
