#include "model/weights.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "base/check.h"

namespace distca {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class Weights : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("distca_weights_" + std::to_string(::getpid()));
    fs::create_directories(folder_);
    config_.vocab_size = 31;
    config_.hidden_size = 8;
    config_.intermediate_size = 12;
    config_.num_hidden_layers = 2;
    config_.num_attention_heads = 4;
    config_.num_key_value_heads = 2;
    config_.head_dim = 6;
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  LlamaParameters make(at::ScalarType dtype = at::kFloat) const {
    return make_llama(config_, LlamaPart::whole(config_), at::TensorOptions().dtype(dtype));
  }
  LlamaParameters random(at::ScalarType dtype = at::kFloat) const {
    LlamaParameters model = make(dtype);
    initialize(model, 3);
    return model;
  }
  void expect_load_error(const std::vector<NamedTensor>& stored, const std::string& part) const {
    save_tensors(path("wrong"), stored);
    LlamaParameters model = make();
    try {
      load_llama(model, path("wrong"));
      ADD_FAILURE() << "accepted where an error with '" << part << "' was due";
    } catch (const InputError& error) {
      EXPECT_THAT(error.what(), testing::AllOf(HasSubstr(path("wrong")), HasSubstr(part)));
      EXPECT_THAT(error.what(), testing::Not(HasSubstr("\n")));
    }
  }

  fs::path folder_;
  LlamaConfig config_;
};

void expect_equal(const LlamaParameters& a, const LlamaParameters& b) {
  const std::vector<NamedTensor> x = a.named(), y = b.named();
  ASSERT_EQ(x.size(), y.size());
  for (size_t i = 0; i < x.size(); ++i) EXPECT_TRUE(x[i].tensor.equal(y[i].tensor)) << x[i].name;
}

TEST_F(Weights, OneFileAndShardsGiveTheSameModelBack) {
  for (const bool tied : {false, true}) {
    config_.tie_word_embeddings = tied;
    const LlamaParameters model = random();
    for (const int64_t shard_bytes : {int64_t{1} << 30, int64_t{1000}, int64_t{1}}) {
      const std::string folder = path(format("m{}", shard_bytes));
      save_llama(folder, config_, model.named(), shard_bytes);
      EXPECT_EQ(read_llama_config(folder), config_);
      EXPECT_EQ(fs::exists(folder + "/model.safetensors"), shard_bytes > 1000);
      LlamaParameters loaded = make();
      load_llama(loaded, folder);
      expect_equal(loaded, model);
    }
  }
}

TEST_F(Weights, SavingInAnotherFormLeavesNoOldOneBehind) {
  save_llama(path("m"), config_, random().named(), 1);
  LlamaParameters other = make();
  initialize(other, 4);
  save_llama(path("m"), config_, other.named());
  EXPECT_FALSE(fs::exists(path("m/model.safetensors.index.json")));
  const LlamaParameters third = random();
  save_llama(path("m"), config_, third.named(), 1);
  LlamaParameters loaded = make();
  load_llama(loaded, path("m"));
  expect_equal(loaded, third);
}

TEST_F(Weights, AStageTakesItsLayersFromTheWholeModel) {
  const LlamaParameters whole = random();
  save_llama(path("m"), config_, whole.named());
  LlamaParameters stage = make_llama(config_, {1, 2, false, true}, at::TensorOptions().dtype(at::kFloat));
  load_llama(stage, path("m"));
  EXPECT_TRUE(stage.layers[0].gate_proj.equal(whole.layers[1].gate_proj));
  EXPECT_TRUE(stage.lm_head.equal(whole.lm_head));
  EXPECT_TRUE(stage.layers[0].gate_proj.requires_grad());
}

TEST_F(Weights, FloatingTypesAreConverted) {
  std::vector<NamedTensor> tensors = random().named();
  for (NamedTensor& each : tensors) each.tensor = each.tensor.to(at::kBFloat16);
  save_llama(path("m"), config_, tensors);
  LlamaParameters loaded = make(at::kDouble);
  load_llama(loaded, path("m"));
  EXPECT_TRUE(loaded.lm_head.equal(tensors.back().tensor.to(at::kDouble)));
}

TEST_F(Weights, MissingExtraAndMisshapenTensorsAreNamedWithTheirShapes) {
  std::vector<NamedTensor> tensors = random().named();
  const NamedTensor query = tensors[2];
  ASSERT_EQ(query.name, "model.layers.0.self_attn.q_proj.weight");

  tensors.erase(tensors.begin() + 2);
  expect_load_error(tensors, "'model.layers.0.self_attn.q_proj.weight' of shape [24, 8] is missing");
  tensors.insert(tensors.begin() + 2, {query.name, at::zeros({8, 24})});
  expect_load_error(tensors,
                    "'model.layers.0.self_attn.q_proj.weight' has shape [8, 24] where [24, 8] is needed");
  tensors[2] = {query.name, at::zeros({24, 8}, at::kInt)};
  expect_load_error(tensors, "is of type int32 where float32 is needed");
  tensors[2] = query;
  tensors.push_back({"model.layers.2.self_attn.q_proj.weight", query.tensor});
  expect_load_error(tensors,
                    "'model.layers.2.self_attn.q_proj.weight' of shape [24, 8] is not one of this model's");
}

TEST_F(Weights, TiedHeadMayBeStoredTwiceIfItIsTheSame) {
  config_.tie_word_embeddings = true;
  const LlamaParameters model = random();
  std::vector<NamedTensor> tensors = model.named();
  tensors.push_back({"model.layers.0.self_attn.rotary_emb.inv_freq", at::ones({3})});
  tensors.push_back({"lm_head.weight", model.embed_tokens.detach().clone()});
  save_tensors(path("twice"), tensors);
  LlamaParameters loaded = make();
  load_llama(loaded, path("twice"));
  expect_equal(loaded, model);
  tensors.back().tensor += 1;
  expect_load_error(tensors, "'lm_head.weight' of shape [31, 8] is not one of this model's");
}

TEST_F(Weights, AnyTensorsAreStoredByName) {
  const at::Tensor strided = at::arange(12, at::kLong).view({3, 4}).t();
  save_tensors(path("state"),
               {{"a", strided}, {"b", at::zeros({0, 3}, at::kDouble)}, {"c", at::ones({}, at::kHalf)}},
               {{"step", "12"}});
  const at::Tensor a = at::empty({4, 3}, at::kLong), c = at::zeros({}, at::kFloat);
  load_tensors(path("state"), {{"c", c}, {"a", a}});
  EXPECT_TRUE(a.equal(strided));
  EXPECT_EQ(c.item<float>(), 1);
  EXPECT_EQ(SafetensorsFile(path("state")).header().metadata.at("step"), "12");
}

}  // namespace
}  // namespace distca
