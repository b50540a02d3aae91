"""MPI jobs that go wrong end soon, with the rank and the operation named, and leave no process behind. The faults are
in comm_faults.cc."""

import os
import pathlib
import re
import signal
import subprocess
import tempfile

import pytest

from processes import alive, wait_until

LAUNCHER = ["mpirun", "--oversubscribe", "--allow-run-as-root", "-n", "4"]
SOON = 5.0  # seconds in which a job must be over once something happened to it
BUSY = ["small messages for ever", "large messages for ever"]


class Job:
    """A running job of four ranks and what it has printed."""

    def __init__(self, program, fault, timeout_s):
        # Written through one open file and read through another: a position they shared would let a read move a write.
        self.output = tempfile.NamedTemporaryFile("ab")
        self.process = subprocess.Popen([*LAUNCHER, program, fault, str(timeout_s)], stdout=self.output,
                                        stderr=self.output)

    def text(self):
        return pathlib.Path(self.output.name).read_text()

    def pids(self):
        """The ranks' process ids by rank, once all four are at work."""

        def find():
            return {int(rank): int(pid) for rank, pid in re.findall(r"rank (\d) has pid (\d+)", self.text())}

        assert wait_until(lambda: len(find()) == 4, 60), self.text()
        return find()

    def end(self, seconds):
        """Waits for the job's end; its exit code."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            pytest.fail(f"still running after {seconds} s:\n{self.text()}")


@pytest.fixture
def start(request):
    """Starts a job; what is left of it at the test's end is killed."""
    program = str(pathlib.Path(request.config.getoption("--build")) / "tests" / "comm_faults")
    jobs = []

    def start(fault, timeout_s=600):
        jobs.append(Job(program, fault, timeout_s))
        return jobs[-1]

    yield start
    for job in jobs:
        job.process.kill()
        job.process.wait()


def run_job(start, fault, timeout_s=600):
    job = start(fault, timeout_s)
    code = job.end(60)
    return code, job.text()


def test_every_rank_names_the_one_that_never_answers(start):
    code, text = run_job(start, "silent", timeout_s=1)
    assert code == 1, text
    for rank in (0, 1, 3):
        assert re.search(rf"distca: rank {rank} (waited 1\.0 s|stopped waiting) for rank 2 in loss of step 7", text), text
    assert "waited 1.0 s for rank 2" in text


def test_a_rank_that_throws_ends_all_with_its_message(start):
    code, text = run_job(start, "throw")
    assert code == 1, text
    assert "distca: rank 1: no space left on the device\n" in text
    for rank in (0, 2, 3):
        assert re.search(rf"distca: rank {rank} stopped .* step 1: rank 1: no space left on the device\n", text), text


def test_a_rank_that_throws_ends_ranks_that_compute(start):
    code, text = run_job(start, "throw while busy")
    assert code == 1, text
    assert "distca: rank 1: out of memory\n" in text


def test_wrong_input_found_by_all_is_one_line_and_exit_code_2(start):
    code, text = run_job(start, "wrong input")
    assert code == 2, text
    assert re.findall("distca: .*", text) == ["distca: rank 0: heads 3 are not divisible by 2"]


def test_abort_ends_all_with_its_message(start):
    code, text = run_job(start, "abort")
    assert code == 1, text
    for rank in range(4):
        assert re.search(rf"distca: rank {rank}.*: the plans differ\n", text), text


def test_different_operations_are_told_apart(start):
    code, text = run_job(start, "other operation")
    assert code == 1, text
    assert "barrier 'step 7'" in text and "all_reduce 'loss' of 1 float64 (sum)" in text


@pytest.mark.parametrize("fault, sent, expected", [("other size", 90000, 90001), ("unexpected", 10, 0)])
def test_sides_that_disagree_say_where(start, fault, sent, expected):
    code, text = run_job(start, fault)
    assert code == 1, text
    assert re.search(
        rf"part \d of collect layer 0: rank 1 sends {sent} bytes to rank 2, which expects {expected}\n", text), text


def test_a_dropped_exchange_is_given_up_by_all(start):
    code, text = run_job(start, "drop")
    assert code == 1, text
    assert "rank 1: gave up dispatch layer 0" in text or "rank 1 gave up dispatch layer 0" in text


@pytest.mark.parametrize("fault", BUSY)
def test_a_killed_rank_ends_the_job_and_is_named(start, fault):
    job = start(fault)
    pids = job.pids()
    os.kill(pids[2], signal.SIGKILL)
    assert job.end(SOON) != 0
    assert re.search(r"process rank 2 with PID .* exited on signal 9", job.text()), job.text()
    assert wait_until(lambda: not any(map(alive, pids.values())), SOON)


@pytest.mark.parametrize("fault", BUSY)
def test_a_stopped_rank_is_named_by_all_and_the_job_ends(start, fault):
    job = start(fault, timeout_s=1)
    pids = job.pids()
    os.kill(pids[2], signal.SIGSTOP)
    assert job.end(30) == 1, job.text()
    assert re.search(r"distca: rank \d .* for rank 2 in dispatch layer \d+", job.text()), job.text()
    for rank in (0, 1, 3):  # a rank that is one layer ahead waits for those that the stopped one holds back, too
        found = re.search(rf"distca: rank {rank} (waited|stopped waiting).* for ranks? ([\d, and]*) in dispatch", job.text())
        assert found and "2" in found[2], job.text()
    assert wait_until(lambda: not any(map(alive, pids.values())), SOON)


@pytest.mark.parametrize("fault", BUSY)
@pytest.mark.parametrize("stopped", [False, True])
def test_no_rank_outlives_its_launcher(start, fault, stopped):
    job = start(fault)
    pids = job.pids()
    if stopped:
        os.kill(pids[1], signal.SIGSTOP)
    job.process.kill()
    job.process.wait()
    assert wait_until(lambda: not any(map(alive, pids.values())), SOON), pids
