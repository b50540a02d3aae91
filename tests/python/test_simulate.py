"""`distca simulate` and `distca tune` as a user and another program meet them."""

import json
import pathlib

import pytest

SMALL = ["--gpus", 32, "--model", "llama-8b", "--tokens", 1048576, "--samples", 1]
RECORDED = pathlib.Path(__file__).resolve().parents[3] / "shared" / "data" / "recorded_iterations.tsv"


def test_json_on_standard_output_is_all_there_is(run_program):
    done = run_program("distca", "simulate", *SMALL, "--policy", "none,wlb-2,cad", "--json", "-")
    study = json.loads(done.stdout)
    assert [row["policy"] for row in study["rows"]] == ["none", "wlb-2", "cad"]
    assert study["rows"][0]["speedup"] == 1
    for row in study["rows"]:
        assert row["iteration_s"] >= study["balanced_s"]
        assert row["tokens_per_s"] == pytest.approx(1048576 / row["iteration_s"])


def test_a_file_is_overridden_by_flags_and_keys(run_program, tmp_path):
    config = tmp_path / "run.toml"
    config.write_text('[model]\nconfig = "llama-8b"\n[train]\ntokens_per_batch = 1048576\n[data]\ncontext = 131072\n'
                      '[parallel]\ntp = 8\n[cluster]\ngpus = 32\ndistribution = "wlbllm"\nsamples = 1\n')
    done = run_program("distca", "simulate", "--config", config, "--gpus", 64, "--set", "attention.tolerance=0.05",
                       "--policy", "cad", "--json", "-")
    setup = json.loads(done.stdout)["setup"]
    assert (setup["gpus"], setup["tolerance"], setup["recompute"]) == (64, 0.05, "none")


def test_lengths_from_a_file_trace_and_report(run_program, tmp_path):
    lengths = tmp_path / "lengths.txt"
    lengths.write_text("# tokens\n" + "70000\n3000\n500\n" * 20)
    run_program("distca", "simulate", *SMALL, "--distribution", lengths, "--policy", "none,cad", "--trace",
                tmp_path / "trace.json", "--report", tmp_path / "page.html")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    events = [event for event in events if event["ph"] == "X"]
    kinds = {event["name"] for event in events}
    assert {"linear", "attention", "dispatch", "collect", "attention backward"} <= kinds
    # Streams do one thing at a time.
    for thread in {(event["pid"], event["tid"]) for event in events}:
        lane = sorted((event["ts"], event["dur"]) for event in events if (event["pid"], event["tid"]) == thread)
        assert all(b[0] >= a[0] + a[1] - 0.01 for a, b in zip(lane, lane[1:]))
    assert (tmp_path / "page.html").read_text().rstrip().endswith("</html>")


def test_sweeps_are_every_combination(run_program):
    done = run_program("distca", "simulate", *SMALL, "--policy", "cad", "--sweep", "gpus=32,64", "tolerance=0.02,0.1",
                       "--json", "-")
    points = [tuple(point["sweep"].values()) for point in json.loads(done.stdout)]
    assert sorted(points) == sorted([("0.02", "32"), ("0.1", "32"), ("0.02", "64"), ("0.1", "64")])


def test_tune_answers(run_program):
    done = run_program("distca", "tune", *SMALL)
    assert "Should you disaggregate?" in done.stdout and "tolerance" in done.stdout


@pytest.mark.skipif(not RECORDED.exists(), reason=f"{RECORDED} is not here")
def test_recorded_rows_are_predicted(run_program):
    report = json.loads(run_program("distca", "simulate", "--recorded", RECORDED, "--json", "-").stdout)
    assert len(report["rows"]) == 44
    fitted = [abs(row["predicted_ms"] / row["ms"] - 1) for row in report["rows"]
              if row["dataset"] == "prolong" and row["pp"] == 1]
    assert len(fitted) == 25 and max(fitted) <= 0.08


