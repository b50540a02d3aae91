"""Training runs that are struck at some moment, and whether what is left of them says what happened. Used by
test_train_faults.py and by scripts/soak. Standard library alone."""

import dataclasses
import json
import os
import pathlib
import re
import signal
import subprocess
import tempfile
import time

from processes import alive, wait_until
from train_runs import MODEL, Runs

LAUNCHER = ("mpirun", "--oversubscribe", "--allow-run-as-root", "-n")
TIMEOUT = 3.0  # parallel.timeout of runs in which ranks are to wait in vain, in seconds
SOON = 5.0  # in which a job must be over once it is to end


@dataclasses.dataclass(frozen=True)
class Mode:
    """A way to split a run over ranks; `servers` are dedicated ones."""

    name: str
    ranks: int
    settings: tuple
    servers: tuple = ()  # their ranks
    spare: bool = False  # whether each may be lost


BASE = ("train.steps=100000", "data.split_documents=true", "checkpoint.dir=", "checkpoint.every=0", "train.metrics=")
MODES = [
    Mode("dp, pingpong, keep", 4, ("attention.memory=keep",)),
    Mode("dp, single, resend", 3, ("attention.overlap=single", "attention.memory=resend")),
    Mode("dp, free layout, sharded", 4, ("attention.layout=free", "parallel.shard_optimizer=true")),
    Mode("tp 2", 4, ("parallel.tp=2",)),
    Mode("tp 2, single", 2, ("parallel.tp=2", "attention.overlap=single")),
    Mode("pp 2", 4, ("parallel.pp=2", "train.micro_batches=2", "attention.memory=resend")),
    Mode("pp 2, keep, single", 2, ("parallel.pp=2", "train.micro_batches=2", "attention.overlap=single")),
    Mode("tp 2, pp 2", 4, ("parallel.tp=2", "parallel.pp=2")),
    Mode("1f1b", 4, ("parallel.pp=2", "train.micro_batches=2", "parallel.schedule=1f1b")),
    Mode("one server", 3, ("parallel.servers=1",), servers=(2,)),
    Mode("two servers", 4, ("parallel.servers=2",), servers=(2, 3), spare=True),
    Mode("two servers, pp 2", 4, ("parallel.servers=2", "parallel.pp=2", "attention.overlap=single"), servers=(2, 3),
         spare=True),
]
# More ranks than a small machine starts processes for.
THREAD_MODES = [
    *MODES,
    Mode("two servers, tp 2", 6, ("parallel.servers=2", "parallel.tp=2"), servers=(2, 3, 4, 5), spare=True),
    Mode("everything", 8, ("parallel.servers=2", "parallel.tp=2", "parallel.pp=2", "attention.memory=resend"),
         servers=(4, 5, 6, 7), spare=True),
]


def fault_runs(build, root):
    """A data set and a model that can be split in all these modes."""
    runs = Runs(pathlib.Path(build) / "distca", root)
    (runs.root / "config.json").write_text(json.dumps({**MODEL, "vocab_size": 258}))
    return runs


def ranks_below(launcher):
    """Process ids of the MPI ranks that `launcher` started, by rank."""
    found = {}
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            environment = (entry / "environ").read_bytes().split(b"\0")
        except (OSError, IndexError):
            continue
        rank = [value for value in environment if value.startswith(b"OMPI_COMM_WORLD_RANK=")]
        if parent == launcher and rank:
            found[int(rank[0].split(b"=")[1])] = int(entry.name)
    return found


class MpiJob:
    """`distca train` under mpirun. `with` it: what is left at the end is killed."""

    def __init__(self, runs, mode, timeout):
        self.mode = mode
        # Written through one open file and read through another: a position they shared would let a read move a write.
        self.output = tempfile.NamedTemporaryFile("ab")
        command = runs.command(*BASE, f"parallel.timeout={timeout}", *mode.settings, launcher=(*LAUNCHER, str(mode.ranks)))
        self.process = subprocess.Popen(command, stdout=self.output, stderr=self.output,
                                        env={**os.environ, "OMP_NUM_THREADS": "1"})
        self.pids = {}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for pid in self.left():
            os.kill(pid, signal.SIGKILL)
        self.output.close()

    def text(self):
        return pathlib.Path(self.output.name).read_text(errors="replace")

    def wait_for_steps(self):
        """Until the ranks are about to begin step 0: before that, MPI's own start has no timeout."""
        assert wait_until(lambda: "memory: predicted" in self.text() or self.process.poll() is not None, 60), self.text()
        self.pids = ranks_below(self.process.pid)
        assert len(self.pids) == self.mode.ranks, self.text()

    def strike(self, rank, number):
        os.kill(self.pids[rank], number)

    def end(self, seconds):
        """Seconds until the job was over; None where it isn't after so many."""
        begin = time.monotonic()
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None
        return time.monotonic() - begin

    def left(self):
        return [pid for pid in self.pids.values() if alive(pid)]


