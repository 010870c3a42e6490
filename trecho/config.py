"""trecho.toml: the sources of a project, and the recipe wanted for its index."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trecho.errors import UsageError
from trecho.exclusions import compile_patterns

FILE_NAME = "trecho.toml"
SCOPES = ("docs", "adr", "session", "code")
# What a source reads when it says nothing itself.
DEFAULT_INCLUDE = {
    "docs": ("**/*.md", "**/*.markdown", "**/*.mdx", "**/*.txt"),
    "adr": ("**/*.md", "**/*.markdown"),
    "session": ("**/*.json", "**/*.jsonl", "**/*.txt", "**/*.md"),
    "code": ("**/*",),
}
_ENDING = re.compile(r"\*\*/\*\.[A-Za-z0-9]+")
_PROJECT_KEYS = {"name", "branch"}
_SOURCE_KEYS = {"set", "path", "scope", "include", "exclude"}
_EMBEDDING_KEYS = {"preset", "provider", "model_id", "model_version", "dim", "query_prefix", "passage_prefix"}
_TABLES = {"project", "source", "embedding", "chunking"}


@dataclass(frozen=True)
class Source:
    """A folder that feeds the index. root: where it is read; prefix: start of its source paths, such as docs/."""

    set_name: str
    root: Path
    prefix: str
    scope: str
    include: tuple[str, ...]
    exclude: tuple[str, ...] = ()

    def matcher(self) -> Callable[[str], bool]:
        """Says whether the patterns want a path (relative to the source): some of include, none of exclude."""
        where = f"source set {self.set_name!r}"
        include = compile_patterns(f"{where}: include", self.include)
        exclude = compile_patterns(f"{where}: exclude", self.exclude)
        # Most patterns are of the kind **/*.md, and most files end in what they say: no expression needs to be tried.
        plain = not any(pattern.startswith("!") for pattern in self.include)
        endings = tuple(pattern[4:] for pattern in self.include if plain and _ENDING.fullmatch(pattern))

        def wanted(path: str) -> bool:
            found = path.endswith(endings) or include.match_file(path)
            return found and not (self.exclude and exclude.match_file(path))

        return wanted


@dataclass(frozen=True)
class Config:
    """What one trecho.toml says. recipe: the keys for trecho.configure, only those that are set."""

    path: Path
    project: str = "default"
    branch: str = "main"
    sources: tuple[Source, ...] = ()
    recipe: dict[str, Any] = field(default_factory=dict)


def find_config(start: Path | None = None) -> Path | None:
    """trecho.toml here or in a folder above; None when there is none."""
    folder = (start or Path.cwd()).resolve()
    return next((f / FILE_NAME for f in (folder, *folder.parents) if (f / FILE_NAME).is_file()), None)


def load_config(path: Path) -> Config:
    """Read a configuration file. Raises: UsageError that names the file and the key at fault."""
    try:
        return parse_config(path, path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UsageError(
            f"{path} does not exist", hint="Write one, or give a folder: trecho sync FOLDER --scope docs."
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"{path} cannot be read: {error}", hint="It must be a file in UTF-8 that you may read."
        ) from error


def parse_config(path: Path, text: str) -> Config:
    """A configuration from its text; path names it in errors and is what its folders are relative to."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(
            f"{path} is not TOML: {error}", hint="docs/configuration.md shows a whole file."
        ) from error

    _only_known(path, "", data, _TABLES)
    project = _table(path, data, "project")
    _only_known(path, "project.", project, _PROJECT_KEYS)
    embedding = _table(path, data, "embedding")
    _only_known(path, "embedding.", embedding, _EMBEDDING_KEYS)
    recipe = _embedding_recipe(path, embedding)
    if "chunking" in data:
        recipe["chunk_settings"] = _table(path, data, "chunking")

    entries = data.get("source", [])
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise UsageError(
            f"{path}: source must be written as [[source]] tables",
            hint="Write [[source]] above the keys of each source, with both brackets.",
        )
    sources = tuple(_source(path, number, entry) for number, entry in enumerate(entries, 1))
    seen: dict[str, int] = {}
    for number, source in enumerate(sources, 1):
        if source.set_name in seen:
            raise UsageError(
                f"{path}: sources {seen[source.set_name]} and {number} are both set {source.set_name!r}",
                hint="Give every source a set name of its own.",
            )
        seen[source.set_name] = number
    return Config(
        path,
        _text(path, "project.name", project.get("name", "default")),
        _text(path, "project.branch", project.get("branch", "main")),
        sources,
        recipe,
    )


