#!/usr/bin/env bash
# The whole road in four steps, on the server of this checkout (or on TRECHO_DSN): schema, index, three questions.
set -Eeuo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

run() { printf '\n$ %s\n' "$(printf '%q ' "$@" | sed 's#\.venv/bin/##; s/ $//')"; "$@"; }
ask() { printf '\n$ trecho search -k 3 "%s"\n' "$1"; .venv/bin/trecho search -k 3 "$1"; }

run .venv/bin/trecho migrate
run .venv/bin/trecho sync --config examples/trecho.toml
# As people ask: with accents, without them, and in other words than the text.
ask "por que não usamos o pgBackRest?"
ask "como recuperar uma unica tabela a partir do pg_dump"
ask "alguem apagou uma tabela sem querer hoje a tarde, o que eu faco"
