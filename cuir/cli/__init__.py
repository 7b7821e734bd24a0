"""Command `cuir`: how commands end, with exit codes, and errors on the terminal or as JSON.

Each command is in a separate file. Exit codes: 0 good, 1 the program is wrong, 2 the call is wrong, 70 a fault of cuir
itself, 130 interrupted.
"""

from __future__ import annotations

import errno
import functools
import sys
from collections.abc import Sequence
from typing import Any

REPORT_TO = "this is a fault of cuir, not of your input; please report it with the command line, and the trace that CUIR_DEBUG=1 shows"


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line and exit with its code."""
    from .process_setup import collect_rarely

    words = sys.argv[1:] if argv is None else argv
    collect_rarely()  # before PyTorch is imported, which makes a million objects that stay
    try:
        code = run(words)
    except KeyboardInterrupt:  # while modules were still loading
        from .process_setup import report_interruption

        code = report_interruption(as_json="--json" in words)
    from .standard_output import end_process, redirect_stdout

    if "--json" in words:
        redirect_stdout()
    end_process(code)


def run(argv: Sequence[str]) -> int:
    """Run one command line; return the exit code, never raise for bad input."""
    from .standard_output import reserve_stdout

    try:
        with reserve_stdout("--json" in argv):
            return _run(argv)
    finally:
        if (calls := sys.modules.get("cuir.spec.user_calls")) is not None:
            calls.on_stuck = None  # type: ignore[attr-defined]
        if (judged := sys.modules.get("cuir.cli.judged_kernel")) is not None:
            judged.forget_judged_kernel()


def _run(argv: Sequence[str]) -> int:
    """Run a command line with stdout reserved where `--json` demands it."""
    import os

    import typer

    from ..text.diagnostics import CuirError
    from .output import exit_code, print_errors
    from .process_setup import INTERRUPTED, Interrupted, report_interruption

    as_json = "--json" in argv
    if os.environ.get("_CUIR_COMPLETE") == "complete_bash":
        from .completion import join_assignments

        join_assignments(os.environ)
    try:
        result = _commands().main(args=list(argv), prog_name="cuir", standalone_mode=False)
        if result == INTERRUPTED:  # what typer makes of a KeyboardInterrupt; no command returns it
            return report_interruption(as_json=as_json)
        return result if isinstance(result, int) else 0
    except CuirError as error:
        from .judged_kernel import get_judged_kernel

        print_errors(error.diagnostics, as_json, get_judged_kernel())
        return exit_code(error.diagnostics)
    except typer.Exit as stop:
        return stop.exit_code
    except _usage_errors() as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            print(error.format_message())
            return 0
        usage = CuirError.of("U100", _usage_message(error), hint=_make_help_hint(error, argv))
        print_errors(usage.diagnostics, as_json)
        return 2
    except Interrupted as stop:
        return INTERRUPTED if stop.told else report_interruption(stop.continuation, stop.step, as_json)
    except (KeyboardInterrupt, typer.Abort):
        return report_interruption(as_json=as_json)
    except BrokenPipeError:  # the reader of our output left, as `| head` does
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - Python flushes stdout once more at exit
        return 0
    except BaseException as error:
        if isinstance(error, SystemExit):  # of the parser's own options, as --install-completion
            return error.code if isinstance(error.code, int) else int(error.code is not None)
        if os.environ.get("CUIR_DEBUG") == "1":
            raise
        if "_CUIR_COMPLETE" in os.environ:  # a message would stand in the middle of the line that is typed
            return 1
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
            unwritten = CuirError.of("U108", f"the output cannot be written: {error.strerror}", hint="free some space, or write elsewhere")
            print_errors(unwritten.diagnostics, False)
            sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - Python flushes stdout once more at exit
            return exit_code(unwritten.diagnostics)
        from ..verification.resource_limits import convert_memory_error

        if full := convert_memory_error(error):
            print_errors(full.diagnostics, as_json)
            return exit_code(full.diagnostics)
        internal = CuirError.of("U999", f"internal error: {type(error).__name__}: {error}".split("\n")[0], hint=REPORT_TO)
        print_errors(internal.diagnostics, as_json)
        return 70


@functools.cache
def _commands() -> Any:
    """Return the tree of commands: making it takes longer than refusing most wrong calls."""
    from typer.main import get_command

    from .app import app

    return get_command(app)


def _usage_errors() -> Any:
    """Return the class of errors of a command line: click's, which newer versions of typer bundle."""
    import typer

    return next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")


def _usage_message(error: Any) -> str:
    """Return the parser's message, with suggestions for an unknown option that resemble it."""
    option, context = getattr(error, "option_name", None), getattr(error, "ctx", None)
    param = getattr(error, "param", None)
    if type(error).__name__ == "MissingParameter" and getattr(param, "param_type_name", "") == "argument":
        from .help_page import spell_argument

        return f"missing argument {spell_argument(param)}"
    if getattr(error, "possibilities", None) is None or option is None or context is None:
        return str(error.format_message())
    from difflib import get_close_matches

    word, options = option.lstrip("-"), {o.lstrip("-"): o for p in context.command.params for o in p.opts if o.startswith("--")}
    near = [o for o in options if len(word) > 1 and o.startswith(word)] or get_close_matches(word, options, 2, 0.7)
    return f"{error.message}; did you mean {' or '.join(options[o] for o in near)}?" if near else str(error.message)


def _make_help_hint(error: object, argv: Sequence[str]) -> str:
    """Name the command whose help lists the options.

    For an option without its value the parser does not say whose it is, but the first word does.
    """
    context = getattr(error, "ctx", None)
    command = next((f"cuir {word}" for word in argv[:1] if word in _commands().commands), "cuir")
    path = context.command_path if context is not None else command
    return f"`{path} --help` lists {'the commands' if path == 'cuir' else 'what it takes'}"
