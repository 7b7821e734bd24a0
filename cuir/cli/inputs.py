"""Reads what commands are given: programs, kernels, `NAME=value` options. Every mistake is a CuirError of a call (exit code 2)."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import TYPE_CHECKING, cast

from ..checking.checked import Const
from ..syntax.nodes import Program
from ..syntax.types import DTYPES
from ..text.diagnostics import CuirError
from .defaults import EXPERT

if TYPE_CHECKING:
    from corpus.computes import Computed

    from ..spec.functions import AnySpecification
    from ..spec.specification import Specification
    from ..syntax.nodes import Kernel


def suggestion(word: str, known: Iterable[str], what: str) -> str:
    """A hint that names the nearest known word, else all of them."""
    names = list(known)
    near = difflib.get_close_matches(word, names, 1)
    return f"did you mean `{near[0]}`?" if near else f"{what}: {', '.join(names) or 'none'}"


def programs() -> dict[str, Traversable]:
    """Programs and kernels of the corpus, by name."""
    import corpus

    return {**corpus.programs(), **corpus.kernels()}


def read_program(name: str) -> Program:
    """A `.cuir` or `.py` file, or a kernel or program of the corpus by its name. Raises CuirError."""
    from ..syntax.frontend import load
    from ..syntax.parser import parse

    if Path(name).exists() or name.endswith((".cuir", ".py")) or "/" in name:
        return load(name)
    known = programs()
    if name in known:
        return parse(known[name].read_text(encoding="utf-8"), f"{name}.cuir")
    raise CuirError.of("U101", f"no file and nothing in the corpus is called `{name}`", hint=suggestion(name, known, "the corpus holds"))


def pairs(items: Iterable[str], option: str) -> dict[str, str]:
    """`["A=1,B=2", "C=3"]` by name. Raises CuirError."""
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
    """A literal of a command line, or None."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return None


def read_consts(items: Iterable[str]) -> dict[str, Const]:
    """Values of const parameters: dtypes, integers, True or False. Raises CuirError."""
    consts: dict[str, Const] = {}
    for name, text in pairs(items, "-c").items():
        value = DTYPES[text] if text in DTYPES else number(text)
        if value is None or isinstance(value, float):
            raise CuirError.of(
                "U103", f"the const `{name}` is a dtype, an integer, True or False, found `{text}`", hint=f"dtypes: {', '.join(DTYPES)}"
            )
        consts[name] = value
    return consts


def read_attention(
    dtype: str | None, head_dim: int | None, items: Iterable[str], usual: int = 128, usual_dtype: str = "f16"
) -> dict[str, Const]:
    """Consts of an attention kernel: T and D of --dtype and --head-dim (left out: the usual ones), and those of -c, which must not say another T or D. Raises CuirError."""
    from ..bridging import attention_consts

    consts = read_consts(items)
    asked = attention_consts(
        dtype or str(consts.get("T", usual_dtype)), head_dim if head_dim is not None else cast(int, consts.get("D", usual))
    )
    for name, option in (("T", "--dtype"), ("D", "--head-dim")):
        if name in consts and consts[name] != asked[name]:
            raise CuirError.of(
                "U103",
                f"-c {name}={consts[name]} and {option} {asked[name]} contradict each other",
                hint=f"give one of them; {option} is the usual one",
            )
    return asked | consts


def expert_for(origin: str, dtype: object) -> str:
    """The origin that was named; where none was, the expert kernel of the dtype."""
    import corpus

    return corpus.expert(str(dtype)) if origin == EXPERT else origin


def agreeing(fixed: Mapping[str, Const], given: Mapping[str, Const], because: str, option: str = "-c") -> dict[str, Const]:
    """`fixed` (as T and D are by other options) and what `option` gives, which must agree where both speak. Raises CuirError."""
    for name, value in fixed.items():
        if given.get(name, value) != value:
            raise CuirError.of(
                "U103", f"{option} {name}={given[name]} contradicts {because}: {name} is {value} there", hint=f"leave out {option} {name}"
            )
    return {**fixed, **given}


def read_numbers(items: Iterable[str], option: str) -> dict[str, int | float | bool]:
    """Numbers by name. Raises CuirError."""
    numbers: dict[str, int | float | bool] = {}
    for name, text in pairs(items, option).items():
        value = number(text)
        if value is None:
            raise CuirError.of("U103", f"{option} {name} is a number, found `{text}`", hint=f"for example {option} {name}=1")
        numbers[name] = value
    return numbers


def read_variant(name: str, parameters: Iterable[str]) -> Specification:
    """A variant of the corpus by its name, or `file.py:function`, with its parameters `-p NAME=VALUE`. Raises CuirError."""
    from ..spec.loading import as_specification

    return as_specification(read_specification(name, parameters), name)


