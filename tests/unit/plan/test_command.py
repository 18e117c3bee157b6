"""Commands in remedies work as printed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.spark.codes import REGISTRY
from ansible.module_utils.spark_command import PLAYBOOKS, options_of, with_options

HERE = Path("/srv/project")
CONFIGURED = {"inventory": ["/srv/project/inventory/cluster"], "remote_user": None}
OPTIONS = ["-i", "inventory/lab", "-l", "pair a:pair_b", "-K"]


@pytest.mark.parametrize(
    ("cli", "expected"),
    [
        ({"inventory": ["/srv/project/inventory/cluster"]}, []),
        ({"inventory": ["/srv/project/inventory/lab"], "subset": "pair_a"}, ["-i", "inventory/lab", "-l", "pair_a"]),
        ({"inventory": ["/elsewhere/hosts.yml"]}, ["-i", "/elsewhere/hosts.yml"]),
        ({"inventory": ("a,b",), "become_ask_pass": True, "tags": ["x"]}, ["-i", "a,b", "-K"]),
        ({"inventory": CONFIGURED["inventory"], "remote_user": "nvidia"}, ["-u", "nvidia"]),
        ({"inventory": CONFIGURED["inventory"], "become_password_file": "/k"}, ["--become-password-file", "/k"]),
    ],
)
def test_options_that_another_play_needs_too(cli: dict[str, Any], expected: list[str]) -> None:
    assert options_of(cli, CONFIGURED, HERE) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Run site.yml again.", "Run ansible-playbook {}site.yml again."),
        (
            "Stop: ansible-playbook cluster-down.yml, then site.yml.",
            "Stop: ansible-playbook {}cluster-down.yml, then ansible-playbook {}site.yml.",
        ),
        ("ansible-playbook reset.yml -e reset_stop=true", "ansible-playbook {}reset.yml -e reset_stop=true"),
        (
            "Edit inventory/cluster/hosts.yml or playbooks/site.yml",
            "Edit inventory/cluster/hosts.yml or playbooks/site.yml",
        ),
        ("Edit models/my-site.yml", "Edit models/my-site.yml"),
    ],
)
@pytest.mark.parametrize("options", [[], OPTIONS])
def test_playbooks_become_commands_of_this_run(text: str, expected: str, options: list[str]) -> None:
    shown = with_options(text, options)
    given = "-i inventory/lab -l 'pair a:pair_b' -K " if options else ""
    assert shown == expected.replace("{}", given)
    assert with_options(shown, options) == shown


def test_every_playbook_that_a_remedy_names_is_one_of_ours() -> None:
    known = PLAYBOOKS.replace("\\", "").split("|")
    for kind in REGISTRY.values():
        for word in kind.remedy.replace("{", " ").split():
            name = word.strip(".,:;`()")
            if name.endswith(".yml") and "/" not in name:
                assert name in known, f"{kind.code} names {name}"
