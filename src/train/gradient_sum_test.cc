#include "train/gradient_sum.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include <set>

#include "base/check.h"
#include "comm/threads.h"
#include "train/testing.h"

namespace distca {
namespace {

FlatParameters parameters_of(const LlamaPart& part, bool tied, at::ScalarType dtype) {
  LlamaConfig config = testing::small_run("float64").model;
  config.tie_word_embeddings = tied;
  return flatten(make_llama(config, part, dtype));
}

at::Tensor gradients_of(int32_t rank, const at::Tensor& like) {
  at::Generator generator = at::detail::createCPUGenerator(static_cast<uint64_t>(rank) + 5);
  return at::randn(like.sizes(), generator, like.options());
}

TEST(GradientSum, PieceByPieceHasTheBitsOfOneSumAtTheEnd) {
  for (const int32_t ranks : {1, 2, 3, 5}) {
    for (const at::ScalarType dtype : {at::kDouble, at::kFloat}) {
      run_thread_ranks(ranks, {}, [&](Fabric& fabric) {
        FlatParameters parameters = parameters_of({0, 2, true, true}, false, dtype);
        const at::Tensor own = gradients_of(fabric.rank(), parameters.gradients), expected = own.clone();
        fabric.all_reduce(expected.data_ptr(), expected.numel(),
                          dtype == at::kDouble ? DType::kFloat64 : DType::kFloat32, ReduceOp::kSum, "all");
        GradientSum sum(fabric, parameters);
        for (int step = 0; step < 2; ++step) {
          parameters.gradients.copy_(own);
          for (int64_t piece = 2; piece >= 0; --piece) {
            sum.start(piece);
            if (piece != 1) sum.advance();  // none, one or two of them are summed at once
          }
          sum.finish();
          EXPECT_TRUE(at::equal(parameters.gradients, expected)) << ranks << " ranks, rank " << fabric.rank();
        }
      });
    }
  }
}

TEST(GradientSum, APieceThatNeverEndedIsAnError) {
  run_thread_ranks(2, {}, [](Fabric& fabric) {
    FlatParameters parameters = parameters_of({0, 2, true, true}, false, at::kFloat);
    GradientSum sum(fabric, parameters);
    sum.start(2);
    EXPECT_THROW(sum.finish(), Error);
  });
}

TEST(GradientSum, ParametersAreCompleteAfterTheLastPieceThatUsesThem) {
  const LlamaPart whole{0, 2, true, true}, end{2, 4, false, true};
  EXPECT_EQ(last_piece_of(whole, "model.embed_tokens.weight"), 0);
  EXPECT_EQ(last_piece_of(end, "model.embed_tokens.weight"), 2) << "tied: the head's";
  EXPECT_EQ(last_piece_of(whole, "model.layers.1.input_layernorm.weight"), 1);
  EXPECT_EQ(last_piece_of(whole, "model.layers.1.self_attn.k_proj.weight"), 1);
  EXPECT_EQ(last_piece_of(whole, "model.layers.0.self_attn.o_proj.weight"), 1);
  EXPECT_EQ(last_piece_of(whole, "model.layers.1.post_attention_layernorm.weight"), 2);
  EXPECT_EQ(last_piece_of(end, "model.layers.2.mlp.up_proj.weight"), 1);
  EXPECT_EQ(last_piece_of(end, "model.layers.3.mlp.down_proj.weight"), 2);
  EXPECT_EQ(last_piece_of(whole, "model.norm.weight"), 2);
  EXPECT_EQ(last_piece_of(whole, "lm_head.weight"), 2);
  std::set<int64_t> pieces;
  for (const FlatEntry& entry : parameters_of(whole, false, at::kFloat).entries)
    pieces.insert(last_piece_of(whole, entry.name));
  EXPECT_EQ(pieces, (std::set<int64_t>{0, 1, 2}));
}

}  // namespace
}  // namespace distca
