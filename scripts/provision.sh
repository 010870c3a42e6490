#!/usr/bin/env bash
# Put what the server needs into the Debian system this runs in: PostgreSQL >= 17, PL/Python, pgvector, the grammars.
#
#   provision.sh GRAMMARS WHEELS LOCK
#
#   GRAMMARS  directory to create for the tree-sitter grammars; the server gets it as PYTHONPATH
#   WHEELS    directory with the wheels, as `server.sh wheels` downloads them
#   LOCK      requirements-server.lock; a wheel whose sha256 is not in it is refused
#
# The image (Dockerfile.postgres), the private root filesystem and Debian's own packages (server.sh) all go through
# this one script, so that they cannot differ. It makes no cluster, starts none, and lets no package make one.
# Run again it changes nothing and asks no network.
set -Eeuo pipefail
umask 022
export DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8

GRAMMARS=$1 WHEELS=$2 LOCK=$3
MIN_MAJOR=17

say() { printf '%s\n' "provision: $*" >&2; }
die() { printf 'error: %s\n' "$1" >&2; [ -z "${2:-}" ] || printf 'hint: %s\n' "$2" >&2; exit 1; }

# The newest PostgreSQL that has a pgvector package, among installed ones ("installed") or all ("available").
newest_major() {
    local names
    if [ "$1" = installed ]; then
        names=$(dpkg-query -W -f '${db:Status-Abbrev} ${Package}\n' 'postgresql-*-pgvector' 2>/dev/null | sed -n 's/^ii *//p' || true)
    else
        names=$(apt-cache pkgnames postgresql- | grep -E '^postgresql-[0-9]+-pgvector$' || true)
    fi
    sed -n 's/^postgresql-\([0-9]*\)-pgvector$/\1/p' <<<"$names" | awk -v min="$MIN_MAJOR" '$1 >= min' | sort -n | tail -1
}

# Hundreds of lines of apt interest nobody unless it fails.
quietly() {
    local log
    log=$(mktemp)
    if "$@" >"$log" 2>&1 </dev/null; then rm -f "$log"; else cat "$log" >&2; rm -f "$log"; return 1; fi
}

installed() {
    local package
    for package in "$@"; do
        case $(dpkg-query -W -f '${db:Status-Abbrev}' "$package" 2>/dev/null) in ii*) ;; *) return 1 ;; esac
    done
}

packages_of() { echo "postgresql-$1" "postgresql-plpython3-$1" "postgresql-$1-pgvector" python3 ca-certificates; }

install_packages() {
    local major drop_in
    major=$(newest_major installed)
    # shellcheck disable=SC2046  # one word per package is meant
    if [ -n "$major" ] && installed $(packages_of "$major"); then return; fi
    [ "$(id -u)" = 0 ] || die "PostgreSQL with PL/Python and pgvector is not installed, and user $(id -un) may not install it" \
        "Run this as root, or use SERVER=docker."
    compgen -G '/var/lib/apt/lists/*Packages*' >/dev/null || quietly apt-get update -q
    major=$(newest_major available)
    [ -n "$major" ] || die "no package postgresql-N-pgvector with N >= $MIN_MAJOR is offered here" \
        "Debian 13 has it; on Debian 12 use SERVER=root (the default there)."
    say "installing PostgreSQL $major with PL/Python and pgvector"
    # The server package makes and starts a cluster named main unless it is told not to; no cluster but ours is our business.
    drop_in=/etc/postgresql-common/createcluster.d/trecho-provision.conf
    mkdir -p "${drop_in%/*}"
    echo 'create_main_cluster = false' >"$drop_in"
    # shellcheck disable=SC2064  # expand now
    trap "rm -f '$drop_in'" EXIT
    # shellcheck disable=SC2046
    quietly apt-get install -q -y --no-install-recommends $(packages_of "$major") || {
        say "that failed; trying once more with fresh package lists" # old ones name files that are gone
        quietly apt-get update -q
        quietly apt-get install -q -y --no-install-recommends $(packages_of "$major")
    }
    rm -f "$drop_in"
    trap - EXIT
}

# Unpack the wheels beside their place and move them in at once: a run that was killed leaves no half a directory.
install_grammars() {
    local stamp
    stamp=$(sha256sum <"$LOCK")
    if [ "$(cat "$GRAMMARS/.lock-sha256" 2>/dev/null)" = "$stamp" ]; then return; fi
    say "installing the tree-sitter grammars in $GRAMMARS"
    mkdir -p "${GRAMMARS%/*}"
    local aside
    aside=$(mktemp -d "$GRAMMARS.XXXXXX")
    /usr/bin/python3 - "$WHEELS" "$LOCK" "$aside" <<'PYTHON'
import hashlib, pathlib, re, sys, zipfile

wheels, lock, target = map(pathlib.Path, sys.argv[1:])
known = set(re.findall(r"--hash=sha256:([0-9a-f]{64})", lock.read_text()))
wanted = {name.replace("-", "_") for name in re.findall(r"^([a-z0-9-]+)==", lock.read_text(), re.MULTILINE)}
for wheel in sorted(wheels.glob("*.whl")):
    if hashlib.sha256(wheel.read_bytes()).hexdigest() not in known:
        sys.exit(f"error: {wheel.name} has a sha256 that {lock.name} does not know")
    zipfile.ZipFile(wheel).extractall(target)
    wanted.discard(wheel.name.split("-")[0])
if wanted:
    sys.exit(f"error: no wheel for {', '.join(sorted(wanted))} in {wheels}")
PYTHON
    /usr/bin/python3 -m compileall -q "$aside"
    PYTHONPATH=$aside /usr/bin/python3 - "$LOCK" <<'PYTHON'
import importlib, re, sys
import tree_sitter

for name in re.findall(r"^(tree-sitter-[a-z0-9-]+)==", open(sys.argv[1]).read(), re.MULTILINE):
    module = importlib.import_module(name.replace("-", "_"))
    for grammar in [n for n in dir(module) if n == "language" or n.startswith("language_")]:
        parser = tree_sitter.Parser(tree_sitter.Language(getattr(module, grammar)()))
        assert parser.parse(b"a").root_node is not None, name
PYTHON
    printf '%s\n' "$stamp" >"$aside/.lock-sha256"
    chmod -R u+rwX,go+rX,go-w "$aside"
    rm -rf "$GRAMMARS"
    mv -T "$aside" "$GRAMMARS"
}

install_packages
install_grammars
