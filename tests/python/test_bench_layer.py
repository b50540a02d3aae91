"""`distca bench layer`: what it reports is consistent, and wrong input is one clear line with exit code 2."""

import json

import pytest


@pytest.fixture
def docs(tmp_path):
    def write(chunks, **more):
        path = tmp_path / "docs.json"
        path.write_text(json.dumps({"doc_lengths": chunks, **more}))
        return path

    return write


def rows_of(done):
    return {row["name"]: row["value"] for row in json.loads(done.stdout)["rows"]}


SMALL = ["--heads", 2, "--head-dim", 32, "--repeats", 1, "--json", "-"]


@pytest.mark.parametrize("memory", ["keep", "resend"])
@pytest.mark.parametrize("policy", ["none", "cad"])
def test_sends_what_was_planned_and_is_exact(run_program, docs, policy, memory):
    path = docs([[1500, 20], [128] * 11, [0, 1, 700, 300], [64]], tokens_per_chunk=1536)
    rows = rows_of(run_program("distca", "bench", "layer", "--docs", path, "--policy", policy, "--memory", memory, *SMALL))
    for kind in "qkvo":
        assert rows[f"layer/bytes_sent/{kind}"] == rows[f"layer/bytes_planned/{kind}"]
    for tensor in ("o", "dq", "dk", "dv"):
        assert rows[f"layer/max_error/{tensor}"] < 5e-6
    if policy == "cad":
        assert rows["layer/load_max_over_mean"] <= 1.10
    else:
        assert rows["layer/bytes_sent/q"] == 0
    assert ("layer/bytes_sent/backward/q" in rows) == (memory == "resend")


def test_draws_documents_and_packs_them_over_ranks(run_program):
    rows = rows_of(run_program("distca", "bench", "layer", "--distribution", "wlbllm", "--chunks", 4, "--tokens-per-chunk",
                               65536, "--scale", "1/32", "--ranks", 3, *SMALL))
    assert rows["layer/load_max_over_mean"] <= 1.10


def test_runs_as_mpi_ranks(request, docs):
    import os
    import pathlib
    import subprocess

    program = pathlib.Path(request.config.getoption("--build")) / "distca"
    path = docs([[1500], [128] * 8])
    command = ["mpirun", "--oversubscribe", "--allow-run-as-root", "-n", "2", program, "bench", "layer", "--docs", path, *map(str, SMALL)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    assert rows_of(done)["layer/max_error/dq"] < 5e-6
    assert json.loads(done.stdout)["run"]["fabric"] == "mpi"
    wrong = subprocess.run([*command, "--kv-heads", "3"], capture_output=True, text=True)
    assert wrong.returncode == 2
    assert wrong.stderr.count("distca:") == 1, wrong.stderr


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"doc_lengths": [[1000, 24], [1024,]]}', ["docs.json:1:", "not JSON"]),
        ('{"doc_lengths": [[1000], 7]}', ["docs.json", "doc_lengths"]),
        ('{"doc_lengths": [[1000, -3]]}', ["docs.json", "-3"]),
        ('{"doc_lengths": [[1000, 1.5]]}', ["docs.json", "1.5"]),
        ('{"lengths": [[1000]]}', ["docs.json", "doc_lengths"]),
        ('{"doc_lengths": [[100], [27]]}', ["chunk of 100 rows", "128"]),
        ('{"doc_lengths": [[4096], [1]], "tokens_per_chunk": 1024}', ["docs.json"]),
    ],
)
def test_a_wrong_documents_file_is_one_line(run_program, tmp_path, text, words):
    path = tmp_path / "docs.json"
    path.write_text(text)
    expect_line(run_program("distca", "bench", "layer", "--docs", path, check=False), words)


def expect_line(done, words):
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stdout == ""
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    for word in words:
        assert word in done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--heads", 6, "--kv-heads", 4], ["6", "4"]),
        (["--dtype", "float8"], ["float8", "float32"]),
        (["--kernel", "fast"], ["fast", "cpu"]),
        (["--policy", "magic"], ["magic"]),
        (["--ranks", 100], ["100 ranks", "128"]),
        (["--distribution", "prolong"], ["--docs", "--distribution"]),
        (["--memory", "forget"], ["--memory", "keep"]),
        (["--head", 2], ["--head"]),
        (["--timeout", "nan"], ["--timeout", "nan"]),
        (["--timeout", 0], ["--timeout", "0"]),
        (["--ranks", 0], ["--ranks", "0", "1"]),
        (["--kv-heads", 0], ["--kv-heads", "0", "1"]),
        (["--repeats", 0], ["--repeats", "0", "1"]),
        (["--head-dim", 100000], ["--head-dim", "4096"]),
        (["--heads", 1000000000], ["--heads", "65536"]),
        (["--scale", "1/0"], ["--scale"]),
        (["--scale", "one"], ["--scale", "one"]),
    ],
)
def test_a_wrong_option_is_one_line(run_program, docs, arguments, words):
    path = docs([[2000], [48]], tokens_per_chunk=2048)
    expect_line(run_program("distca", "bench", "layer", "--docs", path, *arguments, check=False), words)


def test_a_plan_for_another_batch_is_one_line(run_program, docs, tmp_path):
    plan = tmp_path / "plan.json"
    run_program("distca", "plan", "--docs", docs([[2000], [48]], tokens_per_chunk=2048), "--dump", plan)
    other = docs([[1999], [48]], tokens_per_chunk=2048)
    expect_line(run_program("distca", "bench", "layer", "--docs", other, "--plan", plan, check=False), ["plan.json", "another batch"])
