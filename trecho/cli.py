"""The `trecho` command: arguments, exit codes, how errors are shown. Each subcommand is a module."""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn, Protocol, cast

from trecho import __version__
from trecho.console import forgive_characters, print_error, print_json
from trecho.errors import MISSING, ExitCode, TrechoError, UsageError, from_database

# Name of a command -> module with HELP, configure(parser) and run(args) -> exit code; imported only when its
# command is used, so it may import what it likes.
COMMANDS: dict[str, str] = {
    "migrate": "trecho.migrate",
    "uninstall": "trecho.uninstall",
    "bundle": "trecho.bundle",
    "preflight": "trecho.preflight",
    "lint": "trecho.lint",
    "sync": "trecho.sync",
    "embed": "trecho.embed",
    "version": "trecho.version",
    "status": "trecho.status",
    "set": "trecho.source_sets",
    "doctor": "trecho.doctor",
    "hook": "trecho.hook",
    "search": "trecho.search",
    "evidence": "trecho.evidence",
    "trace": "trecho.trace",
    "stability": "trecho.stability",
}

# Exit codes that a shell knows: 128 and the number of SIGINT, SIGPIPE.
INTERRUPTED = 130
READER_LEFT = 141

_COLLECT_AFTER = 50_000
# What a 32-bit number of milliseconds can say.
LONGEST_SECONDS = 2_147_483
# Files that are only opened here; the name of a folder becomes part of the index.
NEED_NOT_BE_UTF8 = {"files", "script", "trace", "config", "repo", "directory"}


# Commands whose arguments may be empty: a question nobody has typed yet finds nothing.
MAY_BE_EMPTY = {"search", "evidence"}


class Command(Protocol):
    """What a module of COMMANDS offers."""

    HELP: str

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments; --dsn, --json and --debug are there already."""

    def run(self, args: argparse.Namespace) -> int:
        """Do the work. Returns an ExitCode; raises TrechoError or psycopg.Error."""


class Parser(argparse.ArgumentParser):
    """Errors of usage in the form of all others; options are written out."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **{"allow_abbrev": False, **options})

    def error(self, message: str) -> NoReturn:
        hint = f"{self.prog} --help shows what can be given."
        if "arguments are required" in message or "unrecognized arguments: -" in message:
            hint += " Put -- before text that begins with a dash."
        raise UsageError(message, hint=hint)


def common_options(suppress: bool) -> Parser:
    """Options that stand before or after the name of the command."""
    parser = Parser(add_help=False)
    default = argparse.SUPPRESS if suppress else None
    flag = argparse.SUPPRESS if suppress else False
    group = parser.add_argument_group("for every command")
    group.add_argument(
        "--dsn",
        metavar="DSN",
        default=default,
        help="database to work on (default: TRECHO_DSN, then .server/dsn)",
    )
    group.add_argument("--json", action="store_true", default=flag, help="print one JSON document on stdout")
    group.add_argument("--debug", action="store_true", default=flag, help="show the traceback of an error")
    return parser


