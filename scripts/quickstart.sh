#!/usr/bin/env bash
# The whole road in four steps, on the server of this checkout (or on TRECHO_DSN): schema, index, three questions.
set -Eeuo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

run() { printf '\n$ %s\n' "$(printf '%q ' "$@" | sed 's#\.venv/bin/##; s/ $//')"; "$@"; }
ask() { printf '\n$ trecho search "%s"\n' "$1"; .venv/bin/trecho search "$1"; }

run .venv/bin/trecho migrate
run .venv/bin/trecho sync --config examples/trecho.toml
ask "como restaurar o banco depois de um desastre"
ask "quanta memória o índice de vetores precisa"
ask "quem pode publicar uma versão nova na sexta-feira"
