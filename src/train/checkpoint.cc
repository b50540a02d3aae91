#include "train/checkpoint.h"

#include <ATen/ops/empty_like.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <system_error>
#include <vector>

#include "base/check.h"
#include "base/file.h"
#include "base/json.h"
#include "model/weights.h"
#include "train/gather.h"

namespace distca {
namespace {

namespace fs = std::filesystem;

constexpr const char* kPrefix = "step-";

constexpr const char* kFiles[] = {"config.json", "optimizer.safetensors", "data.json", "run.json"};

/// The first file that a checkpoint has and `folder` lacks, or "".
std::string missing_file(const std::string& folder) {
  std::error_code ignored;
  for (const char* file : kFiles)
    if (!fs::exists(folder + "/" + file, ignored)) return file;
  return "";
}

/// Whole checkpoints of a folder, oldest first. Names have as many digits as any step needs.
std::vector<fs::path> checkpoints_in(const std::string& dir) {
  std::vector<fs::path> out;
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(dir, ignored)) {
    const std::string name = entry.path().filename();
    const bool digits =
        name.rfind(kPrefix, 0) == 0 &&
        name.find_first_not_of("0123456789", std::string(kPrefix).size()) == std::string::npos;
    if (digits && entry.is_directory()) out.push_back(entry.path());
  }
  std::sort(out.begin(), out.end());
  return out;
}

void sync_folder(const fs::path& folder) {
  const int file = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY);
  DISTCA_CHECK(file >= 0, "{}: can't be opened", folder.string());
  const bool synced = ::fsync(file) == 0;
  ::close(file);
  DISTCA_CHECK(synced, "{}: can't be flushed to disk", folder.string());
}

/// Renames `from` to `to`. What stood there (a run was killed before it pointed `latest` to it, or went back
/// behind it) makes way first, whole until the last moment.
void replace_folder(const fs::path& from, const fs::path& to) {
  const fs::path earlier = to.string() + ".old.tmp";
  fs::remove_all(earlier);
  if (fs::exists(to)) fs::rename(to, earlier);
  fs::rename(from, to);
  fs::remove_all(earlier);
}

/// "exp_avg.NAME" and "exp_avg_sq.NAME" for every tensor.
std::vector<NamedTensor> optimizer_tensors(const CheckpointTensors& tensors) {
  std::vector<NamedTensor> out;
  for (size_t i = 0; i < tensors.exp_avg.size(); ++i) {
    out.push_back(tensors.exp_avg[i]);
    out.push_back(tensors.exp_avg_sq[i]);
    out[2 * i].name = "exp_avg." + out[2 * i].name;
    out[2 * i + 1].name = "exp_avg_sq." + out[2 * i + 1].name;
  }
  return out;
}

/// The same of the parameters that this rank holds, to be filled.
std::vector<NamedTensor> own_optimizer_tensors(const FlatParameters& parameters, const AdamState& adam) {
  CheckpointTensors own;
  for (const FlatEntry& entry : parameters.entries) {
    own.exp_avg.push_back({entry.name, FlatParameters::view(adam.exp_avg, entry), entry.sharding});
    own.exp_avg_sq.push_back({entry.name, FlatParameters::view(adam.exp_avg_sq, entry), entry.sharding});
  }
  return optimizer_tensors(own);
}

void write_files(const std::string& folder, const Trainer& trainer, const CheckpointTensors& tensors) {
  save_llama(folder, trainer.parameters.model.config, tensors.weights);
  save_tensors(folder + "/optimizer.safetensors", optimizer_tensors(tensors));
  write_file_atomically(folder + "/data.json", trainer.stream_state());
  const Json run = {{"format", 1},
                    {"step", trainer.next_step()},
                    {"updates", trainer.adam.updates},
                    {"speeds", Json::parse(trainer.speeds.dump())}};
  write_file_atomically(folder + "/run.json", run.dump(1) + "\n");
  sync_folder(folder);
}

