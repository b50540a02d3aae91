#include "train/optimizer.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/linspace.h>
#include <gtest/gtest.h>

#include <cmath>

namespace distca {
namespace {

LlamaConfig small_model(bool tied) {
  LlamaConfig config;
  config.vocab_size = 11, config.hidden_size = 6, config.intermediate_size = 10;
  config.num_hidden_layers = 2, config.num_attention_heads = 3, config.num_key_value_heads = 1;
  config.head_dim = 2;
  config.tie_word_embeddings = tied;
  return config;
}

FlatParameters small_parameters(bool tied = false) {
  const LlamaConfig config = small_model(tied);
  LlamaParameters model = make_llama(config, LlamaPart::whole(config), at::kDouble);
  initialize(model, 5);
  return flatten(std::move(model));
}

TEST(FlatParameters, TensorsOfTheModelAreViewsThatKeepTheirValues) {
  for (bool tied : {false, true}) {
    const LlamaConfig config = small_model(tied);
    LlamaParameters before = make_llama(config, LlamaPart::whole(config), at::kDouble);
    initialize(before, 5);
    FlatParameters flat = small_parameters(tied);
    const auto expected = before.named(), got = flat.model.named();
    ASSERT_EQ(expected.size(), flat.entries.size());
    EXPECT_EQ(flat.values.numel(), config.parameters());
    for (size_t i = 0; i < got.size(); ++i) {
      EXPECT_EQ(got[i].name, flat.entries[i].name);
      EXPECT_TRUE(got[i].tensor.equal(expected[i].tensor)) << got[i].name;
      EXPECT_TRUE(got[i].tensor.requires_grad());
      EXPECT_EQ(flat.entries[i].begin + flat.entries[i].count <= flat.decayed, got[i].tensor.dim() > 1);
    }
    flat.values.fill_(3);
    EXPECT_EQ(flat.model.layers[1].down_proj.sum().item<double>(), 3 * 60);
  }
}

TEST(FlatParameters, BackwardAddsToTheGradientBuffer) {
  FlatParameters flat = small_parameters();
  for (int times = 1; times <= 2; ++times) {
    (flat.model.norm.sum() * 2 + flat.model.lm_head.sum()).backward();
    EXPECT_EQ(flat.gradients.sum().item<double>(), times * (2 * 6 + 66));
    EXPECT_EQ(flat.model.norm.grad().sum().item<double>(), times * 12);
  }
  EXPECT_NEAR(gradient_norm(flat.gradients), std::sqrt(6 * 16 + 66 * 4), 1e-12);
}

TEST(Optimizer, LearningRateRisesLinearlyThenFallsAlongACosine) {
  Config::Train config;
  config.steps = 21, config.warmup = 10, config.lr = 1, config.min_lr = 0.2;
  EXPECT_DOUBLE_EQ(learning_rate(config, 0), 0.1);
  EXPECT_DOUBLE_EQ(learning_rate(config, 9), 1);
  EXPECT_DOUBLE_EQ(learning_rate(config, 10), 1);
  EXPECT_DOUBLE_EQ(learning_rate(config, 15), 0.6);
  EXPECT_DOUBLE_EQ(learning_rate(config, 20), 0.2);
  EXPECT_DOUBLE_EQ(learning_rate(config, 50), 0.2);
  config.warmup = 0, config.steps = 1;
  EXPECT_DOUBLE_EQ(learning_rate(config, 0), 1);
}

TEST(Optimizer, ClippingScalesToTheNormAndLeavesSmallGradientsAlone) {
  FlatParameters flat = small_parameters();
  flat.gradients.fill_(1);
  const double norm = gradient_norm(flat.gradients);
  clip_gradients(flat, norm, 2 * norm);
  EXPECT_EQ(flat.gradients[0].item<double>(), 1);
  clip_gradients(flat, norm, 0);
  EXPECT_EQ(flat.gradients[0].item<double>(), 1);
  clip_gradients(flat, norm, 0.5);
  EXPECT_NEAR(gradient_norm(flat.gradients), 0.5, 1e-12);
}

/// The formulas of the paper, element by element.
TEST(Optimizer, UpdatesAreAdamWsAndNormsHaveNoDecay) {
  FlatParameters flat = small_parameters();
  AdamState state = make_adam_state(flat);
  Config::Train config;
  config.weight_decay = 0.3, config.eps = 1e-6;
  const int64_t n = flat.values.numel();
  std::vector<double> value(flat.values.data_ptr<double>(), flat.values.data_ptr<double>() + n);
  std::vector<double> first(n), second(n);
  for (int step = 1; step <= 5; ++step) {
    flat.gradients.copy_(at::linspace(-1, 1, n, at::kDouble) * step);
    const double lr = 0.01 / step;
    adam_update(flat, state, config, lr);
    for (int64_t i = 0; i < n; ++i) {
      const double g = flat.gradients[i].item<double>();
      if (i < flat.decayed) value[i] -= lr * config.weight_decay * value[i];
      first[i] = config.beta1 * first[i] + (1 - config.beta1) * g;
      second[i] = config.beta2 * second[i] + (1 - config.beta2) * g * g;
      const double m = first[i] / (1 - std::pow(config.beta1, step));
      const double v = second[i] / (1 - std::pow(config.beta2, step));
      value[i] -= lr * m / (std::sqrt(v) + config.eps);
      ASSERT_NEAR(flat.values[i].item<double>(), value[i], 1e-12) << "element " << i << ", step " << step;
    }
  }
  EXPECT_EQ(state.updates, 5);
}

}  // namespace
}  // namespace distca
