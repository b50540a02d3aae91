#include "model/llama.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

#include "base/check.h"
#include "model/dense_attention.h"

namespace distca {
namespace {

LlamaConfig small_config(bool tied = false) {
  LlamaConfig config;
  config.vocab_size = 37;
  config.hidden_size = 24;
  config.intermediate_size = 40;
  config.num_hidden_layers = 3;
  config.num_attention_heads = 4;
  config.num_key_value_heads = 2;
  config.head_dim = 10;
  config.tie_word_embeddings = tied;
  config.initializer_range = 0.2;
  return config;
}

LlamaParameters random_model(const LlamaConfig& config, const LlamaPart& part,
                             at::ScalarType dtype = at::kDouble) {
  LlamaParameters model = make_llama(config, part, at::TensorOptions().dtype(dtype));
  initialize(model, 17);
  return model;
}

LlamaParameters random_model(const LlamaConfig& config, at::ScalarType dtype = at::kDouble) {
  return random_model(config, LlamaPart::whole(config), dtype);
}

at::Tensor positions_of(const std::vector<int64_t>& doc_lengths) {
  std::vector<at::Tensor> parts = {at::arange(0, at::kLong)};
  for (const int64_t length : doc_lengths) parts.push_back(at::arange(length, at::kLong));
  return at::cat(parts);
}

at::Tensor run_layers(const LlamaParameters& model, at::Tensor x, const std::vector<int64_t>& doc_lengths) {
  const Rope rope = make_rope(model.config, positions_of(doc_lengths), x.scalar_type());
  for (int64_t layer = model.part.layer_begin; layer < model.part.layer_end; ++layer) {
    x = post_attention(model, layer, x, dense_attention(pre_attention(model, layer, x, rope), doc_lengths));
  }
  return x;
}

at::Tensor random_tokens(const LlamaConfig& config, int64_t rows) {
  return at::randint(config.vocab_size, {rows}, at::kLong);
}

void expect_close(const at::Tensor& a, const at::Tensor& b, double tolerance = 1e-12) {
  ASSERT_EQ(a.sizes(), b.sizes());
  EXPECT_TRUE(at::allclose(a, b, tolerance, tolerance)) << (a - b).abs().max().item<double>();
}

TEST(Rope, FrequenciesWithoutScalingArePowersOfTheta) {
  LlamaConfig config = small_config();
  config.head_dim = 8;
  config.rope_theta = 10000;
  EXPECT_THAT(rope_frequencies(config),
              testing::Pointwise(testing::DoubleNear(1e-15), std::vector<double>{1, 0.1, 0.01, 0.001}));
}

// Waves of 2π, 20π, 200π, 2000π tokens; original context 1000: kept below 250, divided by 8 above 1000, and
// 200π = 628.3 fits 1.5915 times, so smooth = 0.5915 / 3.
TEST(Rope, Llama3ScalingKeepsShortWavesAndStretchesLongOnes) {
  LlamaConfig config = small_config();
  config.head_dim = 8;
  config.rope_theta = 10000;
  config.rope_scaling = RopeScaling{8, 1, 4, 1000};
  const double smooth = (1000 / (200 * std::numbers::pi) - 1) / 3;
  const double middle = 0.01 * (1 - smooth) / 8 + 0.01 * smooth;
  EXPECT_THAT(rope_frequencies(config),
              testing::Pointwise(testing::DoubleNear(1e-15), std::vector<double>{1, 0.1, middle, 0.001 / 8}));
}

TEST(Rope, TurnsPairsOfHalvesByPositionTimesFrequency) {
  LlamaConfig config = small_config();
  config.head_dim = 4;
  config.rope_theta = 100;
  const at::Tensor x = at::tensor({1.0, 2.0, 3.0, 4.0}, at::kDouble).view({1, 1, 4});
  const int64_t position = 1000003;
  const at::Tensor y = apply_rope(x, make_rope(config, at::full({1}, position, at::kLong), at::kDouble));
  const double a = 1000003.0, b = 100000.3;
  const at::Tensor expected =
      at::tensor({1 * std::cos(a) - 3 * std::sin(a), 2 * std::cos(b) - 4 * std::sin(b),
                  3 * std::cos(a) + 1 * std::sin(a), 4 * std::cos(b) + 2 * std::sin(b)},
                 at::kDouble)
          .view({1, 1, 4});
  expect_close(y, expected, 1e-9);
}

TEST(Rope, FarPositionsKeepTheirAccuracyInFloat32) {
  LlamaConfig config = small_config();
  const at::Tensor positions = at::arange(1 << 24, (1 << 24) + 64, at::kLong);
  const Rope exact = make_rope(config, positions, at::kDouble),
             rounded = make_rope(config, positions, at::kFloat);
  expect_close(rounded.cos.to(at::kDouble), exact.cos, 1e-7);
}

struct LossCase {
  int64_t rows, vocab, logits_at_once;
  double with_target;
};

class Loss : public testing::TestWithParam<LossCase> {};

TEST_P(Loss, SumAndGradientsEqualPyTorchsOnFullLogits) {
  const auto [rows, vocab, logits_at_once, with_target] = GetParam();
  const at::Tensor x = at::randn({rows, 12}, at::kDouble).requires_grad_();
  const at::Tensor weight = at::randn({vocab, 12}, at::kDouble).requires_grad_();
  const at::Tensor untargeted = at::randn({rows}, at::kDouble).abs().lt(1 - with_target);
  const at::Tensor targets = at::randint(vocab, {rows}, at::kLong).masked_fill(untargeted, -100);

  const at::Tensor loss = linear_cross_entropy(nullptr, x, weight, targets, logits_at_once);
  (loss * 0.25).backward();
  const at::Tensor dx = x.grad().clone(), d_weight = weight.grad().clone();
  x.mutable_grad().zero_();
  weight.mutable_grad().zero_();
  const at::Tensor expected = at::cross_entropy_loss(at::linear(x, weight), targets, {}, at::Reduction::Sum);
  (expected * 0.25).backward();

  expect_close(loss, expected);
  expect_close(dx, x.grad());
  expect_close(d_weight, weight.grad());
  const at::NoGradGuard no_grad;
  expect_close(linear_cross_entropy(nullptr, x, weight, targets, logits_at_once), expected);
}

INSTANTIATE_TEST_SUITE_P(Sizes, Loss,
                         testing::Values(LossCase{1, 5, 1, 1}, LossCase{67, 31, 1 << 20, 1},
                                         LossCase{67, 31, 31 * 7, 0.6}, LossCase{67, 31, 5, 0.6},
                                         LossCase{40, 3, 100, 0.1}));

TEST(Loss, RowsWithoutTargetsGiveZeroAndZeroGradients) {
  for (const int64_t rows : {0, 1, 9}) {
    const at::Tensor x = at::randn({rows, 12}, at::kFloat).requires_grad_();
    const at::Tensor weight = at::randn({20, 12}, at::kFloat).requires_grad_();
    const at::Tensor loss = linear_cross_entropy(nullptr, x, weight, at::full({rows}, -1, at::kLong));
    EXPECT_EQ(loss.item<double>(), 0);
    loss.backward();
    EXPECT_EQ(x.grad().abs().sum().item<float>(), 0);
    EXPECT_EQ(weight.grad().abs().sum().item<float>(), 0);
  }
}

TEST(Loss, HugeLogitsStayFinite) {
  const at::Tensor x = at::full({1, 1}, 1e4, at::kFloat).requires_grad_();
  const at::Tensor weight = at::tensor({1.0F, -1.0F}, at::kFloat).view({2, 1}).requires_grad_();
  const at::Tensor loss = linear_cross_entropy(nullptr, x, weight, at::full({1}, 1, at::kLong));
  loss.backward();
  EXPECT_EQ(loss.item<double>(), 2e4);
  EXPECT_EQ(x.grad().item<float>(), 2);
}

TEST(Llama, DocumentsInOneRowEqualEachAlone) {
  const LlamaConfig config = small_config();
  const LlamaParameters model = random_model(config);
  const std::vector<int64_t> lengths = {7, 1, 13, 2};
  const at::Tensor tokens = random_tokens(config, 23);
  const at::Tensor together = logits(model, run_layers(model, embed(model, tokens), lengths));
  int64_t row = 0;
  for (const int64_t length : lengths) {
    const at::Tensor alone =
        logits(model, run_layers(model, embed(model, tokens.narrow(0, row, length)), {length}));
    expect_close(together.narrow(0, row, length), alone);
    row += length;
  }
}

TEST(Llama, StagesOneAfterTheOtherEqualTheWholeModel) {
  for (const bool tied : {false, true}) {
    const LlamaConfig config = small_config(tied);
    const LlamaParameters whole = random_model(config);
    const LlamaParameters first = random_model(config, {0, 1, true, false});
    const LlamaParameters middle = random_model(config, {1, 2, false, false});
    const LlamaParameters last = random_model(config, {2, 3, false, true});
    const at::Tensor tokens = random_tokens(config, 11), targets = random_tokens(config, 11);
    const std::vector<int64_t> lengths = {5, 6};
    at::Tensor x = embed(first, tokens);
    for (const LlamaParameters* stage : {&first, &middle, &last}) x = run_layers(*stage, x, lengths);
    const at::Tensor loss = loss_sum(last, x, targets);
    const at::Tensor expected = loss_sum(whole, run_layers(whole, embed(whole, tokens), lengths), targets);
    EXPECT_EQ(loss.item<double>(), expected.item<double>());
    EXPECT_THROW(embed(last, tokens), Error);
    EXPECT_THROW(logits(first, x), Error);
    EXPECT_THROW(pre_attention(first, 1, x, make_rope(config, positions_of(lengths), at::kDouble)), Error);
  }
}

TEST(Llama, LossOfTheModelIsThatOfItsLogits) {
  for (const bool tied : {false, true}) {
    const LlamaParameters model = random_model(small_config(tied));
    const at::Tensor x = at::randn({9, 24}, at::kDouble), targets = random_tokens(model.config, 9);
    const at::Tensor expected = at::cross_entropy_loss(logits(model, x), targets, {}, at::Reduction::Sum);
    expect_close(loss_sum(model, x, targets, 50), expected);
  }
}

TEST(Llama, InitialWeightsFollowFromNameAndSeedAlone) {
  const LlamaConfig config = small_config();
  const LlamaParameters whole = random_model(config), part = random_model(config, {1, 3, false, true});
  EXPECT_TRUE(whole.layers[1].up_proj.equal(part.layers[0].up_proj));
  EXPECT_TRUE(whole.lm_head.equal(part.lm_head));
  EXPECT_FALSE(whole.layers[1].up_proj.equal(whole.layers[2].up_proj));
  EXPECT_FALSE(whole.layers[1].gate_proj.equal(whole.layers[1].up_proj));
  const LlamaParameters rounded = random_model(config, at::kFloat);
  EXPECT_TRUE(rounded.lm_head.equal(whole.lm_head.to(at::kFloat)));
  LlamaParameters other = make_llama(config, LlamaPart::whole(config), at::kDouble);
  initialize(other, 18);
  EXPECT_FALSE(other.lm_head.equal(whole.lm_head));
  EXPECT_NEAR(whole.lm_head.std().item<double>(), config.initializer_range, 0.02);
  EXPECT_TRUE(whole.norm.eq(1).all().item<bool>());
}

TEST(Llama, TensorsOfAPartAreListedOnceInOrderWithTheirShapes) {
  const LlamaConfig config = small_config(/*tied=*/true);
  const LlamaPart part{2, 3, false, true};
  const std::vector<NamedTensor> named = random_model(config, part).named();
  const std::vector<TensorSpec> specs = llama_tensors(config, part);
  ASSERT_EQ(named.size(), specs.size());
  for (size_t i = 0; i < named.size(); ++i) {
    EXPECT_EQ(named[i].name, specs[i].name);
    EXPECT_EQ(named[i].tensor.sizes(), at::IntArrayRef(specs[i].shape));
  }
  EXPECT_EQ(specs.front().name, "model.embed_tokens.weight");
  EXPECT_EQ(specs[2].name, "model.layers.2.self_attn.q_proj.weight");
  EXPECT_EQ(specs.back().name, "model.norm.weight");
  int64_t count = 0;
  for (const NamedTensor& each : random_model(config).named()) count += each.tensor.numel();
  EXPECT_EQ(count, config.parameters());
}

TEST(Llama, NoRowsFlowThroughWithZeroGradients) {
  const LlamaParameters model = random_model(small_config());
  const at::Tensor none = at::arange(0, at::kLong);
  loss_sum(model, run_layers(model, embed(model, none), {0}), none).backward();
  for (const auto& [name, tensor, sharding] : model.named()) {
    ASSERT_TRUE(tensor.grad().defined()) << name;
    EXPECT_EQ(tensor.grad().abs().sum().item<double>(), 0) << name;
  }
}

TEST(Llama, Bfloat16FollowsFloat64Roughly) {
  const LlamaConfig config = small_config();
  const LlamaParameters exact = random_model(config), rough = random_model(config, at::kBFloat16);
  const at::Tensor tokens = random_tokens(config, 16), targets = random_tokens(config, 16);
  const at::Tensor expected = loss_sum(exact, run_layers(exact, embed(exact, tokens), {16}), targets);
  const at::Tensor loss = loss_sum(rough, run_layers(rough, embed(rough, tokens), {16}), targets);
  EXPECT_EQ(loss.scalar_type(), at::kDouble);
  EXPECT_NEAR(loss.item<double>() / expected.item<double>(), 1, 0.02);
  loss.backward();
  EXPECT_EQ(rough.lm_head.scalar_type(), at::kFloat);
  EXPECT_EQ(rough.lm_head.grad().scalar_type(), at::kFloat);
}

}  // namespace
}  // namespace distca
