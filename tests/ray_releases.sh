#!/usr/bin/env bash
# Run Ray tests with other releases of Ray: a private instance, a running head, its token, drivers that are killed and
# terminated, and workers and nodes that are lost.
#
#   tests/ray_releases.sh FOLDER [RELEASE …]
#
# FOLDER is for the environment: a new one, or one that this script has made. Without releases it takes the newest patch
# of every minor release, from the lowest that pyproject.toml allows to the newest on the package index. It prints a line
# for each, and ends with 1 if a test of any failed.
set -euo pipefail
folder=$(realpath -m "${1:?usage: tests/ray_releases.sh FOLDER [RELEASE …]}")
shift
cd "$(dirname "$0")/.."

# Releases before 2.56 leave files of theirs open, which is not what is looked for here.
tests=(
    -W ignore::ResourceWarning -W ignore::pytest.PytestUnraisableExceptionWarning
    tests/faults/test_ray_kills.py
    tests/commands/test_ray.py
)

python=$folder/bin/python
pip=("$python" -m pip --disable-pip-version-check)
if [ ! -x "$python" ]; then
    "${PYTHON:-python3}" -m venv "$folder"
    "${pip[@]}" install --quiet --config-settings editable_mode=compat --editable '.[dev]'
fi
if [ $# = 0 ]; then
    lowest=$(sed -n 's/^ray==//p' tests/lowest.txt)
    # shellcheck disable=SC2046 # one word for each release
    set -- $("${pip[@]}" index versions ray 2>/dev/null | sed -n 's/^Available versions: //p' | tr -d ' ' | tr , '\n' |
        sort --version-sort | awk -v lowest="$lowest" '$0 == lowest { on = 1 } on' | awk -F. '{ last[$1 "." $2] = $0 } END { for (each in last) print last[each] }' | sort --version-sort)
fi

failed=0
for release; do
    "${pip[@]}" install --quiet "ray[default]==$release" 2>"$folder/pip.log" || { cat "$folder/pip.log"; exit 1; }
    log=$folder/ray-$release.log
    "$python" -m pytest -p no:cacheprovider "${tests[@]}" >"$log" 2>&1 && code=0 || code=$?
    [ "$code" = 0 ] || { failed=1; grep -E "^(FAILED|ERROR)" "$log" || tail -n 20 "$log"; }
    echo "Ray $release: $(tail -n 1 "$log" | tr -d =)"
done
exit "$failed"
