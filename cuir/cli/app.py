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
from .commands.cuda_check import cuda_check
from .commands.cuda_run import cuda_run
from .commands.doctor import doctor
from .commands.eval import evaluate
from .commands.explain import explain
from .commands.judge import judge
from .commands.lift import lift
from .commands.lower import lower
from .commands.mutate import mutate
from .commands.ops import ops
from .commands.port import port
from .commands.run import run
from .commands.show import show
from .commands.transfer import transfer
from .commands.tune import tune
from .commands.verify import verify
from .help_page import Command, Group

app = typer.Typer(
    name="cuir",
    cls=Group,
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
    """Adapt expert attention kernels, test them on a CPU, compile them for GPUs."""


# task of the help, its commands, and for each the line that the list shows: a screen of 80 columns holds all
PANELS: dict[str, dict[Callable[..., object], str]] = {
    "Adapt a kernel": {
        bridge: "the main job: adapt an expert kernel, verify, compile, time it",
        corpus: "list the expert kernels, programs and variants that are shipped",
        transfer: "adapt a program to a specification, by rules or by a model",
        port: "make a program run on an older or newer card, by rules or by a model",
        lift: "turn expert CUDA into a CuIR program",
    },
    "Write a program": {
        check: "find errors in names, types, shapes, roles and resources",
        show: "print a program in canonical form, or what differs from another",
        ops: "list the primitives and operators of the language",
        explain: "explain the code of an error, such as T111",
    },
    "Test it": {
        verify: "test a program against what it should compute, on the CPU",
        mutate: "plant faults in a right program; show those that go unnoticed",
        judge: "judge a CUDA or Triton solution for a PyTorch module",
    },
    "Run, measure, set up": {
        run: "run a kernel on random tensors, interpreted or on a GPU",
        lower: "print or compile the CUDA of a program; show its passes",
        tune: "find the fastest tile sizes and stages for a shape",
        bench: "time kernels beside PyTorch, cuDNN, FlashAttention and others",
        evaluate: "measure how often language models adapt kernels rightly",
        doctor: "show what is installed, what runs here, and how to add the rest",
        cache: "show or clear the files that earlier runs left",
    },
}
for panel, commands in PANELS.items():
    for command, line in commands.items():
        name = "eval" if command is evaluate else None
        app.command(name, cls=Command, rich_help_panel=panel, short_help=line)(command)

cuda = typer.Typer(cls=Group, no_args_is_help=True, help="Run CUDA kernels of any origin on the CPU, and check them.")
cuda.command("check", cls=Command, short_help="find races, deadlocks, missing waits and fences, bad addresses")(cuda_check)
cuda.command("run", cls=Command, short_help="run a host program of your own, and check its launches")(cuda_run)
app.add_typer(cuda, name="cuda", rich_help_panel="Test it", short_help="run CUDA kernels of any origin on the CPU, and check them")
