"""scripts/gpu-table and scripts/gpu-profile on made-up measurements: which figure is held against which bar."""

import json
import pathlib
import runpy
import subprocess

import pytest

SCRIPTS = pathlib.Path(__file__).resolve().parents[2] / "scripts"


def composed(direction, rows, keys, ratio, dim=128):
    name = f"attention/{direction}/tasks16/q{rows}/kv{keys}/d{dim}/gqa4"
    return {"name": name, "value": 400e3, "unit": "GFLOP/s", "baseline": "one document", "ratio": ratio}


def layer(attend, others, tokens, ranks=1):
    steps = [f"{way}/{part}" for way in ("forward", "backward") for part in ("dispatch", "attend", "collect")]
    rows = [{"name": "layer/seconds_max/" + step, "value": attend if "attend" in step else others, "unit": "s"} for step in steps]
    rows.append({"name": "layer/wait/forward/dispatch", "value": 5, "unit": "s"})
    return {"run": {"tokens": tokens, "ranks": ranks, "dtype": "bfloat16"}, "rows": rows}


def errors(median, worst):
    return {"errors": [{"class": "prolong", "rows": 25, "median": median, "worst": worst}]}


def event(cat, begin, duration):
    return {"ph": "X", "cat": cat, "name": "k", "ts": begin, "dur": duration}


@pytest.fixture
def folder(tmp_path):
    rows = [composed(way, q, kv, 0.97) for way in ("forward", "backward") for q in (16, 128, 1024) for kv in (4096, 65536)]
    machine = {"device": "a GPU", "cpu": "a CPU", "product_gflops": 700e3}
    files = {
        "attention": {"machine": machine, "rows": rows},
        "layer-8k": layer(0.010, 0.001, 8192),
        "layer-128k": layer(0.100, 0.001, 131072),
        "layer-128k-4": layer(0.100, 0.020, 131072, ranks=4),
        "profile": {"fit": {"points": 60, "median_error": 0.02, "max_error": 0.08}},
        "times": {"profile_s": 95},
        "train": {"first_loss": 5.5, "last_loss": 3.2, "tokens_per_s": 1e6},
        "recorded-shipped": errors(0.011, 0.049),
        "recorded-measured": errors(0.034, 0.091),
        "device-trace": {"traceEvents": [event("kernel", 0, 60), event("gpu_memcpy", 50, 49.5), event("kernel", 100, 0.5), event("cpu_op", 0, 900)]},
    }
    for name, content in files.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    for tokens, without, graphs in ((8192, 0.12, 0.10), (131072, 2.0, 2.0)):
        for setting, seconds in (("false", without), ("true", graphs)):
            steps = [{"step": step, "step_s": seconds * (50 if step < 3 else 1)} for step in range(6)]
            (tmp_path / f"graphs-{tokens}-{setting}.jsonl").write_text("\n".join(map(json.dumps, steps)) + "\n")
    return tmp_path


def table_of(folder):
    return subprocess.run([SCRIPTS / "gpu-table", folder], capture_output=True, text=True, check=True).stdout


def change(folder, name, edit):
    content = json.loads((folder / name).read_text())
    edit(content)
    (folder / name).write_text(json.dumps(content))


def test_bars_that_hold_are_said_to(folder):
    table = table_of(folder)
    assert "missed" not in table
    assert "Tasks of 128 rows, forward, head_dim 128, over one document: 4K keys 0.97, 64K keys 0.97 (bar .90: holds)." in table
    assert "The same by rows of a task, the worst over keys: 16: 0.97, 128: 0.97, 1024: 0.97." in table
    # 4 steps of 1 ms beside 2 of 100 ms.
    assert "Packing, exchange and merge: 2.0% of attention (bar 3%: holds)" in table
    assert "Exchange and merge: 40.0% of attention; ranks that share" in table
    assert "it took 95 s (bar 180 s: holds)" in table
    assert "| 25 prolong | 1.1%, 4.9% | 3.4%, 9.1% |" in table
    # Medians of steps 3 to 5: the first three don't count.
    assert "| 8,192 | 0.12 | 0.1 | +20.0% |" in table and "| 131,072 | 2 | 2 | +0.0% |" in table
    # Busy from 0 to 99.5 and from 100 to 100.5.
    assert "the device does nothing in 0.50% of the time (bar 1%: holds)" in table


@pytest.mark.parametrize(
    "name, edit, line",
    [
        ("attention.json", lambda x: x["rows"].append(composed("backward", 128, 16384, 0.85)), "16K keys 0.85, 64K keys 0.97 (bar .90: **missed**)"),
        ("layer-128k.json", lambda x: x.update(layer(0.1, 0.002, 131072)), "4.0% of attention (bar 3%: **missed**)"),
        ("times.json", lambda x: x.update(profile_s=200), "it took 200 s (bar 180 s: **missed**)"),
        ("device-trace.json", lambda x: x["traceEvents"].append(event("kernel", 120, 10)), "(bar 1%: **missed**)"),
    ],
    ids=["composed", "overhead", "profile", "gaps"],
)
def test_a_bar_that_is_missed_is_named(folder, name, edit, line):
    change(folder, name, edit)
    table = table_of(folder)
    assert line in table and table.count("missed") == 1


def test_what_was_not_measured_is_left_out(folder):
    for name in ("recorded-shipped.json", "recorded-measured.json", "device-trace.json", "layer-128k-4.json"):
        (folder / name).unlink()
    for path in folder.glob("graphs-*"):
        path.unlink()
    table = table_of(folder)
    assert "recorded" not in table and "CUDA graphs" not in table and "does nothing" not in table


def test_constants_are_recovered_from_times_that_they_make():
    combined = runpy.run_path(str(SCRIPTS / "gpu-profile"))["combined"]
    flops, startup, heads, dim = 330e12, 870, 32, 128

    def seconds(rows, keys, factor):
        return factor * rows * (max(keys - (rows - 1) / 2, 1) + startup) * 4 * dim * heads / flops

    grids = [128, 1024, 8192], [1024, 8192, 65536]
    measured = {
        "attention": [
            {"direction": way, "head_dim": dim, "heads": heads, "kv_heads": 8, "q": grids[0], "kv": grids[1],
             "seconds": [[seconds(q, kv, factor) for kv in grids[1]] for q in grids[0]]}
            for way, factor in (("forward", 1), ("backward", 2.4))
        ],
        "linear": {"tokens": [1000, 65536], "forward_s": [9, 2 * 218103808 * 65536 / 700e12]},
    }
    shipped = json.loads((SCRIPTS.parent / "profiles" / "h200.json").read_text())
    before = json.dumps(shipped)
    made = combined(measured, shipped)
    assert made["fit"]["attention_flops"] == pytest.approx(flops)
    assert made["fit"]["attention_startup_keys"] == pytest.approx(startup)
    assert made["device"]["backward_factor"] == pytest.approx(2.4)
    assert made["fit"]["linear_efficiency"] == pytest.approx(700e12 / shipped["device"]["peak_flops"])
    assert made["links"] == shipped["links"] and json.dumps(shipped) == before
