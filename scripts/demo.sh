#!/usr/bin/env bash
# demo.sh serve|fabric|down: the project shown on virtual Sparks, from nothing to a result.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

export PATH="$PWD/.venv/bin:$PATH" ANSIBLE_CONFIG="$PWD/ansible.cfg" LC_ALL=C.UTF-8
# Ansible colours what a person watches, also through make.
[[ -t 1 ]] && export ANSIBLE_FORCE_COLOR=1

say() {
    printf '[%4d s] %s\n' "$SECONDS" "$*"
}

step() {
    say "\$ $*"
    "$@" || {
        local rc=$?
        say "stopped: the command above exited with $rc"
        exit "$rc"
    }
}

need_root() {
    [[ $EUID -eq 0 ]] && return
    command -v sudo >/dev/null || stop "a virtual pair needs root, and there is no sudo here: run make as root"
    sudo -n true 2>/dev/null && return
    # Asked once, here: what follows takes minutes and cannot ask.
    [[ -t 0 ]] && sudo -v && return
    stop "a virtual pair needs root, and sudo wants a password that nobody can type here: run \`sudo -v\` first, or make as root"
}

stop() {
    echo "demo: $*" >&2
    exit 1
}

prepare() {
    need_root
    step scripts/venv.sh
    step scripts/apt.sh controller
}

newest_results() {
    local cluster=$1 play
    shift
    for play in "$@"; do
        say "result of $play: $(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["result"])' "results/latest/$cluster/$play.json")"
    done
}

case ${1:-} in
serve)
    prepare
    step python -m lab --machines lab up
    step ansible-playbook -i inventory/lab site.yml
    step ansible-playbook -i inventory/lab cluster-up.yml -e model=lab-tiny
    step python scripts/ask.py http://127.0.0.1:18000 "Which of you answers?"
    newest_results lab site cluster-up
    say "the pair goes on serving; make demo-down removes it"
    ;;
fabric)
    prepare
    step python -m lab --machines lab-fabric up
    step ansible-playbook -i inventory/lab-fabric site.yml
    newest_results lab-fabric site
    say "the machines go on running; make demo-down removes them"
    ;;
down)
    if [[ ! -d .lab ]]; then
        say "no pair was ever made from this clone"
        exit
    fi
    need_root
    step scripts/venv.sh
    failed=0
    for folder in .lab/*/; do
        machines=$(basename "$folder")
        [[ -f lab/machines/$machines.yml ]] || continue
        say "\$ python -m lab --machines $machines down"
        python -m lab --machines "$machines" down || failed=1
    done
    exit "$failed"
    ;;
*)
    echo "usage: demo.sh serve|fabric|down" >&2
    exit 2
    ;;
esac
