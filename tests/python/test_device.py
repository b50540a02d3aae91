"""`--device`: where there is no CUDA device, every command that takes it says why, on one line, and ends with 2."""

import pytest

COMMANDS = [
    ("bench", "attention", "--quick"),
    ("bench", "layer", "--distribution", "prolong", "--chunks", 1, "--tokens-per-chunk", 4096),
    ("profile", "--quick", "--out", "-"),
    ("train", "--config", "{config}"),
]


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text('[data]\npath = "nothing"\n[model]\nconfig = "tiny"\n')
    return path


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0] + "_" + command[1].strip("-"))
def test_no_cuda_device_is_one_line_that_says_why(run_program, config, command):
    arguments = [str(part).format(config=config) for part in command]
    done = run_program("distca", *arguments, "--device", "cuda", check=False)
    if "there is no CUDA device" not in done.stderr:
        pytest.skip("there is a CUDA device here")
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stdout == "" and done.stderr.count("\n") == 1
    # A CPU build of PyTorch, or what the driver says.
    assert "is a CPU build" in done.stderr or "here: " in done.stderr


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0] + "_" + command[1].strip("-"))
def test_an_unknown_device_is_named(run_program, config, command):
    arguments = [str(part).format(config=config) for part in command]
    done = run_program("distca", *arguments, "--device", "tpu", check=False)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1 and "tpu" in done.stderr and "cuda" in done.stderr


def test_the_trainers_key_is_the_same_and_is_named(run_program, config):
    done = run_program("distca", "train", "--config", config, "--set", "train.device=cuda", check=False)
    if "there is no CUDA device" not in done.stderr:
        pytest.skip("there is a CUDA device here")
    assert done.returncode == 2 and done.stderr.startswith("distca: --set train.device=cuda: ")


@pytest.mark.parametrize("setting, says", [
    ("train.device=cpu", 'train.device = "cpu" has none'),
    ("attention.layout=free", 'with attention.layout = "free" a rank has other rows in every step'),
    ("attention.policy=wlb", 'with attention.policy = "wlb" a rank has other rows in every step'),
])
def test_graphs_are_refused_where_there_can_be_none(run_program, config, setting, says):
    done = run_program("distca", "train", "--config", config, "--set", "attention.graphs=true", "--set", setting, check=False)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith("distca: --set attention.graphs=true: ") and done.stderr.rstrip().endswith(says)


def test_torchrun_is_for_ranks_with_devices(run_program, config, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    done = run_program("distca", "train", "--config", config, check=False)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1 and "torchrun" in done.stderr and "--device cuda" in done.stderr


def test_the_cpu_is_a_device_too(run_program):
    done = run_program("distca", "bench", "layer", "--device", "cpu", "--distribution", "prolong", "--chunks", 2,
                       "--tokens-per-chunk", 1024, "--heads", 2, "--head-dim", 16, "--repeats", 1)
    assert "layer/seconds_max/forward/attend" in done.stdout
