"""The reset on a machine of folders: every byte back, nothing of anybody else touched, whatever happened before."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.spark import bundle, guard, peer, reset, rollback, takeover, trust, undo
from ansible.module_utils.spark.install import Wanted, apply, decide
from ansible.module_utils.spark.rank import Place

from tests.unit.fabric.machine import Machine, said
from tests.unit.fabric.test_kill_points import (
    NAMES,
    ORPHAN,
    OURS,
    RAILS,
    SETTINGS,
    TEXT,
    PowerCut,
    change,
    factory,
    power_cut_at,
)

FACTORY_NS = 1_759_104_000_000_000_000
WANT = "etc/systemd/system/multi-user.target.wants/vllm-single.service"
KEYS = "root/.ssh/authorized_keys"
THEIRS = b"ssh-ed25519 AAAAtheirs somebody"


@pytest.fixture(autouse=True)
def _commands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollback, "call", lambda argv, timeout_s=60: {"argv": argv, "rc": 0, "said": ""})


def whole(root: Path) -> dict[str, tuple[Any, ...]]:
    """Every file and link, ours too, with its time."""
    found: dict[str, tuple[Any, ...]] = {}
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        if path.is_dir() and not path.is_symlink():
            if "spark-cluster" in name or name == "root/.ssh":
                found[name] = ("folder",)
            continue
        data = os.readlink(path) if path.is_symlink() else path.read_bytes()
        time_ns = None if name.startswith("proc/") else path.lstat().st_mtime_ns
        found[name] = (data, path.lstat().st_mode, time_ns)
    return found


def made(root: Path, *, before: bytes | None = None, keys: bytes | None = THEIRS) -> tuple[Machine, guard.Node]:
    """Factory state, with a unit of an earlier deployment."""
    machine, node = factory(root, before=before)
    link = root / WANT
    link.symlink_to("/etc/systemd/system/vllm-single.service")
    os.utime(link, ns=(FACTORY_NS, FACTORY_NS), follow_symlinks=False)
    (root / "root").mkdir()
    if keys is not None:
        (root / KEYS).parent.mkdir(mode=0o700)
        (root / KEYS).write_bytes(keys)
        os.utime(root / KEYS, ns=(FACTORY_NS, FACTORY_NS))
    return machine, node


def inside(root: Path, entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Entries of code that knows no other root, as they would be on the node itself."""
    strip = str(root)
    return [
        {key: value.removeprefix(strip) if isinstance(value, str) else value for key, value in entry.items()}
        for entry in entries
    ]


def set_up(machine: Machine, node: guard.Node) -> None:
    """Everything that site.yml and cluster-up.yml leave on a node, by the code that leaves it."""
    root = node.root
    change(node)
    guard.confirm(node)
    for rail in RAILS:
        machine.link(rail.netdev, rail.cidr)

    def disabled(argv: Any) -> Any:
        (root / WANT).unlink(missing_ok=True)
        return said()

    machine.answer("systemctl", "disable", to=disabled)
    units = [takeover.Unit("vllm-single.service", "enabled", "inactive")]
    takeover.disable(machine, units, journal=node.journal, root=root)
    line = f'restrict,command="{peer.COMMAND}" ssh-ed25519 AAAA spark-cluster:lab:spark-02\n'.encode()
    path = root / KEYS
    was = path.read_bytes() if path.exists() else None
    one = trust.Change(path, was, (was + b"\n" if was else b"") + line, 0o600)
    trust.write(one, inside(root, trust.key_entries(one)), journal=node.journal)
    known = trust.Change(
        node.at("/etc/spark-cluster/ssh/known_hosts"), None, b"192.168.200.13 ssh-ed25519 AAAA\n", 0o600
    )
    trust.write(known, inside(root, [trust.file_entry(known, node.state / "backup")]), journal=node.journal)
    contents = {bundle.RANKCTL: b"zip", bundle.LAUNCH: b"#!/bin/sh\n", bundle.UNIT: b"[Unit]\n"}
    files = [Wanted(path, "0644", hashlib.sha256(data).hexdigest(), data) for path, data in contents.items()]
    manifest = bundle.render_manifest({item.path: item.sha256 for item in files})
    files.append(Wanted(bundle.MANIFEST, "0644", hashlib.sha256(manifest).hexdigest(), manifest))
    files.append(Wanted(bundle.PLAN, "0600", hashlib.sha256(b"{}").hexdigest(), b"{}"))
    place = Place(root)
    apply(decide(files, place), "spark-01", place)
    for folder in ("jit/x-1", "weights"):
        (node.state / folder).mkdir(parents=True)
        (node.state / folder / "kernel.bin").write_bytes(b"k")
    (root / "run/spark-cluster/jobs").mkdir(parents=True)
    (root / "run/spark-cluster/rank.json").write_text("{}")