def said_of_killed(text, victim):
    """The line that names a rank that was killed; None where there is none."""
    found = re.search(rf".*(rank {victim} with PID .* exited on signal 9|rank {victim}: ).*", text)
    return found and found[0].strip()


def said_of_stopped(text, victim):
    """The line in which a rank says that it waited for `victim`, and in what; None where there is none."""
    for line in re.findall(r".*rank \d+ (?:waited|stopped waiting).*", text):
        for ranks in re.findall(r" for ranks? ([\d, and]*\d) in \S", line):
            if str(victim) in re.findall(r"\d+", ranks):
                return line.strip()
    return None


def struck_over_mpi(runs, mode, victim, stopped, delay, timeout=TIMEOUT):
    """Runs, strikes after `delay` seconds of steps; (what is wrong or "", what was said, seconds until the end)."""
    if not stopped:
        timeout = 60  # in which nothing here may come
    with MpiJob(runs, mode, timeout) as job:
        job.wait_for_steps()
        time.sleep(delay)
        if job.process.poll() is not None:
            return f"it ended before it was struck: {job.text()}", "", 0
        job.strike(victim, signal.SIGSTOP if stopped else signal.SIGKILL)
        due = (timeout if stopped else 0) + SOON
        seconds = job.end(due + 60)
        text = job.text()
        said = (said_of_stopped if stopped else said_of_killed)(text, victim) or ""
        if seconds is None:
            return f"a hang: {text}", said, due + 60
        if seconds > due:
            return f"it took {seconds:.1f} s to end: {text}", said, seconds
        if not said:
            return f"nobody names rank {victim}: {text}", said, seconds
        if not wait_until(lambda: not job.left(), 2):
            return f"processes {job.left()} are left", said, seconds
        if job.process.returncode == 0:
            return f"exit code 0: {text}", said, seconds
        return "", said, seconds


def run_on_threads(program, runs, mode, victim, kind, operation, steps, timeout=60):
    command = [str(program), str(runs.root / "run.toml"), str(mode.ranks), str(victim), kind, str(operation), *BASE,
               *mode.settings, f"train.steps={steps}", f"parallel.timeout={timeout}"]
    begin = time.monotonic()
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=120,
                              env={**os.environ, "OMP_NUM_THREADS": "1"})
    except subprocess.TimeoutExpired as expired:
        return None, (expired.stderr or b"").decode(errors="replace"), time.monotonic() - begin
    return done.returncode, done.stderr, time.monotonic() - begin


def count_operations(program, runs, mode, steps):
    """Of every rank, in a run of so many steps in which nothing happens."""
    code, text, _ = run_on_threads(program, runs, mode, -1, "throw", 0, steps)
    assert code == 0, text
    found = {int(rank): int(count) for rank, count in re.findall(r"operations: rank (\d+) has (\d+)", text)}
    assert len(found) == mode.ranks, text
    return found


def struck_on_threads(program, runs, mode, victim, hangs, operation, steps, timeout=TIMEOUT):
    """As struck_over_mpi(), with when it happened as a fourth."""
    code, text, seconds = run_on_threads(program, runs, mode, victim, "hang" if hangs else "throw", operation, steps,
                                         timeout if hangs else 60)
    struck = re.search(r"fault: rank \d+ in (.*), while (starting|training)", text)
    when = struck[1] if struck else "never"
    lost = re.search(rf".*a dedicated server was lost .*\(rank {victim}: struck in .*", text)
    ended = re.search(rf"train_faults: rank {victim}: struck in .*", text)
    waited = said_of_stopped(text, victim)
    said = next((found for found in (waited, lost and lost[0], ended and ended[0]) if found), "").strip()
    if code is None:
        return f"a hang: {text}", said, seconds, when
    if not struck:
        return f"operation {operation} never came: {text}", said, seconds, when
    if hangs:
        problem = "" if code == 1 and waited else f"exit code {code}, and nobody names rank {victim}: {text}"
    elif mode.spare and victim in mode.servers and struck[2] == "training":
        # In its last operations the others may have ended, and then have nothing to go on with.
        at_the_end = when in ("peaks of memory", "seconds of the run")
        whole = code == 0 and (lost or at_the_end) and f"step {steps}/{steps}" in text
        problem = "" if whole else f"exit code {code}, and the run did not go on: {text}"
    else:
        problem = "" if code == 1 and ended else f"exit code {code}, and nobody names rank {victim}: {text}"
    return problem, said, seconds, when
