"""Readers of command-line inputs: programs, kernels, `NAME=value` options.

Every mistake is a CuirError of a call (exit code 2).
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, cast

from ..checking.checked import Const
from ..syntax.nodes import Program
from ..syntax.types import DTYPES
from ..text.diagnostics import CuirError
from .command_defaults import EXPERT

if TYPE_CHECKING:
    from corpus.computes import Computed

    from ..spec.function_specification import AnySpecification
    from ..spec.specification import Specification
    from ..syntax.nodes import Kernel

SHOWN_CODES = 6  # of a family, in a hint


def suggestion(word: str, words: Iterable[str], introduction: str, spellings: Iterable[str] = ()) -> str:
    """Return a hint that names the nearest known word, else all of them.

    `spellings` are other forms of known words, preferred where near. A word is near to a name with a dot (`bar.wait`)
    if it is near to the part behind the dot. `introduction` introduces the list of all words.
    """
    names = list(words)
    whole = {name: name for name in (*spellings, *names)}
    parts = {name.rpartition(".")[2]: name for name in reversed(whole)}
    near = difflib.get_close_matches(word, whole | parts, 1)
    return f"did you mean `{(parts | whole)[near[0]]}`?" if near else f"{introduction}: {', '.join(names) or 'none'}"


def suggest_codes(word: str) -> str:
    """Return a hint that names codes of the letter: the nearest ones, else the first few.

    For an unknown letter it names the families.
    """
    from ..text.codes import CODES, FAMILIES

    letter, family = word[:1].upper(), FAMILIES.get(word[:1].upper())
    if family is None:
        return f"`cuir explain` lists all codes; their letters: {', '.join(f'{family_letter} ({words})' for family_letter, words in FAMILIES.items())}"
    codes = [code for code in CODES if code.startswith(letter)]
    near = difflib.get_close_matches(word.upper(), codes, 3, 0.7)
    few = codes[:SHOWN_CODES] + ["..."] * (len(codes) > SHOWN_CODES)
    return (
        f"did you mean {' or '.join(f'`{code}`' for code in near)}?"
        if near
        else f"codes of {family}: {', '.join(few)}; `cuir explain` lists all"
    )


STANDARD_INPUT = "-"  # as the name of a file


def programs() -> dict[str, Traversable]:
    """Return programs and kernels of the corpus, by name."""
    import corpus

    return {**corpus.programs(), **corpus.kernels()}


def read_program(name: str) -> Program:
    """Read a `.cuir` or `.py` file, a kernel or program of the corpus, or `-` for standard input.

    Raises CuirError.
    """
    from ..syntax.frontend import load
    from ..syntax.parser import parse

    if name == STANDARD_INPUT:
        return parse(read_standard_input(), "<stdin>")
    if Path(name).exists() or name.endswith((".cuir", ".py")) or "/" in name:
        return load(name)
    corpus_programs = programs()
    if name in corpus_programs:
        return parse(corpus_programs[name].read_text(encoding="utf-8"), f"{name}.cuir")
    raise CuirError.of(
        "U101", f"no file and nothing in the corpus is called `{name}`", hint=suggestion(name, corpus_programs, "the corpus holds")
    )


def read_standard_input() -> str:
    """Read the text of standard input. Raises CuirError U201 if it is closed, U202 if it cannot be read."""
    hint = "name a file, or pass the text: cuir check - < FILE"
    if sys.stdin is None or sys.stdin.closed:
        raise CuirError.of("U201", "standard input is closed: there is no program to read", hint=hint)
    try:
        buffer = getattr(sys.stdin, "buffer", None)
        return buffer.read().decode("utf-8") if buffer is not None else sys.stdin.read()
    except (OSError, ValueError) as error:
        reason = "no UTF-8 text" if isinstance(error, UnicodeDecodeError) else getattr(error, "strerror", None) or str(error)
        raise CuirError.of("U202", f"standard input cannot be read: {reason}", hint=hint) from None


def pairs(items: Iterable[str], option: str) -> dict[str, str]:
    """Parse `["A=1,B=2", "C=3"]` to values by name. Raises CuirError."""
    values: dict[str, str] = {}
    for item in items:
        for part in filter(None, (p.strip() for p in item.split(","))):
            name, equals, value = part.partition("=")
            if not equals or not name.strip().isidentifier() or not value.strip():
                raise CuirError.of("U103", f"{option} takes NAME=VALUE, found `{part}`", hint=f"for example {option} D=128")
            name, value = name.strip(), value.strip()
            if values.setdefault(name, value) != value:
                raise CuirError.of("U103", f"{option} gives {name} twice: {values[name]} and {value}", hint="leave out one of them")
    return values


def number(text: str) -> int | float | bool | None:
    """Parse a literal of a command line; None if it is none."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return None


