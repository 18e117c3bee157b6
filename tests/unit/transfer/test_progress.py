"""What the terminal says of a copy while it runs."""

from __future__ import annotations

import pytest
from ansible.module_utils.spark import jobs


def test_bytes_rate_per_rail_and_time_left(tmp_path):
    now = [0.0]
    status = jobs._fresh_status("copy", "weights_send", "spark-01", {})
    reporter = jobs.Reporter(tmp_path / "copy.json", status, lambda: now[0])
    reporter.stage("sends 3 files", 10_000_000_000)
    reporter.rails({"rail 0": 0, "rail 1": 0}, 1_000_000_000)
    now[0] = 2.0
    reporter.rails({"rail 0": 1_000_000_000, "rail 1": 500_000_000}, 1_000_000_000)
    assert jobs.progress_line(status) == (
        "sends 3 files: 2.5 GB of 10.0 GB, 25 %, 750 MB/s (rail 0 500 MB/s, rail 1 250 MB/s), 10 s left"
    )


@pytest.mark.parametrize(
    ("at", "shown"), [(50, "50 B of 100 B, 50 %"), (130, "100 B of 100 B, 100 %")], ids=["half", "some of it twice"]
)
def test_a_copy_without_rails(tmp_path, at, shown):
    status = jobs._fresh_status("copy", "weights_push", "spark-01", {})
    reporter = jobs.Reporter(tmp_path / "copy.json", status, lambda: 0.0)
    reporter.stage("sends 3 files", 100)
    reporter.at(at)
    assert jobs.progress_line(status) == f"sends 3 files: {shown}"


def test_a_job_says_where_it_listens_and_keeps_its_secrets_out_of_its_status(tmp_path):
    status = jobs._fresh_status("copy", "weights_arrive", "spark-02", {})
    reporter = jobs.Reporter(tmp_path / "copy.json", status, secrets={"key": "s3cret"})
    reporter.listening({"addresses": ["192.168.200.13"], "ports": [40000]})
    assert (jobs.read_status("copy", tmp_path) or {})["listening"]["ports"] == [40000]
    assert reporter.secrets == {"key": "s3cret"}
    assert "s3cret" not in (tmp_path / "copy.json").read_text()


class Systemd:
    def __init__(self):
        self.calls = []

    def __call__(self, argv, **_options):
        from ansible.module_utils.spark.runner import Completed

        self.calls.append(list(argv))
        return Completed(tuple(argv), 0, "active\n", "")


def test_secrets_lie_for_root_only_until_the_job_has_read_them(tmp_path):
    systemd = Systemd()
    jobs.start("copy", "weights_arrive", "n", {"path": "/m"}, tmp_path, systemd, secrets={"key": "s3cret"})
    left = tmp_path / ".copy.secrets"
    assert left.stat().st_mode & 0o777 == 0o600
    assert "s3cret" not in (tmp_path / "copy.spec.json").read_text()
    assert "s3cret" not in str(systemd.calls)
    assert any(word.startswith("--setenv=OPENSSL_CONF=") for word in systemd.calls[-1])
    assert jobs._take_secrets("copy", tmp_path) == {"key": "s3cret"}
    assert not left.exists()
    assert jobs._take_secrets("copy", tmp_path) == {}


def test_a_copy_that_was_given_up_is_replaced(tmp_path):
    systemd = Systemd()
    jobs.start("copy", "weights_arrive", "n", {"session": "1"}, tmp_path, systemd)
    _, _, conflict = jobs.start("copy", "weights_arrive", "n", {"session": "2"}, tmp_path, systemd)
    assert [item.code for item in conflict] == ["JOB_CONFLICT"]
    started, _, conflict = jobs.start("copy", "weights_arrive", "n", {"session": "2"}, tmp_path, systemd, replace=True)
    assert (started, conflict) == (True, [])
    assert ["systemctl", "stop", "spark-job-copy.service"] in systemd.calls


def test_who_waits_for_a_listener_does_not_wait_for_its_end(tmp_path):
    status = jobs._fresh_status("copy", "weights_arrive", "n", {})
    jobs.Reporter(tmp_path / "copy.json", status).listening({"ports": [1]})
    naps: list[float] = []
    found, _ = jobs.poll("copy", "n", 5, tmp_path, Systemd(), sleep=naps.append, until="listening")
    assert (found["state"], naps) == ("running", [])
