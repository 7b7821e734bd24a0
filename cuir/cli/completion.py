"""Candidates of tab completion, each with its help.

These are names of the corpus, files, kernels of a file, codes, primitives. `cuir --install-completion` installs it.
Completion never fails: a program that cannot be read has no candidates.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from importlib.resources.abc import Traversable
from pathlib import Path

import typer

from ..text.diagnostics import CuirError

Candidates = Iterable[str | tuple[str, str]]
PROGRAMS, SPECIFICATIONS = (".cuir", ".py"), (".py",)


def complete_program(incomplete: str) -> Candidates:
    """Return programs and kernels of the corpus, `.cuir` and `.py` files."""
    import corpus

    return [*_named({**corpus.programs(), **corpus.kernels()}, incomplete), *_files(incomplete, PROGRAMS)]


def complete_variant(incomplete: str) -> Candidates:
    """Return variants of the corpus and `.py` files."""
    import corpus

    return [*_named(corpus.variants(), incomplete), *_files(incomplete, SPECIFICATIONS)]


def complete_specification(incomplete: str) -> Candidates:
    """Return variants and functions of the corpus, and `.py` files."""
    import corpus

    return [*_named({**corpus.variants(), **corpus.functions()}, incomplete), *_files(incomplete, SPECIFICATIONS)]


def complete_target(incomplete: str) -> Candidates:
    """Return candidates for `cuir verify`: variants and programs."""
    import corpus

    return [*_named({**corpus.programs(), **corpus.kernels(), **corpus.variants()}, incomplete), *_files(incomplete, PROGRAMS)]


def complete_cuda(incomplete: str) -> Candidates:
    """Return expert CUDA of the corpus, and `.cu` files."""
    import corpus

    return [*_named(corpus.cuda(), incomplete), *_files(incomplete, (".cu",))]


def complete_kernel(context: typer.Context, incomplete: str) -> Candidates:
    """Return kernels of the program that the command line names."""
    from .command_inputs import read_program

    parsed = [context.params.get(n) for n in ("file", "program", "target", "origin")]
    # where the option still has no value, the parser leaves arguments unassigned
    named = next((word for word in (*context.args, *parsed) if isinstance(word, str)), None)
    try:
        kernels = list(read_program(named).kernels()) if named is not None else []
    except CuirError:
        kernels = []
    return [name for name in kernels if name.startswith(incomplete)]


def complete_code(incomplete: str) -> Candidates:
    """Return codes of errors."""
    from ..text.codes import CODES

    return [(code, entry.title) for code, entry in CODES.items() if code.startswith(incomplete.upper())]


def complete_cache(incomplete: str) -> Candidates:
    """Return kinds of files in the cache folder."""
    from ..caching.disk import KINDS

    return [kind.name for kind in KINDS if kind.name.startswith(incomplete)]


def complete_op(incomplete: str) -> Candidates:
    """Return primitives and operators of the language."""
    from . import reference_pages as reference

    return [(name, reference.in_short(op)) for name, op in reference.entries().items() if name.startswith(incomplete)]


def complete_suite(incomplete: str) -> Candidates:
    """Return suites of benchmarks."""
    return [name for name in SUITES if name.startswith(incomplete)]


def complete_dtype(incomplete: str) -> Candidates:
    """Return dtypes of attention kernels."""
    return [name for name in ("f16", "bf16", "f32") if name.startswith(incomplete)]


def complete_level(incomplete: str) -> Candidates:
    """Return levels of verification."""
    return [name for name in ("quick", "full") if name.startswith(incomplete)]


SUITES = ("smoke", "flash", "models", "masks", "variants", "paper", "backward", "backward_dims", "backward_masks", "decode", "varlen")


def _named(places: Mapping[str, Traversable], incomplete: str) -> Iterator[tuple[str, str]]:
    """Return the names that begin so, with what they are."""
    import corpus

    return ((name, corpus.about(place)) for name, place in places.items() if name.startswith(incomplete))


def _files(incomplete: str, suffixes: tuple[str, ...]) -> list[str]:
    """Return folders and files with these suffixes whose path begins so."""
    folder, slash, start = incomplete.rpartition("/")
    parent = Path(folder + slash) if slash else Path()
    try:
        entries = sorted(p for p in parent.iterdir() if p.name.startswith(start) and (start.startswith(".") or not p.name.startswith(".")))
    except OSError:
        return []
    prefix = folder + slash
    return [f"{prefix}{p.name}{'/' if p.is_dir() else ''}" for p in entries if p.is_dir() or p.suffix in suffixes]