def read_consts(items: Iterable[str]) -> dict[str, Const]:
    """Parse values of const parameters: dtypes, integers, True or False. Raises CuirError."""
    consts: dict[str, Const] = {}
    for name, text in pairs(items, "-c").items():
        value = DTYPES[text] if text in DTYPES else number(text)
        if value is None or isinstance(value, float):
            raise CuirError.of(
                "U103", f"the const `{name}` is a dtype, an integer, True or False, found `{text}`", hint=f"dtypes: {', '.join(DTYPES)}"
            )
        consts[name] = value
    return consts


def read_attention(dtype: str | None, head_dim: int | None, items: Iterable[str]) -> dict[str, Const]:
    """Return T and D of an attention that has no kernel yet, and the other consts of -c.

    Raises CuirError U103, U109, U110.
    """
    from ..checking.const_defaults import USUAL_DTYPE, USUAL_HEAD_DIM

    consts = _with_options(read_consts(items), "T", "D", dtype, head_dim)
    required = _require_attention({"T": USUAL_DTYPE, "D": USUAL_HEAD_DIM, **consts})
    return required


@dataclass(frozen=True)
class KernelWords:
    """Words of the command line about a kernel: its name, --dtype, --head-dim, and the items of -c."""

    kernel: str | None
    dtype: str | None
    head_dim: int | None
    items: Sequence[str]


class OriginKernel(NamedTuple):
    """Kernel that variants are derived from, with its program and consts.

    name: the name or path of its program.
    """

    name: str
    program: Program
    kernel: Kernel
    consts: dict[str, Const]


def read_origin(origin: str, words: KernelWords) -> OriginKernel:
    """Read the kernel that variants are derived from.

    The consts are those of `read_kernel_consts`. The default expert kernel is that of the dtype. Raises CuirError.
    """
    from ..checking.checker import pick_kernel
    from ..checking.const_defaults import USUAL_DTYPE

    named = read_consts(words.items)
    head_dims = (words.head_dim, named.get("D"), named.get("DV"))
    origin = expert_for(origin, words.dtype or named.get("T") or USUAL_DTYPE, *(d for d in head_dims if isinstance(d, int)))
    program = read_program(origin)
    picked = pick_kernel(program, words.kernel)
    consts = read_kernel_consts(picked, words.dtype, words.head_dim, words.items, find_corpus_consts(origin, picked))
    return OriginKernel(origin, program, picked, consts)


def read_program_consts(program: Program, name: str, kernel: str | None, items: Iterable[str]) -> tuple[Kernel, dict[str, Const]]:
    """Return a program's kernel and its consts: from -c, and for the rest from `fill_consts`.

    `name` is the program on the command line. Raises CuirError.
    """
    from ..checking.checker import pick_kernel
    from ..checking.const_defaults import fill_consts
    from .judged_kernel import remember_judged_kernel

    picked = pick_kernel(program, kernel)
    consts = fill_consts(picked, read_consts(items), find_corpus_consts(name, picked))
    remember_judged_kernel(picked, consts)
    return picked, consts


def find_corpus_consts(program: str, kernel: Kernel) -> Mapping[str, Const]:
    """Return values that the corpus has for consts of its kernels; empty for other programs."""
    entry = find_computed(program, kernel.name)
    return entry[1].consts if entry is not None else {}


def expert_for(origin: str, dtype: object, *head_dims: int, arch: str | None = None) -> str:
    """Return the named origin; for the default, the expert kernel of dtype and head dims for an architecture.

    Without `arch` it is that of the current GPU. Raises CuirError U501 for head dims that no kernel takes.
    """
    import corpus

    from ..attn.kernels.card_kernels import DEFAULT, choose_target, choose_task, find_kernel, get_current_device

    if origin != EXPERT:
        return origin
    arch, task = arch or choose_target(get_current_device()).arch, choose_task("forward", *head_dims)
    return corpus.expert(str(dtype)) if arch == DEFAULT and task == "forward" else find_kernel(arch, task, DTYPES[str(dtype)])


