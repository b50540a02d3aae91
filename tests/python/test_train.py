"""`distca train` as a user runs it: metrics, resuming, MPI ranks, checkpoints that others load."""

import json
import os
import pathlib
import random
import signal
import subprocess
import time

import pytest
import torch
import transformers

from train_runs import Runs

MPIRUN = ("mpirun", "--oversubscribe", "--allow-run-as-root", "-n", "4")


@pytest.fixture
def runs(request, tmp_path):
    return Runs(pathlib.Path(request.config.getoption("--build")) / "distca", tmp_path)


@pytest.fixture(scope="module")
def whole(request, tmp_path_factory):
    """Losses of the uninterrupted run on 4 thread ranks."""
    runs = Runs(pathlib.Path(request.config.getoption("--build")) / "distca", tmp_path_factory.mktemp("whole"))
    runs.must_run()
    assert len(runs.losses()) == 12
    return runs


def test_metrics_have_the_documented_keys_and_count_every_row(whole):
    for line in whole.lines():
        assert {"step", "loss", "tokens", "targets", "padding", "step_s", "tokens_per_s", "compute_s", "lr", "grad_norm",
                "load_max_over_mean", "bytes", "wait_s", "plan_ms", "digest"} <= set(line)
        assert line["tokens"] + line["padding"] == 2048
        assert len(line["digest"]) == 16
    losses = whole.losses()
    assert losses[-1] < losses[0]


def test_progress_is_plain_lines_where_there_is_no_terminal(runs):
    done = runs.must_run("train.steps=2")
    first, *lines = done.stderr.splitlines()
    assert all("\r" not in line for line in lines), done.stderr
    assert lines[0].startswith("step 1/2 ") and lines[1].endswith("0s left")
    assert "loss" in lines[0] and "loss" in lines[1]
    assert "predicted peak" in first and "measured peak" in lines[2]
    assert lines[3].startswith("rank") and len(lines) == 4 + 4 + 2, "where the time went: a line a rank, and the mean"
    assert lines[-1].startswith("bubble") and "K/V rows" in lines[-1]
    assert done.stdout == ""


def test_summary_is_json_alone_on_standard_output(runs):
    done = subprocess.run(runs.command("train.steps=2", options=("--json", "-")), capture_output=True, text=True)
    summary, lines = json.loads(done.stdout), runs.lines()
    assert summary["steps"] == 2 and summary["first_step"] == 0
    assert [summary["first_loss"], summary["last_loss"]] == runs.losses()
    assert summary["tokens"] == sum(line["tokens"] for line in lines)
    assert summary["checkpoint"] == str(runs.latest())


def test_only_the_newest_checkpoints_stay(whole):
    names = sorted(path.name for path in whole.checkpoints.iterdir())
    assert names == ["latest", "step-00000010", "step-00000012"]
    assert whole.latest().name == "step-00000012"


def test_hugging_face_loads_a_checkpoint(whole):
    model = transformers.LlamaForCausalLM.from_pretrained(whole.latest())
    text = (whole.root / "texts" / "000.txt").read_bytes()
    tokens = torch.tensor([list(text)])
    loss = model(tokens, labels=tokens).loss.item()
    assert loss < whole.losses()[0] - 0.5, "a trained model predicts its text better than an untrained one"


def test_a_finished_run_that_is_resumed_has_nothing_to_do(whole):
    before = whole.metrics.read_text()
    done = whole.must_run("checkpoint.resume=latest")
    assert "nothing to do" in done.stderr
    assert whole.metrics.read_text() == before


def progress_line(process):
    """The next line that tells of a step; empty at the end."""
    while (line := process.stderr.readline()).startswith("info: memory"):
        pass
    return line


def kill_after_lines(process, lines, delay):
    """Kills after so many progress lines and a while more."""
    for _ in range(lines):
        if not progress_line(process):
            return
    time.sleep(delay)
    process.send_signal(signal.SIGKILL)


