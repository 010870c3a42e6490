"""`trecho stability`: how many chunks an edit of a file changes, beside how many it has to."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from trecho_chunkers import ChunkError
from trecho_chunkers.stability import Edit, chunk_stability

from trecho.console import print_json
from trecho.errors import CannotChunk, ExitCode, TrechoError, UsageError

HELP = "measure what an edit of a file costs: which chunks and hashes change; needs no database"
SCOPES = ("docs", "adr", "session", "code")


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="+", metavar="FILE", help="a text file; its name decides the chunker")
    parser.add_argument("--scope", choices=SCOPES, help="session chooses the session chunker")
    parser.add_argument(
        "--stable-windows", action="store_true", help="cut windows where the content says (stable_windows)"
    )
    parser.add_argument(
        "--settings", metavar="JSON", help='chunk settings, such as {"window_lines": 40}; docs/chunking.md'
    )


def run(args: argparse.Namespace) -> int:
    settings = _settings(args.settings)
    if args.stable_windows:
        settings["stable_windows"] = True
    found = [(name, _measure(name, settings, args.scope)) for name in args.files]
    if args.json:
        print_json([{"file": name, "edits": [edit._asdict() for edit in edits]} for name, edits in found])
        return ExitCode.DONE
    for number, (name, edits) in enumerate(found):
        print("\n" * bool(number) + name)
        print(f"  {'edit':<24}{'chunks':>8}{'ids changed':>13}{'hashes changed':>16}{'really changed':>16}")
        for edit, chunks, ids, hashes, really in edits:
            print(f"  {edit:<24}{chunks:>8}{ids:>13}{hashes:>16}{really:>16}")
    return ExitCode.DONE


def _settings(given: str | None) -> dict[str, object]:
    """The settings as written. Raises: UsageError when they are no JSON object."""
    if given is None:
        return {}
    try:
        settings = json.loads(given)
    except ValueError as error:
        raise UsageError(f"--settings is not JSON: {error}", hint='Write {"window_lines": 40}.') from error
    if not isinstance(settings, dict):
        raise UsageError("--settings is not a JSON object", hint='Write {"window_lines": 40}.')
    return settings


def _measure(name: str, settings: dict[str, object], scope: str | None) -> list[Edit]:
    """Raises: CannotChunk, UsageError, TrechoError that name the file."""
    try:
        text = Path(name).read_bytes().decode()
    except OSError as error:
        raise UsageError(
            f"cannot read {name}: {error.strerror}", hint="Give a file that is there."
        ) from error
    except UnicodeDecodeError as error:
        raise CannotChunk(
            f"{name} is not UTF-8 (byte {error.start})", hint="A sync skips such files as not-utf-8."
        ) from error
    try:
        return chunk_stability(name, text, settings, scope)
    except ChunkError as error:
        if error.sqlstate == CannotChunk.sqlstate:
            raise CannotChunk(f"{name}: {error}", hint=error.hint) from error
        if error.sqlstate == "22023":
            raise UsageError(str(error), hint=error.hint) from error
        raise TrechoError(f"{name}: {error}", hint=error.hint) from error
