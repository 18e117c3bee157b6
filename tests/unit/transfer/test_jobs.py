"""Jobs: started once, watched by their status file, and named when they die."""

from __future__ import annotations

import json
import os
import signal
import threading
import time

import pytest
from ansible.module_utils.spark import jobs
from ansible.module_utils.spark.findings import finding
from ansible.module_utils.spark.runner import Completed

SPEC = {"path": "/m"}


class Systemd:
    """systemd as far as jobs see it: units that are started and say whether they live."""

    def __init__(self, *, state: str = "active", refuses: str = "") -> None:
        self.state, self.refuses = state, refuses
        self.calls: list[tuple[str, ...]] = []

    def __call__(self, argv, *, check=False, **_options):
        self.calls.append(tuple(argv))
        if argv[0] == "systemd-run" and self.refuses:
            done = Completed(tuple(argv), 1, "", self.refuses)
            if check:
                raise jobs_error(done)
            return done
        out = {"systemctl": f"{self.state}\n", "journalctl": "Killed process 42 (python3)\n"}.get(argv[0], "")
        return Completed(tuple(argv), 0, out, "")

    def started(self) -> int:
        return sum(call[0] == "systemd-run" for call in self.calls)


def jobs_error(done):
    from ansible.module_utils.spark.runner import CommandFailed

    return CommandFailed(done)


@pytest.fixture
def kinds(monkeypatch):
    """Kinds of jobs that live in this file."""
    functions: dict = {}
    monkeypatch.setattr(jobs, "KINDS", {name: ("here", name) for name in ("well", "badly", "slow", "warned")})
    monkeypatch.setattr(jobs, "import_module", lambda *_names: type("Here", (), functions))
    functions["well"] = staticmethod(lambda spec, job: {"changed": True, "path": spec["path"]})

    def badly(_spec, job):
        job.stage("tries", 100)
        job.advance(10)
        raise jobs.JobFailedError(finding("COPY_STALLED", node=job.node, found="no byte for 60 s", expected="bytes"))

    functions["badly"] = staticmethod(badly)
    return functions


class TestStart:
    def test_as_a_unit_of_its_own(self, tmp_path, kinds):
        systemd = Systemd()
        started, status, findings = jobs.start("push", "well", "spark-01", SPEC, tmp_path, systemd)
        assert (started, findings, status["state"]) == (True, [], "running")
        (argv,) = [call for call in systemd.calls if call[0] == "systemd-run"]
        assert "--unit=spark-job-push.service" in argv
        assert "--collect" in argv
        assert argv[-4:] == (jobs.RANKCTL, "job", "push", str(tmp_path / "push.spec.json"))
        assert json.loads((tmp_path / "push.spec.json").read_text()) == {
            "kind": "well",
            "node": "spark-01",
            "spec": SPEC,
        }

    def test_the_same_job_is_taken_up(self, tmp_path, kinds):
        systemd = Systemd()
        jobs.start("push", "well", "spark-01", SPEC, tmp_path, systemd)
        started, status, findings = jobs.start("push", "well", "spark-01", SPEC, tmp_path, systemd)
        assert (started, findings, systemd.started()) == (False, [], 1)
        assert status["spec_sha256"] == jobs.digest(SPEC)

    def test_another_of_that_name_is_a_conflict(self, tmp_path, kinds):
        systemd = Systemd()
        jobs.start("push", "well", "spark-01", SPEC, tmp_path, systemd)
        _started, _status, findings = jobs.start("push", "well", "spark-01", {"path": "/other"}, tmp_path, systemd)
        assert [item.code for item in findings] == ["JOB_CONFLICT"]
        assert "systemctl stop spark-job-push.service" in findings[0].remedy
        assert systemd.started() == 1

    @pytest.mark.parametrize("state", ["inactive", "failed"])
    def test_after_a_dead_one_it_starts_anew(self, tmp_path, kinds, state):
        systemd = Systemd(state=state)
        jobs.start("push", "well", "spark-01", SPEC, tmp_path, systemd)
        assert jobs.start("push", "well", "spark-01", {"path": "/other"}, tmp_path, systemd)[0]

    def test_one_that_systemd_refuses_leaves_no_status(self, tmp_path, kinds):
        with pytest.raises(Exception, match="Failed to connect to bus"):
            jobs.start("push", "well", "n", SPEC, tmp_path, Systemd(refuses="Failed to connect to bus"))
        assert jobs.read_status("push", tmp_path) is None

    @pytest.mark.parametrize("name", ["", "../x", "a b", "a/b", "-x", "x" * 81])
    def test_names(self, tmp_path, kinds, name):
        with pytest.raises(ValueError, match="not the name of a job"):
            jobs.start(name, "well", "n", SPEC, tmp_path, Systemd())

    def test_unknown_kind(self, tmp_path, kinds):
        with pytest.raises(ValueError, match="no kind"):
            jobs.start("push", "os.system", "n", SPEC, tmp_path, Systemd())

    @pytest.mark.parametrize(
        "spec",
        [
            {"hf_token": "x"},
            {"environment": {"API_KEY": "x"}},
            {"targets": [{"password": "x"}]},
            {"sshPassphrase": "x"},
        ],
    )
    def test_no_secrets(self, tmp_path, kinds, spec):
        systemd = Systemd()
        with pytest.raises(ValueError, match="secrets"):
            jobs.start("push", "well", "n", spec, tmp_path, systemd)
        assert systemd.started() == 0
        assert list(tmp_path.glob("*.spec.json")) == []

    def test_a_file_called_tokenizer_is_no_secret(self, tmp_path, kinds):
        spec = {"manifest": {"files": [["tokenizer.json", 2, "a" * 64], ["secret_sauce.bin", 1, "b" * 64]]}}
        assert jobs.start("push", "well", "n", spec, tmp_path, Systemd())[0]


