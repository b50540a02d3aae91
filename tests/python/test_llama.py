"""The Llama model against transformers' LlamaForCausalLM: logits, loss and gradients, document by document, and
weights in both directions."""

import random

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,  # so that short documents meet all three kinds of wavelength
}

MODELS = {
    "plain": dict(),
    "tied": dict(tie_word_embeddings=True),
    "rope_scaling": dict(rope_parameters=LLAMA3, head_dim=32),
    "head_dim_apart": dict(head_dim=10, tie_word_embeddings=True),
    "multi_query": dict(num_key_value_heads=1, num_hidden_layers=3),
    "all": dict(rope_parameters=LLAMA3, head_dim=24, tie_word_embeddings=True, rms_norm_eps=1e-3),
}
DOCUMENTS = [[17], [1, 40, 2, 1, 19, 53, 31, 3]]
TOLERANCE = 1e-5


def make_model(seed, **fields):
    sizes = dict(vocab_size=83, hidden_size=48, intermediate_size=72, num_hidden_layers=2, num_attention_heads=6)
    common = dict(num_key_value_heads=2, max_position_embeddings=4096, initializer_range=0.15)
    torch.manual_seed(seed)
    model = LlamaForCausalLM(LlamaConfig(**{**sizes, **common, **fields}, attn_implementation="eager"))
    for name, parameter in model.named_parameters():
        if "norm" in name:
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
    return model


def reference(model, tokens, lengths):
    """Logits of all rows, mean loss over all targets, and gradients, each document run alone."""
    logits, losses = [], []
    for document in tokens.split(lengths):
        rows = model(document[None]).logits[0]
        logits.append(rows)
        losses.append(torch.nn.functional.cross_entropy(rows[:-1], document[1:], reduction="sum"))
    loss = torch.stack(losses).sum() / (len(tokens) - len(lengths))
    loss.backward()
    gradients = {f"grad.{name}": parameter.grad for name, parameter in model.named_parameters()}
    return {"logits": torch.cat(logits).detach(), "loss": loss.detach(), **gradients}


def assert_close(ours, theirs, what):
    assert ours.shape == theirs.shape, what
    difference = (ours.double() - theirs.double()).abs().max() / max(theirs.abs().max(), 1e-30)
    assert difference <= TOLERANCE, f"{what}: {difference:.2e} of the largest entry"


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", MODELS)
def test_logits_loss_and_gradients_equal_transformers(name, dtype, tmp_path, run_program):
    seed = random.randrange(2**31)
    print(f"seed {seed}")
    model = make_model(seed, **MODELS[name])
    model.save_pretrained(tmp_path)
    model = model.to(getattr(torch, dtype))
    for lengths in DOCUMENTS:
        model.zero_grad()
        tokens = torch.randint(model.config.vocab_size, (sum(lengths),))
        save_file({"tokens": tokens, "doc_lengths": torch.tensor(lengths)}, tmp_path / "batch")
        run_program("tests/llama_program", "run", tmp_path, tmp_path / "batch", tmp_path / "out", dtype)
        ours, theirs = load_file(tmp_path / "out"), reference(model, tokens, lengths)
        assert ours.keys() == theirs.keys()
        for key in ours:
            assert_close(ours[key], theirs[key], f"{key} of documents {lengths}")


def load_without_complaint(folder):
    model, info = LlamaForCausalLM.from_pretrained(folder, output_loading_info=True, attn_implementation="eager")
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs")), info
    return model


def logits_of(model):
    return model(torch.arange(60)[None] % model.config.vocab_size).logits


@pytest.mark.parametrize("shard_bytes", [2**40, 20_000])
@pytest.mark.parametrize("name", MODELS)
def test_weights_written_here_load_there(name, shard_bytes, tmp_path, run_program):
    make_model(1, **MODELS[name]).config.save_pretrained(tmp_path / "config")
    run_program("tests/llama_program", "init", tmp_path / "config", tmp_path / "model", 5, shard_bytes)
    assert (tmp_path / "model/model.safetensors").exists() == (shard_bytes > 20_000)
    model = load_without_complaint(tmp_path / "model")
    tokens = torch.arange(60) % model.config.vocab_size
    save_file({"tokens": tokens, "doc_lengths": torch.tensor([60])}, tmp_path / "batch")
    run_program("tests/llama_program", "run", tmp_path / "model", tmp_path / "batch", tmp_path / "out", "float32")
    assert_close(load_file(tmp_path / "out")["logits"], logits_of(model)[0], "logits")


@pytest.mark.parametrize("shard_bytes", [2**40, 20_000])
@pytest.mark.parametrize("name", MODELS)
def test_weights_written_there_come_back_unchanged(name, shard_bytes, tmp_path, run_program):
    model = make_model(2, **MODELS[name])
    model.save_pretrained(tmp_path / "theirs", max_shard_size=shard_bytes)
    assert (tmp_path / "theirs/model.safetensors").exists() == (shard_bytes > 20_000)
    run_program("tests/llama_program", "copy", tmp_path / "theirs", tmp_path / "ours", "float32", shard_bytes)
    again = load_without_complaint(tmp_path / "ours")
    for (key, value), (_, expected) in zip(again.named_parameters(), model.named_parameters(), strict=True):
        assert torch.equal(value, expected), key
    assert again.config.rope_parameters == model.config.rope_parameters
    assert torch.equal(logits_of(again), logits_of(model))


def test_bfloat16_weights_go_both_ways(tmp_path, run_program):
    model = make_model(3).to(torch.bfloat16)
    model.save_pretrained(tmp_path / "theirs")
    run_program("tests/llama_program", "copy", tmp_path / "theirs", tmp_path / "ours", "bfloat16", 2**40)
    again = load_without_complaint(tmp_path / "ours")
    assert again.dtype == torch.bfloat16
    for (key, value), (_, expected) in zip(again.named_parameters(), model.named_parameters(), strict=True):
        assert torch.equal(value, expected), key
