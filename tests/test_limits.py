"""Texts, numbers and kernels that are too large end in an error with a place, and soon."""

from __future__ import annotations

import os
import random
import re
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cuir import check, load, parse
from cuir.arguments.binding import assume_consts
from cuir.cli.kernel_run import make_arguments
from cuir.interp import run
from cuir.interp.step_budget import limit_seconds
from cuir.runtime.launchable import require_launchable
from cuir.syntax.nodes import ConstType, Literal
from cuir.syntax.walk import walk
from cuir.text.diagnostics import CuirError
from tests.strategies.selection import examples

CORPUS = Path(__file__).parent.parent / "corpus"
TEXTS = [p.read_text(encoding="utf-8") for p in sorted([*CORPUS.glob("programs/*.cuir"), *CORPUS.glob("kernels/*.cuir")])]
HEAD = """\
@kernel(arch="sm_90a")
def k(X: Global[f32, M, 64], n: i32, scale: f32, *, C: const = 4):
"""


def kernel(body: str, head: str = "", declared: str = "") -> str:
    lines = "\n".join(f"        {line}" for line in body.split("\n"))
    return f'{head}{HEAD}{declared}    with role("all", warpgroups=1):\n{lines}\n'


def fails(text: str, consts: dict[str, int] | None = None) -> tuple[str, int | None, str]:
    with pytest.raises(CuirError) as error:
        check(parse(text, "k.cuir"), consts=consts)
    first = error.value.diagnostics[0]
    return first.code, first.span.line if first.span else None, first.message


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("i = 2147483648\nif i < n:\n    sync()", "T175"),
        ("i = -2147483649\nif i < n:\n    sync()", "T175"),
        ("i = n + 3000000000", "T175"),
        ("i = 65536 * 65536\nif i < n:\n    sync()", ""),  # arithmetic wraps, of constants too
        ("i = 99999999999999999999", "P017"),
        ("x = scale * 1e999", "P017"),
        ("x = scale * 1e39", "T175"),
        ("x = scale * 99999999999999999999.0 * 1e30", ""),
        ("x = cast(zeros(f32, [64, 64]), f16) * 70000.0", "T175"),
        ("x = cast(zeros(f32, [64, 64]), bf16) * 70000.0", ""),
        ("i = -2147483648", ""),
        ("i = 2147483647", ""),
        ("x = scale * 3000000000", ""),
        ("x = scale < inf", ""),
    ],
)
def test_numbers_fit_their_dtypes(body: str, code: str) -> None:
    text = kernel(body + "\nstore(X[0 : 64, :], zeros(f32, [64, 64]))")
    if code:
        result, line, _ = fails(text)
        assert result == code and line in (4, 5)  # where it is written, or where its value is used
    else:
        check(parse(text))


def test_squares_of_squares_do_not_fill_the_memory() -> None:
    squares = "\n".join(f"x{i} = x{i - 1} * x{i - 1}" for i in range(1, 200))
    checked = check(parse(kernel(f"x0 = 3\n{squares}\nstore(X[0 : 64, :], full(f32, [64, 64], cast(x199, f32)))")))
    numbers = [n.value for role in checked.roles for s in role.body for n in walk(s) if isinstance(n, Literal) and isinstance(n.value, int)]
    assert numbers and all(-(2**31) <= n < 2**31 for n in numbers), "constants wrap as i32 does"


@pytest.mark.parametrize("value", [2**31, -(2**31) - 1, 10**30])
def test_consts_have_32_bits(value: int) -> None:
    assert fails(kernel("i = C"), {"C": value})[0] == "T103"


def test_functions_that_double_the_kernel() -> None:
    funcs = "@func\ndef f0(x):\n    return x + x\n"
    funcs += "".join(f"@func\ndef f{i}(x):\n    y = f{i - 1}(x)\n    return f{i - 1}(y)\n" for i in range(1, 30))
    code, line, _ = fails(kernel("x = f29(scale)", funcs))
    assert code == "N121" and line is not None


def test_functions_that_nest_without_end() -> None:
    funcs = "@func\ndef f0(x):\n    return x\n" + "".join(f"@func\ndef f{i}(x):\n    return f{i - 1}(x) + 1.0\n" for i in range(1, 300))
    assert fails(kernel("x = f299(scale)", funcs))[0] == "N121"
    deep = "".join(f"@func\ndef g{i}(x):\n    return {'(' * 25}g{i - 1}(x){' + 1.0)' * 25}\n" for i in range(1, 39))
    text = kernel("x = g38(scale)\nstore(X[0 : 64, :], full(f32, [64, 64], x))", "@func\ndef g0(x):\n    return x\n" + deep)
    try:
        require_launchable(check(parse(text)))
    except CuirError as error:
        assert error.diagnostics[0].code in ("P018", "N121")


def test_tuples_of_tuples() -> None:
    doubled = "\n".join(f"t{i} = (t{i - 1}, t{i - 1})" for i in range(1, 60))
    assert fails(kernel(f"t0 = (n, n)\n{doubled}"))[0] == "N121"


