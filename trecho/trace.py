"""`trecho trace`: records of searches, shown and compared. A change of recipe or of text shows in what moved."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from trecho.console import print_json
from trecho.errors import ExitCode, UsageError

HELP = "show or compare records written by trecho search --trace"
FORMAT = 1
_KEPT = (
    "rank",
    "score",
    "lexical_score",
    "semantic_score",
    "chunk_id",
    "doc_id",
    "anchor",
    "start_line",
    "end_line",
)


class Answered(Protocol):
    """What a trace keeps of an answer."""

    @property
    def index_version(self) -> int | None: ...
    @property
    def label(self) -> str | None: ...
    @property
    def rows(self) -> list[dict[str, Any]]: ...


@dataclass(frozen=True)
class Trace:
    """Record of one search. results: best first; ids, ranks and scores, no text."""

    query: str
    mode: str
    arguments: dict[str, Any]
    at: str
    index_version: int | None
    label: str | None
    results: list[dict[str, Any]]
    trace: int = FORMAT

    @staticmethod
    def of(query: str, mode: str, arguments: Mapping[str, Any], answer: Answered) -> Trace:
        """The record of an answer, made now."""
        rows = [{name: row[name] for name in _KEPT} for row in answer.rows]
        version = answer.rows[0]["index_version"] if answer.rows else answer.index_version
        return Trace(query, mode, dict(arguments), datetime.now(UTC).isoformat(), version, answer.label, rows)


def write_trace(path: Path, trace: Trace) -> None:
    """Write a record as JSON. Raises: UsageError when the file cannot be written."""
    try:
        path.write_text(
            json.dumps(asdict(trace), ensure_ascii=False, indent=2, default=str) + "\n", encoding="utf-8"
        )
    except OSError as error:
        raise UsageError(
            f"cannot write {path}: {error.strerror}", hint="Give --trace a file that can be written."
        ) from error


def read_trace(path: Path) -> Trace:
    """Read a record. Raises: UsageError when it is not one."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(
            f"cannot read {path}: {error.strerror}", hint="trecho search --trace FILE writes one."
        ) from error
    except ValueError as error:
        raise UsageError(
            f"{path} is not JSON: {error}", hint="trecho search --trace FILE writes one."
        ) from error
    if not isinstance(data, dict) or data.get("trace") != FORMAT:
        raise UsageError(
            f"{path} is not a trace of this format", hint="trecho search --trace FILE writes one."
        )
    try:
        trace = Trace(**data)
        for row in trace.results:
            row["rank"], row["chunk_id"], row["doc_id"], row["score"]
    except (TypeError, KeyError) as error:
        raise UsageError(
            f"{path} is not a whole trace: {error}", hint="Write it again with trecho search --trace."
        ) from error
    return trace


def configure(parser: argparse.ArgumentParser) -> None:
    # One positional and not nested commands, so that --json and --debug stand anywhere.
    parser.add_argument(
        "action", choices=("show", "diff"), help="show FILE, or diff A B: what moved from A to B"
    )
    parser.add_argument("files", nargs="+", metavar="FILE", type=Path)


def run(args: argparse.Namespace) -> int:
    wanted = 1 if args.action == "show" else 2
    if len(args.files) != wanted:
        raise UsageError(
            f"trecho trace {args.action} takes {wanted} file{'s' * (wanted > 1)}, got {len(args.files)}",
            hint="Write trecho trace show FILE, or trecho trace diff A B.",
        )
    if args.action == "show":
        trace = read_trace(args.files[0])
        if args.json:
            print_json(asdict(trace))
        else:
            print("\n".join(_page(trace)))
        return ExitCode.DONE
    difference = compare(*(read_trace(path) for path in args.files))
    if args.json:
        print_json(asdict(difference))
    else:
        print("\n".join(_differences(difference)))
    return ExitCode.DONE


@dataclass(frozen=True)
class Difference:
    """From one trace to another. changed: what was asked of whom; the lists are in order of rank.

    replaced: a document whose passage is another one now (its chunk_id changed, its doc_id did not).
    """

    changed: dict[str, tuple[Any, Any]]
    entered: list[dict[str, Any]]
    left: list[dict[str, Any]]
    replaced: list[dict[str, Any]]
    moved: list[dict[str, Any]]
    unmoved: int

    @property
    def same(self) -> bool:
        """True when the answers are the same passages in the same order."""
        return not (self.entered or self.left or self.replaced or self.moved)


def compare(before: Trace, after: Trace) -> Difference:
    """What changed from one record to another."""
    changed = {
        name: (getattr(before, name), getattr(after, name))
        for name in ("query", "mode", "arguments", "index_version", "label")
        if getattr(before, name) != getattr(after, name)
    }
    old = {row["chunk_id"]: row for row in before.results}
    new = {row["chunk_id"]: row for row in after.results}
    gone = [row for row in before.results if row["chunk_id"] not in new]
    come = [row for row in after.results if row["chunk_id"] not in old]
    replaced = []
    for row in list(come):
        earlier = next((g for g in gone if g["doc_id"] == row["doc_id"]), None)
        if earlier is not None:
            gone.remove(earlier)
            come.remove(row)
            replaced.append(_step(earlier, row))
    kept = [_step(old[chunk_id], row) for chunk_id, row in new.items() if chunk_id in old]
    moved = [step for step in kept if step["ranks"][0] != step["ranks"][1]]
    return Difference(changed, come, gone, replaced, moved, len(kept) - len(moved))


def _step(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "doc_id": after["doc_id"],
        "chunk_ids": (before["chunk_id"], after["chunk_id"]),
        "ranks": (before["rank"], after["rank"]),
        "scores": (before["score"], after["score"]),
    }


def _page(trace: Trace) -> list[str]:
    lines = [
        f"query    {trace.query}",
        f"mode     {trace.mode}",
        f"version  {trace.index_version} ({trace.label})",
        f"at       {trace.at}",
        *(f"         {name} = {value}" for name, value in trace.arguments.items()),
        "",
        "rank   score   words meaning  chunk" if trace.results else "nothing was found",
    ]
    for row in trace.results:
        scores = f"{row['score']:.4f} {_number(row['lexical_score'])} {_number(row['semantic_score'])}"
        lines.append(f"{row['rank']:>4}  {scores}  {row['chunk_id']}")
    return lines


def _number(value: float | None) -> str:
    return "      -" if value is None else f"{value:7.4f}"


def _differences(difference: Difference) -> list[str]:
    lines = [f"{name}: {before} -> {after}" for name, (before, after) in difference.changed.items()]
    lines.extend(f"+ {row['rank']:>3}        {row['chunk_id']}" for row in difference.entered)
    lines.extend(f"- {row['rank']:>3}        {row['chunk_id']}" for row in difference.left)
    for sign, steps in (("~", difference.replaced), (" ", difference.moved)):
        for step in steps:
            (old_rank, new_rank), (old_id, new_id) = step["ranks"], step["chunk_ids"]
            name = new_id if old_id == new_id else f"{old_id} -> {new_id}"
            lines.append(f"{sign} {old_rank:>3} -> {new_rank:<3} {name}")
    lines.append("same passages, same order" if difference.same else f"{difference.unmoved} did not move")
    if not difference.same:
        lines.append(
            "(+ entered at its rank, - left, ~ another passage of the document, else moved from -> to)"
        )
    return lines
