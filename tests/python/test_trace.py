"""`distca train --trace`, `--replay`, the table that ends a run, and the timing-only overlap."""

import json
import pathlib
import subprocess

import pytest

from train_runs import Runs

MPIRUN = ("mpirun", "--oversubscribe", "--allow-run-as-root", "-n", "2")
LINK = ("link.clock=virtual", "link.latency=1e-4", "link.bandwidth=1e8")
PLAIN = ("checkpoint.dir=", "checkpoint.every=0")
WORK = ["ci", "attention", "pack", "merge", "optimizer", "wait", "bubble"]


@pytest.fixture
def runs(request, tmp_path):
    return Runs(pathlib.Path(request.config.getoption("--build")) / "distca", tmp_path)


def run(runs, *settings, options=(), **more):
    runs.metrics.unlink(missing_ok=True)
    done = subprocess.run(runs.command(*PLAIN, *settings, options=options, **more), capture_output=True, text=True,
                          timeout=300)
    assert done.returncode == 0, done.stderr
    return done


def replay(runs, *options):
    return subprocess.run([runs.program, "train", "--replay", *map(str, options)], capture_output=True, text=True,
                          timeout=300)


def lanes(events):
    """Bars by rank and by the name of their lane."""
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    bars = {}
    for event in events:
        if event["ph"] == "X":
            bars.setdefault((event["pid"], names[event["pid"], event["tid"]]), []).append(event)
    return bars


def no_two_at_once(bars):
    ends = 0
    for bar in sorted(bars, key=lambda bar: (bar["ts"], -bar["dur"])):
        assert bar["ts"] >= ends - 0.002, bar
        ends = bar["ts"] + bar["dur"]


def check_trace(path, ranks, steps, layers=2, nano_batches=2):
    trace = json.loads(pathlib.Path(path).read_text())
    bars = lanes(trace["traceEvents"])
    for rank in range(ranks):
        compute, messages = bars[rank, "compute"], bars[rank, "communication"]
        no_two_at_once(compute)
        no_two_at_once(messages)
        kinds = [bar["args"]["kind"] for bar in compute]
        assert set(kinds) <= set(WORK)
        # Forward, δ and backward; forward in two where a rank has tasks of its own and others'.
        local = sum(bar["name"] == "attend local" for bar in compute)
        assert local <= layers * nano_batches * len(steps)
        assert kinds.count("attention") - local == 3 * layers * nano_batches * len(steps)
        assert kinds.count("optimizer") == len(steps)
        assert {bar["args"]["step"] for bar in compute} == set(steps)
        for bar in compute:
            if bar["args"]["kind"] == "attention":
                assert bar["args"]["phase"] in ("forward", "backward")
                assert 0 <= bar["args"]["layer"] < layers and 0 <= bar["args"]["nano_batch"] < nano_batches
        assert all(bar["args"]["peer"] in range(ranks) and bar["args"]["bytes"] >= 0 for bar in messages)
        assert len(bars[rank, "planner"]) == len(steps)
    # One clock: nobody leaves a sum over ranks before all have come.
    for step in steps:
        sums = [bar for rank in range(ranks) for bar in bars[rank, "compute"]
                if bar["name"] == "sum of losses" and bar["args"]["step"] == step]
        assert len(sums) == ranks
        assert max(bar["ts"] for bar in sums) <= min(bar["ts"] + bar["dur"] for bar in sums) + 0.002
    return trace


def test_a_trace_holds_every_rank_on_one_clock(runs):
    path = runs.root / "trace.json"
    run(runs, "train.steps=4", *LINK, options=("--trace", path, "--trace-steps", "1:3"))
    trace = check_trace(path, 4, [1, 2])
    waits = [0.0] * 4
    for event in trace["traceEvents"]:
        if event["ph"] == "X" and event["args"]["kind"] == "wait" and "layer" in event["args"]:
            waits[event["pid"]] += event["dur"] * 1e-6
    assert max(waits) <= sum(line["wait_s"] for line in runs.lines()[1:3]) * 1.01


def test_wall_clock_and_mpi_ranks_are_traced_alike(runs):
    path = runs.root / "trace.json"
    run(runs, "train.steps=1", ranks=2, options=("--trace", path))
    check_trace(path, 2, [0])
    run(runs, "train.steps=2", launcher=MPIRUN, options=("--trace", path, "--trace-steps", "1"))
    check_trace(path, 2, [1])


