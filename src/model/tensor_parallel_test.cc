#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "base/check.h"
#include "comm/threads.h"
#include "model/dense_attention.h"
#include "model/llama.h"
#include "model/parallel_linear.h"
#include "model/weights.h"

namespace distca {
namespace {

using testing::AllOf;
using testing::HasSubstr;

struct Case {
  int32_t tp = 2;
  int64_t runs = 3;
  bool tied = false;
  int64_t kv_heads = 4;
  std::vector<int64_t> doc_lengths = {7, 1, 13};
  int64_t rows = 24;  // the last ones are padding
  int64_t logits_at_once = kLogitsAtOnce;
  at::ScalarType dtype = at::kDouble;
};

void PrintTo(const Case& test, std::ostream* out) {
  *out << "tp " << test.tp << ", " << test.runs << " runs, " << test.kv_heads << " kv heads, " << test.rows
       << " rows" << (test.tied ? ", tied" : "");
}

LlamaConfig config_of(const Case& test) {
  LlamaConfig config;
  config.vocab_size = 44;
  config.hidden_size = 24;
  config.intermediate_size = 40;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 8;
  config.num_key_value_heads = test.kv_heads;
  config.head_dim = 6;
  config.tie_word_embeddings = test.tied;
  config.initializer_range = 0.2;
  return config;
}

struct Batch {
  at::Tensor tokens, positions, targets;
};

Batch batch_of(const Case& test) {
  Batch batch;
  std::vector<at::Tensor> positions = {at::arange(0, at::kLong)};
  for (const int64_t length : test.doc_lengths) positions.push_back(at::arange(length, at::kLong));
  const int64_t real = at::cat(positions).size(0);
  positions.push_back(at::zeros({test.rows - real}, at::kLong));
  batch.positions = at::cat(positions);
  batch.tokens = at::randint(config_of(test).vocab_size, {test.rows}, at::kLong);
  batch.targets = at::randint(config_of(test).vocab_size, {test.rows}, at::kLong);
  batch.targets.narrow(0, real, test.rows - real).fill_(-1);
  if (real > 0) batch.targets[0] = -100;
  return batch;
}

/// Loss and gradients, by the tensors of named().
struct Outcome {
  double loss = 0;
  std::vector<NamedTensor> gradients;
};

Outcome run_model(const Case& test, const Batch& batch, const LlamaParameters& model) {
  const Rope rope = make_rope(model.config, batch.positions, model.dtype);
  at::Tensor x = embed(model, batch.tokens);
  for (int64_t layer = 0; layer < model.config.num_hidden_layers; ++layer) {
    const Qkv qkv = pre_attention(model, layer, x, rope);
    x = post_attention(model, layer, x, dense_attention(qkv, test.doc_lengths));
  }
  const at::Tensor loss = loss_sum(model, x, batch.targets, test.logits_at_once);
  (loss * 0.5).backward();
  Outcome outcome{loss.item<double>(), {}};
  for (const auto& [name, tensor, sharding] : model.named()) {
    outcome.gradients.push_back({name, tensor.grad(), sharding});
  }
  return outcome;
}

Outcome run_dense(const Case& test, const Batch& batch) {
  const LlamaConfig config = config_of(test);
  LlamaParameters model = make_llama(config, LlamaPart::whole(config), test.dtype);
  initialize(model, 17);
  return run_model(test, batch, model);
}

LlamaPart shard_of(const LlamaConfig& config, int32_t rank, int32_t tp) {
  LlamaPart part = LlamaPart::whole(config);
  part.tp_rank = rank;
  part.tp_size = tp;
  return part;
}

std::vector<Outcome> run_shards(const Case& test, const Batch& batch) {
  std::vector<Outcome> outcomes(static_cast<size_t>(test.tp));
  run_thread_ranks(test.tp, {}, [&](Fabric& fabric) {
    TensorGroup group(fabric);
    group.runs = test.runs;
    group.least_rows = 1;
    const LlamaConfig config = config_of(test);
    LlamaParameters model = make_llama(config, shard_of(config, fabric.rank(), test.tp), test.dtype);
    model.group = &group;
    initialize(model, 17);
    outcomes[static_cast<size_t>(fabric.rank())] = run_model(test, batch, model);
  });
  return outcomes;
}

/// The whole gradient: slices end to end, shares of what all ranks hold added up.
at::Tensor joined(const std::vector<Outcome>& outcomes, size_t index) {
  std::vector<at::Tensor> pieces;
  for (const Outcome& outcome : outcomes) pieces.push_back(outcome.gradients[index].tensor);
  const Sharding& sharding = outcomes[0].gradients[index].sharding;
  return sharding.replicated() ? at::stack(pieces).sum(0) : at::cat(pieces, sharding.dim);
}

void expect_same(const std::vector<Outcome>& outcomes, const Outcome& dense, double loss_bound,
                 double gradient_bound) {
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.loss, outcomes[0].loss);
    EXPECT_NEAR(outcome.loss, dense.loss, loss_bound * std::max(1.0, std::abs(dense.loss)));
  }
  for (size_t i = 0; i < dense.gradients.size(); ++i) {
    const at::Tensor& expected = dense.gradients[i].tensor;
    const at::Tensor found = joined(outcomes, i);
    ASSERT_EQ(found.sizes(), expected.sizes()) << dense.gradients[i].name;
    EXPECT_LE((found - expected).norm().item<double>(), gradient_bound * expected.norm().item<double>())
        << dense.gradients[i].name;
  }
}

