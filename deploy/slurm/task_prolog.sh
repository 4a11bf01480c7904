#!/usr/bin/env bash
# TaskProlog= of slurm.conf, run by the job's user: what it prints as `export NAME=value` is in the task's environment.
set -u
# shellcheck source=settings.sh
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/settings.sh"

[ -r "$cache/.kcachefs/stats.json" ] || exit 0
# Not the form for shells: Slurm takes what stands behind the = as it is, quotes and all.
kcachefs env --mount "$cache" --format docker | sed 's/^/export /'
exit 0