void remove_old(const Config::Checkpoint& config, const fs::path& newest) {
  std::vector<fs::path> all = checkpoints_in(config.dir);
  // Later steps are those of a run that this one has gone back behind: they are not newer.
  std::erase_if(all, [&](const fs::path& path) { return path.filename() >= newest.filename(); });
  for (const fs::directory_entry& entry : fs::directory_iterator(config.dir)) {
    const std::string name = entry.path().filename();
    if (name.rfind(kPrefix, 0) == 0 && entry.path().extension() == ".tmp") fs::remove_all(entry.path());
  }
  if (config.keep == 0) return;
  for (int64_t i = 0; i + config.keep - 1 < static_cast<int64_t>(all.size()); ++i) fs::remove_all(all[i]);
}

/// The first thing that makes `there` another model than `here`, or "".
std::string difference(const LlamaConfig& there, const LlamaConfig& here) {
  const auto compare = [](const char* name, const auto& a, const auto& b) {
    return a == b ? std::string() : format("its {} is {}, not {}", name, a, b);
  };
  for (const std::string& found : {
           compare("vocab_size", there.vocab_size, here.vocab_size),
           compare("hidden_size", there.hidden_size, here.hidden_size),
           compare("intermediate_size", there.intermediate_size, here.intermediate_size),
           compare("num_hidden_layers", there.num_hidden_layers, here.num_hidden_layers),
           compare("num_attention_heads", there.num_attention_heads, here.num_attention_heads),
           compare("num_key_value_heads", there.num_key_value_heads, here.num_key_value_heads),
           compare("head_dim", there.head_dim, here.head_dim),
           compare("rms_norm_eps", there.rms_norm_eps, here.rms_norm_eps),
           compare("rope_theta", there.rope_theta, here.rope_theta),
           compare("tie_word_embeddings", there.tie_word_embeddings, here.tie_word_embeddings),
       })
    if (!found.empty()) return found;
  return there.rope_scaling == here.rope_scaling ? "" : "its rope_scaling differs";
}

}  // namespace

std::string checkpoint_folder(const Config::Checkpoint& config, int64_t steps) {
  char name[32];
  std::snprintf(name, sizeof name, "%s%08lld", kPrefix, static_cast<long long>(steps));
  return config.dir + "/" + name;
}

std::string latest_checkpoint(const std::string& dir) {
  const std::string pointer = dir + "/latest";
  std::error_code ignored;
  if (!fs::exists(pointer, ignored)) return "";
  std::string name = read_text(pointer);
  while (!name.empty() && (name.back() == '\n' || name.back() == '\r')) name.pop_back();
  const std::string folder = dir + "/" + name;
  DISTCA_CHECK_INPUT(!name.empty() && fs::is_directory(folder),
                     "{}: names the checkpoint {}, which is not there", pointer, folder);
  return folder;
}

std::string newest_checkpoint(const std::string& dir) {
  const std::vector<fs::path> all = checkpoints_in(dir);
  for (auto path = all.rbegin(); path != all.rend(); ++path)
    if (missing_file(path->string()).empty()) return path->string();
  DISTCA_CHECK_INPUT(all.empty(),
                     "{}: none of the {} checkpoints there is whole: remove them, or give another "
                     "folder as checkpoint.dir",
                     dir, all.size());
  return "";
}

std::string checkpoint_to_resume(const Config::Checkpoint& config) {
  if (config.resume.empty() || config.resume == "latest") {
    if (config.dir.empty()) return "";
    std::string newest = latest_checkpoint(config.dir);
    if (newest.empty()) newest = newest_checkpoint(config.dir);
    DISTCA_CHECK_INPUT(
        newest.empty() || !config.resume.empty(),
        "checkpoint.dir = \"{}\" holds {}: set checkpoint.resume = \"latest\" to go on from it, "
        "or give another folder",
        config.dir, newest);
    return newest;
  }
  DISTCA_CHECK_INPUT(fs::is_directory(config.resume),
                     "checkpoint.resume = \"{}\": there is no such checkpoint", config.resume);
  return config.resume;
}

