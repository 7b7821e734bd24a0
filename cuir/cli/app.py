"""Commands about programs and the language: check, show, ops, explain, corpus; and the list of all.

Commands that run things have separate files.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from .completion import complete_code, complete_kernel, complete_op, complete_program
from .output import print_json, stdout, styled

app = typer.Typer(
    name="cuir",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

File = Annotated[
    str,
    typer.Argument(
        help="a .cuir or .py file, a name out of `cuir corpus`, or - for standard input",
        autocompletion=complete_program,
        show_default=False,
    ),
]
KernelName = Annotated[
    str | None,
    typer.Option("-k", "--kernel", help="the kernel, if the file holds several", autocompletion=complete_kernel, show_default=False),
]
Consts = Annotated[list[str] | None, typer.Option("-c", "--const", help="a const parameter: -c D=128 -c T=f16", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="print one JSON object and nothing else on stdout")]


def _version(requested: bool) -> None:
    """Print the version and exit, if requested."""
    if requested:
        import cuir

        print(f"cuir {cuir.__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="print the version and exit")] = False,
) -> None:
    """CuIR: expert GPU kernels, changed to new attention variants, tested on a CPU under many schedules, compiled for Hopper."""


@app.command()
def check(file: File, kernel: KernelName = None, const: Consts = None, as_json: Json = False) -> None:
    """Check a program: names, types, shapes, roles, what the architecture allows."""
    from ..arguments.requirements import describe_row_requirements
    from ..checking.checker import check as run_check
    from ..runtime.launchable import require_launchable
    from .command_inputs import read_program, read_program_consts
    from .tables import facts

    program = read_program(file)
    picked, consts = read_program_consts(program, file, kernel, const or ())
    checked = run_check(program, picked.name, consts)
    require_launchable(checked)
    description = facts(checked)
    if needs := describe_row_requirements(checked):
        description["lines"].append(f"rows      {needs}")
    if as_json:
        print_json({"ok": True, "diagnostics": [], "kernel": description})
        return
    console = stdout()
    console.print(styled(("ok", "bold green"), f"  {file}: kernel ", (checked.name, "bold"), f" ({checked.arch})"))
    for line in description["lines"]:
        console.print(f"    {line}", style="dim", soft_wrap=True)


@app.command()
def show(
    file: File,
    diff: Annotated[
        str | None, typer.Option("--diff", help="another program: show what differs", autocompletion=complete_program, show_default=False)
    ] = None,
    as_json: Json = False,
) -> None:
    """Print a program in canonical form, or its difference to another."""
    from ..syntax.printer import show as print_program
    from .command_inputs import read_program
    from .tables import print_code, print_diff, unified

    text = print_program(read_program(file))
    if diff is None:
        if as_json:
            print_json({"ok": True, "diagnostics": [], "text": text})
        else:
            print_code(text)
        return
    lines = unified(text, print_program(read_program(diff)), file, diff)
    if as_json:
        print_json({"ok": True, "diagnostics": [], "diff": "\n".join(lines), "equal": not lines})
    elif lines:
        print_diff(lines)
    else:
        stdout().print("the programs are equal")


@app.command()
def ops(
    context: typer.Context,
    name: Annotated[
        str | None, typer.Argument(help="one entry: its name or how it is written", autocompletion=complete_op, show_default=False)
    ] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="the whole reference as markdown (docs/reference.md)")] = False,
    as_json: Json = False,
) -> None:
    """The primitives and operators of the language, from their table."""
    from ..checking.rewrite_hints import describe_composition
    from ..text.diagnostics import CuirError
    from . import reference_pages as reference
    from .command_inputs import suggestion
    from .option_conflicts import not_beside
    from .tables import print_entry, print_table

    not_beside(context, "markdown", "prints the whole reference as markdown", "name", "as_json")
    entries_by_name = reference.entries()
    if name is not None:
        chosen = [op for op in entries_by_name.values() if name in (op.name, op.written)]
        written = describe_composition(name)
        if not chosen and written is None:
            raise CuirError.of(
                "U106",
                f"no primitive or operator is called `{name}`",
                hint=suggestion(name, entries_by_name, "the table holds", [op.written for op in entries_by_name.values()]),
            )
        if not chosen and not as_json:
            stdout().print(f"{name} is no primitive: {written}", highlight=False, soft_wrap=True)
        elif as_json:
            print_json(
                {
                    "ok": True,
                    "diagnostics": [],
                    "entries": [reference.as_json(op) | {"meaning": reference.places(op.name)} for op in chosen],
                    **({} if chosen else {"instead": written}),
                }
            )
        else:
            for op in chosen:
                print_entry(op)
    elif as_json:
        print_json({"ok": True, "diagnostics": [], "entries": [reference.as_json(op) for op in entries_by_name.values()]})
    elif markdown:
        print(reference.markdown(), end="")
    else:
        for family, entries in reference.families().items():
            print_table(family, ("name", "meaning"), [(op.name, reference.in_short(op)) for op in entries])


@app.command()
def explain(
    context: typer.Context,
    code: Annotated[
        str | None, typer.Argument(help="a code of an error, as in error[T111]", autocompletion=complete_code, show_default=False)
    ] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="every code as markdown (docs/errors.md)")] = False,
    as_json: Json = False,
) -> None:
    """Explain the code of an error; without one, list all codes."""
    from ..text import codes
    from ..text.diagnostics import CuirError
    from .command_inputs import suggest_codes
    from .option_conflicts import not_beside
    from .tables import print_table

    not_beside(context, "markdown", "prints every code as markdown", "code", "as_json")
    if code is not None:
        entry = codes.CODES.get(code.upper())
        if entry is None:
            raise CuirError.of("U107", f"no error has the code `{code}`", hint=suggest_codes(code))
        if as_json:
            print_json(
                {
                    "ok": True,
                    "diagnostics": [],
                    "code": entry.code,
                    "title": entry.title,
                    "family": codes.get_family(entry.code),
                    "help": entry.help,
                }
            )
        else:
            stdout().print(styled((entry.code, "bold"), f"  {entry.title}\n\n{entry.help}"))
    elif as_json:
        print_json(
            {"ok": True, "diagnostics": [], "codes": [{"code": c.code, "title": c.title, "help": c.help} for c in codes.CODES.values()]}
        )
    elif markdown:
        print(codes.render_markdown(), end="")
    else:
        for letter, words in codes.FAMILIES.items():
            print_table(words, ("code", "title"), [(c.code, c.title) for c in codes.CODES.values() if c.code.startswith(letter)])


@app.command()
def corpus(as_json: Json = False) -> None:
    """What is there to adapt: kernels, programs, variants, what programs compute that is none, and expert CUDA to lift."""
    import corpus as shipped

    from .tables import print_table

    shelves: dict[str, Any] = {
        "kernels": shipped.kernels(),
        "programs": shipped.programs(),
        "variants": shipped.variants(),
        "functions": shipped.functions(),
        "cuda": shipped.cuda(),
    }
    listing = {shelf: {name: shipped.about(place) for name, place in places.items()} for shelf, places in shelves.items()}
    if as_json:
        print_json({"ok": True, "diagnostics": [], **listing})
        return
    uses = {
        "kernels": "expert kernels that `cuir bridge` adapts (--origin)",
        "programs": "programs of the language: cuir show NAME, cuir verify NAME",
        "variants": "attention variants: cuir bridge NAME",
        "functions": "what other programs compute: cuir verify PROGRAM --against NAME",
        "cuda": "expert CUDA: cuir lift NAME",
    }
    for shelf, items in listing.items():
        print_table(f"{shelf}: {uses[shelf]}", ("name", "what it is"), list(items.items()))


def _register_jobs() -> None:
    """Add the commands of other files."""
    from . import asking, evaluating, jobs, lifting, lowering, measuring, mutating

    app.command()(jobs.verify)
    app.command()(lowering.lower)
    app.command()(jobs.run)
    app.command()(jobs.bridge)
    app.command()(asking.transfer)
    app.command()(lifting.lift)
    app.command()(mutating.mutate)
    app.command()(measuring.tune)
    app.command()(measuring.bench)
    app.command("eval")(evaluating.evaluate)


_register_jobs()