def read_specification(name: str, parameters: Iterable[str], kernel: Kernel | None = None) -> AnySpecification:
    """A specification of either kind: a variant or function of the corpus, `file.py:function`, or `file.py` (as `load_any`). Raises CuirError."""
    from ..spec.loading import as_any, load_any

    given = pairs(parameters, "-p")
    if ".py" in name or ":" in name or "/" in name:
        return load_any(name, given, kernel)
    import corpus

    known = {**corpus.variants(), **corpus.functions()}
    if name not in known:
        raise CuirError.of(
            "U102", f"there is no variant `{name}`", hint=f"{suggestion(name, known, 'there are')}; your own: file.py:function"
        )
    return as_any(corpus.specification(name), name, given, kernel)


def computed(program: str, kernel: str | None) -> tuple[str, Computed] | None:
    """A kernel of the corpus (left out: the first of its program) and what it computes, by the corpus' table; None for other programs."""
    from corpus.computes import COMPUTES

    known = COMPUTES.get(program, {})
    name = kernel or next(iter(known), "")
    return (name, known[name]) if name in known else None


def unspecified(program: str) -> CuirError:
    """The error for a program that the corpus' table does not have."""
    return CuirError.of("U130", f"`{program}` is a program: what should it compute?", hint="--against VARIANT (`cuir corpus` lists them), or --against FILE.py with `def reference(...)`")  # fmt: skip


def read_kernel_consts(
    kernel: Kernel, dtype: str | None, head_dim: int | None, items: Iterable[str], base: Mapping[str, Const], usual: int = 128
) -> dict[str, Const]:
    """Consts for any kernel: for an attention kernel as `read_attention`; for another --dtype is the dtype of its tensors, --head-dim its const D, if it has one.

    base: what is known of the kernel, of which -c changes some. Raises CuirError.
    """
    from ..syntax.nodes import ConstType, GlobalType
    from ..verification.problems import is_attention

    if is_attention(kernel):
        return {**base, **read_attention(dtype, head_dim, items, usual, str(base.get("T", "f16")))}
    consts = {p.name for p in kernel.params if isinstance(p.type, ConstType)}
    values = {**base, **read_consts(items)}
    dtypes = [p.type.dtype for p in kernel.params if isinstance(p.type, GlobalType) and p.type.dtype in consts]
    for name, option, value, default in ((dtypes[0] if dtypes else None, "--dtype", DTYPES.get(dtype or "", dtype), DTYPES["f16"]), ("D" if "D" in consts else None, "--head-dim", head_dim, usual)):  # fmt: skip
        if name is None and value is not None:
            raise CuirError.of(
                "U103", f"`{kernel.name}` has no const parameter that {option} could give", hint="-c NAME=VALUE gives consts by name"
            )
        if isinstance(value, str):
            raise CuirError.of("U109", f"{option} is f16 or bf16, found `{value}`")
        if name is not None:
            values = agreeing({name: value}, values, f"{option} {value}") if value is not None else {name: default, **values}
    return values


def require_consts(kernel: Kernel, given: Iterable[str]) -> None:
    """Raises CuirError N111 for a const that the kernel does not have: before anything is written."""
    from ..syntax.nodes import ConstType

    known = [p.name for p in kernel.params if isinstance(p.type, ConstType)]
    for name in given:
        if name not in known and name not in ("T", "D"):
            raise CuirError.of("N111", f"`{kernel.name}` has no const parameter `{name}`; it has: {', '.join(known) or 'none'}", kernel.span, suggestion(name, known, "it has"))  # fmt: skip


def kept(path: Path, inputs: Iterable[str | Path | None]) -> Path:
    """A file that a command writes. Raises CuirError U108 where that would be written over what the command reads, or over any program or specification."""
    same = any(i is not None and Path(i).is_file() and path.exists() and path.samefile(i) for i in inputs)
    if same or (path.is_file() and path.suffix in (".cuir", ".py")):
        what = "which this command reads" if same else "a program or specification"
        raise CuirError.of("U108", f"{path} would be written over, {what}", hint="name another")
    return path


def results_file(path: Path) -> Path:
    """A file of results, whose table (.md) and plot (.svg) are written beside it. Raises CuirError U108 where these would be written over something else."""
    if not path.name or path.suffix in (".md", ".svg"):
        raise CuirError.of("U108", f"--out names the file of results, beside which table and plot are .md and .svg; found {path}", hint="--out FILE.jsonl")  # fmt: skip
    page = path.with_suffix(".md")
    try:
        if page.exists() and not page.read_bytes().startswith(b"# `cuir "):
            raise CuirError.of("U108", f"the table of {path} would be written over {page}, which is something else", hint="name another file with --out")  # fmt: skip
    except OSError as error:
        raise CuirError.of("U108", f"cannot read {page}: {error.strerror}", hint="name another file with --out") from None
    return path


def output_folder(path: Path, name: str, *inputs: str) -> Path:
    """The folder, made if it is not there, for a program `name` and its origin. Raises CuirError U108, also where these would be written over one of the inputs."""
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