void check_checkpoint(const std::string& folder, const LlamaConfig& model, const std::string& dtype) {
  const std::string missing = missing_file(folder);
  DISTCA_CHECK_INPUT(missing.empty(), "{}: not a checkpoint: {} is missing", folder, missing);
  const std::string differs = difference(read_llama_config(folder), model);
  DISTCA_CHECK_INPUT(differs.empty(), "{}: a checkpoint of another model than model.config: {}", folder,
                     differs);
  const Json stored = read_json(folder + "/config.json").value("dtype", Json(dtype));
  DISTCA_CHECK_INPUT(stored == dtype,
                     "{}: a checkpoint of model.dtype = {}, not \"{}\": a run goes on with the same", folder,
                     stored.dump(), dtype);
}

CheckpointTensors gather_checkpoint(const Trainer& trainer) {
  const FlatParameters& parameters = trainer.parameters;
  const auto gather = [&](const at::Tensor& buffer) {
    return gather_tensors(trainer.fabrics(), trainer.grid, trainer.stage_layers, parameters, buffer);
  };
  const auto gather_state = [&](const at::Tensor& own) {
    if (own.numel() == parameters.values.numel()) return gather(own);
    const at::Tensor whole = at::empty_like(parameters.values);
    whole.narrow(0, trainer.adam.begin, own.numel()).copy_(own);
    exchange_slices(*trainer.fabrics().data, whole, optimizer_slices(parameters, trainer.grid.dp),
                    "slices of the optimizer's state");
    return gather(whole);
  };
  return {gather(parameters.values), gather_state(trainer.adam.exp_avg),
          gather_state(trainer.adam.exp_avg_sq)};
}

std::string save_checkpoint(const Config::Checkpoint& config, const Trainer& trainer,
                            const CheckpointTensors& tensors) {
  const fs::path folder = checkpoint_folder(config, trainer.next_step());
  const fs::path temporary = folder.string() + ".tmp";
  try {
    fs::remove_all(temporary);
    fs::create_directories(temporary);
    write_files(temporary, trainer, tensors);
    replace_folder(temporary, folder);
    sync_folder(config.dir);
    write_file_atomically(config.dir + "/latest", folder.filename().string() + "\n");
    remove_old(config, folder);
  } catch (const fs::filesystem_error& error) {
    throw Error(format("{}: can't be written: {}", folder.string(), error.code().message()));
  } catch (const Error&) {
    std::error_code ignored;
    fs::remove_all(temporary, ignored);
    throw;
  }
  return folder.string();
}

void load_checkpoint(const std::string& folder, Trainer& trainer) {
  const bool wide = trainer.parameters.values.scalar_type() == at::kDouble;
  check_checkpoint(folder, trainer.parameters.model.config, wide ? "float64" : "float32");
  if (!trainer.place.server) load_llama(trainer.parameters.model, folder);
  // A file by name: the folder's model.safetensors is found first otherwise.
  const AdamState whole = make_adam_state(trainer.parameters);
  load_tensors(folder + "/optimizer.safetensors", own_optimizer_tensors(trainer.parameters, whole));
  AdamState& own = trainer.adam;
  own.exp_avg.copy_(whole.exp_avg.narrow(0, own.begin, own.exp_avg.numel()));
  own.exp_avg_sq.copy_(whole.exp_avg_sq.narrow(0, own.begin, own.exp_avg.numel()));
  const std::string run_path = folder + "/run.json", data_path = folder + "/data.json";
  trainer.restore_stream(read_text(data_path), data_path);
  const Json run = read_json(run_path);
  try {
    DISTCA_CHECK_INPUT(run.at("format") == 1, "{}: format {} is not known here", run_path,
                       run.at("format").dump());
    run.at("updates").get_to(trainer.adam.updates);
    if (run.contains("speeds")) trainer.speeds.restore(run["speeds"].dump(), run_path);
    DISTCA_CHECK_INPUT(run.at("step") == trainer.next_step(), "{}: is of step {}, and data.json of step {}",
                       run_path, run.at("step").dump(), trainer.next_step());
  } catch (const Json::exception&) {
    throw InputError(format("{}: damaged: it must hold the integers format, step and updates", run_path));
  }
}

}  // namespace distca
