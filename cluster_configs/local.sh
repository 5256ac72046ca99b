#!/usr/bin/env bash
# A Ray cluster of several nodes on this machine: a head without tasks and N workers, each with its own raylet.
# It has its own folder, ports and token, so it does not disturb other Ray clusters and leaves nothing behind.
# Ray makes its temporary folder writable for everyone, so that is inside a folder that nobody else may enter.
set -euo pipefail

usage() {
    cat <<'USAGE'
usage: local.sh start [N]      start a head and N workers (default 3), and print the cluster's environment variables
       local.sh env            print the cluster's environment variables: eval "$(local.sh env)"
       local.sh status         list the nodes
       local.sh add [N]        start N more workers (default 1)
       local.sh remove [NAME]  kill a worker as if its machine were lost (default: the last one)
       local.sh stop           kill all nodes and delete the cluster's folder
       local.sh demo [FOLDER]  start a head and 3 workers, run workflows/pretraining.py on them, and stop them
                               (default: demo-output/cluster)

DSINDEX_CLUSTER_DIR   the cluster's folder, at most 40 characters because of sockets (default /tmp/dsindex-cluster-UID)
DSINDEX_CLUSTER_CPUS  CPUs of each worker (default: this machine's, divided among the first N)
USAGE
}

project="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
state="${DSINDEX_CLUSTER_DIR:-/tmp/dsindex-cluster-$(id -u)}"
if [[ -z "${VIRTUAL_ENV:-}" && -x "$project/.venv/bin/ray" ]]; then
    PATH="$project/.venv/bin:$PATH" # Jobs run `python`: it must be the one that has Ray and dsindex.
fi
unset RAY_ADDRESS RAY_API_SERVER_ADDRESS RAY_AUTH_TOKEN
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH="$state/token"
export RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER=1 RAY_USAGE_STATS_ENABLED=0
# Ten minutes: otherwise Ray ends idle workers beyond the CPUs at once, and new ones load everything again.
export RAY_idle_worker_killing_time_threshold_ms=600000

fail() {
    echo "local.sh: $*" >&2
    exit 1
}

free_ports() { # COUNT: print distinct free ports
    # Not ephemeral ports: one of Ray's own connections could take such a port before its daemon has bound it.
    python -c '
import pathlib, random, socket, sys
ephemeral = pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range")
first = int(ephemeral.read_text().split()[0]) if ephemeral.exists() else 32768
below = range(20000, first) if first > 21000 else range(first, 61000)  # workers of Ray use 10002 to 19999
sockets = []
for port in random.sample(below, len(below)):
    if len(sockets) == int(sys.argv[1]):
        break
    sockets.append(socket.socket())
    try:
        sockets[-1].bind(("", port))
    except OSError:
        sockets.pop().close()
print(*(each.getsockname()[1] for each in sockets))' "$1"
}

is_ours() { # PID: whether it is a node of this cluster, and not a later process with the same id
    ps -ww -o args= -p "$1" 2>/dev/null | grep -qF -- "--temp-dir=$state/"
}

launch() { # NAME ARGUMENTS...: start one node in the background, in its own process group
    local name="$1" ports folder
    shift
    read -ra ports <<<"$(free_ports 5)"
    folder="${name/worker-/w}" # short: sockets lie in it
    [[ "$name" == head ]] && folder=ray
    set -m
    # Every process of the cluster inherits DSINDEX_CLUSTER, by which `stop` finds those that are left.
    # Every node has its own folder: in a shared one it would unpack shipped code again while others run it.
    DSINDEX_CLUSTER="$state" ray start --temp-dir="$state/$folder" --block --disable-usage-stats --log-style=record \
        --object-store-memory=100000000 --dashboard-agent-listen-port="${ports[0]}" \
        --dashboard-agent-grpc-port="${ports[1]}" --runtime-env-agent-port="${ports[2]}" \
        --metrics-export-port="${ports[3]}" --ray-client-server-port="${ports[4]}" "$@" \
        </dev/null >"$state/$name.log" 2>&1 &
    echo $! >"$state/$name.pid"
    set +m
    disown
}

await() { # NAME: wait until the node runs
    local name="$1" pid
    pid="$(<"$state/$name.pid")"
    for _ in $(seq 240); do
        grep -q "Ray runtime started" "$state/$name.log" && return
        kill -0 "$pid" 2>/dev/null || break
        sleep 0.25
    done
    tail -n 15 "$state/$name.log" >&2
    fail "$name did not start within a minute (its log is above)"
}

add() { # COUNT: start workers one after the other, since raylets that start at once on one machine interfere
    local number=0
    for _ in $(seq "$1"); do
        while [[ -e "$state/worker-$number.log" ]]; do number=$((number + 1)); done
        launch "worker-$number" --address="$(<"$state/address")" --num-cpus="$(<"$state/cpus")"
        await "worker-$number"
    done
}

remove() { # NAME
    local pid workers
    [[ -e "$state/$1.pid" ]] || fail "no worker $1; see local.sh status"
    pid="$(<"$state/$1.pid")"
    if is_ours "$pid"; then
        # Ray's workers, children of the raylet, have their own process groups and would finish their tasks first.
        kill -STOP -- "-$pid"
        workers="$(pgrep -P "$(pgrep -d , -g "$pid")" || true)"
        # shellcheck disable=SC2086 # one argument for each process
        kill -KILL -- "-$pid" $workers 2>/dev/null || true
    fi
    rm "$state/$1.pid"
}

leftovers() { # print the processes that have this cluster's variable
    { grep -lszxF "DSINDEX_CLUSTER=$state" /proc/[0-9]*/environ || true; } | cut -d / -f 3
}

stop() {
    local file pid
    for file in "$state"/*.pid; do
        [[ -e "$file" ]] || continue
        pid="$(<"$file")"
        if is_ours "$pid"; then kill -KILL -- "-$pid" 2>/dev/null || true; fi
    done
    # Ray's workers follow their raylet, but the driver of a submitted job may outlive it.
    for _ in $(seq 20); do
        pid="$(leftovers)"
        [[ -z "$pid" ]] && break
        # shellcheck disable=SC2086 # one argument for each process
        kill -KILL $pid 2>/dev/null || true
        sleep 0.25
    done
    rm -rf "$state"
}

start() { # COUNT
    local ports cpus
    [[ ! -e "$state" ]] || fail "$state exists: the cluster runs already, or was not stopped; run local.sh stop"
    command -v ray >/dev/null || fail "there is no ray command; create the environment (make test), or activate it"
    mkdir -m 700 "$state"
    touch "$state/.dsindex-cluster"
    trap 'stop' ERR EXIT
    (umask 077 && python -c 'import secrets; print(secrets.token_hex(32))' >"$state/token")
    cpus=$(($(getconf _NPROCESSORS_ONLN) / $1))
    echo "${DSINDEX_CLUSTER_CPUS:-$((cpus > 0 ? cpus : 1))}" >"$state/cpus"
    read -ra ports <<<"$(free_ports 2)"
    launch head --head --port="${ports[0]}" --num-cpus=0 --dashboard-host=127.0.0.1 --dashboard-port="${ports[1]}"
    await head
    cp "$state/ray/ray_current_cluster" "$state/address"
    echo "http://127.0.0.1:${ports[1]}" >"$state/job-server"
    add "$1"
    trap - ERR EXIT
}

print_env() {
    echo "export RAY_ADDRESS=$(<"$state/address")"
    echo "export RAY_API_SERVER_ADDRESS=$(<"$state/job-server")"
    echo "export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH=$state/token"
}

status() {
    local file name pid
    for file in "$state"/*.log; do
        name="$(basename "$file" .log)"
        if [[ ! -e "$state/$name.pid" ]]; then
            echo "$name: removed"
        elif pid="$(<"$state/$name.pid")" && is_ours "$pid"; then
            echo "$name: running, process group $pid"
        else
            echo "$name: dead, see $file"
        fi
    done
    echo "resources by ray status, including a lost node until its health checks have failed:"
    ray status --address "$(<"$state/address")" | sed -n '/^Resources/,$p'
}

count() { # VALUE: a number of workers
    [[ "$1" =~ ^[1-9][0-9]?$ ]] || fail "$1 is not a number of workers from 1 to 99"
    echo "$1"
}

command="${1:-}"
case "$command" in
start | demo | -h | --help | help) ;;
env | status | add | remove | stop)
    # Only a folder that this script created may be changed or deleted.
    [[ -O "$state" && -e "$state/.dsindex-cluster" ]] || fail "no cluster in $state; local.sh start creates one"
    ;;
esac
case "$command" in
start)
    number="$(count "${2:-3}")"
    start "$number"
    print_env
    ;;
env) print_env ;;
status) status ;;
add)
    number="$(count "${2:-1}")"
    add "$number"
    ;;
remove)
    last="$(find "$state" -name 'worker-*.pid' | sort -V | tail -n 1)"
    [[ -n "$last" ]] || fail "no worker is left"
    remove "${2:-$(basename "$last" .pid)}"
    ;;
stop) stop ;;
demo)
    folder="${2:-$project/demo-output/cluster}"
    mkdir -p "$folder"
    start 3
    trap stop EXIT
    status
    eval "$(print_env)"
    python "$project/workflows/pretraining.py" "$folder"
    ;;
-h | --help | help) usage ;;
*)
    usage >&2
    exit 2
    ;;
esac
