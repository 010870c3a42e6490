"""The SQL and the chunker sources that this release ships, found in a checkout and in an installed wheel."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import json
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from trecho import __version__
from trecho.errors import Refused, TrechoError

CHUNKERS = "trecho_chunkers"
# The file that carries the chunkers; client chunking leaves it out.
CHUNKER_FILE = "sql/privileged/20_chunkers.sql"
MIGRATION_NAME = re.compile(r"^(\d{4})_[a-z0-9_]+\.sql$")
SQL_NAME = re.compile(r"^\d{2}_[a-z0-9_]+\.sql$")


def sha256(text: str) -> str:
    """Hexadecimal SHA-256 of the text in UTF-8."""
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True)
class Source:
    """One SQL file as shipped. name: path from the root of the release, with forward slashes."""

    name: str
    text: str

    @property
    def checksum(self) -> str:
        """SHA-256 of the text as shipped, with LF line ends."""
        return sha256(self.text)

    @property
    def number(self) -> int:
        """Number of a migration. Raises: ValueError for another kind of file."""
        return int(Path(self.name).name.split("_", 1)[0])


@dataclass(frozen=True)
class Release:
    """Everything `trecho migrate` applies, read from one root folder."""

    root: Path
    chunkers_root: Path
    version: str = __version__

    @cached_property
    def migrations(self) -> tuple[Source, ...]:
        """Migrations in order. Raises: Refused for a name that breaks the rule or a number used twice."""
        sources = self._read("migrations", MIGRATION_NAME)
        seen: dict[int, str] = {}
        for source in sources:
            if source.number in seen:
                raise Refused(
                    f"two migrations have number {source.number:04}: {seen[source.number]} and {source.name}",
                    hint="Rename the newer one; it has not run anywhere yet.",
                )
            seen[source.number] = source.name
        return sources

    @cached_property
    def behaviour(self) -> tuple[Source, ...]:
        """Functions, views and grants, re-applied when they change, in name order."""
        return self._read("sql", SQL_NAME)

    @cached_property
    def privileged(self) -> tuple[Source, ...]:
        """What needs a superuser, in name order; the chunkers are filled in."""
        sources = self._read("sql/privileged", SQL_NAME)
        return tuple(
            Source(source.name, self._with_chunkers(source.text)) if source.name == CHUNKER_FILE else source
            for source in sources
        )

    @cached_property
    def chunker_sources(self) -> dict[str, str]:
        """Module name (such as 'trecho_chunkers.markdown') to source text."""
        sources = {}
        for path in sorted(self.chunkers_root.glob("**/*.py")):
            parts = [CHUNKERS, *path.relative_to(self.chunkers_root).with_suffix("").parts]
            sources[".".join(parts)] = _read_text(path)
        if f"{CHUNKERS}.__init__" not in sources:
            raise TrechoError(f"no chunker sources in {self.chunkers_root}", hint="Install trecho again.")
        return sources

    @cached_property
    def chunker_version(self) -> int:
        """CHUNKER_VERSION of the shipped chunkers, read without importing them."""
        tree = ast.parse(self.chunker_sources[f"{CHUNKERS}.version"])
        for node in tree.body:
            target = node.target if isinstance(node, ast.AnnAssign) else None
            if (
                isinstance(target, ast.Name)
                and target.id == "CHUNKER_VERSION"
                and isinstance(node, ast.AnnAssign)
            ):
                return int(ast.literal_eval(node.value)) if node.value is not None else 0
        raise TrechoError("the shipped chunkers state no CHUNKER_VERSION")

    @cached_property
    def chunker_stamp(self) -> str:
        """Identity of the chunkers and of the SQL around them: 16 hexadecimal digits."""
        template = _read_text(self.root / CHUNKER_FILE)
        parts = [template, *(f"{name}\0{text}" for name, text in self.chunker_sources.items())]
        return sha256("\0".join(parts))[:16]

    @cached_property
    def earlier(self) -> dict[str, dict[str, str]]:
        """Releases kept by `trecho bundle --freeze`: version to {name of migration: its SHA-256}."""
        found = {}
        for path in sorted((self.root / "migrations" / "releases").glob("*.json")):
            kept = json.loads(_read_text(path))
            found[str(kept["release"])] = {str(k): str(v) for k, v in kept["migrations"].items()}
        return found

    def _with_chunkers(self, template: str) -> str:
        tag = f"$py_{self.chunker_stamp}$"
        sources = python_literal(self.chunker_sources)
        if tag in template or tag in sources:  # 64 bits of hash: a text would have to be written for it
            raise Refused(f"the chunker sources hold the text {tag}")
        return (
            template.replace("{{chunker_sources}}", sources)
            .replace("{{chunker_stamp}}", self.chunker_stamp)
            .replace("{{chunker_version}}", str(self.chunker_version))
            .replace("$py$", tag)
        )

    def _read(self, folder: str, rule: re.Pattern[str]) -> tuple[Source, ...]:
        sources = []
        for path in sorted((self.root / folder).glob("*.sql")):
            name = f"{folder}/{path.name}"
            if not rule.match(path.name):
                raise Refused(f"{name} is not named as {rule.pattern}", hint="Rename the file.")
            sources.append(Source(name, _read_text(path)))
        if not sources:
            raise TrechoError(f"no SQL files in {self.root / folder}", hint="Install trecho again.")
        return tuple(sources)


def python_literal(sources: dict[str, str]) -> str:
    """The sources as a Python dict display in ASCII, one source line a line.

    PL/Python puts a tab after every line end of a function body, inside literals too, so no literal may
    span lines; ASCII escapes keep it independent of the server's encoding.
    """
    lines = ["{"]
    for name, text in sources.items():
        lines.append(f"{name!a}: ''.join((")
        lines += [f"{line!a}," for line in text.splitlines(keepends=True)]
        lines.append(")),")
    lines.append("}")
    return "\n".join(lines)


def current() -> Release:
    """The release this client belongs to."""
    package = Path(__file__).resolve().parent
    checkout = package.parent / "plpython" / CHUNKERS
    if checkout.is_dir():
        return Release(package.parent, checkout)
    spec = importlib.util.find_spec(CHUNKERS)
    if spec is None or not spec.submodule_search_locations:
        raise TrechoError(f"package {CHUNKERS} is not installed", hint="Install trecho again.")
    return Release(package / "_data", Path(next(iter(spec.submodule_search_locations))))


def _read_text(path: Path) -> str:
    return path.read_text(encoding="utf-8").replace("\r\n", "\n")
