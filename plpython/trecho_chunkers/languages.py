"""The table of languages: which files are which, and how each grammar names its symbols.

To add a language: one `Grammar` entry with a query, one line in `pyproject.toml`, one in the server's image.
A query pattern captures, at the top level or among the members of a container:

- `@symbol` one declaration, or `@container` one that holds members, and its `@body`;
- `@name` its name, `@scope` what the name hangs on (a Go receiver), `@trait` what a Rust impl implements;
- `@lead` a comment, attribute or decorator that belongs to the declaration right after it.

Where most of those are comments of one line, `line_leads` says how to find them in the bytes, which is faster. Its
query is for texts with errors.

`#set! kind` names the kind of chunk, `#set! name` a fixed name. Where several patterns match one node, the
first one counts. docs/languages.md explains the rules that turn captures into chunks.
"""

from __future__ import annotations

import re
from typing import NamedTuple


class LineLeads(NamedTuple):
    """Comments to the end of the line, siblings of what they describe."""

    node: str  # the type of their nodes
    opening: bytes
    other: bytes  # how comments start that describe something else
    query: str  # captures them as @lead
    alone: re.Pattern[bytes]  # a line end, blank lines, such comments (group 1), the indentation below them


class Grammar(NamedTuple):
    """How one language is parsed and named."""

    package: str  # what to install, pinned nowhere but in pyproject.toml
    module: str  # what to import from it
    function: str  # the function of the module that returns the language
    separator: str  # between the parts of a qualified symbol
    query: str
    line_comment: bytes = b""  # where comments are no siblings of what they describe: how they start
    indented: bool = False  # nesting by indentation, which brackets do not show
    line_leads: LineLeads | None = None


def _any(kind: str, *patterns: str, capture: str = "symbol") -> str:
    """One pattern out of several alternatives."""
    return f'([{" ".join(patterns)}] @{capture} (#set! kind "{kind}"))\n'


# --- Rust --------------------------------------------------------------------------------------------------

_RUST_COMMENTS = LineLeads(
    "line_comment",
    b"//",
    b"//!",
    "(line_comment !inner) @lead",
    re.compile(rb"\n(?:[ \t]*+\n)*+[ \t]*+(//(?!!)[^\n]*+\n(?:[ \t]*+//(?!!)[^\n]*+\n)*+)[ \t]*+"),
)
_RUST = """
(block_comment !inner) @lead
(attribute_item) @lead
((function_item name: (_) @name) @symbol (#set! kind "function"))
((impl_item trait: (_) @trait type: (_) @name body: (_) @body) @container (#set! kind "impl"))
((impl_item type: (_) @name body: (_) @body) @container (#set! kind "impl"))
((struct_item name: (_) @name) @symbol (#set! kind "struct"))
((enum_item name: (_) @name) @symbol (#set! kind "enum"))
((union_item name: (_) @name) @symbol (#set! kind "union"))
((trait_item name: (_) @name body: (_) @body) @container (#set! kind "trait"))
((mod_item name: (_) @name body: (_) @body) @container (#set! kind "module"))
((foreign_mod_item (extern_modifier) @name body: (_) @body) @container (#set! kind "extern"))
((function_signature_item name: (_) @name) @symbol (#set! kind "function"))
((const_item name: (_) @name) @symbol (#set! kind "constant"))
((static_item name: (_) @name) @symbol (#set! kind "static"))
((type_item name: (_) @name) @symbol (#set! kind "type"))
((associated_type name: (_) @name) @symbol (#set! kind "type"))
((macro_definition name: (_) @name) @symbol (#set! kind "macro"))
"""

# --- TypeScript and JavaScript -----------------------------------------------------------------------------


def _ts(kind: str, *patterns: str, capture: str = "symbol") -> str:
    """Declarations as they are, exported, and ambient."""
    found: list[str] = []
    for pattern in patterns:
        ambient = f"(ambient_declaration {pattern})"
        found += [pattern, ambient]
        found += [f"(export_statement declaration: {inner})" for inner in (pattern, ambient)]
    return _any(kind, *found, capture=capture)