def take_all_back(machine: Machine, node: guard.Node, **options: bool) -> reset.Survey:
    if guard.pending(node):
        guard.take_back(node, "the node is reset")
    found = reset.survey(node, "spark-01")
    if found.network_changes:
        armed, wrong = reset.network_back(node, "spark-01", found, 120)
        assert (armed, wrong) == (True, [])
        for name in NAMES:
            machine.link(name, up=False)
        assert guard.confirm(node)
    found = reset.survey(node, "spark-01", **options)
    if found.rest_changes:
        reset.rest_back(node, found)
    return found


@pytest.mark.parametrize("before", [None, b"network: {version: 2}\n"], ids=["no file before", "a file before"])
@pytest.mark.parametrize("keys", [THEIRS, THEIRS + b"\n", None], ids=["open line", "closed line", "no keys"])
def test_everything_comes_back(before: bytes | None, keys: bytes | None, tmp_path: Path) -> None:
    machine, node = made(tmp_path, before=before, keys=keys)
    first = whole(tmp_path)
    set_up(machine, node)
    assert whole(tmp_path) != first
    found = take_all_back(machine, node)
    assert found.left == []
    assert whole(tmp_path) == first
    again = reset.survey(node, "spark-01")
    assert not again.network_changes
    assert not again.rest_changes
    assert reset.done("spark-01", again, changed=False).code == "RESET_DONE"


def test_the_difference_shows_every_file(tmp_path: Path) -> None:
    machine, node = made(tmp_path)
    set_up(machine, node)
    found = reset.survey(node, "spark-01")
    network = {item["before_header"]: item for item in reset.network_diffs(node, found)}
    assert network[OURS]["before"] == TEXT
    assert network[OURS]["after"] == ""
    assert SETTINGS in network
    assert "192.168.200.12/24" in network["addresses"]["before"]
    rest = {item["after_header"]: item for item in reset.rest_diffs(node, found)}
    assert rest[ORPHAN]["after"] == "715 NUL bytes\n"
    assert "spark-cluster:lab:spark-02" in rest[f"/{KEYS}"]["before"]
    assert rest[f"/{KEYS}"]["after"] == THEIRS.decode()
    assert WANT in rest["vllm-single.service"]["after"]
    assert "/var/lib/spark-cluster\n" in rest["removed"]["before"]
    assert f"{bundle.LAUNCH}\n" in rest["removed"]["before"], "that a file of the project goes is said"
    assert "#!/bin/sh" not in str(rest), "and not what is in it"


def test_a_reset_that_is_interrupted_anywhere_is_finished_by_the_next(tmp_path: Path) -> None:
    step = 0
    while True:
        step += 1
        root = tmp_path / str(step)
        root.mkdir()
        machine, node = made(root)
        first = whole(root)
        set_up(machine, node)
        with power_cut_at(step):
            try:
                take_all_back(machine, node)
                break
            except PowerCut:
                pass
        if (node.rollback / rollback.STATE).exists() and guard.boot_files(node)[1].exists():
            rollback.roll_back(node.rollback, "the node restarted before the change was confirmed")
            for rail in RAILS:
                machine.link(rail.netdev, rail.cidr)
        found = take_all_back(machine, node)
        assert found.left == [], f"step {step}"
        assert whole(root) == first, f"step {step}"
    assert step > 40


def test_after_every_kill_point_of_the_change_the_reset_leaves_nothing(tmp_path: Path) -> None:
    step = 0
    while True:
        step += 1
        root = tmp_path / str(step)
        root.mkdir()
        machine, node = made(root)
        first = whole(root)
        with power_cut_at(step):
            try:
                change(node)
                break
            except PowerCut:
                pass
        assert take_all_back(machine, node).left == [], f"step {step}"
        assert whole(root) == first, f"step {step}"


# --- what is not ours ------------------------------------------------------------------------------------------------


def codes(found: reset.Survey) -> list[str]:
    return [item.code for item in found.left]


def test_a_netplan_file_edited_after_us_is_left_with_its_network(tmp_path: Path) -> None:
    machine, node = made(tmp_path)
    set_up(machine, node)
    file = tmp_path / OURS.lstrip("/")
    file.write_text(TEXT + "# mine\n")
    found = take_all_back(machine, node)
    assert codes(found) == ["RESET_EDITED"]
    assert f"sudo rm {OURS}" in found.left[0].remedy
    assert file.read_text().endswith("# mine\n")
    assert (node.journal / undo.JOURNAL).exists(), "the record stays for a later reset"
    assert not reset.survey(node, "spark-01").rest_changes
    file.unlink()
    for name in NAMES:
        machine.link(name, up=False)
    assert take_all_back(machine, node).left == []
    assert not node.state.exists()