def test_the_run_ends_with_where_its_time_went(runs):
    done = run(runs, "train.steps=3", "train.micro_batches=2", "train.tokens_per_batch=4096", "parallel.pp=2", *LINK,
               options=("--json", "-"))
    *table, planning = done.stderr.splitlines()[-7:]
    assert planning.startswith("bubble ") and "idle ranks did" in planning and "K/V rows" in planning
    assert table[0].split()[:3] == ["rank", "CI", "attention"] and "bubble" in table[0]
    assert [line.split()[0] for line in table[1:]] == ["0", "1", "2", "3", "mean"]
    ranks = json.loads(done.stdout)["breakdown"]
    for rank in ranks:
        assert rank["step_s"] == pytest.approx(sum(line["step_s"] for line in runs.lines()))
        parts = [rank[kind + "_s"] for kind in WORK] + [rank["other_s"]]
        assert sum(parts) == pytest.approx(rank["step_s"], rel=0.02) and min(parts) >= 0
        assert rank["ci_s"] > 0 and rank["bubble_s"] > 0, "each stage waits for the other at one end"
        assert rank["wait_s"] > 0
    compute = sum(rank[kind] for rank in ranks for kind in ("ci_s", "attention_s", "optimizer_s")) / 4
    assert compute == pytest.approx(sum(line["compute_s"] for line in runs.lines()), rel=0.1)


def test_a_recorded_step_runs_again_without_its_data(runs):
    path, again = runs.root / "trace.json", runs.root / "again.json"
    run(runs, "train.steps=3", "attention.memory=resend", options=("--trace", path, "--trace-steps", "1:3"))
    (runs.root / "text.bin").unlink()
    digests = [line["digest"] for line in runs.lines()]
    for step in (1, 2):
        done = replay(runs, path, "--replay-step", step, "--trace", again, "--set", "link.clock=virtual",
                      "--set", "train.steps=2")
        assert done.returncode == 0, done.stderr
        assert "the plans are those of the recorded step" in done.stderr
        recorded = json.loads(path.read_text())["distca"]["steps"][step - 1]
        replayed = json.loads(again.read_text())["distca"]["steps"]
        for each in replayed:
            assert each["doc_lengths"] == recorded["doc_lengths"]
            assert each["digest"] == recorded["digest"] == digests[step]
        check_trace(again, 4, [0, 1])
    done = replay(runs, path, "--ranks", 2)
    assert done.returncode == 0 and "the plans are others" in done.stderr


def test_signals_are_said_to_mean_nothing_but_time(runs):
    done = run(runs, "train.steps=3", "attention.overlap=signal", *LINK)
    warning = [line for line in done.stderr.splitlines() if line.startswith("warning")]
    assert len(warning) == 1 and "Only times mean something" in warning[0]
    lines = runs.lines()
    assert all(line["timing_only"] is True for line in lines)
    assert lines[0]["bytes"] > 10_000 > lines[1]["bytes"] > 0
    run(runs, "train.steps=1")
    assert "timing_only" not in runs.lines()[0]
    refused = runs.run("train.steps=1", "attention.overlap=signal")
    assert refused.returncode == 2 and "leave checkpoint.dir out" in refused.stderr


@pytest.mark.parametrize("options, says", [
    (("--trace-steps", "1:2"), "--trace-steps 1:2 needs --trace"),
    (("--trace", "trace.json", "--trace-steps", "2:2"), "these are no steps"),
    (("--trace", "trace.json", "--trace-steps", "a"), "it takes A:B"),
    (("--trace", "nowhere/trace.json"), "nowhere"),
    (("--replay", "trace.json"), "not both"),
    (("--replay-step", "1"), "--replay-step needs --replay"),
])
def test_mistakes_with_traces(runs, options, says):
    done = subprocess.run(runs.command("train.steps=1", options=options), capture_output=True, text=True,
                          cwd=runs.root)
    assert done.returncode == 2 and says in done.stderr, done.stderr
    assert len(done.stderr.splitlines()) == 1 and not runs.metrics.exists()


def test_files_that_hold_no_recorded_step(runs):
    path = runs.root / "trace.json"
    path.write_text('{"traceEvents": []}')
    assert "no recorded step" in replay(runs, path).stderr
    run(runs, "train.steps=1", options=("--trace", path))
    assert "step 7 isn't recorded in it; there are: 0" in replay(runs, path, "--replay-step", "7").stderr
    done = replay(runs, path, "--set", "train.tokens_per_batch=4096")
    assert done.returncode == 2 and "are those of the run" in done.stderr
    whole = json.loads(path.read_text())
    del whole["distca"]["steps"][0]["doc_lengths"]
    path.write_text(json.dumps(whole))
    done = replay(runs, path)
    assert done.returncode == 2 and "damaged" in done.stderr


def test_a_device_trace_has_the_operators_of_the_chosen_steps(runs, tmp_path):
    def products(first, last):
        path = tmp_path / f"device-{first}-{last}.json"
        run(runs, "train.steps=3", options=("--device-trace", path, "--trace-steps", f"{first}:{last}"))
        return sum(event.get("name") == "aten::mm" for event in json.loads(path.read_text())["traceEvents"])

    one, two = products(1, 2), products(1, 3)
    assert one > 0 and two == 2 * one
