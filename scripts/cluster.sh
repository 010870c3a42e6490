#!/usr/bin/env bash
# One PostgreSQL cluster: made the same way by server.sh and in the image, whose entrypoint this is.
#
#   cluster.sh bin               print the directory of the newest server programs that pgvector is installed for
#   cluster.sh init DATA         make the cluster if DATA has none; never touches one that is there
#   cluster.sh [postgres] [ARG]  init $PGDATA, then become `postgres ARG…` (what the image does)
#
# Environment of init: POSTGRES_PASSWORD or POSTGRES_PASSWORD_FILE (no default), POSTGRES_USER (postgres),
# POSTGRES_DB (trecho), TRECHO_LISTEN (* in the image, 127.0.0.1 otherwise), TRECHO_SOCKET_DIR (empty: no socket),
# TRECHO_BIN (the server programs, where they are not Debian's).
# They are read once, when the cluster is made. Runs as the user that owns the cluster, not as root.
set -Eeuo pipefail

die() { printf 'error: %s\n' "$1" >&2; printf 'hint: %s\n' "$2" >&2; exit 1; }

newest_bin() {
    local major
    for major in $(find /usr/lib/postgresql -mindepth 1 -maxdepth 1 -printf '%f\n' 2>/dev/null | sort -rn); do
        if [ -e "/usr/share/postgresql/$major/extension/vector.control" ] && [ -x "/usr/lib/postgresql/$major/bin/postgres" ]; then
            echo "/usr/lib/postgresql/$major/bin"
            return
        fi
    done
    die "no PostgreSQL with pgvector under /usr/lib/postgresql" "Run scripts/provision.sh first."
}

# A parallel index build shares maintenance_work_mem through /dev/shm, which a container keeps at 64 MB unless told.
maintenance_work_mem_mb() {
    local free_mb
    free_mb=$(df --output=avail --block-size=1M /dev/shm 2>/dev/null | tail -1 || echo 0)
    awk -v free="$free_mb" 'BEGIN { m = int(free * 3 / 4); if (m > 512) m = 512; if (m < 32) m = 32; print m }'
}

init() {
    local data=$1 bin user db password
    if [ -s "$data/PG_VERSION" ]; then return; fi
    bin=${TRECHO_BIN:-$(newest_bin)}
    user=${POSTGRES_USER:-postgres}
    db=${POSTGRES_DB:-trecho}
    password=${POSTGRES_PASSWORD:-}
    if [ -n "${POSTGRES_PASSWORD_FILE:-}" ]; then password=$(cat "$POSTGRES_PASSWORD_FILE"); fi
    [ -n "$password" ] || die "no password for the superuser $user" "Set POSTGRES_PASSWORD or POSTGRES_PASSWORD_FILE."

    # Made aside and renamed, so that a run killed half-way is simply done again. The locale is PostgreSQL's own C.UTF-8:
    # it folds accents (lower('AÇÃO') = 'ação') and sorts alike on every system, so no index depends on the C library.
    rm -rf "$data.new"
    # A file and not <(…): /dev/fd may be missing here.
    (umask 077 && printf '%s\n' "$password" >"$data.password")
    "$bin/initdb" --pgdata="$data.new" --username="$user" --pwfile="$data.password" \
        --auth-local=peer --auth-host=scram-sha-256 --data-checksums \
        --encoding=UTF8 --locale-provider=builtin --builtin-locale=C.UTF-8 --locale=C.UTF-8 \
        --set listen_addresses="${TRECHO_LISTEN:-127.0.0.1}" \
        --set unix_socket_directories="${TRECHO_SOCKET_DIR:-}" \
        --set max_connections=200 \
        --set shared_buffers=256MB \
        --set effective_cache_size=1GB \
        --set work_mem=16MB \
        --set maintenance_work_mem="$(maintenance_work_mem_mb)MB" \
        --set max_wal_size=2GB \
        --set max_locks_per_transaction=128 \
        --set random_page_cost=1.1 \
        --set jit=off \
        --set timezone=UTC \
        --set log_timezone=UTC >/dev/null
    rm -f "$data.password"
    if [ "${TRECHO_LISTEN:-}" = '*' ]; then
        printf 'host %s all all scram-sha-256\n' all replication >>"$data.new/pg_hba.conf"
    fi
    if [ "$db" != postgres ]; then
        # Without a running server nobody can meet a cluster that lacks its database.
        printf 'CREATE DATABASE "%s";\n' "${db//\"/\"\"}" | "$bin/postgres" --single -c log_checkpoints=off -D "$data.new" postgres >/dev/null
    fi
    mv -T "$data.new" "$data"
}

case ${1:-postgres} in
    bin) newest_bin ;;
    init) init "$2" ;;
    postgres | -*)
        if [ "${1:-}" = postgres ]; then shift; fi
        export TRECHO_LISTEN=${TRECHO_LISTEN-*} TRECHO_SOCKET_DIR=${TRECHO_SOCKET_DIR-/var/run/postgresql}
        init "$PGDATA"
        unset POSTGRES_PASSWORD # not for every backend's environment
        exec "$(newest_bin)/postgres" -D "$PGDATA" "$@"
        ;;
    *) exec "$@" ;;
esac
