"""What is left out before chunking, by name, by rule files and by content."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from pathspec import GitIgnoreSpec

from trecho.config import Source
from trecho.exclusions import Exclusions


def rules(files: dict[str, str] | None = None) -> Exclusions:
    return Exclusions((files or {}).get, 1000)


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("docs/guia.md", None),
        (".git/config", "folder"),
        ("a/node_modules/x/README.md", "folder"),
        ("crate/target/doc.md", "folder"),
        ("targets/doc.md", None),
        ("Cargo.lock", "lock-file"),
        ("web/package-lock.json", "lock-file"),
        ("lock.md", None),
        ("keys/server.pem", "key-file"),
        ("id_ed25519", "key-file"),
        ("id_ed25519.pub", None),
        (".env", "env-file"),
        (".env.production", "env-file"),
        (".env.example", None),
        ("environment.md", None),
    ],
)
def test_names__are_left_out_with_their_reason(path: str, reason: str | None) -> None:
    assert rules().path_reason(path) == reason


def test_content__too_large_binary_or_not_utf8_is_left_out() -> None:
    assert rules().content_reason(b"x" * 1000) is None
    assert rules().content_reason(b"x" * 1001) == "too-large"
    assert rules().content_reason(b"a\0b") == "binary"
    assert rules().content_reason("ação".encode("latin-1")) == "not-utf-8"


def test_generated__is_read_from_gitattributes_and_can_be_unset() -> None:
    found = rules(
        {
            ".gitattributes": "*.gen.md linguist-generated\napi/*.md linguist-generated=true\napi/a.md -linguist-generated\n"
        }
    )
    assert [found.path_reason(p) for p in ("x.gen.md", "api/b.md", "api/a.md", "b.md")] == [
        "generated",
        "generated",
        None,
        None,
    ]


def test_the_nearest_rule_file__decides() -> None:
    found = rules({".trechoignore": "*.txt\n/rascunhos/\n", "a/.trechoignore": "!fica.txt\n"})
    assert found.path_reason("a/fica.txt") is None
    assert found.path_reason("a/some.txt") == "ignored"
    assert found.folder_reason("rascunhos") == "ignored" and found.folder_reason("a/rascunhos") is None
    assert found.folder_reason("a/Node_modules") == "folder"


FOLDERS = st.lists(st.sampled_from(["a", "b", "docs"]), max_size=2)
PATHS = st.tuples(FOLDERS, st.sampled_from(["x.md", "y.txt", "c"])).map(lambda p: "/".join([*p[0], p[1]]))
PATTERNS = st.lists(
    st.sampled_from(
        [
            "*.md",
            "!x.md",
            "/a",
            "a/",
            "docs/*.txt",
            "**/b",
            "!b",
            "x.*",
            "/docs/x.md",
            "#a",
            "",
            "docs/**",
            "!docs/x.md",
            "**/a/**",
            "*",
            "!*.md",
            "b/",
            "!a/",
            "a/b",
        ]
    ),
    max_size=5,
)


@settings(max_examples=50, deadline=None)
@example(top=["a/", "!b"], below=[], paths={"b/a/x.md"})
@example(top=["docs/**", "!docs/x.md"], below=[], paths={"docs/x.md", "docs/y.txt"})
@example(top=["a/", "!a"], below=[], paths={"a/x.md"})
@given(top=PATTERNS, below=PATTERNS, paths=st.sets(PATHS, min_size=1, max_size=8))
def test_trechoignore__means_what_git_makes_of_the_same_lines(
    tmp_path_factory: pytest.TempPathFactory, top: list[str], below: list[str], paths: set[str]
) -> None:
    """Git itself is the oracle; a folder that is pruned takes what is below it along, as in git."""
    root = tmp_path_factory.mktemp("repo")
    subprocess.run(["git", "init", "-q", str(root)], check=True)
    for path in {*paths, "a/c"}:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).touch()
    for folder, lines in ((root, top), (root / "a", below)):
        for name in (".gitignore", ".trechoignore"):
            (folder / name).write_text("".join(line + "\n" for line in lines))
    asked = sorted(paths)
    # --no-index: the rules alone decide; -z with -v tells for each path whether, and by which line, it is ignored
    told = subprocess.run(
        ["git", "-C", str(root), "check-ignore", "--no-index", "--stdin", "-z"],
        input="\0".join(asked).encode(),
        capture_output=True,
        check=False,
    ).stdout.decode()
    ignored = set(filter(None, told.split("\0")))
    found = Exclusions.from_folder(root, max_document_bytes=1000)

    def left_out(path: str) -> bool:
        parts = path.split("/")
        pruned = any(found.folder_reason("/".join(parts[:n])) is not None for n in range(1, len(parts)))
        return pruned or found.path_reason(path) == "ignored"

    assert {p for p in asked if left_out(p)} == ignored


def test_from_folder__reads_rule_files_where_they_stand(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / ".trechoignore").write_text("rascunho.md\n")
    found = Exclusions.from_folder(tmp_path, max_document_bytes=1000)
    assert found.path_reason("sub/rascunho.md") == "ignored"
    assert found.path_reason("rascunho.md") is None


@given(
    include=st.lists(
        st.sampled_from(["**/*.md", "**/*.txt", "*.md", "docs/**", "!**/*.md", "!a.md", "**/*"]), max_size=3
    ),
    exclude=st.lists(st.sampled_from(["**/*.md", "old/", "!b.md"]), max_size=2),
    path=st.lists(
        st.sampled_from(["a", "old", "docs", "x.md", "b.md", ".md", "md", "c.txt", "é.md\n"]), min_size=1
    ),
)
def test_patterns_of_a_source__want_what_gitignore_syntax_says(
    include: list[str], exclude: list[str], path: list[str]
) -> None:
    assume(not any("\n" in folder for folder in path[:-1]))  # where the library's own expressions end
    source = Source("s", Path(), "", "docs", tuple(include), tuple(exclude))
    named = "/".join(path)
    says = [GitIgnoreSpec.from_lines(patterns).match_file(named) for patterns in (include, exclude)]
    assert source.matcher()(named) is (says[0] and not says[1])
