"""`distca data build` and `distca data info`, as a person runs them."""

import json
import os
import resource
import subprocess

import pytest
from megatron.core.datasets.indexed_dataset import IndexedDataset


@pytest.fixture
def texts(tmp_path):
    folder = tmp_path / "texts"
    (folder / "more").mkdir(parents=True)
    (folder / "b.txt").write_text("zwei Wörter")
    (folder / "more" / "a.txt").write_text("one\n" * 500)
    (folder / "empty.txt").write_text("")
    (folder / "picture").write_bytes(b"P6\0\1")
    return folder


def build(run_program, out, *paths, check=True):
    return run_program("distca", "data", "build", "--out", out, *paths, check=check)


def assert_one_clear_line(done, code, *parts):
    assert done.returncode == code, done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    for part in parts:
        assert str(part) in done.stderr


def test_text_becomes_documents_that_megatron_reads(texts, tmp_path, run_program):
    done = build(run_program, tmp_path / "d", texts, texts / "b.txt")
    assert "3 documents" in done.stdout and "1 empty, 1 binary" in done.stdout
    dataset = IndexedDataset(str(tmp_path / "d"))
    documents = [dataset[i].tolist() for i in range(3)]
    text = "zwei Wörter".encode()
    assert [bytes(d[:-1]) for d in documents] == [text, b"one\n" * 500, text]
    assert all(d[-1] == 256 for d in documents)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["d.bin", "d.idx", "texts"]


def test_info_tells_lengths_and_what_their_skew_costs(texts, tmp_path, run_program):
    build(run_program, tmp_path / "d", texts / "more")
    options = ["--ranks", 2, "--tokens", 2002, "--nano-batches", 1]
    table = run_program("distca", "data", "info", tmp_path / "d", *options).stdout
    assert "1 documents, 2001 tokens of type uint16" in table
    found = json.loads(run_program("distca", "data", "info", tmp_path / "d", *options, "--json", "-").stdout)
    assert (found["documents"], found["tokens"], found["longest"], found["type"]) == (1, 2001, 2001, "uint16")
    pairs = 2001 * 2002 // 2
    assert found["histogram"] == [dict(least=1024, most=2047, documents=1, tokens=2001, pairs=pairs)]
    first = 1001 * 1002 // 2  # causal pairs of the first rank's chunk of 1001 rows
    assert found["packing"]["load_max_over_mean"] == pytest.approx(2 * (pairs - first) / pairs)
    assert found["packing"]["ranks"] == 2 and found["packing"]["tokens_per_batch"] == 2002


def test_wrong_input_is_one_line_and_exit_code_2(texts, tmp_path, run_program):
    out = tmp_path / "d"
    assert_one_clear_line(build(run_program, out, tmp_path / "missing", check=False), 2, tmp_path / "missing")
    assert_one_clear_line(build(run_program, out, texts / "empty.txt", check=False), 2, "1 are empty")
    assert_one_clear_line(build(run_program, tmp_path / "no/d", texts, check=False), 2, tmp_path / "no")
    tokenizer = ["--tokenizer", texts / "b.txt"]
    assert_one_clear_line(build(run_program, out, *tokenizer, texts, check=False), 2, texts / "b.txt")
    info = run_program("distca", "data", "info", out, check=False)
    assert_one_clear_line(info, 2, f"{out}.idx")
    assert [p.name for p in tmp_path.iterdir()] == ["texts"]

    build(run_program, out, texts)
    (tmp_path / "d.bin").write_bytes((tmp_path / "d.bin").read_bytes()[:-2])
    assert_one_clear_line(run_program("distca", "data", "info", out, check=False), 2, f"{out}.idx", "truncated")


def test_full_disk_is_exit_code_1_and_leaves_the_old_data_set(texts, tmp_path, run_program, request):
    build(run_program, tmp_path / "d", texts / "b.txt")
    before = [(tmp_path / name).read_bytes() for name in ("d.bin", "d.idx")]
    command = [f"{request.config.getoption('--build')}/distca", "data", "build", "--out", tmp_path / "d", texts]
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
    done = subprocess.run(command, capture_output=True, text=True, preexec_fn=limit)
    assert_one_clear_line(done, 1, tmp_path / "d.bin", "too large")
    assert [(tmp_path / name).read_bytes() for name in ("d.bin", "d.idx")] == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["d.bin", "d.idx", "texts"]


def test_prefixes_pipes_and_sizes_that_make_no_sense(texts, tmp_path, run_program):
    os.mkfifo(texts / "pipe")
    assert_one_clear_line(build(run_program, "", texts, check=False), 2, "--out", "prefix")
    assert "1 unreadable or special" in build(run_program, tmp_path / "d", texts).stdout
    for tokens in ["0", "1000000000000"]:
        done = run_program("distca", "data", "info", tmp_path / "d", "--tokens", tokens, check=False)
        assert_one_clear_line(done, 2, "--tokens")
        assert len(done.stderr) < 200
