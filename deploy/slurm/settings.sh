# Where a node keeps its cache. The other scripts source this file; it is the only one you need to edit.
# shellcheck shell=bash disable=SC2034

PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin

cache=/srv/kcachefs/cache
store=/var/cache/kcachefs
size=200GiB
user_size=$size # even if nobody reaches it: then only users who hold more than an equal part lose entries
policy=publish # jobs of different users share the node
python= # the Python of the jobs: what every start of its torch needs is compiled before the first job
jobs=/run/kcachefs-jobs # one empty file per job on the node

say() { printf 'kcachefs: job %s: %s\n' "${SLURM_JOB_ID:-?}" "$*" >&2; }

# From here until the script ends, no other prolog or epilog runs on the node.
one_at_a_time() {
    if ! { mkdir -p "$jobs" && exec 9>"$jobs/.lock" && flock 9; }; then
        say "cannot write to $jobs"
        return 1
    fi
}
