#!/usr/bin/env bash
# Epilog= of slurm.conf, run by root after a job: the last job on the node unmounts. The store keeps what was cached.
# Always exits with 0, because anything else would drain the node.
set -u
# shellcheck source=settings.sh
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/settings.sh"

if [ -z "${SLURM_JOB_ID:-}" ]; then
    say "SLURM_JOB_ID is not set"
    exit 0
fi
one_at_a_time || exit 0
rm -f "$jobs/$SLURM_JOB_ID"
if [ -z "$(ls "$jobs")" ] && [ -r "$cache/.kcachefs/stats.json" ]; then
    kcachefs umount "$cache" 9>&- || say "the cache stays mounted"
fi
exit 0