def _embedding_recipe(path: Path, embedding: dict[str, Any]) -> dict[str, Any]:
    """The keys as given, over those of the preset where one is named."""
    given = {key: value for key, value in embedding.items() if key != "preset"}
    if "preset" not in embedding:
        return given
    from trecho.providers.presets import preset_recipe

    name = _text(path, "embedding.preset", embedding["preset"])
    try:
        return preset_recipe(name) | given
    except UsageError as error:
        raise UsageError(f"{path}: embedding.preset: {error}", hint=error.hint) from None


def folder_source(folder: Path, scope: str, set_name: str | None = None) -> Source:
    """The source that `trecho sync FOLDER` means, wherever it is run.

    Its set is the folder's full path, so that two folders never share one. Source paths start with the folder's name
    (see folder_prefixes for more of them).
    """
    root = folder.resolve()
    return Source(set_name or root.as_posix(), root, folder_prefixes(root)[0], scope, DEFAULT_INCLUDE[scope])


def folder_prefixes(root: Path) -> list[str]:
    """Beginnings that source paths of a folder may have: its name, more and more of its full path, and that itself."""
    parts = root.relative_to(root.anchor).parts
    return [
        *("/".join(parts[-n:]) + "/" for n in range(1, len(parts) + 1)),
        f"{root.as_posix().rstrip('/')}/",
    ]


def _source(path: Path, number: int, entry: dict[str, Any]) -> Source:
    where = f"source {number}"
    _only_known(path, f"{where}: ", entry, _SOURCE_KEYS)
    scope = entry.get("scope", "docs")
    if scope not in SCOPES:
        raise UsageError(
            f"{path}: {where}: scope must be one of {', '.join(SCOPES)}, got {scope!r}",
            hint="Leave it out for docs.",
        )
    folder = _text(path, f"{where}: path", entry.get("path", "."))
    root = (path.parent / folder).resolve()
    name = Path(folder).as_posix()
    return Source(
        set_name=_text(path, f"{where}: set", entry.get("set", name)),
        root=root,
        prefix="" if name == "." else name.removeprefix("./").rstrip("/") + "/",
        scope=scope,
        include=_patterns(path, f"{where}: include", entry.get("include", list(DEFAULT_INCLUDE[scope]))),
        exclude=_patterns(path, f"{where}: exclude", entry.get("exclude", [])),
    )


def _table(path: Path, data: dict[str, Any], name: str) -> dict[str, Any]:
    value = data.get(name, {})
    if not isinstance(value, dict):
        raise UsageError(f"{path}: {name} must be a table", hint=f"Write [{name}] and its keys below it.")
    return value


def _text(path: Path, name: str, value: object) -> str:
    if not isinstance(value, str) or not value or "\0" in value:
        raise UsageError(
            f"{path}: {name} must be text that is not empty, got {value!r}",
            hint="Write it in quotes, or leave it out to use its default.",
        )
    return value


def _patterns(path: Path, name: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(item, str) and item for item in value):
        raise UsageError(
            f'{path}: {name} must be a list of patterns such as ["**/*.md"], got {value!r}',
            hint="Write patterns of gitignore syntax in quotes, between brackets; leave it out to use its default.",
        )
    return tuple(value)


def _only_known(path: Path, where: str, table: dict[str, Any], known: set[str]) -> None:
    for key in table:
        if key not in known:
            raise UsageError(
                f"{path}: unknown key {where}{key}", hint=f"Known keys: {', '.join(sorted(known))}."
            )
