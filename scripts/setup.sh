#!/usr/bin/env bash
# Makes a fresh clone ready to run: .venv with the pinned packages, and Java for Spark.
# With --dev also the packages that only tests and checks need.
# With --services also these, the PostgreSQL, MariaDB and RabbitMQ servers, installed but not started, and libfaketime.
# Run it as often as you like: it does only what is missing.
set -euo pipefail
cd "$(dirname "$0")/.."

services=false
extra=airflow,spark  # what the demo needs
case "${1:-}" in
    "") ;;
    --dev) extra=dev ;;
    --services) services=true extra=dev ;;
    *) echo "usage: scripts/setup.sh [--dev | --services]" >&2; exit 2 ;;
esac

# An activated .venv must not become the parent of its own successor.
PATH=${PATH//"$PWD/.venv/bin:"/}:/usr/sbin:/sbin

say() { echo "homing: $*"; }
fail() { echo "homing: $*" >&2; exit 1; }
has() { command -v "$1" >/dev/null 2>&1; }

python_version() {
    "$1" -c 'import sys; v = sys.version_info[:2]; print("%d.%d" % v); sys.exit(not (3, 10) <= v < (3, 14))' 2>/dev/null
}

find_python() {
    local candidate
    for candidate in ${PYTHON:-python3 python3.13 python3.12 python3.11 python3.10}; do
        # Asked, not just looked up: a version manager's shim exists even where its Python does not.
        if python_version "$candidate" >/dev/null; then
            echo "$candidate"
            return
        fi
    done
    return 1
}

has_java() {
    local java=java major
    [[ -z ${JAVA_HOME:-} ]] || java=$JAVA_HOME/bin/java  # Spark looks there first, and there only
    major=$("$java" -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1) || return 1
    [[ -n $major ]] && ((major >= 17))
}

java_package() {
    local version
    for version in 17 21; do
        if LC_ALL=C apt-cache policy "openjdk-$version-jre-headless" 2>/dev/null | grep -q 'Candidate: [0-9]'; then
            echo "openjdk-$version-jre-headless"
            return
        fi
    done
    echo default-jre-headless
}

apt_install() {
    say "installing $*"
    DEBIAN_FRONTEND=noninteractive apt-get install --yes --quiet=2 --no-install-recommends "$@" >/dev/null
}

# A package that brings a daemon asks policy-rc.d whether it may start it; 101 means no.
policy=/usr/sbin/policy-rc.d
kept_policy=$policy.before-homing

restore_policy() {
    rm -f "$policy"
    if [[ -e $kept_policy ]]; then mv "$kept_policy" "$policy"; fi
}

apt_install_stopped() {
    local unit
    if [[ -e $policy && ! -e $kept_policy ]]; then mv "$policy" "$kept_policy"; fi
    trap restore_policy EXIT
    trap 'exit 130' INT TERM
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod 755 "$policy"
    apt_install "$@"
    restore_policy
    trap - EXIT INT TERM
    # They are not to start with the machine either; epmd is what RabbitMQ brings along.
    for unit in ${*/rabbitmq-server/rabbitmq-server epmd.socket epmd}; do
        unit=${unit/mariadb-server/mariadb}
        if has systemctl; then systemctl disable "$unit"; else update-rc.d "$unit" disable; fi >/dev/null 2>&1 || true
    done
}

packages=()
servers=()

python=$(find_python) || python=
if [[ -z $python && -n ${PYTHON:-} ]]; then
    fail "PYTHON=$PYTHON is not a Python 3.10 to 3.13"
elif [[ -z $python ]]; then
    packages+=(python3 python3-venv)
elif ! "$python" -c 'import ensurepip' 2>/dev/null; then
    packages+=("python$(python_version "$python")-venv")
fi
if ! has_java; then
    [[ -z ${JAVA_HOME:-} ]] || fail "JAVA_HOME=$JAVA_HOME is not a Java 17 or newer: correct it, or unset it"
    packages+=(java)
fi

if $services; then
    compgen -G '/usr/lib/postgresql/*/bin/postgres' >/dev/null || has postgres || servers+=(postgresql)
    has mariadbd || has mysqld || servers+=(mariadb-server)
    has rabbitmq-server || servers+=(rabbitmq-server)
    compgen -G '/usr/lib/*/faketime/libfaketime.so.1' >/dev/null || packages+=(libfaketime)
fi

missing=("${packages[@]}" "${servers[@]}")
if ((${#missing[@]})); then
    if ! has apt-get; then
        fail "please install, and then run this again: ${missing[*]/#java/Java 17 or newer}"
    elif ((EUID)); then
        fail "missing: ${missing[*]}. Get it with:
    sudo apt-get update && sudo apt-get install --yes ${missing[*]/#java/$(java_package)}"
    fi
    say "updating the package lists"
    apt-get update --quiet=2
    if ((${#packages[@]})); then apt_install "${packages[@]/#java/$(java_package)}"; fi
    if ((${#servers[@]})); then apt_install_stopped "${servers[@]}"; fi
    python=$(find_python) || fail "needs Python 3.10 to 3.13; say which with PYTHON=/path/to/python"
    has_java || fail "needs Java 17 or newer, but 'java' is $(command -v java): set JAVA_HOME to the newer one"
fi

# Scripts in a virtual environment carry its path, and its packages their Python's version.
place="$PWD with Python $(python_version "$python")"
content=$(cat pyproject.toml constraints.txt scripts/setup.sh | sha256sum)
room=3000  # megabytes: the packages take 1.6 GB, what pip unpacks on the way and a run of the demo the rest
stamp=.venv/.stamp
{ read -r made_for && read -r made_from && read -r made_with; } 2>/dev/null <"$stamp" ||
    made_for='' made_from='' made_with=''
# What has the packages of the tests has those of the demo, too.
if [[ $made_with == dev ]]; then extra=dev; fi

if [[ $made_for != "$place" ]]; then
    say "making .venv with Python $(python_version "$python")"
    "$python" -m venv --clear .venv
fi
if [[ "$made_for $made_from $made_with" != "$place $content $extra" ]]; then
    free=$(df --output=avail --block-size=1M . 2>/dev/null | tail -n 1) || free=$room
    if [[ -z $made_with ]] && ((free < room)); then
        fail "there is no room: the packages need $room MB in $PWD, and $((free)) MB are free. Free some, and run this again"
    fi
    say "installing the Python packages of [$extra] (about 1 GB; some minutes the first time)"
    rm -f "$stamp"
    PYTHONUNBUFFERED=1 .venv/bin/python -m pip install --disable-pip-version-check --progress-bar off \
        --constraint constraints.txt --editable ".[$extra]" 2>.venv/pip-errors.txt |
        awk '/^Collecting/ && ++n % 20 == 0 { print "homing:   " n " packages found"; fflush() }
             /^Installing collected/ { print "homing:   unpacking"; fflush() }' ||
        fail "pip could not install the packages:
$(grep -v '^WARNING' .venv/pip-errors.txt)"
    printf '%s\n%s\n%s\n' "$place" "$content" "$extra" >"$stamp"
    say "ready"
fi