class TestExecute:
    def test_well(self, tmp_path, kinds):
        assert jobs.execute("push", "well", "spark-01", SPEC, tmp_path) == 0
        status, findings = jobs.poll("push", "spark-01", 0, tmp_path, Systemd(state="inactive"))
        assert (status["state"], status["result"]) == ("done", {"changed": True, "path": "/m"})
        assert findings == []

    def test_with_a_finding(self, tmp_path, kinds):
        assert jobs.execute("push", "badly", "spark-01", SPEC, tmp_path) == 1
        status, findings = jobs.poll("push", "spark-01", 0, tmp_path, Systemd(state="inactive"))
        assert status["state"] == "failed"
        assert [item.code for item in findings] == ["COPY_STALLED"]
        assert status["progress"]["done_bytes"] == 10

    def test_with_an_error_of_its_own(self, tmp_path, kinds, capsys):
        def broken(_spec, _job):
            raise ZeroDivisionError("division by zero")

        kinds["slow"] = staticmethod(broken)
        assert jobs.execute("push", "slow", "spark-01", SPEC, tmp_path) == 1
        _status, findings = jobs.poll("push", "spark-01", 0, tmp_path, Systemd(state="inactive"))
        assert [item.code for item in findings] == ["UNKNOWN_CAUSE"]
        assert "ZeroDivisionError: division by zero" in findings[0].evidence
        assert "Traceback" in capsys.readouterr().err

    def test_a_fatal_note_makes_it_fail(self, tmp_path, kinds):
        def noted(_spec, job):
            job.note(finding("WEIGHTS_DIFFER", node=job.node, found="x", expected="y", path="/m"))
            return {"changed": True}

        kinds["warned"] = staticmethod(noted)
        assert jobs.execute("push", "warned", "spark-01", SPEC, tmp_path) == 1
        assert (jobs.read_status("push", tmp_path) or {})["state"] == "failed"

    def test_stopped_on_request(self, tmp_path, kinds):
        def slow(_spec, _job):
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(20)

        kinds["slow"] = staticmethod(slow)
        before = signal.getsignal(signal.SIGTERM)
        try:
            assert jobs.execute("push", "slow", "spark-01", SPEC, tmp_path) == 1
        finally:
            signal.signal(signal.SIGTERM, before)
        status, findings = jobs.poll("push", "spark-01", 0, tmp_path, Systemd(state="inactive"))
        assert status["state"] == "cancelled"
        assert [item.code for item in findings] == ["JOB_CANCELLED"]

    def test_from_the_command_line(self, tmp_path, kinds):
        jobs.start("push", "well", "spark-01", SPEC, tmp_path, Systemd())
        assert jobs.main(["push", str(tmp_path / "push.spec.json")], tmp_path) == 0
        assert jobs.main(["push"], tmp_path) == 2


