#!/usr/bin/env bash
# apt.sh PURPOSE...: installs the packages that requirements/apt.txt lists for each purpose, where they are missing.
# Nothing missing: neither root nor the network is needed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

installed() {
    [[ $(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null) == installed ]]
}

missing=()
for purpose in "$@"; do
    line=$(grep -E "^$purpose:" requirements/apt.txt) || {
        echo "apt: requirements/apt.txt has no purpose '$purpose'" >&2
        exit 2
    }
    for choice in ${line#*:}; do
        IFS='|' read -ra names <<<"$choice"
        for name in "${names[@]}"; do
            installed "$name" && continue 2
        done
        missing+=("$choice")
    done
done
[[ ${#missing[@]} -eq 0 ]] && exit 0

command -v apt-get >/dev/null || {
    echo "apt: not a Debian or Ubuntu system; needed here: ${missing[*]}" >&2
    exit 1
}
as_root=(env)
if [[ $EUID -ne 0 ]]; then
    if ! command -v sudo >/dev/null || ! { sudo -n true 2>/dev/null || [[ -t 0 ]]; }; then
        echo "apt: needs root for: ${missing[*]}. Run as root, or install them: sudo apt-get install ${missing[*]%%|*}" >&2
        exit 1
    fi
    as_root=(sudo env)
fi
apt_get=("${as_root[@]}" DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=120)

offered() {
    local candidate
    candidate=$(LC_ALL=C apt-cache policy "$1" | sed -n 's/^  Candidate: //p')
    [[ -n $candidate && $candidate != "(none)" ]]
}

choose() {
    local choice name
    packages=()
    for choice in "${missing[@]}"; do
        IFS='|' read -ra names <<<"$choice"
        for name in "${names[@]}"; do
            if offered "$name"; then
                packages+=("$name")
                continue 2
            fi
        done
        return 1
    done
}

install() {
    "${apt_get[@]}" install --no-install-recommends "${packages[@]}" >"$log" 2>&1
}

log=$(mktemp)
trap 'rm -f "$log"' EXIT
# The package lists of a machine that has been up for a while name files that the mirror no longer has: only then refresh them.
if ! choose || { echo "apt: installing ${packages[*]}" && ! install; }; then
    echo "apt: refreshing the package lists"
    "${apt_get[@]}" update >"$log" 2>&1 || { cat "$log" >&2; exit 1; }
    choose || {
        echo "apt: this system offers none of: ${missing[*]}" >&2
        exit 1
    }
    echo "apt: installing ${packages[*]}"
    install || { cat "$log" >&2; exit 1; }
fi
