#include "model/weights.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <set>

#include "base/check.h"
#include "base/json.h"

namespace distca {
namespace {

namespace fs = std::filesystem;

struct TypeName {
  at::ScalarType type;
  const char* name;         // in safetensors
  const char* config_name;  // in config.json
};

constexpr TypeName kTypes[] = {{at::kFloat, "F32", "float32"},      {at::kDouble, "F64", "float64"},
                               {at::kBFloat16, "BF16", "bfloat16"}, {at::kHalf, "F16", "float16"},
                               {at::kLong, "I64", "int64"},         {at::kInt, "I32", "int32"},
                               {at::kShort, "I16", "int16"},        {at::kChar, "I8", "int8"},
                               {at::kByte, "U8", "uint8"},          {at::kBool, "BOOL", "bool"}};

const TypeName& type_name(at::ScalarType type) {
  const auto* at =
      std::find_if(std::begin(kTypes), std::end(kTypes), [&](const auto& t) { return t.type == type; });
  DISTCA_CHECK(at != std::end(kTypes), "tensors of type {} can't be stored", at::toString(type));
  return *at;
}

at::ScalarType type_of(const SafetensorsEntry& entry, const std::string& path) {
  for (const TypeName& type : kTypes) {
    if (type.name == entry.dtype) return type.type;
  }
  throw InputError(
      format("{}: tensor '{}' has dtype {}, which can't be loaded", path, entry.name, entry.dtype));
}

std::string show(at::IntArrayRef shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}

std::string_view bytes_of(const at::Tensor& tensor) {
  return {static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes()};
}

/// A tensor of a file, in its own type. Copied, as the file's bytes need not be aligned.
at::Tensor read_tensor(const SafetensorsFile& file, const SafetensorsEntry& entry) {
  const at::Tensor tensor = at::empty(entry.shape, type_of(entry, file.path()));
  const std::string_view bytes = file.bytes(entry);
  if (!bytes.empty()) std::memcpy(tensor.mutable_data_ptr(), bytes.data(), bytes.size());
  return tensor;
}

struct Found {
  const SafetensorsFile* file = nullptr;
  const SafetensorsEntry* entry = nullptr;
};

Found find(const std::vector<SafetensorsFile>& files, const std::string& name) {
  for (const SafetensorsFile& file : files) {
    if (const SafetensorsEntry* entry = file.find(name)) return {&file, entry};
  }
  return {};
}

void load_from(const std::vector<SafetensorsFile>& files, const std::string& path,
               const std::vector<NamedTensor>& tensors) {
  const at::NoGradGuard no_grad;
  for (const auto& [name, tensor, sharding] : tensors) {
    const Found found = find(files, name);
    const std::vector<int64_t> shape = sharding.whole_shape(tensor.sizes());
    DISTCA_CHECK_INPUT(found.entry != nullptr, "{}: tensor '{}' of shape {} is missing", path, name,
                       show(shape));
    DISTCA_CHECK_INPUT(shape == found.entry->shape, "{}: tensor '{}' has shape {} where {} is needed",
                       found.file->path(), name, show(found.entry->shape), show(shape));
    const at::Tensor stored = read_tensor(*found.file, *found.entry);
    DISTCA_CHECK_INPUT(stored.scalar_type() == tensor.scalar_type() ||
                           (stored.is_floating_point() && tensor.is_floating_point()),
                       "{}: tensor '{}' is of type {} where {} is needed", found.file->path(), name,
                       type_name(stored.scalar_type()).config_name,
                       type_name(tensor.scalar_type()).config_name);
    tensor.copy_(sharding.slice_of(stored));
  }
}

/// Whether a tensor that a model doesn't have may stand in its file all the same.
bool harmless(const std::vector<SafetensorsFile>& files, const Found& found, const LlamaConfig& config) {
  if (found.entry->name.ends_with("rotary_emb.inv_freq")) return true;
  if (found.entry->name != "lm_head.weight" || !config.tie_word_embeddings) return false;
  const Found embedding = find(files, "model.embed_tokens.weight");
  return embedding.entry != nullptr && embedding.entry->dtype == found.entry->dtype &&
         embedding.file->bytes(*embedding.entry) == found.file->bytes(*found.entry);
}

void check_no_extra(const std::vector<SafetensorsFile>& files, const LlamaConfig& config) {
  std::set<std::string> known;
  for (const TensorSpec& spec : llama_tensors(config, LlamaPart::whole(config))) known.insert(spec.name);
  for (const SafetensorsFile& file : files) {
    for (const SafetensorsEntry& entry : file.header().tensors) {
      DISTCA_CHECK_INPUT(known.contains(entry.name) || harmless(files, {&file, &entry}, config),
                         "{}: tensor '{}' of shape {} is not one of this model's", file.path(), entry.name,
                         show(entry.shape));
    }
  }
}

/// Tensors in their order, cut where a file would grow beyond `shard_bytes`; none is empty.
std::vector<std::vector<NamedTensor>> cut_into_shards(const std::vector<NamedTensor>& tensors,
                                                      int64_t shard_bytes) {
  std::vector<std::vector<NamedTensor>> shards(1);
  int64_t bytes = 0;
  for (const NamedTensor& each : tensors) {
    const auto size = static_cast<int64_t>(each.tensor.nbytes());
    if (!shards.back().empty() && bytes + size > shard_bytes) {
      shards.emplace_back();
      bytes = 0;
    }
    shards.back().push_back(each);
    bytes += size;
  }
  return shards;
}

std::string shard_name(size_t index, size_t count) {
  char name[64];
  std::snprintf(name, sizeof name, "model-%05zu-of-%05zu.safetensors", index + 1, count);
  return name;
}

void save_shards(const fs::path& folder, const std::vector<std::vector<NamedTensor>>& shards) {
  Json map = Json::object();
  int64_t total = 0;
  for (size_t i = 0; i < shards.size(); ++i) {
    const std::string name = shard_name(i, shards.size());
    save_tensors((folder / name).string(), shards[i], {{"format", "pt"}});
    for (const NamedTensor& each : shards[i]) {
      map[each.name] = name;
      total += static_cast<int64_t>(each.tensor.nbytes());
    }
  }
  const Json index = {{"metadata", {{"total_size", total}}}, {"weight_map", map}};
  write_file_atomically((folder / "model.safetensors.index.json").string(), index.dump(2) + "\n");
}

}  // namespace

void save_tensors(const std::string& path, const std::vector<NamedTensor>& tensors,
                  const SafetensorsMetadata& metadata) {
  std::vector<SafetensorsEntry> entries;
  for (const auto& [name, tensor, sharding] : tensors) {
    entries.push_back({name, type_name(tensor.scalar_type()).name, tensor.sizes().vec(), 0, 0});
  }
  SafetensorsWriter writer(path, std::move(entries), metadata);
  for (const NamedTensor& each : tensors) writer.append(bytes_of(each.tensor.detach().cpu().contiguous()));
  writer.commit();
}

void load_tensors(const std::string& path, const std::vector<NamedTensor>& tensors) {
  load_from(open_safetensors(path), path, tensors);
}

void load_llama(LlamaParameters& model, const std::string& path) {
  const std::vector<SafetensorsFile> files = open_safetensors(path);
  check_no_extra(files, model.config);
  load_from(files, path, model.named());
}

void save_llama(const std::string& folder, const LlamaConfig& config, const std::vector<NamedTensor>& tensors,
                int64_t shard_bytes) {
  DISTCA_CHECK(!tensors.empty(), "{}: there are no weights to save", folder);
  std::error_code failed;
  fs::create_directories(folder, failed);
  DISTCA_CHECK(!failed, "{}: can't be created: {}", folder, failed.message());
  const auto shards = cut_into_shards(tensors, shard_bytes);
  const fs::path single = fs::path(folder) / "model.safetensors";
  const fs::path index = fs::path(folder) / "model.safetensors.index.json";
  if (shards.size() == 1) {
    save_tensors(single.string(), shards[0], {{"format", "pt"}});
    fs::remove(index, failed);
  } else {
    save_shards(folder, shards);
    fs::remove(single, failed);
  }
  const char* dtype = type_name(tensors[0].tensor.scalar_type()).config_name;
  write_file_atomically((fs::path(folder) / "config.json").string(), dump_llama_config(config, dtype));
}

}  // namespace distca
