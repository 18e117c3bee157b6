#!/usr/bin/env bash
# apt.sh PURPOSE...: installs the packages that requirements/apt.txt lists for each purpose, where they are missing.
# Nothing missing: neither root nor the network is needed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

missing=()
for purpose in "$@"; do
    line=$(grep -E "^$purpose:" requirements/apt.txt) || {
        echo "apt: requirements/apt.txt has no purpose '$purpose'" >&2
        exit 2
    }
    for name in ${line#*:}; do
        status=$(dpkg-query -W -f '${db:Status-Status}' "$name" 2>/dev/null || true)
        [[ $status == installed ]] || missing+=("$name")
    done
done
[[ ${#missing[@]} -eq 0 ]] && exit 0

command -v apt-get >/dev/null || {
    echo "apt: this is not a Debian or Ubuntu system; install by its own means: ${missing[*]}" >&2
    exit 1
}
as_root=(env)
if [[ $EUID -ne 0 ]]; then
    if ! command -v sudo >/dev/null || ! { sudo -n true 2>/dev/null || [[ -t 0 ]]; }; then
        echo "apt: neither root nor sudo; as root: apt-get install ${missing[*]}" >&2
        exit 1
    fi
    as_root=(sudo env)
fi
apt_get=("${as_root[@]}" DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=120)

log=$(mktemp)
trap 'rm -f "$log"' EXIT
install() {
    "${apt_get[@]}" install --no-install-recommends "${missing[@]}" >"$log" 2>&1
}

echo "apt: installing ${missing[*]}"
# Absent package lists, or old ones that name files the mirror no longer has, are the usual reason of a failure.
if ! install && ! { "${apt_get[@]}" update >"$log" 2>&1 && install; }; then
    cat "$log" >&2
    exit 1
fi
