#!/bin/sh
# Run the test suite on another Python, in a root of the Debian that has it: trixie for 3.13, sid for 3.14.
#
#   sudo tests/another_python.sh VERSION ROOT [ARGUMENTS OF PYTEST …]
#
# ROOT is a new folder, or one that this script has made; about 3 GB. It needs debootstrap, which reads Debian's packages
# from DEBIAN_MIRROR, and pip's configuration of this machine. Without arguments it runs what `make test-all` runs.
# It ends as pytest does, and with 69 if there can be no root, or no packages for it, on this machine.
set -eu

unavailable() {
    echo "tests/another_python.sh: $1" >&2
    exit 69
}

usage="usage: tests/another_python.sh VERSION ROOT [ARGUMENTS OF PYTEST …]"
version=${1:?$usage}
root=${2:?$usage}
shift 2
case $version in
    3.13) suite=trixie ;;
    3.14) suite=sid ;;
    *) echo "tests/another_python.sh: expected the version 3.13 or 3.14, got $version" >&2; exit 1 ;;
esac
here=$(cd "$(dirname "$0")/.." && pwd)
made="$root/made-by-dsindex"

[ "$(id -u)" = 0 ] || unavailable "a root can be made and entered only as root"
# Mounts are made in a namespace of their own, so that none is left, however this ends.
unshare --mount true 2>/dev/null || unavailable "file systems cannot be mounted here (the container lacks CAP_SYS_ADMIN)"
if [ ! -e "$made" ]; then
    if [ -e "$root" ] && [ -n "$(ls -A "$root")" ]; then
        echo "$root: expected a new folder, got one with files" >&2
        exit 1
    fi
    command -v debootstrap >/dev/null || unavailable "there is no debootstrap; apt-get install debootstrap"
    timeout 300 debootstrap --variant=minbase --include="python$version,python$version-venv,ca-certificates,git,make,curl,procps" \
        "$suite" "$root" "${DEBIAN_MIRROR:-http://deb.debian.org/debian}" || unavailable "debootstrap made no root"
    touch "$made"
fi

cp /etc/resolv.conf "$root/etc/resolv.conf"
cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/ca-certificates.crt"
[ ! -f /etc/pip.conf ] || cp /etc/pip.conf "$root/etc/pip.conf"
rm -rf "$root/src"
mkdir "$root/src"
git -C "$here" ls-files -z | tar -C "$here" --null -T - -cf - | tar -C "$root/src" -xf -

[ $# -gt 0 ] || set -- --numprocesses "${WORKERS:-4}" --dist loadgroup --no-loadscope-reorder
# shellcheck disable=SC2016 # expanded by the shell that it starts
root=$root version=$version exec unshare --mount sh -euc '
    for folder in proc dev dev/pts dev/shm; do
        [ ! -d "/$folder" ] || mount --bind "/$folder" "$root/$folder"
    done
    exec chroot "$root" env HOME=/root PATH=/venv/bin:/usr/bin:/bin \
        PIP_CERT=/etc/ssl/certs/ca-certificates.crt SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt sh -euc "
            cd /src
            [ -x /venv/bin/python ] || python$version -m venv /venv
            timeout 300 pip install --quiet --disable-pip-version-check --config-settings editable_mode=compat \
                --editable \".[dev]\" || {
                echo \"tests/another_python.sh: pip could not install what dsindex needs\" >&2
                exit 69
            }
            python --version
            exec python -m pytest \"\$@\"
        " pytest "$@"
' namespace "$@"
