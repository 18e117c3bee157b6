"""The state of a pair: keys before the nodes, and processes ended only while they are the ones that were started."""

from __future__ import annotations

import stat
import subprocess
import sys
from pathlib import Path

import pytest

from lab.machines import load
from lab.registry import Record, Registry
from lab.state import State, start_time, write_atomic


@pytest.fixture
def state(tmp_path: Path) -> State:
    return State(load("lab"), tmp_path / "state")


def test_prepare_makes_keys_once_and_knows_every_host(state: State) -> None:
    state.prepare()
    key, known = state.key.read_bytes(), state.known_hosts.read_text()
    state.prepare()
    assert (state.key.read_bytes(), state.known_hosts.read_text()) == (key, known)
    assert [line.split()[0] for line in known.splitlines()] == ["[127.0.0.1]:22012", "[127.0.0.1]:22013"]
    for node, line in zip(state.machines.nodes, known.splitlines(), strict=True):
        assert state.host_key(node).with_suffix(".pub").read_text().split()[1] == line.split()[2]
    for path in (state.key, state.become_password, state.known_hosts, state.ssh_config):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert "StrictHostKeyChecking yes" in state.ssh_config.read_text()


def test_ssh_reads_the_configuration(state: State) -> None:
    state.prepare()
    argv = state.ssh_argv("spark-02", [], "-G")
    said = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    assert {"hostname 127.0.0.1", "port 22013", "user spark"} <= set(said.splitlines())


def test_facts_add_up_and_survive_nonsense(state: State) -> None:
    state.root.mkdir()
    assert state.facts() == {}
    state.add_facts(engine_source="wheels")
    state.add_facts(other=1)
    assert state.facts() == {"engine_source": "wheels", "other": 1}
    state.facts_file.write_text("[not json")
    assert state.facts() == {}


def test_a_recorded_process_is_ended(state: State) -> None:
    state.pids.mkdir(parents=True)
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    state.write_pid("sleeper", process.pid)
    assert state.pid("sleeper") == process.pid
    state.end("sleeper")
    assert process.wait(5) < 0
    assert state.pid("sleeper") is None
    state.end("sleeper")


def test_a_pid_that_was_given_to_somebody_else_is_left_alone(state: State) -> None:
    state.pids.mkdir(parents=True)
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        (state.pids / "sleeper").write_text(f"{process.pid} {int(start_time(process.pid)) - 1}\n")
        assert state.pid("sleeper") is None
        state.end("sleeper")
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()


def test_write_atomic_sets_the_mode_and_leaves_no_rest(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("old")
    write_atomic(file, "new", 0o640)
    assert file.read_text() == "new"
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    assert list(tmp_path.iterdir()) == [file]


def test_registry_remembers_who_made_a_pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lab.registry.FOLDER", tmp_path / "run")
    registry = Registry("lab")
    assert registry.read() is None
    registry.write(Record("/clone", "/clone/.lab/lab"))
    assert Registry("lab").read() == Record("/clone", "/clone/.lab/lab")
    assert Registry("other").read() is None
    registry.file.write_text('{"project": "/clone"}')
    assert registry.read() is None
    registry.forget()
    assert not (tmp_path / "run").exists()
