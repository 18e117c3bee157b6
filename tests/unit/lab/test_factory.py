"""Factory state and the tiny model."""

from __future__ import annotations

import io
import json
import random
import struct
import tarfile
from pathlib import Path

import pytest
import yaml

from lab import factory
from lab.engine import tiny_model
from lab.machines import Machines, load
from lab.state import State


@pytest.fixture
def machines() -> Machines:
    return load("lab")


@pytest.fixture
def state(machines: Machines, tmp_path: Path) -> State:
    found = State(machines, tmp_path)
    (tmp_path / "host_keys").mkdir()
    for node in machines.nodes:
        found.host_key(node).write_text("private")
        found.host_key(node).with_suffix(".pub").write_text("ssh-ed25519 AAAA root@x\n")
    found.key.with_suffix(".pub").write_text("ssh-ed25519 BBBB controller\n")
    return found


def paths(machines: Machines, state: State, index: int) -> dict[str, factory.File]:
    node = machines.nodes[index]
    return {
        file.path: file for file in factory.files(machines, state, node, factory.Management(address="10.77.0.12/24"))
    }


def test_orphan_and_live_netplan_files(machines: Machines, state: State) -> None:
    seen = set()
    for index in (0, 1):
        found = [file for path, file in paths(machines, state, index).items() if path.startswith("/etc/netplan/90-NM-")]
        orphan, live = sorted(found, key=lambda file: file.data.count(0), reverse=True)
        assert orphan.data == bytes(715)
        assert (orphan.mode, orphan.mtime) == (0o600, factory.ORPHAN_MTIME)
        connection = yaml.safe_load(live.data)["network"]["ethernets"].popitem()[1]
        assert connection["networkmanager"]["uuid"] in live.path
        assert connection["addresses"] == ["10.77.0.12/24"]
        seen |= {orphan.path, live.path}
    assert len(seen) == 4


def test_only_the_head_has_weights_and_the_earlier_unit(machines: Machines, state: State) -> None:
    head, worker = paths(machines, state, 0), paths(machines, state, 1)
    assert "/home/spark/models/lab-tiny/config.json" in head
    assert "/etc/systemd/system/multi-user.target.wants/vllm-single.service" in head
    only = set(head) - set(worker)
    assert all("lab-tiny" in path or "vllm-single" in path or "90-NM" in path for path in only)


def test_no_node_knows_its_peer(machines: Machines, state: State) -> None:
    assert b"spark-02" not in paths(machines, state, 0)["/etc/hosts"].data


def test_tar_keeps_owner_mode_time_and_links(machines: Machines, state: State) -> None:
    contents = list(paths(machines, state, 0).values())
    with tarfile.open(fileobj=io.BytesIO(factory.as_tar(contents))) as tar:
        keys = tar.getmember("home/spark/.ssh/authorized_keys")
        assert (keys.uid, keys.mode) == (1000, 0o600)
        assert tar.getmember("usr/local/sbin/ethtool").linkname == "/usr/local/lib/spark-lab/seam"
        orphan = next(entry for entry in tar if entry.name.startswith("etc/netplan/90-NM") and entry.size == 715)
        assert orphan.mtime == factory.ORPHAN_MTIME


# --- the model


def test_the_chain_of_successors_is_the_sentence() -> None:
    words = tiny_model.word_ids()
    assert len(set(words)) == len(tiny_model.SENTENCE)
    token, said = tiny_model.FIRST_BYTE + ord("\n"), []
    while (token := tiny_model.successor(token)) != tiny_model.STOP:
        said.append(token)
    assert said == words
    # Both halves of the vocabulary, hence both ranks.
    assert {word < tiny_model.VOCABULARY // 2 for word in words} == {True, False}


def test_tokenizer_spells_the_sentence() -> None:
    vocabulary = json.loads(tiny_model.tokenizer()["tokenizer.json"])["model"]["vocab"]
    assert len(set(vocabulary.values())) == len(vocabulary)
    spelled = {number: token for token, number in vocabulary.items()}
    assert "".join(spelled[word] for word in tiny_model.word_ids()).replace("Ġ", " ") == "".join(tiny_model.SENTENCE)


def test_shards_are_well_formed() -> None:
    files = tiny_model.files()
    where = json.loads(files["model.safetensors.index.json"])["weight_map"]
    total = 0
    for name in set(where.values()):
        data = files[name]
        (length,) = struct.unpack("<Q", data[:8])
        header = json.loads(data[8 : 8 + length])
        header.pop("__metadata__")
        assert {tensor for tensor, file in where.items() if file == name} == set(header)
        for tensor in header.values():
            begin, end = tensor["data_offsets"]
            count = 1
            for size in tensor["shape"]:
                count *= size
            assert end - begin == 2 * count
            total += end - begin
        assert len(data) == 8 + length + max(tensor["data_offsets"][1] for tensor in header.values())
    assert total == json.loads(files["model.safetensors.index.json"])["metadata"]["total_size"]


def test_noise_is_small_and_of_both_signs() -> None:
    _, data = tiny_model.noise(random.Random(1), 16, 16)  # noqa: S311 - as the weights are made
    values = [struct.unpack("<f", b"\0\0" + data[i : i + 2])[0] for i in range(0, len(data), 2)]
    assert {value > 0 for value in values} == {True, False}
    assert all(2**-7 <= abs(value) < 2**-6 for value in values)