def agreeing(fixed: Mapping[str, Const], values: Mapping[str, Const], because: str, option: str = "-c") -> dict[str, Const]:
    """Merge `fixed` (as T and D are by other options) with the values of `option`, which must agree.

    Raises CuirError.
    """
    for name, value in fixed.items():
        if values.get(name, value) != value:
            raise CuirError.of(
                "U103", f"{option} {name}={values[name]} contradicts {because}: {name} is {value} there", hint=f"leave out {option} {name}"
            )
    return {**fixed, **values}


def read_numbers(items: Iterable[str], option: str) -> dict[str, int | float | bool]:
    """Parse numbers by name. Raises CuirError."""
    numbers: dict[str, int | float | bool] = {}
    for name, text in pairs(items, option).items():
        value = number(text)
        if value is None:
            raise CuirError.of("U103", f"{option} {name} is a number, found `{text}`", hint=f"for example {option} {name}=1")
        numbers[name] = value
    return numbers


def read_variant(name: str, parameters: Iterable[str]) -> Specification:
    """Read a variant of the corpus, or `file.py:function`, with its parameters `-p NAME=VALUE`.

    Raises CuirError.
    """
    import corpus

    from ..spec.loading import as_specification

    if name not in corpus.functions() and name not in corpus.variants() and not _is_path(name):
        raise _make_unknown_variant_error(name, corpus.variants())
    return as_specification(read_specification(name, parameters), name)


def read_specification(name: str, parameters: Iterable[str], kernel: Kernel | None = None) -> AnySpecification:
    """Read a specification of either kind.

    It is a variant or function of the corpus, `file.py:function`, or `file.py` (as `load_any`). Raises CuirError.
    """
    from ..spec.loading import as_any, load_any

    values = pairs(parameters, "-p")
    if _is_path(name):
        return load_any(name, values, kernel)
    import corpus

    corpus_specifications = {**corpus.variants(), **corpus.functions()}
    if name not in corpus_specifications:
        raise _make_unknown_variant_error(name, corpus_specifications)
    return as_any(corpus.specification(name), name, values, kernel)


def _is_path(name: str) -> bool:
    """Return whether a specification on the command line is a file, not a name of the corpus."""
    return ".py" in name or ":" in name or "/" in name


def _make_unknown_variant_error(name: str, names: Iterable[str]) -> CuirError:
    """Return the error for a name that is none of `names`."""
    hint = f"{suggestion(name, names, 'there are')}; your own: file.py:function"
    return CuirError.of("U102", f"there is no variant `{name}`", hint=hint)


def find_computed(program: str, kernel: str | None) -> tuple[str, Computed] | None:
    """Return a corpus kernel's name and the function that it computes; None for other programs.

    Without `kernel` it is the first of the program.
    """
    from corpus.computes import COMPUTES

    entries = COMPUTES.get(program, {})
    name = kernel or next(iter(entries), "")
    return (name, entries[name]) if name in entries else None


def make_unspecified_error(program: str) -> CuirError:
    """Return the error for a program that the corpus' table does not have."""
    return CuirError.of(
        "U130",
        f"`{program}` is a program: what should it compute?",
        hint="--against VARIANT (`cuir corpus` lists them), or --against FILE.py with `def reference(...)`",
    )


def read_kernel_consts(
    kernel: Kernel, dtype: str | None, head_dim: int | None, items: Iterable[str], corpus_consts: Mapping[str, Const] | None = None
) -> dict[str, Const]:
    """Return the consts of a kernel.

    They are those of -c, --dtype (the dtype of its tensors) and --head-dim (`D`), then `fill_consts` for those without
    a default. `corpus_consts` are values that the corpus has. Raises CuirError U103, N111; for an attention kernel U109, U110.
    """
    from ..attn.verification.problems import is_attention
    from ..checking.const_defaults import HEAD_DIM, fill_consts, list_dtype_consts, with_defaults
    from ..syntax.nodes import ConstType
    from .judged_kernel import remember_judged_kernel

    consts = {p.name for p in kernel.params if isinstance(p.type, ConstType)}
    first = next(iter(list_dtype_consts(kernel)), None)
    values_of_c = read_consts(items)
    require_consts(kernel, values_of_c)
    for name, option, value in ((first, "--dtype", dtype), (HEAD_DIM if HEAD_DIM in consts else None, "--head-dim", head_dim)):
        if name is None and value is not None:
            raise CuirError.of(
                "U103", f"`{kernel.name}` has no const parameter that {option} could give", hint="-c NAME=VALUE gives consts by name"
            )
    values = fill_consts(kernel, _with_options(values_of_c, first or "T", HEAD_DIM, dtype, head_dim), corpus_consts)
    remember_judged_kernel(kernel, values)
    if is_attention(kernel):
        _require_attention(with_defaults(kernel, values))
    return values


