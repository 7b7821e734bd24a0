"""The wheel holds what the packages need, and works without the checkout."""

from __future__ import annotations

import importlib
import importlib.util
import os
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("cuir", "llm", "corpus")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel, built from the tracked files alone."""
    source, folder = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.split("\0")
    names = [n for n in tracked if n.startswith(tuple(f"{p}/" for p in PACKAGES)) or n in ("pyproject.toml", "README.md")]
    if not names:
        pytest.skip("no git checkout")
    for name in names:
        if (ROOT / name).exists():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    command = [sys.executable, "-m", "pip", "wheel", str(source), "--no-deps", "--no-build-isolation", "-q", "-w", str(folder)]
    if subprocess.run([sys.executable, "-c", "import setuptools"], check=False).returncode:
        command.remove("--no-build-isolation")
    subprocess.run(command, check=True)
    return next(folder.glob("cubridge-*.whl"))


@pytest.mark.thorough
def test_the_wheel_holds_every_tracked_file_of_the_packages(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        contents = {n for n in archive.namelist() if n.startswith(tuple(f"{p}/" for p in PACKAGES))}
    tracked = subprocess.run(["git", "ls-files", "-z", *PACKAGES], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    needed = {n for n in tracked if n and (ROOT / n).exists() and not n.startswith("llm/transcripts/")}  # these are results
    assert needed == contents
    assert {f"{p}/py.typed" for p in PACKAGES} <= contents


@pytest.mark.thorough
def test_the_wheel_adapts_a_kernel_without_the_checkout(wheel: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    subprocess.run([sys.executable, "-m", "pip", "install", str(wheel), "--no-deps", "-q", "--target", str(site)], check=True)
    environment = {**os.environ, "PYTHONPATH": str(site), "CUIR_CACHE": str(tmp_path / "cache")}
    place = subprocess.run(
        [sys.executable, "-c", "import cuir, corpus, llm; print(cuir.__file__, cuir.__version__)"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert place.startswith(str(site)) and place.split()[1] in (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    command = [sys.executable, "-m", "cuir", "bridge", "prefix_lm", "--out", str(tmp_path / "out")]
    output = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert output.returncode == 0, output.stdout + output.stderr


def test_entry_points_lead_to_objects() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    groups = {"console_scripts": project["scripts"], **project["entry-points"]}
    for value in (v for group in groups.values() for v in group.values()):
        module, _, name = value.partition(":")
        assert importlib.util.find_spec(module) is not None
        if module != "cuir.integrations.vllm":  # imports vLLM
            result = importlib.import_module(module)
            assert not name or callable(getattr(result, name))


@pytest.mark.parametrize("package", PACKAGES)
def test_packages_say_that_they_are_typed(package: str) -> None:
    assert (ROOT / package / "py.typed").exists()