_TYPESCRIPT = "".join(
    [
        "(comment) @lead\n(decorator) @lead\n",
        _ts(
            "function",
            "(function_declaration name: (_) @name)",
            "(generator_function_declaration name: (_) @name)",
            "(function_signature name: (_) @name)",
        ),
        _ts(
            "class",
            "(class_declaration name: (_) @name body: (_) @body)",
            "(abstract_class_declaration name: (_) @name body: (_) @body)",
            capture="container",
        ),
        _ts("interface", "(interface_declaration name: (_) @name body: (_) @body)", capture="container"),
        _ts("enum", "(enum_declaration name: (_) @name)"),
        _ts("type", "(type_alias_declaration name: (_) @name)"),
        _ts(
            "variable",
            "(lexical_declaration . (variable_declarator name: (identifier) @name))",
            "(variable_declaration . (variable_declarator name: (identifier) @name))",
        ),
        _ts(
            "namespace",
            "(internal_module name: (_) @name body: (_) @body)",
            "(module name: (_) @name body: (_) @body)",
            capture="container",
        ),
        _any(
            "namespace",
            "(expression_statement (internal_module name: (_) @name body: (_) @body))",
            capture="container",
        ),
        '((ambient_declaration (statement_block) @body) @container (#set! kind "namespace")'
        ' (#set! name "global"))\n',
        '((export_statement value: (class body: (_) @body)) @container (#set! kind "class")'
        ' (#set! name "default"))\n',
        '((export_statement value: (_)) @symbol (#set! kind "export") (#set! name "default"))\n',
        _any(
            "method",
            "(method_definition name: (_) @name)",
            "(method_signature name: (_) @name)",
            "(abstract_method_signature name: (_) @name)",
        ),
        _any("property", "(public_field_definition name: (_) @name)", "(property_signature name: (_) @name)"),
    ]
)

# --- data ---------------------------------------------------------------------------------------------------

_TOML = """
((table . (_) @name) @symbol (#set! kind "table"))
((table_array_element . (_) @name) @symbol (#set! kind "table-array"))
"""

_YAML = """
((document (block_node (block_mapping) @body)) @container (#set! kind "document"))
((document) @container (#set! kind "document"))
((block_mapping_pair key: (_) @name value: (block_node (block_mapping) @body)) @container (#set! kind "key"))
((block_mapping_pair key: (_) @name) @symbol (#set! kind "key"))
"""

# --- shown to be one entry and one query each --------------------------------------------------------------

_PYTHON = """
((function_definition name: (_) @name) @symbol (#set! kind "function"))
((class_definition name: (_) @name body: (_) @body) @container (#set! kind "class"))
((decorated_definition definition: (function_definition name: (_) @name)) @symbol (#set! kind "function"))
((decorated_definition definition: (class_definition name: (_) @name body: (_) @body)) @container
  (#set! kind "class"))
"""

_GO = """
(comment) @lead
((function_declaration name: (_) @name) @symbol (#set! kind "function"))
((method_declaration receiver: (parameter_list (parameter_declaration type: (_) @scope)) name: (_) @name)
  @symbol (#set! kind "method"))
((type_declaration . [(type_spec name: (_) @name) (type_alias name: (_) @name)]) @symbol (#set! kind "type"))
((const_declaration . (const_spec . name: (_) @name)) @symbol (#set! kind "constant"))
((var_declaration . (var_spec . name: (_) @name)) @symbol (#set! kind "variable"))
((var_declaration . (var_spec_list . (var_spec . name: (_) @name))) @symbol (#set! kind "variable"))
"""

_SQL = "".join(
    f'((statement ({node} {name} @name)) @symbol (#set! kind "{kind}"))\n'
    for kind, node, name in [
        ("table", "create_table", "(object_reference)"),
        ("table", "alter_table", "(object_reference)"),
        ("view", "create_view", "(object_reference)"),
        ("view", "create_materialized_view", "(object_reference)"),
        ("function", "create_function", "(object_reference)"),
        ("trigger", "create_trigger", "(object_reference)"),
        ("type", "create_type", "(object_reference)"),
        ("sequence", "create_sequence", "(object_reference)"),
        ("index", "create_index", "column: (identifier)"),
        ("schema", "create_schema", "(identifier)"),
        ("role", "create_role", "(identifier)"),
        ("extension", "create_extension", "(identifier)"),
    ]
)