class TensorParallel : public testing::TestWithParam<Case> {};

TEST_P(TensorParallel, LossAndGradientsEqualTheDenseModels) {
  const Batch batch = batch_of(GetParam());
  expect_same(run_shards(GetParam(), batch), run_dense(GetParam(), batch), 1e-12, 1e-11);
}

INSTANTIATE_TEST_SUITE_P(Cases, TensorParallel,
                         testing::Values(Case{.tp = 1}, Case{.tp = 2}, Case{.tp = 4},
                                         Case{.tp = 2, .runs = 1}, Case{.tp = 4, .runs = 1, .tied = true},
                                         Case{.tp = 2, .runs = 100, .tied = true},
                                         Case{.tp = 4, .tied = true, .kv_heads = 8},
                                         Case{.tp = 2, .kv_heads = 2},
                                         Case{.tp = 4, .doc_lengths = {4}, .rows = 4},
                                         Case{.tp = 2, .doc_lengths = {1}, .rows = 2},
                                         Case{.tp = 2, .tied = true, .logits_at_once = 1},
                                         Case{.tp = 4, .runs = 1, .logits_at_once = 44}));

TEST(TensorParallel, NoRowsAndRowsWithoutTargetsGiveZeroGradients) {
  for (const int64_t rows : {0, 8}) {
    const Case test{.tp = 4, .doc_lengths = {}, .rows = rows};
    for (const Outcome& outcome : run_shards(test, batch_of(test))) {
      EXPECT_EQ(outcome.loss, 0);
      for (const NamedTensor& each : outcome.gradients) {
        ASSERT_TRUE(each.tensor.defined()) << each.name;
        EXPECT_EQ(each.tensor.abs().sum().item<double>(), 0) << each.name;
      }
    }
  }
}

TEST(TensorParallel, SameInputsGiveTheSameBits) {
  const Case test{.tp = 4, .tied = true, .dtype = at::kFloat};
  const Batch batch = batch_of(test);
  const std::vector<Outcome> first = run_shards(test, batch);
  for (int round = 0; round < 5; ++round) {
    const std::vector<Outcome> again = run_shards(test, batch);
    for (size_t rank = 0; rank < first.size(); ++rank) {
      EXPECT_EQ(again[rank].loss, first[rank].loss);
      for (size_t i = 0; i < first[rank].gradients.size(); ++i) {
        EXPECT_TRUE(again[rank].gradients[i].tensor.equal(first[rank].gradients[i].tensor))
            << first[rank].gradients[i].name;
      }
    }
  }
}

// Rounding to 8 bits of mantissa: 2⁻⁹ an operation.
TEST(TensorParallel, Bfloat16FollowsFloat32AndItsGradientsAreFloat32) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "PyTorch's bfloat16 products share a cache that the sanitizer can't see the lock of";
#endif
  at::manual_seed(c10::default_rng_seed_val);  // whatever ran before in this process
  for (const int32_t tp : {1, 2, 4}) {
    const Case rough{.tp = tp, .dtype = at::kBFloat16}, exact{.tp = tp, .dtype = at::kFloat};
    const Batch batch = batch_of(rough);
    const std::vector<Outcome> outcomes = run_shards(rough, batch);
    for (const NamedTensor& each : outcomes[0].gradients) EXPECT_EQ(each.tensor.scalar_type(), at::kFloat);
    expect_same(outcomes, run_dense(exact, batch), 0.01, 0.05);
  }
}

TEST(TensorParallel, NoGradientsAreMadeWhereNoneAreWanted) {
  const Case test;
  const Batch batch = batch_of(test);
  run_thread_ranks(test.tp, {}, [&](Fabric& fabric) {
    TensorGroup group(fabric);
    const LlamaConfig config = config_of(test);
    LlamaParameters model = make_llama(config, shard_of(config, fabric.rank(), test.tp), test.dtype);
    model.group = &group;
    const at::NoGradGuard no_grad;
    EXPECT_FALSE(loss_sum(model, embed(model, batch.tokens), batch.targets).requires_grad());
    EXPECT_EQ(logits(model, embed(model, batch.tokens)).sizes(), at::IntArrayRef({test.rows, 22}));
  });
}

