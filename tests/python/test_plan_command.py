"""`distca plan`: its report is what its dump says, counted here from scratch; wrong input is one line, exit code 2."""

import json
import xml.dom.minidom
from collections import defaultdict

import pytest

POLICIES = ["cad", "none", "wlb", "cp", "cp-seq"]
Q = O = 32 * 128 * 2  # bytes of a row: Llama 3 8B in bf16
KV = 2 * 8 * 128 * 2
LSE = 4 * 32


@pytest.fixture
def docs(tmp_path):
    def write(chunks, **more):
        path = tmp_path / "docs.json"
        path.write_text(json.dumps({"doc_lengths": chunks, **more}))
        return path

    return write


def plan(run_program, tmp_path, *arguments):
    dump = tmp_path / "plan.json"
    done = run_program("distca", "plan", *arguments, "--json", "-", "--dump", dump)
    return json.loads(done.stdout), json.loads(dump.read_text())


def homes_of(dump):
    home = {}
    for doc, begin, end, rank in dump["shards"]:
        for position in range(begin, end):
            home[doc, position] = rank
    return home


def counted(dump):
    """Bytes row by row, and each server's pairs."""
    home, pairs = homes_of(dump), [0] * dump["servers"]
    queries, keys, servers_of = set(), set(), defaultdict(set)
    for doc, q0, q1, k0, k1, server in dump["tasks"]:
        for q in range(q0, q1):
            queries.add((server, doc, q))
            servers_of[doc, q].add(server)
            pairs[server] += max(0, min(k1, q + 1) - k0)
        keys.update((server, doc, k) for k in range(k0, k1))
    moved_q = [(s, d, p) for s, d, p in queries if home[d, p] != s]
    moved_kv = sum(home[d, p] != s for s, d, p in keys)
    partial = sum(len(servers_of[d, p]) > 1 for _, d, p in moved_q)
    return {"q": len(moved_q) * Q, "kv": moved_kv * KV, "o": len(moved_q) * O + partial * LSE}, pairs


