#include "model/config.h"

#include <cmath>
#include <filesystem>
#include <limits>
#include <utility>

#include "base/check.h"
#include "base/json.h"

namespace distca {
namespace {

// Bounds under which counts of parameters stay within 64 bits.
constexpr int64_t kLargestSize = int64_t{1} << 24;
constexpr int64_t kMostLayers = 4096;

/// A value as errors show it.
std::string show(const Json& value) {
  return value.is_structured() ? value.type_name() : value.dump();
}

/// Typed access to the fields of one JSON object; errors begin with where the object is from.
class Fields {
 public:
  Fields(const Json& object, std::string origin) : object_(object), origin_(std::move(origin)) {
    DISTCA_CHECK_INPUT(object.is_object(), "{}: is {}, not an object", origin_, show(object));
  }

  /// Null when the field is missing or null, as config.json uses both for "default".
  const Json* find(const char* name) const {
    const auto at = object_.find(name);
    return at == object_.end() || at->is_null() ? nullptr : &*at;
  }

  int64_t integer(const char* name, std::optional<int64_t> otherwise = {}) const {
    const Json* value = find_or(name, otherwise.has_value());
    if (value == nullptr) return *otherwise;
    DISTCA_CHECK_INPUT(value->is_number_integer() && in_range(*value), "{}: {} is {}, not an integer",
                       origin_, name, show(*value));
    return value->get<int64_t>();
  }

  double number(const char* name, std::optional<double> otherwise = {}) const {
    const Json* value = find_or(name, otherwise.has_value());
    if (value == nullptr) return *otherwise;
    DISTCA_CHECK_INPUT(value->is_number(), "{}: {} is {}, not a number", origin_, name, show(*value));
    return value->get<double>();
  }

  bool boolean(const char* name, bool otherwise) const {
    const Json* value = find(name);
    if (value == nullptr) return otherwise;
    DISTCA_CHECK_INPUT(value->is_boolean(), "{}: {} is {}, not true or false", origin_, name, show(*value));
    return value->get<bool>();
  }

  /// Throws unless the field is missing or equals `only`, the one value that this model can do.
  void expect(const char* name, const Json& only) const {
    const Json* value = find(name);
    DISTCA_CHECK_INPUT(value == nullptr || *value == only, "{}: {} is {}; only {} is supported", origin_,
                       name, show(*value), show(only));
  }

 private:
  const Json* find_or(const char* name, bool optional) const {
    const Json* value = find(name);
    DISTCA_CHECK_INPUT(value != nullptr || optional, "{}: {} is missing", origin_, name);
    return value;
  }

  static bool in_range(const Json& value) {
    return !value.is_number_unsigned() ||
           value.get<uint64_t>() <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  }

