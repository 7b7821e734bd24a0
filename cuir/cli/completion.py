"""Candidates of tab completion, each with its help.

These are names of the corpus, files, kernels of a file, codes, primitives. `cuir --install-completion` installs it.
Completion never fails: a program that cannot be read has no candidates.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from ..text.diagnostics import CuirError

if TYPE_CHECKING:
    from ..syntax.nodes import Kernel, Program

Candidates = Iterable[str | tuple[str, str]]
IR = ".ir"  # of files that `cuir lower --stages` writes
PROGRAMS, SPECIFICATIONS = (".cuir", ".py"), (".py",)


def complete_program(incomplete: str) -> Candidates:
    """Return programs and kernels of the corpus, `.cuir` and `.py` files."""
    import corpus

    return [*_list_matching({**corpus.programs(), **corpus.kernels()}, incomplete), *_files(incomplete, PROGRAMS)]


def complete_lowered(incomplete: str) -> Candidates:
    """Return what `complete_program` does, and `.ir` files."""
    return [*complete_program(incomplete), *_files(incomplete, (IR,))]


def complete_variant(incomplete: str) -> Candidates:
    """Return variants of the corpus and `.py` files."""
    import corpus

    return [*_list_matching(corpus.variants(), incomplete), *_files(incomplete, SPECIFICATIONS)]


def complete_specification(incomplete: str) -> Candidates:
    """Return variants and functions of the corpus, and `.py` files."""
    import corpus

    return [*_list_matching({**corpus.variants(), **corpus.functions()}, incomplete), *_files(incomplete, SPECIFICATIONS)]


def complete_target(incomplete: str) -> Candidates:
    """Return candidates for `cuir verify`: variants and programs."""
    import corpus

    return [*_list_matching({**corpus.programs(), **corpus.kernels(), **corpus.variants()}, incomplete), *_files(incomplete, PROGRAMS)]


def complete_cuda(incomplete: str) -> Candidates:
    """Return expert CUDA of the corpus, and `.cu` files."""
    import corpus

    return [*_list_matching(corpus.cuda(), incomplete), *_files(incomplete, (".cu",))]


def complete_cuda_or_ptx(incomplete: str) -> Candidates:
    """Return `.cu` and `.ptx` files."""
    return _files(incomplete, (".cu", ".ptx"))


def complete_python(incomplete: str) -> Candidates:
    """Return `.py` files."""
    return _files(incomplete, SPECIFICATIONS)


def complete_kernel(context: typer.Context, incomplete: str) -> Candidates:
    """Return kernels of the program that the command line names."""
    _, program = _read_named_program(context)
    return [name for name in (program.kernels() if program is not None else ()) if name.startswith(incomplete)]


def complete_const(context: typer.Context, incomplete: str) -> Candidates:
    """Return `NAME=VALUE` for the consts of the kernel that the command line names.

    The values are a const's default, and values to tune.
    """
    from ..syntax.nodes import ConstType

    name, program = _read_named_program(context)
    kernels = program.kernels() if program is not None else {}
    kernel = kernels.get(context.params.get("kernel") or "") or next(iter(kernels.values()), None)
    if kernel is None:
        return []
    begun = ASSIGNED[0] + incomplete
    before, comma, start = begun.rpartition(",")
    tuned = _read_tuned_values(name)
    candidates = []
    for param in kernel.params:
        if isinstance(param.type, ConstType):
            for value, about in _list_values(kernel, param.name, tuned):
                if f"{param.name}={value}".startswith(start):
                    candidates.append((f"{before}{comma}{param.name}={value}".removeprefix(ASSIGNED[0]), about))
    return candidates


def complete_architecture(incomplete: str) -> Candidates:
    """Return the architectures that kernels are for."""
    from ..ops.limits import TARGETS

    return [name for name in TARGETS if name.startswith(incomplete)]


def complete_words(*words: str) -> Callable[[str], Candidates]:
    """Return a function that completes an incomplete word to one of `words`."""

    def complete(incomplete: str) -> Candidates:
        return [word for word in words if word.startswith(incomplete)]

    return complete


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


# What precedes the word to complete, where bash has parted `BM=6` into three words.
ASSIGNED = [""]


def join_assignments(environment: MutableMapping[str, str]) -> None:
    """Join `NAME`, `=`, `VALUE`, into which bash parts an assignment.

    What stands before the cursor goes to ASSIGNED.
    """
    text = environment.get("COMP_WORDS", "")
    words, current = text.split("\n" if "\n" in text else " "), int(environment.get("COMP_CWORD", "0"))
    ASSIGNED[0] = ""
    if "=" not in words:
        return
    joined: list[str] = []
    at, position = 0, current
    while at < len(words):
        end = at + 1
        while end < len(words) and "=" in (words[end], words[end - 1]) and not words[at].startswith("-"):
            end += 1
        if at <= current < end and end - at > 1:
            before = current + (words[current] == "=")
            ASSIGNED[0], position = "".join(words[at:before]).removeprefix("="), len(joined)  # of --level=quick too
            joined.append("" if before > current else words[current])
        else:
            if at <= current < end:
                position = len(joined)
            joined.append("".join(words[at:end]))
        at = end
    environment["COMP_WORDS"], environment["COMP_CWORD"] = "\n".join(joined), str(position)


SUITES = ("smoke", "flash", "models", "masks", "variants", "paper", "backward", "backward_dims", "backward_masks", "decode", "varlen")


def _list_matching(places: Mapping[str, Traversable], incomplete: str) -> Iterator[tuple[str, str]]:
    """Return the names that begin with the incomplete word, each with a description."""
    import corpus

    return (
        (name, textwrap.shorten(corpus.about(place), 70, placeholder=" ..."))
        for name, place in places.items()
        if name.startswith(incomplete)
    )


def _files(incomplete: str, suffixes: tuple[str, ...]) -> list[str]:
    """Return folders, and files with one of the suffixes, whose path begins with the incomplete word."""
    folder, slash, start = incomplete.rpartition("/")
    parent = Path(folder + slash) if slash else Path()
    try:
        entries = sorted(p for p in parent.iterdir() if p.name.startswith(start) and (start.startswith(".") or not p.name.startswith(".")))
    except OSError:
        return []
    prefix = folder + slash
    return [f"{prefix}{p.name}{'/' if p.is_dir() else ''}" for p in entries if p.is_dir() or p.suffix in suffixes]


def _read_named_program(context: typer.Context) -> tuple[str, Program | None]:
    """Read the program that the command line names, else the kernel that a variant is adapted to.

    It is None if there is none, or if it cannot be read; standard input is not.
    """
    from .command_defaults import EXPERT
    from .command_inputs import programs, read_program

    parsed = [context.params.get(n) for n in ("file", "program", "target", "targets", "origin")]
    # where the option still has no value, the parser leaves arguments unassigned
    words = [*context.args, *(w for value in parsed for w in (value if isinstance(value, (list, tuple)) else [value]))]
    adapts = any(param.name == "origin" for param in context.command.params)
    for word in (*words, *([EXPERT] if adapts else [])):
        if isinstance(word, str) and (word in programs() or (word.endswith(PROGRAMS) and Path(word).is_file())):
            try:
                return word, read_program(word)
            except CuirError:
                return word, None
    return "", None


def _read_tuned_values(name: str) -> dict[str, list[object]]:
    """Return the values that are worth trying for each const, from the file beside the kernel."""
    import corpus

    place = corpus.spaces().get(name) or Path(name).with_suffix(".tune.json" if name else "")
    try:
        axes = json.loads(place.read_text(encoding="utf-8"))["axes"]
        return {parameter: list(values) for axis in axes for parameter, values in axis.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _list_values(kernel: Kernel, const: str, tuned: Mapping[str, Iterable[object]]) -> Iterator[tuple[str, str]]:
    """Yield likely values of a const, each with a description; an empty value if none is known."""
    from ..checking.const_defaults import HEAD_DIM, list_dtype_consts, with_defaults

    usual: Mapping[str, Iterable[object]] = {HEAD_DIM: (64, 128), **dict.fromkeys(list_dtype_consts(kernel), ("f16", "bf16"))}
    default = with_defaults(kernel, {}).get(const)
    values: list[object] = [] if default is None else [default]
    values += [v for v in (*tuned.get(const, ()), *usual.get(const, ())) if v not in values]
    for value in values or [""]:
        about = "the default" if value == default and default is not None else "worth trying" if const in tuned else ""
        yield str(value).lower() if isinstance(value, bool) else str(value), about