def test_a_file_that_was_there_before_and_was_edited_names_its_copy(tmp_path: Path) -> None:
    machine, node = made(tmp_path, before=b"network: {version: 2}\n")
    set_up(machine, node)
    (tmp_path / OURS.lstrip("/")).write_text("network: {version: 2, ethernets: {}}\n")
    found = take_all_back(machine, node)
    assert codes(found) == ["RESET_EDITED"]
    assert "sudo cp -p" in found.left[0].remedy
    backup = next((node.state / "backup/netplan").glob("*/40-spark-fabric.yaml"))
    assert backup.read_bytes() == b"network: {version: 2}\n"


def test_an_edited_launcher_and_a_foreign_file_are_left_and_named(tmp_path: Path) -> None:
    machine, node = made(tmp_path)
    set_up(machine, node)
    node.at(bundle.LAUNCH).write_text("#!/bin/sh\n# mine\n")
    node.at("/etc/spark-cluster/api-key").write_text("secret\n")
    found = take_all_back(machine, node)
    assert sorted(codes(found)) == ["RESET_EDITED", "RESET_FOREIGN"]
    assert node.at(bundle.LAUNCH).exists()
    assert node.at("/etc/spark-cluster/api-key").exists()
    assert not node.at(bundle.RANKCTL).exists()
    node.at(bundle.LAUNCH).unlink()
    node.at("/etc/spark-cluster/api-key").unlink()
    assert take_all_back(machine, node).left == []
    assert not node.at(bundle.PREFIX).exists()


def test_a_lost_copy_is_said(tmp_path: Path) -> None:
    machine, node = made(tmp_path, before=b"network: {version: 2}\n")
    set_up(machine, node)
    next((node.state / "backup/netplan").glob("*/40-spark-fabric.yaml")).write_bytes(b"damaged")
    assert codes(take_all_back(machine, node)) == ["RESET_BACKUP_LOST"]
    assert (tmp_path / OURS.lstrip("/")).read_text() == TEXT


def test_an_orphan_whose_place_is_taken_stays_in_the_backup(tmp_path: Path) -> None:
    machine, node = made(tmp_path)
    set_up(machine, node)
    (tmp_path / ORPHAN.lstrip("/")).write_bytes(b"network: {version: 2}\n")
    found = take_all_back(machine, node)
    assert codes(found) == ["RESET_EDITED"]
    assert (tmp_path / ORPHAN.lstrip("/")).read_bytes() == b"network: {version: 2}\n"


def test_lines_of_others_stay_as_they_are(tmp_path: Path) -> None:
    machine, node = made(tmp_path)
    set_up(machine, node)
    with (tmp_path / KEYS).open("ab") as keys:
        keys.write(b"ssh-ed25519 AAAAnew a colleague\n")
    take_all_back(machine, node)
    assert (tmp_path / KEYS).read_bytes() == THEIRS + b"\nssh-ed25519 AAAAnew a colleague\n"


def test_a_tree_that_netplan_would_refuse_is_not_touched(tmp_path: Path) -> None:
    machine, node = made(tmp_path)
    set_up(machine, node)
    machine.answer(str(tmp_path / "usr/libexec/netplan/generate"), rc=1, stderr="/etc/netplan/x.yaml:1:1: Invalid\n")
    armed, wrong = reset.network_back(node, "spark-01", reset.survey(node, "spark-01"), 120)
    assert (armed, [item.code for item in wrong]) == (False, ["NETPLAN_INVALID"])
    assert (tmp_path / OURS.lstrip("/")).read_text() == TEXT


def test_cut_off_by_the_reset_the_fabric_comes_back(tmp_path: Path) -> None:
    machine, node = made(tmp_path)
    set_up(machine, node)
    before = whole(tmp_path)
    reset.network_back(node, "spark-01", reset.survey(node, "spark-01"), 120)
    assert not (tmp_path / OURS.lstrip("/")).exists()
    rollback.roll_back(node.rollback)
    after = whole(tmp_path)
    for name in (OURS, SETTINGS):
        assert after[name.lstrip("/")] == before[name.lstrip("/")]


# --- copies ----------------------------------------------------------------------------------------------------------