@pytest.mark.parametrize("layout", ["fixed", "free"])
@pytest.mark.parametrize("policy", POLICIES)
def test_the_report_is_what_the_dump_says(run_program, docs, tmp_path, policy, layout):
    path = docs([[6001, 20], [128] * 11, [0, 1, 700, 300], [64, 2000]], tokens_per_chunk=4096)
    groups = ["--cp", 2] if policy in ("wlb", "cp", "cp-seq") else []
    report, dump = plan(run_program, tmp_path, "--docs", path, "--policy", policy, "--layout", layout, *groups)
    bytes_, pairs = counted(dump)
    assert {kind: report["bytes"][kind] for kind in bytes_} == bytes_
    assert report["bytes"]["total"] == sum(bytes_.values())
    mean = sum(pairs) / len(pairs)
    assert report["pairs"]["max_over_mean"] == pytest.approx(max(pairs) / mean)
    assert report["pairs"]["min_over_mean"] == pytest.approx(min(pairs) / mean)
    assert sum(pairs) == sum(n * (n + 1) // 2 for n in dump["doc_lengths"])
    loads = report["loads"]["planned"]
    assert len(loads) == len(report["loads"]["home"]) == dump["servers"]
    assert report["pairs"]["padded_max_over_mean"] == pytest.approx(max(loads) * len(loads) / sum(loads))
    home = homes_of(dump)
    assert report["moved_tasks"] == sum(home[t[0], t[1]] != t[5] for t in dump["tasks"])
    assert report["tasks"] == len(dump["tasks"])
    assert report["digest"] == dump["digest"]
    if policy == "cad":
        assert report["within_tolerance"] and report["pairs"]["padded_max_over_mean"] <= 1.02
    assert (report["bytes"]["lower_bound"] is not None) == (policy == "cad" and layout == "fixed")


def test_unequal_servers_finish_together(run_program, docs, tmp_path):
    path = docs([[20000], [3000] * 6, [500] * 40])
    report, dump = plan(run_program, tmp_path, "--docs", path, "--dedicated", 1, "--speeds", "1,.5,1,1", "--ci", "0,1e7,2e9,0")
    assert report["servers"] == dump["servers"] == 4
    assert 1 <= report["finish"]["max_over_best"] <= 1.02
    assert all(task[5] != 2 for task in dump["tasks"])  # busy with other work for longer than all attention takes


def test_comparison_and_picture(run_program, tmp_path):
    picture = tmp_path / "plan.svg"
    done = run_program("distca", "plan", "--distribution", "prolong", "--chunks", 8, "--tokens-per-chunk", 65536, "--seed", 3,
                       "--compare", "--cp", 2, "--json", "-", "--picture", picture)
    reports = json.loads(done.stdout)
    assert [(r["policy"], r["layout"]) for r in reports][:2] == [("cad", "fixed"), ("cad", "free")]
    assert {r["policy"] for r in reports} == set(POLICIES)
    assert len(xml.dom.minidom.parse(str(picture)).getElementsByTagName("rect")) == 1 + 2 * 8


def test_a_table_is_printed(run_program, docs):
    done = run_program("distca", "plan", "--docs", docs([[4000], [1000] * 4]))
    assert "cad" in done.stdout and "max/mean" in done.stdout


@pytest.mark.parametrize("arguments, words", [
    ([], "--docs FILE"),
    (["--docs", "/nowhere.json"], "/nowhere.json"),
    (["--distribution", "zipf"], "zipf"),
    (["--distribution", "prolong", "--tokens-per-chunk", "127"], "--tokens-per-chunk 127"),
    (["--distribution", "prolong", "--policy", "zigzag"], "zigzag"),
    (["--distribution", "prolong", "--layout", "round"], "round"),
    (["--distribution", "prolong", "--model", "gpt"], "gpt"),
    (["--distribution", "prolong", "--tolerance", "-1"], "tolerance"),
    (["--distribution", "prolong", "--speeds", "1,2"], "2 speeds for 8 servers"),
    (["--distribution", "prolong", "--policy", "cp", "--cp", "3"], "groups of 3"),
    (["--distribution", "prolong", "--max-kv-rows", "1000"], "the limit is 1000"),
    (["--distribution", "prolong", "--profile", "/nowhere.json"], "/nowhere.json"),
    (["--dataset", "/nowhere"], "/nowhere"),
    (["--distribution", "prolong", "--tolerance", "inf"], "tolerance of inf"),
    (["--distribution", "prolong", "--seed", "-1"], "--seed"),
    (["--distribution", "prolong", "--seed", "99999999999999999999"], "--seed"),
    (["--distribution", "prolong", "--cp", "0"], "--cp"),
    (["--distribution", "prolong", "--cp", "2"], "policy 'cad' has no groups"),
    (["--distribution", "prolong", "--speeds", "1,,1"], "number 2 is empty"),
    (["--distribution", "prolong", "--ci", "inf"], "finite"),
    (["--distribution", "prolong", "--max-bytes", "-1"], "--max-bytes"),
    (["--docs", "/tmp"], "/tmp: is a folder"),
    (["--docs", "/nowhere.json", "--chunks", "4"], "--chunks"),
    (["--distribution", "prolong", "--json", "-", "--dump", "-"], "--json and --dump"),
    (["--distribution", "prolong", "--json", "/tmp/x", "--picture", "/tmp/./x"], "--json and --picture"),
    (["--distribution", "prolong", "--dump", "/no/folder/x"], "/no/folder/x: can't be written"),
])
def test_wrong_input_is_one_clear_line(run_program, arguments, words):
    done = run_program("distca", "plan", *arguments, check=False)
    assert done.returncode == 2
    assert words in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.parametrize("chunks", [[[]], [[0]]])
def test_documents_without_tokens_are_named(run_program, docs, chunks):
    done = run_program("distca", "plan", "--docs", docs(chunks), check=False)
    assert done.returncode == 2 and "docs.json: its documents have no tokens" in done.stderr


def test_a_step_of_a_built_data_set_is_planned(run_program, tmp_path):
    texts = tmp_path / "texts"
    texts.mkdir()
    for i in range(12):
        (texts / f"{i}.txt").write_text("word " * (40 + 300 * i))
    run_program("distca", "data", "build", "--out", tmp_path / "t", texts)
    dataset = ["--dataset", tmp_path / "t", "--step", 3]
    report, dump = plan(run_program, tmp_path, *dataset, "--chunks", 4, "--tokens-per-chunk", 2048)
    assert report["servers"] == 4 and dump["rows"] == 2048 and 0 < sum(dump["doc_lengths"]) <= 4 * 2048
    assert plan(run_program, tmp_path, *dataset, "--ranks", 4, "--tokens", 8192)[1] == dump
    done = run_program("distca", "plan", *dataset, "--chunks", 2, "--tokens-per-chunk", 256)
    assert "split into" in done.stderr
