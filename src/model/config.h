// What a Llama model is: the fields of a Hugging Face config.json that decide its mathematics. Without
// tensors, so that planning and simulation can ask for a model's sizes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace distca {

/// Llama 3's scaling of rotary frequencies ("rope_type": "llama3"): wavelengths above
/// original_max_position_embeddings / low_freq_factor are stretched by `factor`, those below original /
/// high_freq_factor are kept, the ones between are interpolated.
struct RopeScaling {
  double factor = 8, low_freq_factor = 1, high_freq_factor = 4;
  int64_t original_max_position_embeddings = 8192;

  friend bool operator==(const RopeScaling&, const RopeScaling&) = default;
};

/// Names and defaults are those of config.json. Sizes that have no default are 0 until set.
struct LlamaConfig {
  int64_t vocab_size = 0, hidden_size = 0, intermediate_size = 0;
  int64_t num_hidden_layers = 0, num_attention_heads = 0, num_key_value_heads = 0;
  int64_t head_dim = 0;  // not always hidden_size / num_attention_heads
  int64_t max_position_embeddings = 2048;
  double rms_norm_eps = 1e-6;
  double rope_theta = 10000;
  std::optional<RopeScaling> rope_scaling;
  bool tie_word_embeddings = false;
  double initializer_range = 0.02;
  std::optional<int64_t> bos_token_id;
  std::vector<int64_t> eos_token_id;

  friend bool operator==(const LlamaConfig&, const LlamaConfig&) = default;

  /// Throws InputError that begins with `origin` and names the field that can't be right.
  void check(const std::string& origin) const;

  int64_t layer_parameters() const;  // of one layer
  int64_t parameters() const;        // of the whole model; a tied head counts once
};

/// The model of a config.json. Reads both ways in which rotary settings are written: "rope_theta" with
/// "rope_scaling", and "rope_parameters". What the model can't do (biases, other activations, other rotary
/// types) is an InputError that names `origin` and the field, as is a missing, mistyped or impossible field.
LlamaConfig parse_llama_config(std::string_view text, const std::string& origin);

/// The same from a file, or from config.json in a folder.
LlamaConfig read_llama_config(const std::string& path);

/// A preset: "llama-8b" (Llama 3.1), "llama-34b", "llama-70b", "tiny" (byte-level, 1.1 million parameters).
/// Throws InputError that lists them when there is none of that name.
LlamaConfig llama_preset(const std::string& name);

/// The config.json at `name`, or in the folder `name`, when it has a '/' or ends in .json; else a preset.
LlamaConfig find_llama_config(const std::string& name);

/// The config.json that Hugging Face's LlamaForCausalLM loads. `dtype` ("float32", …) is noted in it.
std::string dump_llama_config(const LlamaConfig& config, const std::string& dtype);

}  // namespace distca
