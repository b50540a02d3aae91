#include "train/testing.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <memory>
#include <random>

#include "comm/threads.h"
#include "model/dense_attention.h"
#include "train/gather.h"
#include "train/rank_rows.h"

namespace distca::testing {

TokenSource random_documents(const std::vector<int64_t>& lengths, int64_t vocabulary, uint64_t seed) {
  std::mt19937_64 random(seed);
  auto documents = std::make_shared<std::vector<std::vector<int64_t>>>();
  for (const int64_t length : lengths) {
    std::vector<int64_t> tokens(length);
    for (int64_t& token : tokens) token = static_cast<int64_t>(random() % static_cast<uint64_t>(vocabulary));
    documents->push_back(std::move(tokens));
  }
  TokenSource source;
  source.name = "random";
  source.documents = static_cast<int64_t>(lengths.size());
  source.length = [documents](int64_t doc) { return static_cast<int64_t>((*documents)[doc].size()); };
  source.read = [documents](int64_t doc, Span tokens, int64_t* out) {
    std::copy_n((*documents)[doc].begin() + tokens.begin, tokens.size(), out);
  };
  return source;
}

RunInputs small_run(const std::string& dtype) {
  RunInputs inputs;
  LlamaConfig& model = inputs.model;
  model.vocab_size = 61, model.hidden_size = 24, model.intermediate_size = 40;
  model.num_hidden_layers = 2, model.num_attention_heads = 4, model.num_key_value_heads = 2;
  model.head_dim = 8;
  inputs.config.model.dtype = dtype;
  inputs.config.train.tokens_per_batch = 1024;
  inputs.config.train.steps = 20;
  inputs.config.train.warmup = 3;
  inputs.config.train.lr = 1e-2;
  inputs.config.train.min_lr = 1e-3;
  inputs.config.train.seed = 7;
  inputs.config.data.window = 4;
  inputs.config.attention.tolerance = 0.05;
  std::vector<int64_t> lengths = {330, 1, 300, 400, 1, 290, 37, 350, 310, 2, 395, 1, 128, 256, 129, 511};
  inputs.source = random_documents(lengths, model.vocab_size, 3);
  return inputs;
}

namespace {

std::vector<NamedTensor> in_float64(std::vector<NamedTensor> tensors) {
  for (NamedTensor& each : tensors) each.tensor = each.tensor.cpu().to(at::kDouble, false, true);
  return tensors;
}

}  // namespace

RunResult run_rank(Fabric& fabric, const RunInputs& inputs) {
  Trainer trainer(fabric, inputs);
  RunResult result;
  for (int64_t step = 0; step < inputs.config.train.steps; ++step) {
    StepMetrics metrics = trainer.forward_backward();
    if (step == 0 && !trainer.place.server) {
      result.gradients = in_float64(gather_tensors(trainer.fabrics(), trainer.grid, trainer.stage_layers,
                                                   trainer.parameters, trainer.parameters.gradients));
    }
    trainer.update(metrics);
    result.losses.push_back(metrics.loss);
  }
  return result;
}

RunResult run_on_threads(int32_t ranks, const RunInputs& inputs) {
  RunResult result;
  run_thread_ranks(ranks, {}, [&](Fabric& fabric) {
    RunResult of_rank = run_rank(fabric, inputs);
    if (fabric.rank() == 0) result = std::move(of_rank);
  });
  return result;
}

RunResult run_dense(const RunInputs& inputs, int32_t workload_groups) {
  const at::ScalarType dtype = scalar_type(inputs.config.model.dtype);
  LlamaParameters made = make_llama(inputs.model, LlamaPart::whole(inputs.model), dtype);
  initialize(made, static_cast<uint64_t>(inputs.config.train.seed));
  FlatParameters parameters = flatten(std::move(made));
  AdamState adam = make_adam_state(parameters);
  BatchStream stream(inputs.source, batch_inputs(inputs.config));
  stream.pack_by_workload(workload_groups);
  RunResult result;
  for (int64_t step = 0; step < inputs.config.train.steps; ++step) {
    const GlobalBatch batch = stream.next();
    parameters.gradients.zero_();
    double loss = 0;
    for (const NanoBatch& nano_batch : batch.nano_batches) {
      const Layout layout = layout_of(nano_batch, std::max(batch.rows, nano_batch.tokens()), 1);
      const RankRows rows = read_rows(nano_batch, layout, 0, inputs.source, inputs.model.vocab_size);
      const Rope rope = make_rope(inputs.model, at::tensor(rows.positions), dtype);
      at::Tensor x = embed(parameters.model, at::tensor(rows.tokens));
      for (int64_t layer = 0; layer < inputs.model.num_hidden_layers; ++layer) {
        const Qkv qkv = pre_attention(parameters.model, layer, x, rope);
        x = post_attention(parameters.model, layer, x, dense_attention(qkv, nano_batch.lengths()));
      }
      const at::Tensor mean =
          loss_sum(parameters.model, x, at::tensor(rows.targets)) / static_cast<double>(batch.targets());
      mean.backward();
      loss += mean.item<double>();
    }
    if (step == 0) {
      for (const FlatEntry& entry : parameters.entries)
        result.gradients.push_back({entry.name, FlatParameters::view(parameters.gradients, entry)});
      result.gradients = in_float64(std::move(result.gradients));
    }
    result.losses.push_back(loss);
    clip_gradients(parameters, gradient_norm(parameters.gradients), inputs.config.train.clip);
    adam_update(parameters, adam, inputs.config.train, learning_rate(inputs.config.train, step));
  }
  return result;
}

}  // namespace distca::testing
