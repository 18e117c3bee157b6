"""Whole plays against a change that ends early, and reset.yml: the controller killed at each step of site.yml, and
everything taken back after success. What is compared is every file, unit state and address.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from .change import FUNCTIONS, OURS, both, foreign, reset_by_modules, until_settled
from .virtual_pair import PROJECT, VirtualPair, changed_paths

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

# The threshold of the link is another test's business.
SITE: dict[str, Any] = {"link_check_min_gbps": 0.01, "link_check_seconds": 6}


@pytest.fixture(scope="module")
def factory(bare_pair: VirtualPair) -> dict[str, Any]:
    return bare_pair.snapshot()


def playbook(pair: VirtualPair, name: str, **variables: Any) -> list[str]:
    argv = [sys.executable, "-m", "ansible", "playbook", "-i", str(pair.inventory), name]
    return [*argv, "-e", json.dumps(variables)]


ENVIRONMENT = {
    **os.environ,
    "ANSIBLE_CONFIG": str(PROJECT / "ansible.cfg"),
    # Else a task is announced with its first result, and not when it begins.
    "ANSIBLE_DISPLAY_SKIPPED_HOSTS": "true",
}


def killed_at(pair: VirtualPair, task: str, after_s: float) -> None:
    """Start site.yml and kill the controller, all of it, some seconds after it has announced a task."""
    controller = subprocess.Popen(
        playbook(pair, "site.yml", **SITE | {"fabric_rollback_s": 30}),
        cwd=PROJECT,
        env=ENVIRONMENT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    assert controller.stdout is not None
    try:
        seen = []
        for line in controller.stdout:
            seen.append(line)
            if task in line:
                break
        else:
            raise AssertionError(f"{task} was never begun:\n{''.join(seen)}")
        time.sleep(after_s)
    finally:
        # The group is its own: the controller, its workers and their ssh.
        os.killpg(controller.pid, signal.SIGKILL)
        controller.wait()


@pytest.fixture
def after_a_kill(bare_pair: VirtualPair, factory: dict[str, Any]) -> Iterator[None]:
    yield
    both(lambda node: reset_by_modules(bare_pair, node))
    assert changed_paths(factory, bare_pair.snapshot()) == {}, "every byte is back after this kill point"


@pytest.mark.parametrize(
    ("task", "after_s", "confirmed"),
    [
        pytest.param("Give the functions their addresses", 0.1, False, marks=pytest.mark.long, id="before the write"),
        pytest.param("Give the functions their addresses", 1.2, False, marks=pytest.mark.long, id="during the change"),
        pytest.param("Go on only if every node was changed", 0, False, marks=pytest.mark.long, id="after the apply"),
        pytest.param("Reach every peer on every rail", 2, False, id="before confirming"),
        pytest.param("Keep the change", 0.3, None, marks=pytest.mark.long, id="while confirming"),
    ],
)
def test_a_killed_controller_leaves_what_was_there(
    bare_pair: VirtualPair,
    factory: dict[str, Any],
    after_a_kill: None,
    task: str,
    after_s: float,
    confirmed: bool | None,
) -> None:
    killed_at(bare_pair, f"fabric : {task}", after_s)
    # A module that was begun goes on without its controller: only then the timer's time counts.
    time.sleep(10)
    both(lambda node: until_settled(bare_pair, node, 120))
    after = foreign(bare_pair.snapshot())
    if confirmed is False:
        assert changed_paths(foreign(factory), after) == {}
        return
    for node in bare_pair.nodes:
        addressed = {netdev for netdev, addresses in after[node]["addresses"] if addresses}
        assert (OURS in after[node]["files"]) == (FUNCTIONS[0] in addressed), "all of it or nothing"
        assert "spark-fabric-rollback" not in after[node]["units"]


def test_reset_after_success_shows_then_brings_every_byte_back(bare_pair: VirtualPair, factory: dict[str, Any]) -> None:
    first = bare_pair.play("site.yml", **SITE)
    assert first.rc == 0, first.output[-6000:]
    configured = bare_pair.snapshot()

    argv = playbook(bare_pair, "reset.yml")
    unasked = subprocess.run(
        argv, cwd=PROJECT, env=ENVIRONMENT, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    assert unasked.returncode != 0, "without an answer nothing is taken back"
    assert "-e reset_confirmed=true" in unasked.stdout
    predicted = bare_pair.play("reset.yml", check=True)
    assert predicted.rc == 0, predicted.output[-6000:]
    assert "-    enp1s0f0np0:" in predicted.output, "--diff shows the file that would go"
    assert "715 NUL bytes" in predicted.output
    assert changed_paths(configured, bare_pair.snapshot()) == {}

    back = bare_pair.play("reset.yml", reset_confirmed=True)
    assert back.rc == 0, back.output[-6000:]
    assert "RESET_DONE" in back.codes("bare")
    assert changed_paths(factory, bare_pair.snapshot()) == {}

    second = bare_pair.play("reset.yml", reset_confirmed=True)
    assert second.rc == 0, second.output[-6000:]
    assert not any(second.changed.values()), second.result("bare")["changed"]
    assert changed_paths(factory, bare_pair.snapshot()) == {}


@pytest.mark.long
def test_site_works_again_after_a_reset_and_so_does_the_reset(bare_pair: VirtualPair, factory: dict[str, Any]) -> None:
    again = bare_pair.play("site.yml", **SITE)
    assert again.rc == 0, again.output[-6000:]
    gone = bare_pair.play("reset.yml", reset_confirmed=True)
    assert gone.rc == 0, gone.output[-6000:]
    assert changed_paths(factory, bare_pair.snapshot()) == {}
