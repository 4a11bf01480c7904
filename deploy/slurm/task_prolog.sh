#!/usr/bin/env bash
# TaskProlog= of slurm.conf, run by the job's user: lines `export NAME=value` that it prints set the task's environment.
set -u
# shellcheck source=settings.sh
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/settings.sh"

[ -r "$cache/.kcachefs/stats.json" ] || exit 0
# Slurm takes everything after the = literally, quotes included: so this shell reads the lines, and prints what they mean.
# Without bytecode: the Python that is judged here need not be the job's.
variables=$(kcachefs env --mount "$cache" --bytecode off)
(
    # shellcheck disable=SC2317 # called by what is evaluated
    export() { case $1 in *$'\n'*) ;; *) printf 'export %s\n' "$1" ;; esac }
    eval "$variables"
)
# Apptainer and Singularity pass these variables on, and show containers the host's /tmp, where torch finds a link into
# the cache: so they have to show the cache as well. The folder above it, which shows the next daemon's mount too, only if
# it was made for that: any other is not for containers.
shown=$cache
above=$(dirname "$cache")
if [ "${above##*/}" = kcachefs ] && [ "$(ls -A "$above")" = "${cache##*/}" ]; then
    shown=$above
fi
for name in APPTAINER_BIND SINGULARITY_BIND; do
    case ",${!name:-}," in
    *",$shown,"* | *",$shown:"*) ;;
    *) printf 'export %s=%s\n' "$name" "${!name:+${!name},}$shown" ;;
    esac
done
exit 0