  const Json& object_;
  std::string origin_;
};

RopeScaling read_llama3_scaling(const Fields& fields, const LlamaConfig& config) {
  RopeScaling scaling;
  scaling.factor = fields.number("factor");
  scaling.low_freq_factor = fields.number("low_freq_factor");
  scaling.high_freq_factor = fields.number("high_freq_factor");
  scaling.original_max_position_embeddings =
      fields.integer("original_max_position_embeddings", config.max_position_embeddings);
  return scaling;
}

/// "rope_parameters" holds theta, type and scaling in one; before it, "rope_theta" stood beside
/// "rope_scaling", whose type was first called "type".
void read_rope(const Fields& fields, const std::string& origin, LlamaConfig& config) {
  config.rope_theta = fields.number("rope_theta", config.rope_theta);
  const char* name = fields.find("rope_parameters") != nullptr ? "rope_parameters" : "rope_scaling";
  const Json* value = fields.find(name);
  if (value == nullptr) return;
  const Fields rope(*value, format("{}: {}", origin, name));
  config.rope_theta = rope.number("rope_theta", config.rope_theta);
  rope.expect("partial_rotary_factor", 1.0);
  const Json* type = rope.find("rope_type") != nullptr ? rope.find("rope_type") : rope.find("type");
  if (type == nullptr || *type == "default") return;
  DISTCA_CHECK_INPUT(*type == "llama3", "{}: {}: rope_type is {}; \"default\" and \"llama3\" are supported",
                     origin, name, show(*type));
  config.rope_scaling = read_llama3_scaling(rope, config);
}

void read_special_tokens(const Fields& fields, const std::string& origin, LlamaConfig& config) {
  if (fields.find("bos_token_id") != nullptr) config.bos_token_id = fields.integer("bos_token_id");
  const Json* eos = fields.find("eos_token_id");
  if (eos == nullptr) return;
  if (!eos->is_array()) {
    config.eos_token_id = {fields.integer("eos_token_id")};
    return;
  }
  for (const Json& token : *eos) {
    DISTCA_CHECK_INPUT(token.is_number_integer(), "{}: eos_token_id holds {}, not an integer", origin,
                       show(token));
    config.eos_token_id.push_back(token.get<int64_t>());
  }
}

int64_t head_dim_of(const Fields& fields, const std::string& origin, const LlamaConfig& config) {
  if (fields.find("head_dim") != nullptr) return fields.integer("head_dim");
  const int64_t hidden = config.hidden_size, heads = config.num_attention_heads;
  DISTCA_CHECK_INPUT(
      heads > 0 && hidden % heads == 0,
      "{}: hidden_size {} is not a multiple of num_attention_heads {}, and there is no head_dim", origin,
      hidden, heads);
  return hidden / heads;
}

LlamaConfig sizes(int64_t vocab, int64_t hidden, int64_t intermediate, int64_t layers, int64_t heads,
                  int64_t kv_heads, int64_t head_dim) {
  LlamaConfig config;
  config.vocab_size = vocab;
  config.hidden_size = hidden;
  config.intermediate_size = intermediate;
  config.num_hidden_layers = layers;
  config.num_attention_heads = heads;
  config.num_key_value_heads = kv_heads;
  config.head_dim = head_dim;
  config.rms_norm_eps = 1e-5;
  return config;
}

/// The rotary settings of Llama 3.1.
LlamaConfig with_llama3_rope(LlamaConfig config) {
  config.max_position_embeddings = 131072;
  config.rope_theta = 500000;
  config.rope_scaling = RopeScaling{};
  config.bos_token_id = 128000;
  config.eos_token_id = {128001};
  return config;
}

/// The sizes of Code Llama 34B.
LlamaConfig llama_34b() {
  LlamaConfig config = sizes(32000, 8192, 22016, 48, 64, 8, 128);
  config.max_position_embeddings = 16384;
  config.rope_theta = 1000000;
  config.bos_token_id = 1;
  config.eos_token_id = {2};
  return config;
}

/// Learns on a laptop: bytes and an end-of-document token (256), with room to spare in the vocabulary.
LlamaConfig tiny() {
  LlamaConfig config = sizes(320, 128, 384, 4, 4, 2, 64);
  config.max_position_embeddings = 131072;
  config.rope_theta = 500000;
  config.eos_token_id = {256};
  return config;
}

}  // namespace

void LlamaConfig::check(const std::string& origin) const {
  const auto size = [&](const char* name, int64_t value, int64_t most = kLargestSize) {
    DISTCA_CHECK_INPUT(value > 0 && value <= most, "{}: {} is {}, not between 1 and {}", origin, name, value,
                       most);
  };
  const auto positive = [&](const char* name, double value) {
    DISTCA_CHECK_INPUT(std::isfinite(value) && value > 0, "{}: {} is {}, not above 0", origin, name, value);
  };
  size("vocab_size", vocab_size);
  size("hidden_size", hidden_size);
  size("intermediate_size", intermediate_size);
  size("num_hidden_layers", num_hidden_layers, kMostLayers);
  size("num_attention_heads", num_attention_heads);
  size("num_key_value_heads", num_key_value_heads);
  size("head_dim", head_dim, kLargestSize / num_attention_heads);
  size("max_position_embeddings", max_position_embeddings, std::numeric_limits<int64_t>::max());
  DISTCA_CHECK_INPUT(num_attention_heads % num_key_value_heads == 0,
                     "{}: num_attention_heads {} is not a multiple of num_key_value_heads {}", origin,
                     num_attention_heads, num_key_value_heads);
  DISTCA_CHECK_INPUT(head_dim % 2 == 0, "{}: head_dim is {}, but rotary positions need an even one", origin,
                     head_dim);
  positive("rms_norm_eps", rms_norm_eps);
  positive("rope_theta", rope_theta);
  positive("initializer_range", initializer_range);
  if (!rope_scaling) return;
  positive("rope scaling's factor", rope_scaling->factor);
  positive("rope scaling's low_freq_factor", rope_scaling->low_freq_factor);
  size("rope scaling's original_max_position_embeddings", rope_scaling->original_max_position_embeddings,
       std::numeric_limits<int64_t>::max());
  DISTCA_CHECK_INPUT(std::isfinite(rope_scaling->high_freq_factor) &&
                         rope_scaling->high_freq_factor > rope_scaling->low_freq_factor,
                     "{}: rope scaling's high_freq_factor is {}, not above its low_freq_factor {}", origin,
                     rope_scaling->high_freq_factor, rope_scaling->low_freq_factor);
}

int64_t LlamaConfig::layer_parameters() const {
  const int64_t attention = hidden_size * head_dim * 2 * (num_attention_heads + num_key_value_heads);
  return attention + 3 * hidden_size * intermediate_size + 2 * hidden_size;
}

int64_t LlamaConfig::parameters() const {
  const int64_t embeddings = (tie_word_embeddings ? 1 : 2) * vocab_size * hidden_size;
  return embeddings + num_hidden_layers * layer_parameters() + hidden_size;
}

namespace {

LlamaConfig llama_config_of(const Json& json, const std::string& origin) {
  const Fields fields(json, origin);
  fields.expect("model_type", "llama");
  fields.expect("hidden_act", "silu");
  fields.expect("attention_bias", false);
  fields.expect("mlp_bias", false);
  fields.expect("attention_dropout", 0.0);

  LlamaConfig config;
  config.vocab_size = fields.integer("vocab_size");
  config.hidden_size = fields.integer("hidden_size");
  config.intermediate_size = fields.integer("intermediate_size");
  config.num_hidden_layers = fields.integer("num_hidden_layers");
  config.num_attention_heads = fields.integer("num_attention_heads");
  config.num_key_value_heads = fields.integer("num_key_value_heads", config.num_attention_heads);
  config.head_dim = head_dim_of(fields, origin, config);
  config.max_position_embeddings = fields.integer("max_position_embeddings", config.max_position_embeddings);
  config.rms_norm_eps = fields.number("rms_norm_eps", config.rms_norm_eps);
  config.tie_word_embeddings = fields.boolean("tie_word_embeddings", config.tie_word_embeddings);
  config.initializer_range = fields.number("initializer_range", config.initializer_range);
  read_rope(fields, origin, config);
  read_special_tokens(fields, origin, config);
  config.check(origin);
  return config;
}

}  // namespace

LlamaConfig parse_llama_config(std::string_view text, const std::string& origin) {
  return llama_config_of(parse_json(text, origin), origin);
}

LlamaConfig read_llama_config(const std::string& path) {
  const std::string file =
      std::filesystem::is_directory(path) ? (std::filesystem::path(path) / "config.json").string() : path;
  return llama_config_of(read_json(file), file);
}

LlamaConfig llama_preset(const std::string& name) {
  if (name == "llama-8b") return with_llama3_rope(sizes(128256, 4096, 14336, 32, 32, 8, 128));
  if (name == "llama-34b") return llama_34b();
  if (name == "llama-70b") return with_llama3_rope(sizes(128256, 8192, 28672, 80, 64, 8, 128));
  if (name == "tiny") return tiny();
  throw InputError(
      format("model '{}' is no preset (llama-8b, llama-34b, llama-70b, tiny); a config.json's path has a '/' "
             "or ends in .json",
             name));
}

LlamaConfig find_llama_config(const std::string& name) {
  const bool path = name.find('/') != std::string::npos || name.ends_with(".json");
  return path ? read_llama_config(name) : llama_preset(name);
}

std::string dump_llama_config(const LlamaConfig& config, const std::string& dtype) {
  Json rope = {{"rope_type", "default"}, {"rope_theta", config.rope_theta}};
  if (const auto& scaling = config.rope_scaling) {
    rope["rope_type"] = "llama3";
    rope["factor"] = scaling->factor;
    rope["low_freq_factor"] = scaling->low_freq_factor;
    rope["high_freq_factor"] = scaling->high_freq_factor;
    rope["original_max_position_embeddings"] = scaling->original_max_position_embeddings;
  }
  Json json;
  json["architectures"] = Json::array({"LlamaForCausalLM"});
  json["model_type"] = "llama";
  json["dtype"] = dtype;
  json["vocab_size"] = config.vocab_size;
  json["hidden_size"] = config.hidden_size;
  json["intermediate_size"] = config.intermediate_size;
  json["num_hidden_layers"] = config.num_hidden_layers;
  json["num_attention_heads"] = config.num_attention_heads;
  json["num_key_value_heads"] = config.num_key_value_heads;
  json["head_dim"] = config.head_dim;
  json["hidden_act"] = "silu";
  json["max_position_embeddings"] = config.max_position_embeddings;
  json["rms_norm_eps"] = config.rms_norm_eps;
  json["rope_parameters"] = rope;
  // Read by transformers before version 5, which doesn't know rope_parameters.
  json["rope_theta"] = config.rope_theta;
  json["rope_scaling"] = config.rope_scaling ? rope : Json(nullptr);
  json["tie_word_embeddings"] = config.tie_word_embeddings;
  json["initializer_range"] = config.initializer_range;
  json["attention_bias"] = false;
  json["mlp_bias"] = false;
  json["bos_token_id"] = config.bos_token_id ? Json(*config.bos_token_id) : Json(nullptr);
  json["eos_token_id"] = config.eos_token_id.empty()       ? Json(nullptr)
                         : config.eos_token_id.size() == 1 ? Json(config.eos_token_id[0])
                                                           : Json(config.eos_token_id);
  return json.dump(2) + "\n";
}

}  // namespace distca
