#!/usr/bin/env bash
# Makes .venv from the lock that fits the newest usable Python, and does nothing while that lock is unchanged.
# PYTHON=/path/to/python3 overrides the choice.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

venv=.venv
stamp=$venv/.lock

# A version manager leaves shims on PATH that exist and do not run, so each candidate has to answer for itself.
usable() {
    "$1" - "${2:-}" >/dev/null 2>&1 <<'PY'
import sys
assert (3, 11) <= sys.version_info[:2] <= (3, 14)
if sys.argv[1:] != ["any"]:
    import ensurepip, venv
PY
}

choose() {
    local python
    for python in ${PYTHON:-python3.14 python3.13 python3.12 python3 python3.11}; do
        if usable "$python" "${1:-}"; then
            echo "$python"
            return
        fi
    done
    return 1
}

if ! python=$(choose); then
    # Debian and Ubuntu ship venv apart from Python.
    if [[ -z ${PYTHON:-} ]] && choose any >/dev/null; then
        scripts/apt.sh venv
    fi
    python=$(choose) || {
        echo "venv: no Python 3.11 to 3.14 with the venv module (tried: ${PYTHON:-python3.14 python3.13 python3.12 python3 python3.11})." \
            "Install one (sudo apt-get install python3 python3-venv) or name it: make venv PYTHON=/path/to/python3" >&2
        exit 1
    }
fi

version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
lock=requirements/py312.txt
[[ $version == 3.11 ]] && lock=requirements/py311.txt
wanted="$version $(sha256sum "$lock")"

if [[ -x $venv/bin/python && -f $stamp && $(<"$stamp") == "$wanted" ]]; then
    exit 0
fi

echo "venv: Python $version ($(command -v "$python")), $lock"
# --clear: a package that left the lock must leave the environment too.
"$python" -m venv --clear "$venv"
"$venv/bin/python" -m pip install -qq --disable-pip-version-check --no-input --require-hashes --only-binary :all: -r "$lock"
echo "$wanted" >"$stamp"
"$venv/bin/python" -c 'import importlib.metadata as m; print("venv: ansible-core", m.version("ansible-core"))'
