"""`trecho hook install`: a post-receive hook that syncs each pushed branch."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from pathlib import Path

from psycopg import conninfo

from trecho.console import note, print_json
from trecho.errors import ExitCode, Refused
from trecho.git import Repository

HELP = "install a post-receive hook that syncs every pushed branch"
_MARK = "# written by trecho hook install"
_SCRIPT = """#!/bin/sh
{mark}
# Reads "BEFORE AFTER REF" lines from git. A failure is shown to who pushes and stops nothing: the next push, or
# trecho sync --git, continues from the commit last indexed.
while read -r before after ref; do
    case "$ref" in
        refs/heads/*) ;;
        *) continue ;;
    esac
    {command} --repo "$(git rev-parse --absolute-git-dir)" \\
        --git "$before..$after" --branch "${{ref#refs/heads/}}" </dev/null \\
        || echo "trecho: branch ${{ref#refs/heads/}} is not indexed yet (exit $?)" >&2
done
exit 0
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=("install", "uninstall"), help="write the hook, or take it away")
    parser.add_argument(
        "--repo",
        type=Path,
        default=Path(),
        metavar="FOLDER",
        help="repository that is pushed to (default: here)",
    )
    parser.add_argument(
        "--project", metavar="NAME", help="project to index into (default: the configuration's)"
    )
    parser.add_argument(
        "--no-embed",
        action="store_true",
        help="publish without vectors; a worker (trecho embed --watch) gives them",
    )
    parser.add_argument("--force", action="store_true", help="replace a hook that something else wrote")


def run(args: argparse.Namespace) -> int:
    repository = Repository(args.repo)
    hook = repository.hooks_folder() / "post-receive"
    foreign = hook.exists() and _MARK not in hook.read_text(encoding="utf-8", errors="replace")
    if foreign and not args.force:
        raise Refused(
            f"{hook} is there already and was not written by trecho",
            hint="Call trecho sync --git from it, or give --force to replace it.",
        )
    done = True
    if args.action == "uninstall":
        done = hook.exists() or hook.is_symlink()
        hook.unlink(missing_ok=True)
    else:
        hook.parent.mkdir(parents=True, exist_ok=True)
        hook.write_text(_SCRIPT.format(mark=_MARK, command=_command(args)), encoding="utf-8")
        hook.chmod(0o755)
        if not args.dsn and not os.environ.get("TRECHO_DSN"):
            note(
                "warning: git needs TRECHO_DSN in its environment when a push arrives; or install with --dsn"
            )
        if not repository.is_bare():
            note(
                f"warning: {args.repo} is not bare: the hook runs when it is pushed to, not at its own pushes"
            )
    if args.json:
        print_json({"hook": str(hook), "action": args.action, "changed": done})
    elif done:
        note(f"{args.action}ed {hook}")
    else:
        note(f"nothing to uninstall: {hook} is not there")
    return ExitCode.DONE


def _command(args: argparse.Namespace) -> str:
    """The command of the hook. Without --dsn it takes TRECHO_DSN from the environment git runs in."""
    if args.dsn and "password" in conninfo.conninfo_to_dict(args.dsn):
        raise Refused(
            "a password would be written into the hook",
            hint="Leave it out of --dsn and put it into ~/.pgpass of the user that git runs as.",
        )
    words = [sys.executable, "-m", "trecho", "sync"]
    words += ["--dsn", args.dsn] if args.dsn else []
    words += ["--project", args.project] if args.project else []
    words += ["--no-embed"] if args.no_embed else []
    return shlex.join(words)