TEST(TensorParallel, GroupCountsTheBytesItSends) {
  run_thread_ranks(4, {}, [](Fabric& fabric) {
    TensorGroup group(fabric);
    const at::Tensor x = at::randn({6, 5}, at::kFloat).requires_grad_();
    const at::Tensor weight = at::randn({3, 5}, at::kFloat).requires_grad_();
    const at::Tensor y = gathered_linear(&group, x, {weight}, "rows")[0];
    EXPECT_EQ(group.bytes, 3 * 6 * 5 * 4);
    y.sum().backward();
    EXPECT_EQ(group.bytes, 3 * 3 * 6 * 5 * 4);  // the rows again, and their gradient
  });
}

TEST(TensorParallel, WhatCantBeSplitIsAnErrorWithBothNumbers) {
  const auto expect_error = [](LlamaConfig config, int32_t tp, const std::string& name, int64_t value) {
    try {
      llama_tensors(config, shard_of(config, 0, tp));
      ADD_FAILURE() << name << " was split";
    } catch (const InputError& error) {
      EXPECT_THAT(error.what(), AllOf(HasSubstr(format("{} = {}", name, value)),
                                      HasSubstr(format("parallel.tp = {}", tp))));
    }
  };
  const LlamaConfig config = config_of({});
  expect_error(config, 3, "num_attention_heads", 8);
  expect_error(config, 8, "num_key_value_heads", 4);
  LlamaConfig narrow = config, odd = config;
  narrow.intermediate_size = 41;
  expect_error(narrow, 2, "intermediate_size", 41);
  odd.vocab_size = 50257;
  expect_error(odd, 2, "vocab_size", 50257);
}

TEST(TensorParallel, RowsThatCantBeSplitAndAMissingGroupAreErrors) {
  const LlamaConfig config = config_of({});
  LlamaParameters model = make_llama(config, shard_of(config, 0, 2), at::kFloat);
  const at::Tensor tokens = at::zeros({3}, at::kLong);
  EXPECT_THROW(embed(model, tokens), Error);
  EXPECT_THROW(run_thread_ranks(2, {},
                                [&](Fabric& fabric) {
                                  TensorGroup group(fabric);
                                  LlamaParameters shard =
                                      make_llama(config, shard_of(config, fabric.rank(), 2), at::kFloat);
                                  shard.group = &group;
                                  embed(shard, tokens);
                                }),
               Error);
}

TEST(TensorParallel, ShardsAreSlicesOfTheWholeModelHoweverTheyAreFilled) {
  namespace fs = std::filesystem;
  const fs::path folder = fs::temp_directory_path() / ("distca_tp_" + std::to_string(::getpid()));
  for (const bool tied : {false, true}) {
    const LlamaConfig config = config_of({.tied = tied});
    LlamaParameters whole = make_llama(config, LlamaPart::whole(config), at::kFloat);
    initialize(whole, 5);
    save_llama(folder.string(), config, whole.named());
    const std::vector<NamedTensor> expected = whole.named();
    std::vector<std::vector<at::Tensor>> pieces(expected.size());
    for (int32_t rank = 0; rank < 4; ++rank) {
      const LlamaPart part = shard_of(config, rank, 4);
      LlamaParameters made = make_llama(config, part, at::kFloat),
                      loaded = make_llama(config, part, at::kFloat);
      initialize(made, 5);
      load_llama(loaded, folder.string());
      const std::vector<TensorSpec> specs = llama_tensors(config, part);
      for (size_t i = 0; i < expected.size(); ++i) {
        const NamedTensor each = made.named()[i];
        EXPECT_EQ(each.name, expected[i].name);
        EXPECT_EQ(each.sharding, specs[i].sharding);
        EXPECT_EQ(each.tensor.sizes(), at::IntArrayRef(specs[i].shape));
        EXPECT_EQ(each.sharding.replicated(), each.tensor.dim() == 1);
        EXPECT_TRUE(each.tensor.equal(each.sharding.slice_of(expected[i].tensor))) << each.name;
        EXPECT_TRUE(each.tensor.equal(loaded.named()[i].tensor)) << each.name;
        pieces[i].push_back(each.tensor);
      }
    }
    for (size_t i = 0; i < expected.size(); ++i) {
      const Sharding sharding = llama_tensors(config, shard_of(config, 0, 4))[i].sharding;
      if (sharding.replicated()) continue;
      EXPECT_TRUE(at::cat(pieces[i], sharding.dim).equal(expected[i].tensor)) << expected[i].name;
    }
  }
  fs::remove_all(folder);
}

}  // namespace
}  // namespace distca
