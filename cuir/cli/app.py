"""The list of commands, in the order of the help, and the options of `cuir` itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from .commands.bench import bench
from .commands.bridge import bridge
from .commands.cache import cache
from .commands.check import check
from .commands.corpus import corpus
from .commands.doctor import doctor
from .commands.eval import evaluate
from .commands.explain import explain
from .commands.lift import lift
from .commands.lower import lower
from .commands.mutate import mutate
from .commands.ops import ops
from .commands.run import run
from .commands.show import show
from .commands.transfer import transfer
from .commands.tune import tune
from .commands.verify import verify

app = typer.Typer(
    name="cuir",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


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


# panel of the help, its commands, and for each the line that the list shows: a screen of 80 columns holds all
PANELS: dict[str, dict[Callable[..., object], str]] = {
    "Write": {
        check: "names, types, shapes, roles, limits of the architecture",
        show: "print a program in canonical form, or a difference",
        ops: "primitives and operators of the language",
        explain: "explain the code of an error",
    },
    "Trust": {
        verify: "test a program against its specification, on the CPU",
        mutate: "make faulty programs; show those that verification passes",
    },
    "Adapt": {
        corpus: "list expert kernels, programs, variants and functions",
        bridge: "adapt an expert kernel to a variant, verify, compile, time",
        transfer: "adapt a program to a specification, by rules or by a model",
        lift: "lift expert CUDA to a CuIR program",
        evaluate: "measure how often models adapt kernels rightly",
    },
    "Run": {
        run: "run a kernel on random tensors, interpreted or on a GPU",
        lower: "print or compile the CUDA of a program; show its passes",
        tune: "find the fastest const parameters for a shape",
        bench: "time kernels beside PyTorch, cuDNN, FlashAttention and others",
    },
    "Machine": {
        doctor: "cards, driver, compiler, packages; what runs here; self-test",
        cache: "show or clear the cache folder",
    },
}
for panel, commands in PANELS.items():
    for command, line in commands.items():
        app.command("eval" if command is evaluate else None, rich_help_panel=panel, short_help=line)(command)
