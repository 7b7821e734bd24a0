"""`--exhaustive` and `--replay`: what they show, what they write, how they end."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import pytest

from tests.strategies.faulty import faulty_file

RELEASED = faulty_file("R401_released_under_a_product")


def test_a_failing_schedule_is_found_written_and_replayed(cuir, tmp_path: Path) -> None:
    file = str(tmp_path / "s.json")
    output = cuir("run", RELEASED, "-d", "M=320", "--exhaustive", "--out", file)
    assert output.code == 1
    assert "R401 in a schedule of 16 steps" in output.out and f"--replay {file}" in output.out.replace("\n", " ")
    assert "R401_released_under_a_product.cuir:18:17: error[R401]" in output.err and "^^^^" in output.err
    repeated = cuir("run", RELEASED, "--replay", file)
    assert repeated.code == 1
    assert "R401_released_under_a_product.cuir:18:17: error[R401]" in repeated.err and f"replay: --replay {file}" in repeated.err
    assert cuir("run", RELEASED, "-d", "M=320", "--replay", file).err == repeated.err  # what the file says anyhow
    for second, code, says in (
        (("-d", "M=64"), "U103", f"contradicts {file}: M is 320 there"),
        (("--grid", "77"), "U103", f"contradicts {file}: the grid is"),
        (("-c", "STAGES=9"), "U103", f"contradicts {file}: STAGES is"),
    ):
        refused = cuir("run", RELEASED, *second, "--replay", file)
        assert refused.code == 2 and f"error[{code}]" in refused.err and says in refused.err


def test_a_right_program_has_no_failing_schedule(cuir, tmp_path: Path) -> None:
    file = tmp_path / "s.json"
    output = cuir("run", faulty_file("clean_product"), "-d", "M=320", "--exhaustive", "--out", str(file))
    assert output.code == 0 and "no deadlock, race, overrun or lapped wait in any schedule" in output.out.replace("\n", " ")
    assert not file.exists()
    as_json = cuir("run", faulty_file("clean_product"), "-d", "M=320", "--exhaustive", "--json")
    assert as_json.code == 0 and as_json.json["exploration"]["alike"] and as_json.json["exploration"]["classes"] == 1


def test_a_schedule_of_a_fault_that_was_mended(cuir, tmp_path: Path) -> None:
    """Replayed on the mended program the schedule does not fit any more, or shows no fault; never a stack trace."""
    file = str(tmp_path / "s.json")
    cuir("run", RELEASED, "-d", "M=320", "--exhaustive", "--out", file)
    output = cuir("run", faulty_file("clean_product"), "--replay", file)
    assert (output.code == 2 and "U124" in output.err) or (output.code == 0 and "no fault under this schedule" in output.out)


def test_verify_explores_small_launches_of_a_kernel(cuir) -> None:
    output = cuir("verify", "causal", "--exhaustive", "--json")
    assert output.code == 0 and output.json["ok"]
    result = output.json["explorations"]
    assert [e["verdict"] for e in result] == ["clean"] * 6 and all(e["alike"] and e["states"] > e["steps"] for e in result)
    assert result[0]["lengths"]["N"] == 4 * 128 and result[0]["lengths"]["H"] == 2


@pytest.fixture
def broken(tmp_path: Path) -> str:
    """The expert kernel, releasing a stage of K before the product that reads it is over."""
    text = (files("corpus") / "kernels" / "flash_fwd_sm90.cuir").read_text()
    wait, release = (
        "mma_wait(S)                              # P V may still run\n",
        "k_empty[s].arrive(cluster=True)\n",
    )
    indent = " " * 24
    old = wait + indent + release
    assert text.count(old) == 1
    path = tmp_path / "broken.cuir"
    path.write_text(text.replace(old, release + indent + wait))
    return str(path)


def test_verify_shows_and_replays_a_fault_of_a_kernel(cuir, broken: str, tmp_path: Path) -> None:
    file = str(tmp_path / "s.json")
    output = cuir("verify", broken, "--against", "causal", "--exhaustive", "--out", file)
    assert output.code == 1 and "broken.cuir:" in output.err and "error[R4" in output.err
    repeated = cuir("verify", broken, "--against", "causal", "--replay", file)
    assert repeated.code == 1 and "broken.cuir:" in repeated.err and "error[" in repeated.err
    assert repeated.err.split("error[")[1][:4] == output.err.split("error[")[1][:4]
    for second in (("--head-dim", "64"), ("--dtype", "bf16"), ("-c", "BN=64")):  # the schedule is of other consts
        refused = cuir("verify", broken, "--against", "causal", "--replay", file, *second)
        assert refused.code == 2 and "error[U103]" in refused.err and file in refused.err


def test_files_that_are_no_schedules(cuir, tmp_path: Path) -> None:
    assert cuir("run", RELEASED, "--replay", str(tmp_path / "none.json")).code == 2
    (tmp_path / "some.json").write_text("{}")
    output = cuir("verify", "causal", "--replay", str(tmp_path / "some.json"))
    assert output.code == 2 and "U124" in output.err


def test_tiles_of_a_kernel_that_is_of_no_attention(cuir) -> None:
    output = cuir("verify", "gemm", "--exhaustive", "--tiles", "3")
    assert output.code == 2 and "[U100]" in output.err and "`gemm` is of none" in output.err


def test_run_chooses_small_launches_without_lengths(cuir, tmp_path: Path) -> None:
    """The faulty kernel fails at the lengths that are chosen, and the written schedule holds them; a right one is clean."""
    file = str(tmp_path / "s.json")
    output = cuir("run", RELEASED, "--exhaustive", "--out", file)
    assert output.code == 1 and "every schedule of small launches" in output.out and "-d M=" in output.out and "error[R401]" in output.err
    assert "error[R401]" in cuir("run", RELEASED, "--replay", file).err
    clean = cuir("run", faulty_file("clean_product"), "--exhaustive", "--json")
    launches = [e["launch"] for e in clean.json["explorations"]]
    assert clean.code == 0 and clean.json["ok"] and len(launches) == len(set(launches)) >= 2
    assert [e["verdict"] for e in clean.json["explorations"]] == ["clean"] * len(launches)
    single = cuir("run", faulty_file("clean_product"), "--exhaustive", "--grid", "1", "--json")
    assert {e["launch"].partition("--grid ")[2] for e in single.json["explorations"]} == {"1"}
