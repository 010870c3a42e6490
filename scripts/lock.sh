#!/usr/bin/env bash
# Write requirements.lock (client and development, Python 3.11 to 3.13) and requirements-server.lock (grammars inside the
# server) from pyproject.toml. Both hold versions and hashes only, no address: where packages come from is pip's setting.
# `scripts/lock.sh --upgrade` moves to the newest versions; without it, what is locked stays unless pyproject.toml forbids it.
set -Eeuo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

tools=$(mktemp -d)
trap 'rm -rf "$tools"' EXIT
python3 -m venv "$tools"
"$tools/bin/pip" install --quiet --disable-pip-version-check uv

compile() {
    "$tools/bin/uv" pip compile --quiet --generate-hashes --no-emit-index-url --no-emit-find-links --no-header --no-annotate "$@" >/dev/null
}
# The build backend is in the lock too: an editable install needs no second, unchecked download.
printf 'hatchling>=1.25\neditables\n' |
    compile --universal --python-version 3.11 --extra dev pyproject.toml - --output-file requirements.lock "$@"
# The same grammars inside the server as in the client: chunks must not depend on where they are cut.
grep -oE '^tree-sitter[a-z-]*==[^ ;]+' requirements.lock |
    compile --universal --python-version 3.13 --no-deps - --output-file requirements-server.lock
