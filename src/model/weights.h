// Tensors in safetensors files: any tensors by name (optimizer state), and a model's weights as Hugging
// Face's LlamaForCausalLM reads and writes them.
#pragma once

#include <string>
#include <vector>

#include "model/llama.h"
#include "model/safetensors.h"

namespace distca {

/// Writes `tensors` as they are, from any device, to one file that appears whole or not at all. Throws Error
/// with the system's reason when it can't.
void save_tensors(const std::string& path, const std::vector<NamedTensor>& tensors,
                  const SafetensorsMetadata& metadata = {});

/// Copies into each of `tensors`, in place, what the files of open_safetensors(path) hold under its name, or
/// its slice of that, converting between floating types. Tensors of the files that aren't asked for are left
/// alone. Throws InputError that names a tensor that is missing, has another shape (with both shapes) or
/// isn't of a floating type where that is needed.
void load_tensors(const std::string& path, const std::vector<NamedTensor>& tensors);

/// Fills the part from a whole model's weights: a .safetensors file, a model.safetensors.index.json, or a
/// folder with either. Besides what load_tensors() refuses, a tensor that no model of this configuration has
/// is an InputError; only rotary frequencies, which old files carry, and a tied head equal to the embedding
/// may stand there.
void load_llama(LlamaParameters& model, const std::string& path);

/// Bytes of a weights file above which a model is split into several, as Hugging Face does.
inline constexpr int64_t kShardBytes = 5'000'000'000;

/// Writes config.json and the weights `tensors` — a whole model's, LlamaParameters::named() — into `folder`,
/// which is created. One model.safetensors, or shards with their index where that would be larger than
/// `shard_bytes`.
void save_llama(const std::string& folder, const LlamaConfig& config, const std::vector<NamedTensor>& tensors,
                int64_t shard_bytes = kShardBytes);

}  // namespace distca
