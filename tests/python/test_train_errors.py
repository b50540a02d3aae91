"""What `distca train` says to wrong input, a full disk and a loss that is not a number."""

import json
import pathlib
import resource
import subprocess

import numpy
import pytest
from safetensors.numpy import load_file, save_file

from train_runs import MODEL, Runs

MPIRUN = ("mpirun", "--oversubscribe", "--allow-run-as-root", "-n", "4")


@pytest.fixture
def runs(request, tmp_path):
    return Runs(pathlib.Path(request.config.getoption("--build")) / "distca", tmp_path)


@pytest.fixture(scope="module")
def after_two_steps(request, tmp_path_factory):
    runs = Runs(pathlib.Path(request.config.getoption("--build")) / "distca", tmp_path_factory.mktemp("trained"))
    runs.must_run("train.steps=2")
    return runs


@pytest.fixture
def trained(after_two_steps, tmp_path):
    """With a checkpoint after step 2."""
    return Runs(after_two_steps.program, tmp_path, like=after_two_steps)


def refused(runs, *settings, says, **options):
    """Exit code 2, one line that says it, and no file written or changed."""
    before = {path: path.stat().st_mtime_ns for path in runs.root.rglob("*")}
    done = runs.run(*settings, **options)
    assert done.returncode == 2, (done.returncode, done.stderr)
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1, done.stderr
    for text in [says] if isinstance(says, str) else says:
        assert text in done.stderr
    assert {path: path.stat().st_mtime_ns for path in runs.root.rglob("*")} == before


def edit_config(runs, old, new):
    path = runs.root / "run.toml"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


def write_model(runs, **changes):
    (runs.root / "config.json").write_text(json.dumps({**MODEL, **changes}))


def test_unknown_key_names_file_line_and_nearest_key(runs):
    edit_config(runs, "warmup = 3", "warm_up = 3")
    refused(runs, says=["run.toml:9: unknown key train.warm_up", "train.warmup"])


def test_mistyped_value_names_file_line_and_key(runs):
    edit_config(runs, "steps = 12", 'steps = "12"')
    refused(runs, says=["run.toml:7: train.steps takes an integer"])


def test_file_that_is_not_toml(runs):
    edit_config(runs, "[train]", "[train")
    refused(runs, says="run.toml:6")


@pytest.mark.parametrize("setting", ["attention.min_gain=1", "attention.graphs=true"])
def test_what_the_trainer_cannot_do_is_not_ignored(runs, setting):
    refused(runs, setting, says=setting.split("=")[0])


def test_unknown_kernel(runs):
    refused(runs, "attention.kernel=gpu", says="gpu")


def test_missing_config_and_missing_file(runs):
    refused(runs, f"model.config={runs.root}/none.json", says="none.json")
    (runs.root / "run.toml").unlink()
    refused(runs, says="run.toml")


def test_folder_of_the_metrics_that_is_not_there(runs):
    refused(runs, f"train.metrics={runs.root}/none/m.jsonl", says=["train.metrics", "there is no folder"])


def test_missing_dataset(runs):
    refused(runs, f"data.path={runs.root}/none", says="none.idx")


def test_truncated_and_inconsistent_datasets(runs):
    index, data = runs.root / "text.idx", runs.root / "text.bin"
    whole_index, whole_data = index.read_bytes(), data.read_bytes()
    data.write_bytes(whole_data[:-10])
    refused(runs, says="text.")
    data.write_bytes(whole_data)
    index.write_bytes(whole_index[:-10])
    refused(runs, says="text.idx")
    index.write_bytes(b"x" * 50)
    refused(runs, says="text.idx")
    index.write_bytes(b"")
    refused(runs, says="text.idx")


def test_token_beyond_the_vocabulary(runs):
    write_model(runs, vocab_size=100)
    refused(runs, says=["document ", "vocabulary has 100"])


def test_document_longer_than_the_context(runs):
    refused(runs, "data.context=600", says=["document ", "more than the context of 600", "data.split_documents"])
    done = runs.must_run("data.context=600", "data.split_documents=true", "train.steps=1")
    assert "12 documents longer than the context of 600 tokens are split into 24" in done.stderr


def test_heads_that_do_not_divide(runs):
    write_model(runs, num_key_value_heads=3)
    refused(runs, says=["num_key_value_heads", "3", "4"])