GRAMMARS: dict[str, Grammar] = {
    "rust": Grammar(
        "tree-sitter-rust", "tree_sitter_rust", "language", "::", _RUST, line_leads=_RUST_COMMENTS
    ),
    "typescript": Grammar(
        "tree-sitter-typescript", "tree_sitter_typescript", "language_typescript", ".", _TYPESCRIPT
    ),
    "tsx": Grammar("tree-sitter-typescript", "tree_sitter_typescript", "language_tsx", ".", _TYPESCRIPT),
    # The TSX grammar is a superset of JavaScript with JSX.
    "javascript": Grammar(
        "tree-sitter-typescript", "tree_sitter_typescript", "language_tsx", ".", _TYPESCRIPT
    ),
    "toml": Grammar("tree-sitter-toml", "tree_sitter_toml", "language", ".", _TOML, b"#"),
    "yaml": Grammar("tree-sitter-yaml", "tree_sitter_yaml", "language", ".", _YAML, b"#", True),
    "python": Grammar("tree-sitter-python", "tree_sitter_python", "language", ".", _PYTHON, b"#", True),
    "go": Grammar("tree-sitter-go", "tree_sitter_go", "language", ".", _GO),
    "sql": Grammar("tree-sitter-sql", "tree_sitter_sql", "language", ".", _SQL, b"--"),
}

# Languages of GRAMMARS are cut by symbol; the others are known by name only and fall to windows.
_EXTENSIONS: dict[str, str] = {
    extension: language
    for language, extensions in {
        "rust": "rs",
        "typescript": "ts mts cts",
        "tsx": "tsx",
        "javascript": "js mjs cjs jsx",
        "toml": "toml",
        "yaml": "yaml yml",
        "python": "py pyi pyw",
        "go": "go",
        "sql": "sql",
        "markdown": "md markdown mdown mkd mdx",
        "c": "c h",
        "cpp": "cc cpp cxx hh hpp hxx",
        "csharp": "cs",
        "css": "css scss sass less",
        "dart": "dart",
        "elixir": "ex exs",
        "erlang": "erl hrl",
        "graphql": "graphql gql",
        "haskell": "hs",
        "html": "html htm",
        "java": "java",
        "json": "json jsonc json5",
        "julia": "jl",
        "kotlin": "kt kts",
        "lua": "lua",
        "nix": "nix",
        "ocaml": "ml mli",
        "perl": "pl pm",
        "php": "php",
        "protobuf": "proto",
        "r": "r",
        "ruby": "rb",
        "scala": "scala sc",
        "shell": "sh bash zsh",
        "svelte": "svelte",
        "swift": "swift",
        "terraform": "tf hcl tfvars",
        "vue": "vue",
        "xml": "xml xsd xsl",
        "zig": "zig",
    }.items()
    for extension in extensions.split()
}

_NAMES: dict[str, str] = {
    "dockerfile": "dockerfile",
    "containerfile": "dockerfile",
    "makefile": "makefile",
    "gnumakefile": "makefile",
    "justfile": "just",
    ".clang-format": "yaml",
    ".clang-tidy": "yaml",
}


def language_of(path: str) -> str | None:
    """The language of a file, by its name alone; None when it is not known."""
    name = path.replace("\\", "/").rsplit("/", 1)[-1].lower()
    named = _NAMES.get(name)
    if named is not None:
        return named
    stem, dot, extension = name.rpartition(".")
    if not dot or not stem:
        return None
    return _EXTENSIONS.get(extension)


def grammar_of(path: str) -> Grammar | None:
    """How to cut a file by symbol; None when its language is not known or has no grammar here."""
    language = language_of(path)
    return None if language is None else GRAMMARS.get(language)
