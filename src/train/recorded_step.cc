#include "train/recorded_step.h"

#include <algorithm>
#include <type_traits>
#include <utility>
#include <variant>

#include "attend/device.h"
#include "base/check.h"
#include "base/digest.h"
#include "base/json.h"
#include "train/epoch_order.h"

namespace distca {
namespace {

/// What has no meaning on another machine, or would write over what the run wrote.
bool is_recorded(const ConfigKey& key) {
  const std::string name = key.full_name();
  return key.section != "checkpoint" && name != "data.path" && name != "model.config" &&
         name != "model.weights" && name != "train.steps" && name != "train.metrics";
}

Json value_of(const ConfigSlot& slot) {
  if (const auto* speeds = std::get_if<SpeedSetting*>(&slot))
    return (*speeds)->measured ? Json("measured") : Json((*speeds)->given);
  return std::visit(
      [](const auto* value) {
        if constexpr (std::is_same_v<decltype(value), const SpeedSetting*>)
          return Json();
        else
          return Json(*value);
      },
      slot);
}

Json settings_json(const Config& config) {
  Config given = config, defaults;
  const std::vector<ConfigKey> keys = config_keys(given), usual = config_keys(defaults);
  Json out = Json::object();
  for (size_t i = 0; i < keys.size(); ++i) {
    const Json value = value_of(keys[i].slot);
    if (is_recorded(keys[i]) && value != value_of(usual[i].slot)) out[keys[i].full_name()] = value;
  }
  return out;
}

/// Documents of these lengths, numbered in the order of the batch, with tokens that follow from the seed.
TokenSource synthetic_source(std::vector<int64_t> lengths, uint64_t seed, int64_t vocabulary,
                             const std::string& name) {
  TokenSource source;
  source.name = name;
  source.documents = static_cast<int64_t>(lengths.size());
  source.length = [lengths](int64_t doc) { return lengths[static_cast<size_t>(doc)]; };
  source.read = [seed, vocabulary](int64_t doc, Span tokens, int64_t* out) {
    const uint64_t document = mix64(seed ^ mix64(static_cast<uint64_t>(doc)));
    for (int64_t at = tokens.begin; at < tokens.end; ++at)
      *out++ = static_cast<int64_t>(mix64(document + static_cast<uint64_t>(at)) %
                                    static_cast<uint64_t>(vocabulary));
  };
  return source;
}

Json find_step(const Json& recorded, int64_t step, const std::string& path) {
  std::string steps;
  for (const Json& one : recorded.at("steps")) {
    if (step < 0 || one.at("step").get<int64_t>() == step) return one;
    steps += (steps.empty() ? "" : ", ") + one.at("step").dump();
  }
  throw InputError(format("{}: step {} isn't recorded in it; there are: {}", path, step, steps));
}

std::vector<std::string> settings_of(const Json& recorded, const std::vector<std::string>& overrides) {
  std::vector<std::string> out = {"data.path=recorded", "model.config=recorded", "train.steps=1"};
  for (const auto& [key, value] : recorded.at("settings").items()) out.push_back(key + "=" + value.dump());
  out.insert(out.end(), overrides.begin(), overrides.end());
  return out;
}

}  // namespace

std::string recorded_member(const RunInputs& inputs, int32_t ranks, const std::vector<RecordedStep>& steps) {
  Json out = {{"ranks", ranks},
              {"settings", settings_json(inputs.config)},
              {"model", Json::parse(dump_llama_config(inputs.model, inputs.config.model.dtype))},
              {"steps", Json::array()}};
  for (const RecordedStep& step : steps) {
    Json documents = Json::array();
    for (const NanoBatch& nano_batch : step.batch.nano_batches) documents.push_back(nano_batch.lengths());
    out["steps"].push_back({{"step", step.batch.step},
                            {"rows", step.batch.rows},
                            {"doc_lengths", std::move(documents)},
                            {"digest", hex_digest(step.digest)}});
  }
  return "\"distca\": " + out.dump();
}

Replay read_replay(const std::string& path, int64_t step, const std::vector<std::string>& overrides) {
  const Json trace = read_json(path);
  DISTCA_CHECK_INPUT(trace.is_object() && trace.contains("distca"),
                     "{}: no recorded step: not a file that distca train --trace wrote", path);
  Replay replay;
  RunInputs& inputs = replay.inputs;
  GlobalBatch batch;
  try {
    const Json& recorded = trace.at("distca");
    const Json one = find_step(recorded, step, path);
    inputs.config = parse_config("", path, settings_of(recorded, overrides));
    inputs.device = device_of(inputs.config.train.device);
    inputs.model = parse_llama_config(recorded.at("model").dump(), path);
    replay.ranks = recorded.at("ranks").get<int32_t>();
    replay.digest = parse_digest(one.at("digest").get<std::string>());
    batch.rows = one.at("rows").get<int64_t>();
    std::vector<int64_t> lengths;
    for (const Json& list : one.at("doc_lengths")) {
      NanoBatch& nano_batch = batch.nano_batches.emplace_back();
      for (const auto length : list.get<std::vector<int64_t>>()) {
        DISTCA_CHECK_INPUT(length > 0, "{}: a document of {} tokens", path, length);
        nano_batch.documents.push_back({static_cast<int64_t>(lengths.size()), {0, length}});
        lengths.push_back(length);
      }
      DISTCA_CHECK_INPUT(nano_batch.tokens() <= batch.rows, "{}: {} tokens in a nano-batch of {} rows", path,
                         nano_batch.tokens(), batch.rows);
    }
    inputs.source = synthetic_source(lengths, static_cast<uint64_t>(inputs.config.train.seed),
                                     inputs.model.vocab_size, path);
  } catch (const Json::exception&) {
    throw InputError(
        format("{}: the recorded step is damaged: a part is missing or of the wrong type", path));
  }
  const BatchInputs asked = batch_inputs(inputs.config);
  DISTCA_CHECK_INPUT(
      asked.rows() == batch.rows &&
          asked.micro_batches * asked.nano_batches == static_cast<int64_t>(batch.nano_batches.size()),
      "{}: recorded with {} nano-batches of {} rows: train.tokens_per_batch, micro_batches and nano_batches "
      "of a replay are those of the run",
      path, batch.nano_batches.size(), batch.rows);
  inputs.repeated = std::move(batch);
  return replay;
}

}  // namespace distca
