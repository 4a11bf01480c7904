#!/usr/bin/env bash
# Prolog= of slurm.conf, run by root before a job: mounts the node's cache.
# Always exits with 0: anything else would drain the node, and a job can run without its cache.
set -u
# shellcheck source=settings.sh
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/settings.sh"

if [ -z "${SLURM_JOB_ID:-}" ]; then
    say "SLURM_JOB_ID is not set"
    exit 0
fi
one_at_a_time || exit 0
touch "$jobs/$SLURM_JOB_ID"
if ! [ -r "$cache/.kcachefs/stats.json" ]; then
    kcachefs mount "$cache" --store "$store" --policy "$policy" --max-size "$size" --max-size-per-uid "$user_size" 9>&- ||
        say "runs without a cache"
fi
if [ -n "${python:-}" ] && [ -r "$cache/.kcachefs/stats.json" ]; then
    gpu=()
    [ -e /dev/nvidiactl ] && gpu=(--gpu)
    kcachefs warm -q --mount "$cache" --python "$python" "${gpu[@]}" 9>&- || say "was not warmed"
fi
exit 0
