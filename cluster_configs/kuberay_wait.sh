#!/usr/bin/env bash
# Wait for a RayJob, and exit with 0 if it succeeded and 1 if it failed: kubectl wait alone never ends on a failure.
# kuberay_wait.sh [NAME] [ARGUMENTS OF KUBECTL...], for example: kuberay_wait.sh dsindex-build --namespace data
set -euo pipefail

name="${1:-dsindex-build}"
shift || true
shown=""
failures=0
while true; do
    # Deployment status first: a job that failed is tried again until the operator says that it is Failed.
    if state="$(kubectl get rayjob "$name" "$@" -o jsonpath='{.status.jobDeploymentStatus} {.status.jobStatus}')"; then
        failures=0
    elif ((++failures == 5)); then # in a row: the job was deleted, or there is no access
        exit 1
    fi
    if [[ "$state" != "$shown" ]]; then
        echo "$(date +%T) $name: ${state:-waiting}"
        shown="$state"
    fi
    case "$state" in
    "Complete SUCCEEDED") exit 0 ;;
    Complete* | Failed* | ValidationFailed*)
        kubectl get rayjob "$name" "$@" -o jsonpath='{.status.reason} {.status.message}{"\n"}' >&2
        exit 1
        ;;
    esac
    sleep "${DSINDEX_WAIT_SECONDS:-10}"
done