def test_fewer_than_128_tokens_per_rank(runs):
    refused(runs, ranks=9, says=["113 rows", "9 data-parallel ranks", "at least 128"])


def test_contradicting_ranks_under_mpi_and_one_line_for_all_ranks(runs):
    done = runs.run("train.stepps=1", launcher=MPIRUN)
    assert done.returncode == 2
    assert done.stderr.count("unknown key train.stepps") == 1, done.stderr


@pytest.mark.parametrize("damage", ["missing", "extra", "misshapen"])
def test_weights_file_that_does_not_fit(trained, damage):
    weights = load_file(trained.latest() / "model.safetensors")
    name = "model.layers.1.mlp.up_proj.weight"
    if damage == "missing":
        del weights[name]
    elif damage == "extra":
        name = "model.layers.2.mlp.up_proj.weight"
        weights[name] = numpy.zeros((64, 32), numpy.float32)
    else:
        weights[name] = numpy.zeros((32, 64), numpy.float32)
    path = trained.root / "weights.safetensors"
    save_file(weights, path)
    refused(trained, f"model.weights={path}", f"checkpoint.dir={trained.root}/new", "train.metrics=", says=["weights.safetensors", name])


def test_checkpoint_of_another_model(trained):
    write_model(trained, intermediate_size=48)
    refused(trained, "checkpoint.resume=latest", says=["step-00000002", "another model", "intermediate_size is 64, not 48"])


def test_checkpoint_of_another_run(trained):
    refused(trained, "checkpoint.resume=latest", "train.seed=6", says=["data.json", "train.seed = 5, not 6"])


def test_folder_that_holds_checkpoints_of_another_run(trained):
    refused(trained, says=["checkpoint.dir", "step-00000002", 'checkpoint.resume = "latest"'])


def test_checkpoint_that_is_not_there_or_damaged(trained):
    refused(trained, f"checkpoint.resume={trained.root}/none", says="no such checkpoint")
    optimizer = trained.latest() / "optimizer.safetensors"
    optimizer.write_bytes(optimizer.read_bytes()[:-100])
    refused(trained, "checkpoint.resume=latest", says="optimizer.safetensors")
    (trained.checkpoints / "latest").write_text("step-00000099\n")
    refused(trained, "checkpoint.resume=latest", says="step-00000099, which is not there")


def test_full_disk_at_a_checkpoint_names_the_previous_one_which_stays_loadable(trained):
    def limit_files():
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))

    previous = trained.latest()
    done = trained.run("checkpoint.resume=latest", preexec_fn=limit_files)
    assert done.returncode == 1, done.stderr
    last = done.stderr.splitlines()[-1]
    assert "the checkpoint of step 4 could not be written" in last
    assert f"the last good checkpoint is {previous}" in last
    assert trained.latest() == previous
    assert sorted(path.name for path in trained.checkpoints.iterdir()) == ["latest", previous.name]
    trained.must_run("checkpoint.resume=latest")
    assert trained.latest().name == "step-00000012"


def test_full_disk_at_the_first_checkpoint(runs):
    def limit_files():
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))

    done = runs.run(preexec_fn=limit_files)
    assert done.returncode == 1
    assert "there is no earlier checkpoint" in done.stderr.splitlines()[-1]
    assert runs.latest() is None


def test_loss_that_is_not_a_number_names_step_documents_and_checkpoint(runs):
    done = runs.run("train.lr=1e30", "train.min_lr=0", "train.clip=0", "train.warmup=2", "checkpoint.every=1")
    assert done.returncode == 1, done.stderr
    last = done.stderr.splitlines()[-1]
    assert "step 1: the " in last and "documents " in last, last
    assert "the last good checkpoint is" in last and "step-00000001" in last


def test_weights_that_are_not_numbers_stop_at_step_0(trained):
    weights = load_file(trained.latest() / "model.safetensors")
    weights["model.norm.weight"][3] = numpy.nan
    path = trained.root / "weights.safetensors"
    save_file(weights, path)
    done = trained.run(f"model.weights={path}", f"checkpoint.dir={trained.root}/new", "train.metrics=")
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert "step 0: the loss is nan, in documents " in last and "no earlier checkpoint" in last
    assert not (trained.root / "new").exists()


