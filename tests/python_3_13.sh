#!/bin/sh
# Run the test suite on Debian trixie's Python 3.13, in a root made for it.
#
#   sudo tests/python_3_13.sh ROOT [ARGUMENTS OF PYTEST …]
#
# ROOT is a new folder, or one that this script has made; about 3 GB. It needs debootstrap, which reads Debian's packages
# from DEBIAN_MIRROR, and pip's configuration of this machine. Without arguments it runs what `make test-fast` runs.
set -eu

root=${1:?usage: tests/python_3_13.sh ROOT [ARGUMENTS OF PYTEST …]}
shift
here=$(cd "$(dirname "$0")/.." && pwd)
made="$root/made-by-dsindex"

if [ ! -e "$made" ]; then
    if [ -e "$root" ] && [ -n "$(ls -A "$root")" ]; then
        echo "$root: expected a new folder, got one with files" >&2
        exit 1
    fi
    debootstrap --variant=minbase --include=python3,python3-venv,ca-certificates,git,make,curl,procps \
        trixie "$root" "${DEBIAN_MIRROR:-http://deb.debian.org/debian}"
    touch "$made"
fi

cp /etc/resolv.conf "$root/etc/resolv.conf"
cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/ca-certificates.crt"
for folder in proc dev dev/pts; do
    mountpoint -q "$root/$folder" || mount --bind "/$folder" "$root/$folder"
done
trap 'umount "$root/dev/pts" "$root/dev" "$root/proc"' EXIT

rm -rf "$root/src"
mkdir "$root/src"
git -C "$here" ls-files -z | tar -C "$here" --null -T - -cf - | tar -C "$root/src" -xf -

if [ $# -eq 0 ]; then
    set -- -m "not ray and not fault and not slow"
fi
chroot "$root" env HOME=/root PATH=/venv/bin:/usr/bin:/bin PIP_CERT=/etc/ssl/certs/ca-certificates.crt sh -euc '
    cd /src
    [ -x /venv/bin/python ] || python3 -m venv /venv
    pip install --quiet --disable-pip-version-check -e ".[dev]"
    python --version
    exec python -m pytest "$@"
' pytest "$@"