class TestPoll:
    def test_running(self, tmp_path, kinds):
        jobs.start("push", "well", "n", SPEC, tmp_path, Systemd())
        status, findings = jobs.poll("push", "n", 0.3, tmp_path, Systemd())
        assert (status["state"], findings) == ("running", [])

    @pytest.mark.parametrize("state", ["inactive", "failed"])
    def test_dead_without_a_word(self, tmp_path, kinds, state):
        jobs.start("push", "well", "n", SPEC, tmp_path, Systemd())
        status, findings = jobs.poll("push", "n", 0, tmp_path, Systemd(state=state))
        assert status["state"] == "failed"
        assert [item.code for item in findings] == ["JOB_DIED"]
        assert findings[0].evidence == ("Killed process 42 (python3)",)

    def test_the_last_word_counts_when_the_unit_is_gone(self, tmp_path, kinds):
        jobs.start("push", "well", "n", SPEC, tmp_path, Systemd())

        class Ending(Systemd):
            def __call__(self, argv, **options):
                if argv[0] == "systemctl":
                    jobs.execute("push", "well", "n", SPEC, tmp_path)
                return super().__call__(argv, **options)

        status, findings = jobs.poll("push", "n", 0, tmp_path, Ending(state="inactive"))
        assert (status["state"], findings) == ("done", [])

    def test_silence_of_systemd_is_no_death(self, tmp_path, kinds):
        jobs.start("push", "well", "n", SPEC, tmp_path, Systemd())

        def silent(argv, **_options):
            return Completed(tuple(argv), 1, "", "Failed to connect to bus")

        assert jobs.poll("push", "n", 0, tmp_path, silent)[0]["state"] == "running"

    def test_no_such_job(self, tmp_path):
        _status, findings = jobs.poll("push", "n", 0, tmp_path, Systemd(state="inactive"))
        assert [item.code for item in findings] == ["JOB_DIED"]

    def test_waits_for_the_end_no_longer_than_told(self, tmp_path, kinds):
        jobs.start("push", "well", "n", SPEC, tmp_path, Systemd())
        # A thread may not set signal handlers, so the status is written as the job would.
        timer = threading.Timer(0.2, finish_from_elsewhere, (tmp_path,))
        timer.start()
        began = time.monotonic()
        status, _findings = jobs.poll("push", "n", 120, tmp_path, Systemd())
        timer.join()
        assert status["state"] == "done"
        assert time.monotonic() - began < 60


def finish_from_elsewhere(root):
    status = jobs.read_status("push", root)
    assert status
    jobs.write_status(root / "push.json", {**status, "state": "done"})


class TestCancel:
    def test_running(self, tmp_path, kinds):
        systemd = Systemd()
        jobs.start("push", "well", "n", SPEC, tmp_path, systemd)
        assert jobs.cancel("push", tmp_path, systemd)[0]
        assert ("systemctl", "stop", "spark-job-push.service") in systemd.calls

    def test_not_running(self, tmp_path, kinds):
        systemd = Systemd()
        assert jobs.cancel("push", tmp_path, systemd) == (False, None)
        assert systemd.calls == []


class TestProgress:
    def test_counts_and_rate(self, tmp_path):
        now = [0.0]
        status = jobs._fresh_status("push", "well", "n", SPEC)
        job = jobs.Reporter(tmp_path / "push.json", status, lambda: now[0])
        job.stage("sends 2 files", 10_000)
        for _ in range(4):
            now[0] += 1
            job.advance(1000)
        written = jobs.read_status("push", tmp_path)
        assert written
        assert written["progress"] == {
            "stage": "sends 2 files",
            "done_bytes": 4000,
            "total_bytes": 10_000,
            "rate_bps": 1000,
        }
        assert jobs.progress_line(written) == "sends 2 files: 4.0 kB of 10.0 kB, 40 %, 1.0 kB/s, 6 s left"

    def test_a_stall_brings_the_rate_down(self, tmp_path):
        now = [0.0]
        job = jobs.Reporter(tmp_path / "x.json", jobs._fresh_status("x", "well", "n", SPEC), lambda: now[0])
        job.stage("sends", 10_000)
        for _ in range(20):
            now[0] += 1
            job.at(1000)
        written = jobs.read_status("x", tmp_path)
        assert written
        assert written["progress"]["rate_bps"] == 0

    def test_written_whole_and_seldom(self, tmp_path):
        now = [0.0]
        job = jobs.Reporter(tmp_path / "x.json", jobs._fresh_status("x", "well", "n", SPEC), lambda: now[0])
        job.stage("sends", 10)
        job.advance(5)
        written = jobs.read_status("x", tmp_path)
        assert written
        assert written["progress"]["done_bytes"] == 0
        assert [path.name for path in tmp_path.iterdir()] == ["x.json"]

    @pytest.mark.parametrize(
        ("progress", "line"),
        [
            ({"stage": "begins"}, "begins"),
            ({"stage": "loads", "done_bytes": 5_000_000}, "loads: 5.0 MB"),
            (
                {"stage": "sends", "done_bytes": 167_500_000_000, "total_bytes": 335_000_000_000, "rate_bps": 8.12e8},
                "sends: 168 GB of 335 GB, 50 %, 812 MB/s, 3 min 26 s left",
            ),
            ({"stage": "sends", "done_bytes": 80_000, "total_bytes": 7_340_000, "rate_bps": 1000}, None),
            (
                {"stage": "sends", "done_bytes": 49, "total_bytes": 1_200_000_000, "rate_bps": 52},
                "sends: 49 B of 1.2 GB, 0 %, 52 B/s",
            ),
        ],
    )
    def test_in_one_line(self, progress, line):
        shown = jobs.progress_line({"progress": progress})
        assert shown == line if line else shown.endswith("2 h 01 min left")
