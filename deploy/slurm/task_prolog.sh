#!/usr/bin/env bash
# TaskProlog= of slurm.conf, run by the job's user: lines `export NAME=value` that it prints set the task's environment.
set -u
# shellcheck source=settings.sh
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/settings.sh"

[ -r "$cache/.kcachefs/stats.json" ] || exit 0
# Not the format for shells: Slurm takes everything after the = literally, quotes included.
kcachefs env --mount "$cache" --format docker | sed -n '/^#/!s/^/export /p'
exit 0
