"""Small training runs for the tests of `distca train`."""

import functools
import json
import pathlib
import random
import shutil
import subprocess
import tempfile

MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "vocab_size": 257,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
}

CONFIG = """
[data]
path = "{root}/text"
[model]
config = "{root}/config.json"
[train]
steps = 12
tokens_per_batch = 2048
warmup = 3
lr = 3e-3
min_lr = 3e-4
seed = 5
metrics = "{root}/metrics.jsonl"
[checkpoint]
dir = "{root}/checkpoints"
every = 2
keep = 2
[parallel]
threads = 1
"""


@functools.cache
def built_text(program):
    """A folder with texts and the data set that the program built of them, for all tests of this process."""
    kept = tempfile.TemporaryDirectory()
    root = pathlib.Path(kept.name)
    generator = random.Random(1)
    words = ["attention", "is", "cut", "out", "of", "the", "layers", "and", "shared", "by", "all", "ranks"]
    (root / "texts").mkdir()
    for i, length in enumerate([900, 3, 40, 700, 350, 120, 15, 600, 80, 1, 260, 990] * 3):
        text = " ".join(generator.choice(words) for _ in range(length))[:length]
        (root / "texts" / f"{i:03}.txt").write_text(text)
    subprocess.run([program, "data", "build", "--out", str(root / "text"), str(root / "texts")],
                   check=True, capture_output=True)
    return kept


class Runs:
    """A data set, a model and a configuration in a folder of their own, and the program to run on them."""

    def __init__(self, program, root, like=None):
        """`like`: another one, whose files are copied, metrics and checkpoints included."""
        self.program, self.root = str(program), pathlib.Path(root)
        self.metrics = self.root / "metrics.jsonl"
        self.checkpoints = self.root / "checkpoints"
        source = like.root if like else built_text(self.program).name
        shutil.copytree(source, self.root, dirs_exist_ok=True)
        (self.root / "config.json").write_text(json.dumps(MODEL))
        (self.root / "run.toml").write_text(CONFIG.format(root=self.root))

    def command(self, *settings, ranks=4, launcher=(), options=()):
        sets = [part for setting in settings for part in ("--set", setting)]
        count = [] if launcher else ["--ranks", str(ranks)]
        return [*launcher, self.program, "train", "--config", str(self.root / "run.toml"), *count, *sets, *options]

    def run(self, *settings, ranks=4, launcher=(), **options):
        return subprocess.run(self.command(*settings, ranks=ranks, launcher=launcher), capture_output=True,
                              text=True, timeout=300, **options)

    def must_run(self, *settings, **options):
        done = self.run(*settings, **options)
        assert done.returncode == 0, done.stderr
        return done

    def lines(self):
        return [json.loads(line) for line in self.metrics.read_text().splitlines()]

    def losses(self):
        """By step; the steps must be there once each, in order."""
        lines = self.lines()
        assert [line["step"] for line in lines] == list(range(len(lines)))
        return [line["loss"] for line in lines]

    def latest(self):
        """The checkpoint `latest` names, after reading every tensor of it; None where there is none."""
        pointer = self.checkpoints / "latest"
        if not pointer.exists():
            return None
        from safetensors.numpy import load_file

        folder = self.checkpoints / pointer.read_text().strip()
        weights, optimizer = load_file(folder / "model.safetensors"), load_file(folder / "optimizer.safetensors")
        assert set(optimizer) == {f"{kind}.{name}" for name in weights for kind in ("exp_avg", "exp_avg_sq")}
        json.loads((folder / "data.json").read_text())
        return folder