@pytest.mark.parametrize("arguments, message", [
    (["--model", "llama-9b"], "no preset"),
    (["--tp", 3], "32 heads"),
    (["--gpus", 60], "60 gpus"),
    (["--policy", "wlb-3"], "groups of 3"),
    (["--policy", "magic"], "magic"),
    (["--tokens", 131072 * 3], "multiple"),
    (["--model", "llama-70b", "--tp", 1], "141 GB"),
    (["--profile", "b200"], "b200"),
    (["--distribution", "./not-here.txt"], "not-here"),
    (["--sweep", "colour=red"], "colour"),
    (["--recorded", "./not-here.tsv"], "not-here"),
    (["--set", "link.bandwidth=1e9"], "link.bandwidth = 1e+09: not modelled"),
    (["--set", "attention.layout=free"], "--policy cad-free"),
    (["--set", "attention.policy=none"], "--policy"),
    (["--set", "attention.graphs=true"], "attention.graphs"),
    (["--set", "parallel.speeds=[1]"], "parallel.speeds"),
    (["--set", "parallel.schedule=1f1b"], "parallel.schedule"),
    (["--set", "model.dtype=float64"], "model.dtype"),
    (["--set", "train.lr=1"], "train.lr doesn't enter a simulation"),
    (["--tokens-per-gpu", -3], "--tokens-per-gpu -3: at least 1"),
    (["--tokens-per-gpu", 0], "--tokens-per-gpu 0: at least 1"),
    (["--tokens-per-gpu", 2**62], "--tokens-per-gpu 4611686018427387904: too many"),
    (["--tokens-per-gpu", 32768, "--tokens", 2097152], "give one"),
    (["--gpus", 0], "--gpus 0: at least 1"),
    (["--gpus", -3], "--gpus -3: at least 1"),
    (["--gpus", "abc"], '--gpus abc: takes an integer, not the text "abc"'),
    (["--overlap", "foo"], "--overlap foo: is none of: pingpong"),
    (["--set", "cluster.gpus=0"], "cluster.gpus is 0"),
    (["--sweep", "gpus=64,abc"], "--sweep gpus=abc: takes an integer"),
    (["--sweep", "gpus=64,60"], "60 gpus"),
    (["--json", "/not-here/study.json"], "--json = \"/not-here/study.json\": there is no folder /not-here"),
    (["--trace", "."], "--trace = \".\": is a folder"),
    (["--report", "/not-here/page.html"], "--report"),
    (["--recorded", "t.tsv", "--fit", "/not-here/profile.json"], "--fit"),
])
def test_wrong_input_is_one_line(run_program, arguments, message):
    done = run_program("distca", "simulate", *arguments, check=False)
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("\n") == 1 and message in done.stderr
    assert done.stdout == ""


def test_a_file_for_the_trainer_serves_the_simulator_too(run_program, tmp_path):
    config = tmp_path / "run.toml"
    config.write_text('[model]\nconfig = "llama-8b"\ndtype = "bfloat16"\n[train]\ntokens_per_batch = 1048576\nlr = 0.01\n'
                      '[data]\ncontext = 131072\n[parallel]\ntp = 8\nthreads = 2\nrecompute = "selective"\n'
                      '[cluster]\ngpus = 32\ndistribution = "prolong"\nsamples = 1\n[checkpoint]\ndir = "c"\n')
    run_program("distca", "simulate", "--config", config, "--policy", "cad")
    done = run_program("distca", "simulate", "--config", config, "--tokens-per-gpu", 65536, "--policy", "cad", "--json", "-")
    assert json.loads(done.stdout)["setup"]["tokens"] == 32 * 65536
    config.write_text(config.read_text() + "[link]\nnode_bandwidth = 1.0\n")
    done = run_program("distca", "simulate", "--config", config, check=False)
    assert done.returncode == 2 and "link.node_bandwidth = 1: not modelled" in done.stderr


def test_tune_refuses_what_it_chooses(run_program):
    done = run_program("distca", "tune", "--tp", 4, check=False)
    assert done.returncode == 2 and "--tp 4: tune chooses it" in done.stderr


def test_help_shows_the_defaults(run_program):
    text = run_program("distca", "simulate", "--help").stdout
    for option, default in [("--gpus", "64"), ("--model", "llama-8b"), ("--tolerance", "0.02"), ("--overlap", "pingpong")]:
        assert f"{option} TEXT={default}" in text


def test_a_document_longer_than_the_context_is_named(run_program, tmp_path):
    lengths = tmp_path / "lengths.txt"
    lengths.write_text("5\n131073\n")
    done = run_program("distca", "simulate", *SMALL, "--distribution", lengths, check=False)
    assert done.returncode == 2 and "document 1 has 131073 tokens" in done.stderr


def test_a_profile_that_was_measured_here_predicts_this_machine(run_program, tmp_path):
    profile = tmp_path / "machine.json"
    run_program("distca", "profile", "--quick", "--model", "tiny", "--out", profile)
    done = run_program("distca", "simulate", "--profile", profile, "--model", "tiny", "--gpus", 4, "--tp", 1, "--tokens",
                       16384, "--set", "data.context=2048", "--distribution", "wlbllm", "--samples", 1, "--policy",
                       "none,cad", "--json", "-")
    study = json.loads(done.stdout)
    assert study["setup"]["profile"] == json.loads(profile.read_text())["name"]
    for row in study["rows"]:
        # 24 MFLOPs a token, forward and backward: between a hundredth of a second and a minute on any machine.
        assert 0.01 < study["balanced_s"] <= row["iteration_s"] < 60