def build_parser(argv: Sequence[str]) -> argparse.ArgumentParser:
    """The parser, with the commands that argv may mean configured; all of them when argv names none."""
    parser = Parser(
        prog="trecho",
        description="A searchable, embedded, always-true index of documents inside PostgreSQL.",
        parents=[common_options(suppress=False)],
    )
    parser.add_argument("--version", action="version", version=f"trecho {__version__}")
    named = [name for name in COMMANDS if name in argv]
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=Parser)
    for name, module_name in COMMANDS.items():
        if named and name not in named:
            subparsers.add_parser(name)
            continue
        module = cast(Command, importlib.import_module(module_name))
        command = subparsers.add_parser(
            name, help=module.HELP, description=module.HELP, parents=[common_options(suppress=True)]
        )
        module.configure(command)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command. Returns the exit code (see ExitCode; 130 when interrupted, 141 when the reader left)."""
    # Modules are made of objects that stay to the end: at Python's own threshold of 700 the collector walks all of them
    # again and again, for a tenth of the time a command takes to start.
    gc.set_threshold(_COLLECT_AFTER)
    argv = sys.argv[1:] if argv is None else list(argv)
    options = argv[: argv.index("--")] if "--" in argv else argv
    forgive_characters()
    try:
        try:
            code = _run(argv)
        except SystemExit as stop:  # argparse: help, version
            code = int(stop.code or 0)
        except KeyboardInterrupt:
            code = _fail(Interrupted("interrupted"), options)
        except BrokenPipeError:
            raise
        except Exception as error:
            code = _fail(error, options)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader has gone (| head). Python would complain once more at its end.
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        return READER_LEFT
    return code


class Interrupted(TrechoError):
    """Interrupted from the keyboard."""

    kind = "interrupted"


def _fail(error: Exception, options: Sequence[str]) -> int:
    """Show an error; options: the arguments before `--`."""
    if "--debug" in options and not isinstance(error, Interrupted):
        import traceback

        traceback.print_exception(error)
    known = _known(error)
    code = INTERRUPTED if isinstance(known, Interrupted) else int(known.exit_code)
    print_error(known)
    if "--json" in options:
        print_json({**known.as_json(), "exit_code": code})
    return code


def _run(argv: Sequence[str]) -> int:
    if list(argv) == ["--version"]:
        print(f"trecho {__version__}")
        return ExitCode.DONE
    args = build_parser(argv).parse_args(argv)
    if args.command is None:
        raise UsageError("no command given", hint="trecho --help lists the commands.")
    if args.dsn is not None and not args.dsn.strip():
        raise UsageError("--dsn is empty", hint="Give a DSN, or leave --dsn out to use TRECHO_DSN.")
    if args.command not in MAY_BE_EMPTY:
        _refuse_empty(argv)
    _check_values(args)
    module = cast(Command, importlib.import_module(COMMANDS[args.command]))
    try:
        return int(module.run(args))
    except BrokenPipeError:
        raise
    except Exception as error:
        known = _known(error)
        # A migration that fails names its own file and line.
        if known.sqlstate not in MISSING or args.command == "migrate":
            raise
        from trecho.db import explain_missing, find_dsn

        raise explain_missing(find_dsn(args.dsn), known) from error


def _refuse_empty(argv: Sequence[str]) -> None:
    """An unset variable of a script must not mean the default, or the folder it is run in."""
    for before, given in zip(["", *argv], argv, strict=False):
        option, sign, value = given.partition("=")
        if not given or (option.startswith("--") and sign and not value):
            name = option or (before if before.startswith("-") else "an argument")
            raise UsageError(f"{name} is empty", hint="Give it a value, or leave it out to use the default.")


def _check_values(args: argparse.Namespace) -> None:
    """What argparse lets through and no command can use: text that no database holds, times without end."""
    for name, value in vars(args).items():
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, float) and not abs(item) <= LONGEST_SECONDS:  # nan compares as false
                raise UsageError(
                    f"argument {name} must be a number of seconds up to {LONGEST_SECONDS}, got {item}",
                    hint="Leave it out to use the default.",
                )
            if not isinstance(item, str | os.PathLike):
                continue
            text = os.fspath(item)
            if "\0" in text:
                raise UsageError(
                    f"argument {name} holds a NUL character", hint="Leave it out: no file or text has one."
                )
            if name in NEED_NOT_BE_UTF8:
                continue
            try:
                text.encode("utf-8")
            except UnicodeEncodeError as error:
                raise UsageError(
                    f"argument {name} is not UTF-8 text, which a database could not hold",
                    hint="Set a UTF-8 locale, type it anew, or rename the file.",
                ) from error


def _known(error: Exception) -> TrechoError:
    if isinstance(error, TrechoError):
        return error
    psycopg = sys.modules.get("psycopg")
    if psycopg is not None and isinstance(error, psycopg.Error):
        return from_database(error)
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return TrechoError(
            f"{os.fsdecode(error.filename)}: {error.strerror}", hint="Correct the path, or its permissions."
        )
    return TrechoError(
        f"{type(error).__name__}: {error}",
        hint="This is a defect of trecho: report it with the output of --debug.",
    )