def _with_options(consts: dict[str, Const], dtype_name: str, dim_name: str, dtype: str | None, head_dim: int | None) -> dict[str, Const]:
    """Merge the consts of -c with the values of --dtype and --head-dim, which must agree.

    Raises CuirError U103, U109.

    Args:
        dtype_name: const that --dtype sets.
        dim_name: const that --head-dim sets.
    """
    if dtype is not None and dtype not in DTYPES:
        raise CuirError.of("U109", f"--dtype is f16, bf16 or f32, found `{dtype}`", hint="--dtype f16, --dtype bf16 or --dtype f32")
    for name, option, value in ((dtype_name, "--dtype", DTYPES[dtype] if dtype is not None else None), (dim_name, "--head-dim", head_dim)):
        if value is not None:
            consts = agreeing({name: value}, consts, f"{option} {value}")
    return consts


def _require_attention(consts: Mapping[str, Const]) -> dict[str, Const]:
    """Return the consts, once attention kernels are known to support the dtype and head dim.

    Raises CuirError U109, U110.
    """
    from ..bridging import attention_consts

    if "T" in consts and isinstance(consts.get("D", 1), int):
        attention_consts(str(consts["T"]), cast(int, consts.get("D", 64)))
    return dict(consts)


def require_consts(kernel: Kernel, requested: Iterable[str]) -> None:
    """Check that a kernel has these consts, before anything is written. Raises CuirError N111."""
    from ..syntax.nodes import ConstType

    const_names = [p.name for p in kernel.params if isinstance(p.type, ConstType)]
    for name in requested:
        if name not in const_names:
            raise CuirError.of(
                "N111",
                f"`{kernel.name}` has no const parameter `{name}`; it has: {', '.join(const_names) or 'none'}",
                kernel.span,
                suggestion(name, const_names, "it has"),
            )


def check_output_path(path: Path, inputs: Iterable[str | Path | None]) -> Path:
    """Check that a command may write a file, and return it.

    Raises CuirError U108 where that would overwrite what the command reads, or any program or specification.
    """
    same = any(i is not None and Path(i).is_file() and path.exists() and path.samefile(i) for i in inputs)
    if same or (path.is_file() and path.suffix in (".cuir", ".py")):
        reason = "which this command reads" if same else "a program or specification"
        raise CuirError.of("U108", f"{path} would be written over, {reason}", hint="name another")
    return path


def results_file(path: Path) -> Path:
    """Check that a file of results may be written, and return it.

    Its table (.md) and plot (.svg) are written beside it. Raises CuirError U108 where these would overwrite something
    else.
    """
    if not path.name or path.suffix in (".md", ".svg"):
        raise CuirError.of(
            "U108", f"--out names the file of results, beside which table and plot are .md and .svg; found {path}", hint="--out FILE.jsonl"
        )
    page = path.with_suffix(".md")
    try:
        if page.exists() and not page.read_bytes().startswith(b"# `cuir "):
            raise CuirError.of(
                "U108", f"the table of {path} would be written over {page}, which is something else", hint="name another file with --out"
            )
    except OSError as error:
        raise CuirError.of("U108", f"cannot read {page}: {error.strerror}", hint="name another file with --out") from None
    return path


def output_folder(path: Path, name: str, *inputs: str) -> Path:
    """Create the folder for a program `name` and its origin, and return it.

    Raises CuirError U108, also where files would overwrite one of the inputs.
    """
    for file in ("origin.cuir", f"{name}.cuir"):
        if any(Path(i).is_file() and (path / file).exists() and (path / file).samefile(i) for i in inputs):
            raise CuirError.of(
                "U108", f"{path / file} would be written over, which this command reads", hint="name another folder with --out"
            )
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CuirError.of("U108", f"cannot make the folder {path}: {error.strerror}", hint="name another with --out") from None
    return path


def read_defines(macros: Iterable[str]) -> dict[str, str]:
    """Return macros given as NAME or NAME=VALUE. Raises CuirError U103."""
    defines: dict[str, str] = {}
    for text in macros:
        name, _, value = text.partition("=")
        if not name.isidentifier():
            raise CuirError.of("U103", f"-D takes NAME or NAME=VALUE, found {text}", hint="-D TILE=64")
        defines[name] = value
    return defines
