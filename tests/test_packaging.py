"""Wheel and source distribution hold what the packages need, and work in an environment that has nothing of the checkout."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

import cuir

ROOT = Path(__file__).parent.parent
PACKAGES = ("cuir", "llm", "corpus")
PAGES = ("pyproject.toml", "README.md", "CHANGELOG.md", "constraints.txt", "MANIFEST.in")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
BUILD = "import sys; from setuptools import build_meta; print(build_meta.build_sdist(sys.argv[1]))"


def list_tracked(*paths: str) -> list[str]:
    output = subprocess.run(["git", "ls-files", "-z", *paths], cwd=ROOT, capture_output=True, text=True, check=False).stdout
    names = [n for n in output.split("\0") if n and (ROOT / n).exists()]
    if not names:
        pytest.skip("no git checkout")
    return names


@pytest.fixture(scope="module")
def source_distribution(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A source distribution, built from the tracked files alone."""
    if importlib.util.find_spec("setuptools") is None:
        pytest.skip("setuptools is not installed")
    source, folder = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("sdist")
    for name in list_tracked(*PACKAGES, *PAGES):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes((ROOT / name).read_bytes())
    subprocess.run([sys.executable, "-c", BUILD, str(folder)], cwd=source, check=True, capture_output=True)
    return next(folder.glob("cubridge-*.tar.gz"))


@pytest.fixture(scope="module")
def wheel(source_distribution: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel, built from the source distribution."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", str(source_distribution), "--no-deps", "--no-build-isolation", "-q", "-w", str(folder)]
    subprocess.run(command, check=True)
    return next(folder.glob("cubridge-*.whl"))


def list_needed() -> set[str]:
    return {n for n in list_tracked(*PACKAGES) if not n.startswith("llm/transcripts/")}  # these are results


@pytest.mark.thorough("builds distributions, as `make dist` does")
def test_both_distributions_hold_every_tracked_file_of_the_packages(source_distribution: Path, wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        contents = {n for n in archive.namelist() if n.startswith(tuple(f"{p}/" for p in PACKAGES))}
    assert list_needed() == contents
    assert {f"{p}/py.typed" for p in PACKAGES} <= contents
    with tarfile.open(source_distribution) as packed:
        names = {n.partition("/")[2] for n in packed.getnames()}
    assert list_needed() | set(PAGES) <= names | {"MANIFEST.in"} and not any(n.startswith("tests/") for n in names)
    for path in (source_distribution, wheel):
        assert path.name.startswith(f"cubridge-{cuir.__version__}")


@pytest.mark.thorough("builds distributions and verifies in a process of its own")
def test_the_wheel_adapts_a_kernel_in_an_empty_environment(wheel: Path, tmp_path: Path) -> None:
    """The environment has the wheel, and the packages that it requires from the environment of the tests, but not what those link to."""
    place = tmp_path / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(place)], check=True)
    python = place / "bin" / "python"
    subprocess.run([sys.executable, "-m", "pip", "--python", str(python), "install", str(wheel), "--no-deps", "-q"], check=True)
    (site,) = place.glob("lib/python*/site-packages")
    (site / "requirements.pth").write_text(sysconfig.get_path("purelib") + "\n")  # of a folder that a .pth names, links are not followed
    clean = ("PATH", "HOME", "LANG", "LD_LIBRARY_PATH", "CUDA_HOME", "TMPDIR")
    environment = {k: v for k, v in os.environ.items() if k in clean} | {"CUIR_CACHE": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"}
    code = "import cuir, corpus, llm, sys, json; print(json.dumps([[m.__file__ for m in (cuir, corpus, llm)], sys.path, list(sys.modules), cuir.__version__]))"
    output = subprocess.run([python, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True).stdout
    files, path, modules, version = json.loads(output)
    assert all(f.startswith(str(site)) for f in files) and version == cuir.__version__
    assert not any(Path(p or tmp_path).resolve() == ROOT for p in path), "the checkout is out of reach"
    assert not any(m.startswith("__editable__") for m in modules), "and so is its link in the environment of the tests"
    process = subprocess.run(
        [place / "bin" / "cuir", "--version"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    ).stdout
    assert process == f"cuir {cuir.__version__}\n"
    command = [place / "bin" / "cuir", "bridge", "prefix_lm", "--out", str(tmp_path / "out")]
    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0 and "prefix_lm: verified" in result.stdout, result.stdout + result.stderr


def test_the_version_comes_from_one_place() -> None:
    assert PROJECT["dynamic"] == ["version"] and "version" not in PROJECT
    assert (ROOT / "cuir/__init__.py").read_text(encoding="utf-8").count(f'"{cuir.__version__}"') == 1
    assert json.loads((ROOT / "editors/vscode/package.json").read_text(encoding="utf-8"))["version"] == cuir.__version__


def test_entry_points_lead_to_objects() -> None:
    groups = {"console_scripts": PROJECT["scripts"], **PROJECT["entry-points"]}
    for value in (v for group in groups.values() for v in group.values()):
        module, _, name = value.partition(":")
        assert importlib.util.find_spec(module) is not None
        if module != "cuir.integrations.vllm":  # imports vLLM
            result = importlib.import_module(module)
            assert not name or callable(getattr(result, name))


@pytest.mark.parametrize("package", PACKAGES)
def test_packages_say_that_they_are_typed(package: str) -> None:
    assert (ROOT / package / "py.typed").exists()
