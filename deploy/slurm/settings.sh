# Where a node keeps its cache. Sourced by the scripts beside it; the only one to edit.
# shellcheck shell=bash disable=SC2034

PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin

cache=/srv/kcachefs/cache
store=/var/cache/kcachefs
size=200GiB
jobs=/run/kcachefs-jobs # one empty file per job on the node

say() { printf 'kcachefs: job %s: %s\n' "${SLURM_JOB_ID:-?}" "$*" >&2; }

# Until the script ends no other one is past this point.
one_at_a_time() {
    if ! { mkdir -p "$jobs" && exec 9>"$jobs/.lock" && flock 9; }; then
        say "$jobs cannot be written to"
        return 1
    fi
}