def test_a_role_of_a_billion_warps() -> None:
    text = kernel("i = 0").replace("warpgroups=1", "warps=1000000000")
    assert fails(text)[:2] == ("M305", 3)


def test_many_syntax_errors_end_soon() -> None:
    begin = time.process_time()
    with pytest.raises(CuirError) as error:
        parse("@func\ndef f(x):\n    return $\n" * 5000)
    assert len(error.value.diagnostics) >= 20 and time.process_time() - begin < 10


def test_a_long_line_is_shown_in_part() -> None:
    with pytest.raises(CuirError) as error:
        parse(kernel("x = " + " + ".join(["scale"] * 4000)))
    assert error.value.diagnostics[0].code == "P018"
    assert max(map(len, str(error.value).split("\n"))) < 400 and "^" in str(error.value)


# ---- files
def unreadable(path: Path | str) -> str:
    with pytest.raises(CuirError) as error:
        load(path)
    return error.value.diagnostics[0].code


def test_files_that_are_no_programs(tmp_path: Path) -> None:
    (tmp_path / "long.cuir").write_bytes(b"# " + b"x" * 2**20)
    (tmp_path / "wide.cuir").write_bytes("@kernel".encode("utf-16"))
    (tmp_path / "junk.cuir").write_bytes(bytes(range(256)) * 10)
    assert [unreadable(tmp_path / name) for name in ("long.cuir", "wide.cuir", "junk.cuir", "none.cuir")] == [
        "U202",
        "U203",
        "U203",
        "U201",
    ]
    assert unreadable(tmp_path) == "U202" and unreadable("a\0b.cuir") == "U201"


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="no /dev/zero")
def test_a_device_without_end() -> None:
    assert unreadable("/dev/zero") == "U202"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names")
def test_a_pipe_is_read_while_somebody_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cuir.syntax.frontend.SILENCE", 0.1)
    os.mkfifo(tmp_path / "pipe.cuir")
    assert unreadable(tmp_path / "pipe.cuir") == "U202"
    reader = os.open(tmp_path / "pipe.cuir", os.O_RDONLY | os.O_NONBLOCK)
    writer = os.open(tmp_path / "pipe.cuir", os.O_WRONLY)
    os.write(writer, kernel("i = n").encode())
    os.close(writer)
    assert load(tmp_path / "pipe.cuir").kernels()
    os.close(reader)


# ---- whatever the numbers
NUMBERS = (
    "0",
    "1",
    "-1",
    "3",
    "7",
    "64",
    "2147483647",
    "2147483648",
    "1000000000",
    "10000000000000000000000",
    "1e999",
    "1e300",
    "0.5",
    "True",
    "inf",
)
TOKEN = re.compile(r"\s+|\w+|[^\w\s]")


def change(text: str, rng: random.Random) -> str:
    """A program with a number replaced, a word deleted or doubled, or two words swapped."""
    for _ in range(rng.randint(1, 3)):
        tokens = TOKEN.findall(text)
        numbers, words = ([i for i, t in enumerate(tokens) if re.fullmatch(p, t)] for p in (r"\d+", r"[A-Za-z_]\w*"))
        at = rng.randrange(len(tokens))
        match rng.randrange(6):
            case 0:
                del tokens[at]
            case 1:
                tokens.insert(at, tokens[at])
            case 2:
                a, b = rng.sample(words, 2)
                tokens[a], tokens[b] = tokens[b], tokens[a]
            case _:
                tokens[rng.choice(numbers)] = rng.choice(NUMBERS)
        text = "".join(tokens)
    return text


@examples(0.6)
@given(st.integers(0, 10**9))
def test_changed_programs_end_with_a_verdict(seed: int) -> None:
    rng = random.Random(seed)
    text, begin = change(rng.choice(TEXTS), rng), time.process_time()
    try:
        program = parse(text)
        name = rng.choice(list(program.kernels()) or [None])
        kernel = program.kernels()[name] if name is not None else None
        consts = assume_consts(kernel, {}) if kernel is not None else {}
        for p in kernel.params if kernel is not None else ():
            if isinstance(p.type, ConstType) and p.default is None:
                consts.setdefault(p.name, rng.choice([0, 2, 16, 64, 2**31]))
        checked = check(program, name, consts)
        try:
            require_launchable(checked)
        except CuirError as error:
            assert error.diagnostics[0].code[0] in "LU"
        dims = {d: rng.choice([0, 1, 64, 100]) for d in checked.dims}
        scalars = {s.name: {"bool": True, "i32": 1}.get(s.dtype.name, 0.5) for s in checked.scalars}
        with limit_seconds(2):
            run(checked, make_arguments(checked, dims, scalars, 0, "cpu"))
    except CuirError as error:
        assert error.diagnostics[0].code != "U999"
    assert time.process_time() - begin < 20
