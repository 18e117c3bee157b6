#!/usr/bin/env bash
# Writes requirements/py311.txt and py312.txt anew from their .in files.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

tools=.cache/lock-tools
[[ -x $tools/bin/uv ]] || { python3 -m venv "$tools" && "$tools/bin/pip" -qq install uv; }
for minor in 11 12; do
    # Universal: one lock for every platform. No index in it: where packages come from is the machine's affair.
    "$tools/bin/uv" pip compile --quiet --universal --generate-hashes --no-annotate --no-emit-index-url --no-emit-find-links \
        --python-version "3.$minor" --custom-compile-command "make lock" --upgrade \
        --output-file "requirements/py3$minor.txt" "requirements/py3$minor.in"
done