def kill_in_checkpoint(process, folder, delay):
    """Kills when a checkpoint is being written."""
    while process.poll() is None:
        try:
            if any(name.endswith(".tmp") for name in os.listdir(folder)):
                break
        except FileNotFoundError:
            pass
        time.sleep(0.0002)
    time.sleep(delay)
    process.send_signal(signal.SIGKILL)


def test_killed_at_twenty_points_and_resumed_it_is_the_same_run_bit_for_bit(runs, tmp_path_factory):
    """One run of 60 steps, killed 20 times: 12 times somewhere in a step, 8 times in a checkpoint."""
    settings = ("train.steps=60", "checkpoint.resume=latest")
    other = Runs(runs.program, tmp_path_factory.mktemp("uninterrupted"))
    other.must_run(*settings)
    seed = time.time_ns()
    print("seed", seed)
    generator = random.Random(seed)
    kills = ["step"] * 12 + ["checkpoint"] * 8
    generator.shuffle(kills)
    killed = {"step": 0, "checkpoint": 0}
    for kind in kills:
        process = subprocess.Popen(runs.command(*settings), stderr=subprocess.PIPE, text=True)
        if kind == "step":
            kill_after_lines(process, generator.randrange(1, 5), generator.uniform(0, 0.05))
        else:
            kill_in_checkpoint(process, runs.checkpoints, generator.uniform(0, 0.008))
        process.communicate()
        killed[kind] += process.returncode == -signal.SIGKILL
        runs.latest()
    runs.must_run(*settings)
    assert runs.losses() == other.losses()
    assert killed["step"] + killed["checkpoint"] >= 18, f"{killed} of 20 came before the run had ended"


def test_resumed_on_two_ranks_instead_of_four(runs, whole):
    process = subprocess.Popen(runs.command(), stderr=subprocess.PIPE, text=True)
    kill_after_lines(process, 7, 0)
    process.communicate()
    assert runs.latest() is not None
    runs.must_run("checkpoint.resume=latest", ranks=2)
    losses = runs.losses()
    assert len(losses) == len(whole.losses())
    assert max(abs(a - b) for a, b in zip(losses, whole.losses())) <= 5e-6


def test_mpi_ranks_give_the_bits_of_thread_ranks(runs, whole):
    done = runs.run(launcher=MPIRUN, env=dict(os.environ, OMP_NUM_THREADS="1"))
    assert done.returncode == 0, done.stderr
    assert runs.losses() == whole.losses()
    runs.latest()


def test_explicit_checkpoint_is_gone_back_to(runs, whole):
    runs.must_run("checkpoint.keep=0")
    folder = runs.checkpoints / "step-00000004"
    runs.must_run(f"checkpoint.resume={folder}", "checkpoint.keep=0")
    assert runs.losses() == whole.losses()


def stop(command):
    """Runs it, sends SIGTERM after its first step; its exit code and last line."""
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    progress_line(process)
    process.send_signal(signal.SIGTERM)
    last = process.communicate()[1].splitlines()[-1]
    return process.returncode, last


def test_sigterm_ends_the_run_after_its_step_with_a_checkpoint(runs, tmp_path_factory):
    settings = ("train.steps=20", "checkpoint.every=0", "checkpoint.resume=latest")
    other = Runs(runs.program, tmp_path_factory.mktemp("uninterrupted"))
    other.must_run(*settings)
    code, last = stop(runs.command(*settings))
    assert code == 143 and "stopped by SIGTERM after step" in last
    assert runs.latest() is not None and runs.latest().name in last
    runs.must_run(*settings)
    assert runs.losses() == other.losses()


def test_sigterm_without_a_folder_for_checkpoints(runs):
    code, last = stop(runs.command("train.steps=1000", "checkpoint.dir=", "checkpoint.every=0"))
    assert code == 143 and "there is no earlier checkpoint" in last
