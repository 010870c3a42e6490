"""The `trecho` command: arguments, exit codes, how errors are shown. Each subcommand is a module."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from typing import NoReturn, Protocol, cast

from trecho import __version__
from trecho.console import note, print_error, print_json
from trecho.errors import ExitCode, TrechoError, UsageError, from_database

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
    "doctor": "trecho.doctor",
    "hook": "trecho.hook",
    "search": "trecho.search",
    "evidence": "trecho.evidence",
    "trace": "trecho.trace",
}


class Command(Protocol):
    """What a module of COMMANDS offers."""

    HELP: str

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments; --dsn, --json and --debug are there already."""

    def run(self, args: argparse.Namespace) -> int:
        """Do the work. Returns an ExitCode; raises TrechoError or psycopg.Error."""


class Parser(argparse.ArgumentParser):
    """Errors of usage in the form of all others."""

    def error(self, message: str) -> NoReturn:
        note(f"error: {message}")
        note(f"hint: {self.prog} --help shows what can be given.")
        sys.exit(ExitCode.USAGE)


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
    """Run a command. Returns the exit code (see ExitCode; 130 when interrupted)."""
    argv = sys.argv[1:] if argv is None else list(argv)
    debug, as_json = "--debug" in argv, "--json" in argv
    try:
        return _run(argv)
    except SystemExit as stop:  # argparse: help, version, usage
        return int(stop.code or 0)
    except KeyboardInterrupt:
        note("error: interrupted")
        return 130
    except BrokenPipeError:
        # The reader of stdout has gone (| head); Python would complain once more at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.ERROR
    except Exception as error:
        if debug:
            import traceback

            traceback.print_exc()
        known = _known(error)
        print_error(known)
        if as_json:
            print_json(known.as_json())
        return known.exit_code


def _run(argv: Sequence[str]) -> int:
    if list(argv) == ["--version"]:
        print(f"trecho {__version__}")
        return ExitCode.DONE
    args = build_parser(argv).parse_args(argv)
    if args.command is None:
        raise UsageError("no command given", hint="trecho --help lists the commands.")
    module = cast(Command, importlib.import_module(COMMANDS[args.command]))
    return int(module.run(args))


def _known(error: Exception) -> TrechoError:
    if isinstance(error, TrechoError):
        return error
    psycopg = sys.modules.get("psycopg")
    if psycopg is not None and isinstance(error, psycopg.Error):
        return from_database(error)
    return TrechoError(
        f"{type(error).__name__}: {error}",
        hint="This is a defect of trecho: report it with the output of --debug.",
    )