def test_other_mistakes_on_the_command_line(runs):
    done = subprocess.run([runs.program, "train"], capture_output=True, text=True)
    assert done.returncode == 2 and "--config" in done.stderr
    refused(runs, "train.steps", says="section.key=value")


def test_metrics_never_replace_a_file_that_is_not_this_runs(runs):
    notes = runs.root / "notes.md"
    notes.write_text("# Notes\n")
    refused(runs, f"train.metrics={notes}", says=["train.metrics", "remove it, name another"])
    refused(runs, f"train.metrics={notes}", "checkpoint.resume=latest", says=["train.metrics", "line 1"])
    notes.write_text('{"step": 0, "loss": 3}\n{"st')
    refused(runs, f"train.metrics={notes}", says="remove it, name another")
    runs.must_run(f"train.metrics={notes}", "checkpoint.resume=latest", "train.steps=1")


@pytest.mark.parametrize("place", ["text.idx", "text.idx/below", "/proc/x"])
def test_folder_of_checkpoints_that_cannot_be_written(runs, place):
    refused(runs, f"checkpoint.dir={runs.root / place}", says=["checkpoint.dir", place])


def test_metrics_and_summary_that_cannot_be_written(runs):
    refused(runs, f"train.metrics={runs.root}/texts", says=["train.metrics", "is a folder"])
    refused(runs, "train.metrics=/proc/x", says=["train.metrics", "can't be written"])
    refused(runs, "train.metrics=/dev/null", says=["train.metrics", "not an ordinary file"])
    for place in [runs.root / "none" / "a.json", runs.root / "texts", "/proc/x"]:
        done = subprocess.run(runs.command(options=("--json", str(place))), capture_output=True, text=True)
        assert done.returncode == 2 and len(done.stderr.splitlines()) == 1, done.stderr
        assert "--json" in done.stderr and str(place) in done.stderr
    assert not runs.metrics.exists() and not runs.checkpoints.exists()


def test_lost_pointer_to_the_newest_checkpoint(trained):
    (trained.checkpoints / "latest").unlink()
    elsewhere = f"train.metrics={trained.root}/new.jsonl"
    refused(trained, elsewhere, says=["checkpoint.dir", "step-00000002", 'checkpoint.resume = "latest"'])
    (trained.checkpoints / "step-00000009").mkdir()
    done = trained.must_run("checkpoint.resume=latest", "train.steps=4")
    assert "latest is missing" in done.stderr and "step-00000002" in done.stderr
    assert len(trained.losses()) == 4
    (trained.checkpoints / "latest").unlink()
    for folder in trained.checkpoints.glob("step-*"):
        (folder / "run.json").unlink(missing_ok=True)
    refused(trained, "checkpoint.resume=latest", says="none of the")


def test_messages_say_where_the_value_came_from(runs):
    refused(runs, "attention.kernel=gpu", says="--set attention.kernel=gpu: no attention kernel")
    refused(runs, "parallel.tp=2", says="--set parallel.tp=2: the model's vocab_size = 257")
    refused(runs, "train.min_lr=1", says="--set train.min_lr=1: train.min_lr = 1 is more than")
    refused(runs, "model.config=llama-9b", says="--set model.config=llama-9b: ")
    edit_config(runs, f'path = "{runs.root}/text"', f'path = "{runs.root}/none"')
    refused(runs, says="run.toml:3: data.path: ")


def test_nothing_to_predict(runs):
    refused(runs, "data.context=1", "data.split_documents=true", says=["data.context = 1", "nothing to predict"])


def test_sizes_beyond_any_machine(runs):
    refused(runs, "train.tokens_per_batch=1000000000000", says=["train.tokens_per_batch", "is more than"])
    refused(runs, "train.tokens_per_batch=10000000000", "model.config=llama-8b", says=["GiB", "lower it"])


def test_checkpoint_with_damaged_counts_or_another_type(trained):
    refused(trained, "checkpoint.resume=latest", "model.dtype=float64", says=["float32", "float64", "the same"])
    (trained.latest() / "run.json").write_text('{"format": 1, "step": "two", "updates": []}')
    done = trained.run("checkpoint.resume=latest")
    assert done.returncode == 2 and "run.json: damaged" in done.stderr and "json.exception" not in done.stderr


def test_zero_eps(runs):
    refused(runs, "train.eps=0", says="train.eps = 0 is less than")
