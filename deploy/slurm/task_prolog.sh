#!/usr/bin/env bash
# TaskProlog= of slurm.conf, run by the job's user: lines `export NAME=value` that it prints set the task's environment.
set -u
# shellcheck source=settings.sh
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/settings.sh"

[ -r "$cache/.kcachefs/stats.json" ] || exit 0
# Not the format for shells: Slurm takes everything after the = literally, quotes included.
kcachefs env --mount "$cache" --format docker | sed -n '/^#/!s/^/export /p'
# Apptainer and Singularity pass these variables on, and show containers the host's /tmp, where torch finds a link into
# the cache: so they have to show the cache as well.
above=$(dirname "$cache")
for name in APPTAINER_BIND SINGULARITY_BIND; do
    case ",${!name:-}," in
    *",$above,"* | *",$above:"*) ;;
    *) printf 'export %s=%s\n' "$name" "${!name:+${!name},}$above" ;;
    esac
done
exit 0
