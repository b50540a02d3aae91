// What the Python tests ask of the Llama model, from the command line:
//
//   llama_program run MODEL BATCH OUT DTYPE    logits, loss and gradients of a batch, as safetensors
//   llama_program init MODEL OUT SEED BYTES    fresh weights for MODEL's config.json, in shards of BYTES
//   llama_program copy MODEL OUT DTYPE BYTES   MODEL's weights read and written again
//
// BATCH holds int64 "tokens" (rows) and "doc_lengths"; core attention is the dense reference.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <cstdio>
#include <map>

#include "base/check.h"
#include "model/dense_attention.h"
#include "model/weights.h"

namespace distca {
namespace {

at::ScalarType dtype_of(const std::string& name) {
  const std::map<std::string, at::ScalarType> types = {
      {"float32", at::kFloat}, {"float64", at::kDouble}, {"bfloat16", at::kBFloat16}};
  DISTCA_CHECK_INPUT(types.contains(name), "dtype {} is not known", name);
  return types.at(name);
}

at::Tensor read_vector(const std::string& path, const std::string& name) {
  const SafetensorsEntry* entry = SafetensorsFile(path).find(name);
  DISTCA_CHECK_INPUT(entry != nullptr, "{}: holds no {}", path, name);
  const at::Tensor vector = at::empty(SafetensorsFile(path).find(name)->shape, at::kLong);
  load_tensors(path, {{name, vector}});
  return vector;
}

/// A token's target is the token after it in its document.
at::Tensor targets_of(const at::Tensor& tokens, const std::vector<int64_t>& lengths) {
  at::Tensor targets = at::cat({tokens.narrow(0, 1, tokens.size(0) - 1), tokens.narrow(0, 0, 1)});
  int64_t end = 0;
  for (const int64_t length : lengths) {
    end += length;
    if (length > 0) targets[end - 1] = -1;
  }
  return targets;
}

LlamaParameters load(const std::string& folder, at::ScalarType dtype) {
  const LlamaConfig config = read_llama_config(folder);
  LlamaParameters model = make_llama(config, LlamaPart::whole(config), at::TensorOptions().dtype(dtype));
  load_llama(model, folder);
  return model;
}

void run(const std::string& folder, const std::string& batch, const std::string& out,
         const std::string& dtype) {
  const LlamaParameters model = load(folder, dtype_of(dtype));
  const at::Tensor tokens = read_vector(batch, "tokens"), doc_lengths = read_vector(batch, "doc_lengths");
  const std::vector<int64_t> lengths(doc_lengths.const_data_ptr<int64_t>(),
                                     doc_lengths.const_data_ptr<int64_t>() + doc_lengths.numel());
  std::vector<at::Tensor> positions;
  for (const int64_t length : lengths) positions.push_back(at::arange(length, at::kLong));
  const Rope rope = make_rope(model.config, at::cat(positions), dtype_of(dtype));

  at::Tensor x = embed(model, tokens);
  for (int64_t layer = 0; layer < model.config.num_hidden_layers; ++layer) {
    x = post_attention(model, layer, x, dense_attention(pre_attention(model, layer, x, rope), lengths));
  }
  const at::Tensor targets = targets_of(tokens, lengths);
  const at::Tensor loss = loss_sum(model, x, targets) / targets.ge(0).sum();
  loss.backward();

  std::vector<NamedTensor> results = {{"logits", logits(model, x)}, {"loss", loss}};
  for (const auto& [name, tensor, sharding] : model.named())
    results.push_back({"grad." + name, tensor.grad()});
  save_tensors(out, results);
}

void main_of(const std::vector<std::string>& words) {
  DISTCA_CHECK_INPUT(words.size() == 5, "five arguments are needed");
  const auto& [command, folder, second] = std::tie(words[0], words[1], words[2]);
  if (command == "run") {
    run(folder, second, words[3], words[4]);
  } else if (command == "init") {
    const LlamaConfig config = read_llama_config(folder);
    LlamaParameters model = make_llama(config, LlamaPart::whole(config), at::kFloat);
    initialize(model, std::stoull(words[3]));
    save_llama(second, config, model.named(), std::stoll(words[4]));
  } else {
    DISTCA_CHECK_INPUT(command == "copy", "{} is no command", command);
    const LlamaParameters model = load(folder, dtype_of(words[3]));
    std::vector<NamedTensor> tensors = model.named();  // kept in float32 for bfloat16
    for (NamedTensor& each : tensors) each.tensor = each.tensor.to(model.dtype);
    save_llama(second, model.config, tensors, std::stoll(words[4]));
  }
}

}  // namespace
}  // namespace distca

int main(int argc, char** argv) {
  try {
    distca::main_of({argv + 1, argv + argc});
  } catch (const std::exception& error) {
    std::fprintf(stderr, "llama_program: %s\n", error.what());
    return 1;
  }
  return 0;
}
