#!/usr/bin/env bash
# Make .venv from requirements.lock (every file's hash checked) and install this checkout into it, editable.
# Does nothing when it is already as the lock and pyproject.toml say.
set -Eeuo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

die() { printf 'error: %s\n' "$1" >&2; printf 'hint: %s\n' "$2" >&2; exit 1; }

python=${PYTHON:-python3}
usable() { command -v "$python" >/dev/null && "$python" -c 'import ensurepip, venv' 2>/dev/null; }

if ! usable; then
    [ "$(id -u)" = 0 ] || die "Python's venv module is missing" "apt-get install python3-venv"
    echo "venv: installing python3-venv" >&2
    install=(env DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends python3-venv ca-certificates)
    compgen -G '/var/lib/apt/lists/*Packages*' >/dev/null || apt-get update -qq >&2
    "${install[@]}" >/dev/null 2>&1 </dev/null || { apt-get update -qq >&2 && "${install[@]}" >&2 </dev/null; }
    python=/usr/bin/python3
fi
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || die "$("$python" --version) is too old" "Set PYTHON to a Python >= 3.11."

stamp=$({ "$python" -c 'import sys; print(sys.version, sys.prefix)'; pwd -P; cat requirements.lock pyproject.toml; } | sha256sum)
if [ -x .venv/bin/python ] && [ "$(cat .venv/.lock-sha256 2>/dev/null)" = "$stamp" ]; then exit 0; fi

# A virtual environment of another Python, or one copied from elsewhere, cannot be repaired in place.
if [ -e .venv ] && [ "$(.venv/bin/python -c 'import sys; print(sys.version, sys.prefix)' 2>/dev/null)" != \
    "$("$python" -c 'import sys; print(sys.version)') $PWD/.venv" ]; then rm -rf .venv; fi
[ -x .venv/bin/pip ] || "$python" -m venv .venv
# Errors only. Modules are compiled when first imported: compiling all of them took a quarter of the time.
pip() { .venv/bin/python -m pip --disable-pip-version-check -qq "$@" >&2; }
echo "venv: installing the locked packages in $PWD/.venv" >&2
pip install --no-compile --require-hashes --only-binary=:all: --requirement requirements.lock
pip install --no-deps --no-build-isolation --editable .
printf '%s\n' "$stamp" >.venv/.lock-sha256
