"""What is left out before chunking, and why: one short reason code per rule, so that skips can be counted."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fnmatch import translate
from pathlib import Path

import pathspec

from trecho.errors import UsageError

# Folders that never hold documents: repositories' own data, dependencies, build output, caches.
FOLDERS = frozenset(
    {".git", ".hg", ".svn", "node_modules", "target", "__pycache__", ".venv", "venv", ".tox", ".mypy_cache"}
)
LOCK_FILES = frozenset(
    {
        "package-lock.json",
        "npm-shrinkwrap.json",
        "yarn.lock",
        "pnpm-lock.yaml",
        "bun.lock",
        "bun.lockb",
        "cargo.lock",
        "poetry.lock",
        "pdm.lock",
        "uv.lock",
        "pipfile.lock",
        "gemfile.lock",
        "composer.lock",
        "go.sum",
        "flake.lock",
        "mix.lock",
        "pubspec.lock",
        "packages.lock.json",
        "gradle.lockfile",
    }
)


def _any_of(*patterns: str) -> re.Pattern[str]:
    """One expression for several file name patterns: a file is tested against it once."""
    return re.compile("|".join(translate(pattern) for pattern in patterns))


# Keys, certificates with keys, and files of environment variables. Examples of .env files hold no secrets and are kept.
_KEY_FILE = _any_of(
    *(
        f"*.{ending}"
        for ending in ["pem", "key", "p12", "pfx", "jks", "keystore", "kdbx", "ppk", "gpg", "asc"]
    ),
    *(f"id_{kind}*" for kind in ("rsa", "dsa", "ecdsa", "ed25519")),
    *(".pgpass", ".netrc", ".htpasswd"),
)
_ENV_FILE = _any_of(".env", ".env.*", "*.env", ".envrc")
_ENV_EXAMPLE = _any_of("*.example", "*.sample", "*.template", "*.dist")
IGNORE_FILE = ".trechoignore"
ATTRIBUTES_FILE = ".gitattributes"

# Reads a text file of the source by its relative path; None when it is not there.
ReadText = Callable[[str], str | None]
Spec = pathspec.GitIgnoreSpec


@dataclass
class Exclusions:
    """Rules of one source.

    Reason codes: folder, lock-file, key-file, env-file, ignored, generated, too-large, binary, not-utf-8.
    """

    read_text: ReadText
    max_document_bytes: int
    _rules: dict[str, tuple[Spec, Spec]] = field(default_factory=dict)
    _standing: dict[tuple[str, int], list[tuple[int, Spec]]] = field(default_factory=dict)
    _pruned: dict[str, bool] = field(default_factory=dict)  # folder -> whether it is ignored

    @classmethod
    def from_folder(cls, root: Path, *, max_document_bytes: int) -> Exclusions:
        """Rules of a folder, its own .trechoignore and .gitattributes included, wherever in it they stand."""

        def read(relative: str) -> str | None:
            path = root / relative
            try:
                return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else None
            except OSError:
                return None

        return cls(read, max_document_bytes)

    def folder_reason(self, folder: str) -> str | None:
        """Why nothing below this folder (relative, with forward slashes) can be wanted; None when something can."""
        if folder.rpartition("/")[2].lower() in FOLDERS:
            return "folder"
        return "ignored" if self._is_ignored(folder + "/") else None

    def path_reason(self, path: str) -> str | None:
        """Why a file is left out by its relative path; None when it is not."""
        *folders, name = path.lower().split("/")
        if any(folder in FOLDERS for folder in folders):
            return "folder"
        reason = _name_reason(name)
        if reason is not None:
            return reason
        if self._is_ignored(path):
            return "ignored"
        return "generated" if self._is_generated(path) else None

    def content_reason(self, data: bytes) -> str | None:
        """Why a file is left out by its bytes; None when it is a document."""
        if len(data) > self.max_document_bytes:
            return "too-large"
        if b"\0" in data:
            return "binary"
        try:
            data.decode()
        except UnicodeDecodeError:
            return "not-utf-8"
        return None

    def _is_ignored(self, path: str) -> bool:
        """What git makes of .trechoignore. path: a folder ends in a slash.

        Of the nearest file that has one, the last pattern that names the path itself decides; below a folder that is
        ignored nothing is taken up again.
        """
        folder = path.rstrip("/").rpartition("/")[0]
        if folder:
            pruned = self._pruned.get(folder)
            if pruned is None:
                pruned = self._pruned[folder] = self._is_ignored(folder + "/")
            if pruned:
                return True
        for start, spec in self._rules_above(folder, 0):
            for pattern in reversed(spec.patterns):
                if pattern.include is not None and _names(pattern, path[start:]):
                    return pattern.include
        return False

    def _is_generated(self, path: str) -> bool:
        """Whether the nearest .gitattributes that says anything of the path says that it is generated."""
        for start, spec in self._rules_above(path.rpartition("/")[0], 1):
            verdict = spec.check_file(path[start:]).include
            if verdict is not None:
                return verdict
        return False

    def _rules_above(self, folder: str, kind: int) -> list[tuple[int, Spec]]:
        standing = self._standing.get((folder, kind))
        if standing is None:
            standing = self._standing[folder, kind] = self._above(folder, kind)
        return standing

    def _above(self, folder: str, kind: int) -> list[tuple[int, Spec]]:
        """Rule files of the folder and above it that say something, each with where paths begin that it speaks of."""
        found = []
        while True:
            spec = self._rules_of(folder)[kind]
            if spec.patterns:
                found.append((len(folder) + 1 if folder else 0, spec))
            if not folder:
                return found
            folder = folder.rpartition("/")[0]

    def _rules_of(self, folder: str) -> tuple[Spec, Spec]:
        found = self._rules.get(folder)
        if found is None:
            prefix = folder + "/" if folder else ""
            ignore = (self.read_text(prefix + IGNORE_FILE) or "").splitlines()
            attributes = (self.read_text(prefix + ATTRIBUTES_FILE) or "").splitlines()
            found = (
                compile_patterns(prefix + IGNORE_FILE, ignore),
                # git takes no offence at a pattern there that is none: it matches nothing.
                Spec.from_lines(
                    [line for text in attributes for line in _generated(text) if _fault(line) is None]
                ),
            )
            self._rules[folder] = found
        return found


def _names(pattern: pathspec.Pattern, path: str) -> bool:
    """Whether a pattern matches the path itself and not a folder above it, which pathspec does not tell apart."""
    found = pattern.match_file(path)
    if found is None:
        return False
    match = found.match
    if "ps_d" in match.re.groupindex:  # what the library calls the slash after a folder
        return match["ps_d"] is None or match.end("ps_d") == len(path)
    # folder/** is of what is inside, not of the folder.
    return not (match.re.pattern.endswith("/") and match.end() == len(path))


def compile_patterns(name: str, lines: Sequence[str]) -> Spec:
    """Patterns of gitignore syntax. Raises: UsageError that begins with the name of where they stand."""
    for line in lines:
        error = _fault(line)
        if error is not None:
            raise UsageError(
                f"{name}: {line.strip()!r} is no pattern ({error})", hint="Write it in gitignore syntax."
            ) from error
    return Spec.from_lines(lines)


def _fault(line: str) -> Exception | None:
    """Why a line is no pattern."""
    try:
        Spec.from_lines([line])
    except (ValueError, re.error) as error:
        return error
    return None


def _name_reason(name: str) -> str | None:
    """Why a file is left out by its name in lower case."""
    if name in LOCK_FILES:
        return "lock-file"
    if _KEY_FILE.match(name) and not name.endswith(".pub"):
        return "key-file"
    if _ENV_FILE.match(name) and not _ENV_EXAMPLE.match(name):
        return "env-file"
    return None


def _generated(line: str) -> list[str]:
    """The pattern of a .gitattributes line that sets or unsets linguist-generated."""
    pattern, *attributes = line.split() or [""]
    if not pattern or pattern.startswith(("#", "[attr]")):
        return []
    for attribute in reversed(attributes):
        if attribute in ("linguist-generated", "linguist-generated=true"):
            return [pattern]
        if attribute in ("-linguist-generated", "linguist-generated=false", "!linguist-generated"):
            return ["!" + pattern]
    return []
