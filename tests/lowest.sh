#!/bin/sh
# Run tests with the lowest version of every package, on the lowest Python that is here.
#
#   tests/lowest.sh FOLDER [ARGUMENTS OF PYTEST …]
#
# FOLDER is for the environment: a new one, or one that this script has made. Without arguments it runs what `make test`
# runs. PYTHON names the Python, 3.11 to 3.13: older releases of packages have no wheels for 3.14.
set -eu
folder=$(realpath -m "${1:?usage: tests/lowest.sh FOLDER [ARGUMENTS OF PYTEST …]}")
shift
cd "$(dirname "$0")/.."
[ -x "$folder/bin/python" ] || "${PYTHON:-python3}" -m venv "$folder"
"$folder/bin/python" -m pip install --quiet --disable-pip-version-check --constraint tests/lowest.txt \
    --config-settings editable_mode=compat --editable '.[dev]'
[ $# -gt 0 ] || set -- --numprocesses "${WORKERS:-4}" --dist loadgroup --no-loadscope-reorder -m "not exhaustive"
exec "$folder/bin/python" -m pytest -p no:cacheprovider "$@"