def copied(node: guard.Node, *, new: bool) -> Path:
    folder = node.at("/home/spark/models/m")
    folder.mkdir(parents=True)
    (folder / "own.txt").write_text("theirs\n")
    (folder / "shard").write_text("ours\n")
    (folder / "link").symlink_to("/somewhere/else")
    outside = folder.parent / "own.txt"
    outside.write_text("theirs\n")
    entry = {"kind": "weights_copied", "path": "/home/spark/models/m", "new": new}
    entry["added"] = ["shard", "link", "../own.txt"]
    undo.record(entry, root=node.journal)
    return folder


def test_weights_stay_unless_asked_for(tmp_path: Path) -> None:
    machine, node = made(tmp_path)
    folder = copied(node, new=True)
    found = take_all_back(machine, node)
    assert [item.code for item in found.kept] == ["RESET_KEPT"]
    assert "sudo rm -r /home/spark/models/m" in found.kept[0].remedy
    assert (folder / "shard").exists()
    assert not node.state.exists()


@pytest.mark.parametrize("new", [True, False])
def test_weights_go_when_asked_for_and_only_ours(new: bool, tmp_path: Path) -> None:
    machine, node = made(tmp_path)
    folder = copied(node, new=new)
    incoming = folder.parent / ".spark-incoming-m"
    incoming.mkdir()
    take_all_back(machine, node, weights=True)
    assert not incoming.exists()
    assert (folder.parent / "own.txt").exists(), "nothing outside the folder"
    assert folder.exists() is not new
    assert new or [path.name for path in folder.iterdir()] == ["own.txt"]


def test_images_stay_unless_asked_for_and_only_the_loaded_one_goes(tmp_path: Path) -> None:
    machine, node = made(tmp_path)
    for reference, identity in (("a:1", "sha256:aa"), ("b:1", "sha256:old")):
        undo.record({"kind": "image_loaded", "reference": reference, "id": identity}, root=node.journal)
    machine.answer("docker", "image", "inspect", "-f", "{{.Id}}", "a:1", stdout="sha256:aa\n")
    machine.answer("docker", "image", "inspect", "-f", "{{.Id}}", "b:1", stdout="sha256:newer\n")
    kept = reset.survey(node, "spark-01").kept
    assert [item.found for item in kept] == ["a:1"]
    take_all_back(machine, node, images=True)
    assert machine.ran("docker", "image", "rm") == [("docker", "image", "rm", "a:1")]


@pytest.mark.parametrize("still_there", [True, False])
def test_a_name_that_meant_another_image_means_it_again(still_there: bool, tmp_path: Path) -> None:
    machine, node = made(tmp_path)
    before = {"kind": "image_loaded", "reference": "a:1", "id": "", "replaced": "sha256:old"}
    undo.record(before, root=node.journal)
    machine.answer("docker", "image", "inspect", "-f", "{{.Id}}", "a:1", stdout="sha256:old\n")
    assert not reset.survey(node, "spark-01", images=True).images, "the load never happened"
    machine.answer("docker", "image", "inspect", "-f", "{{.Id}}", "a:1", stdout="sha256:new\n")
    machine.answer("docker", "tag", rc=0 if still_there else 1)
    take_all_back(machine, node, images=True)
    assert machine.ran("docker", "tag") == [("docker", "tag", "sha256:old", "a:1")]
    assert bool(machine.ran("docker", "image", "rm")) is not still_there


def test_units_of_ours_end_and_the_earlier_one_starts_again_if_it_ran(tmp_path: Path) -> None:
    machine, node = made(tmp_path)
    ours = node.at("/etc/systemd/system/multi-user.target.wants") / bundle.UNIT_NAME
    ours.symlink_to(f"/etc/systemd/system/{bundle.UNIT_NAME}")
    undo.record({"kind": "unit_enabled", "unit": bundle.UNIT_NAME}, root=node.journal)
    links = takeover.links_of("vllm-single.service", tmp_path)
    entry = {"kind": "unit_disabled", "unit": "vllm-single.service", "was_enabled": True, "was_active": True}
    undo.record({**entry, "links": links}, root=node.journal)
    (tmp_path / WANT).unlink()
    listing = "spark-link-12000.service loaded active running x\nspark-ssh.service loaded active running y\n"
    machine.answer("systemctl", "list-units", stdout=listing)
    take_all_back(machine, node)
    assert not ours.is_symlink()
    assert os.readlink(tmp_path / WANT).endswith("vllm-single.service")
    assert machine.ran("systemctl", "stop", "spark-link-12000.service")
    assert not any("spark-ssh.service" in call for call in machine.calls)
    assert machine.ran("systemctl", "start")[0][-1] == "vllm-single.service"
    assert machine.ran("systemctl", "daemon-reload")
