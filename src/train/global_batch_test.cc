#include "train/global_batch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <random>

#include "base/check.h"

namespace distca {
namespace {

using testing::HasSubstr;

TokenSource source_of(std::vector<int64_t> lengths) {
  TokenSource source;
  source.name = "text";
  source.documents = static_cast<int64_t>(lengths.size());
  source.length = [lengths](int64_t doc) { return lengths[doc]; };
  source.read = [](int64_t doc, Span tokens, int64_t* out) {
    for (int64_t p = tokens.begin; p < tokens.end; ++p) *out++ = 1000 * doc + p;
  };
  return source;
}

/// Heavy-tailed lengths from 0 to `most`.
std::vector<int64_t> random_lengths(std::mt19937_64& random, int64_t count, int64_t most) {
  std::vector<int64_t> out(count);
  std::uniform_real_distribution<double> uniform(0, 1);
  for (int64_t& length : out)
    length = static_cast<int64_t>(std::pow(static_cast<double>(most + 1), uniform(random))) - 1;
  return out;
}

/// Random inputs that the lengths fit, with ugly ones among them.
BatchInputs random_inputs(std::mt19937_64& random, int64_t longest, bool split) {
  BatchInputs inputs;
  inputs.micro_batches = 1 + static_cast<int64_t>(random() % 3);
  inputs.nano_batches = 1 + static_cast<int64_t>(random() % 3);
  const int64_t least = split ? std::max<int64_t>(1, longest / 3) : std::max<int64_t>(1, longest);
  inputs.context = least;
  inputs.tokens_per_batch =
      (least + static_cast<int64_t>(random() % 200)) * inputs.micro_batches * inputs.nano_batches;
  inputs.window = 1 + static_cast<int64_t>(random() % 30);
  inputs.split_documents = split;
  inputs.seed = static_cast<int64_t>(random() % 100);
  return inputs;
}

std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const InputError& error) {
    return error.what();
  }
  return "no error";
}

/// A random data set and inputs that fit it. Odd seeds split documents.
struct RandomStream {
  explicit RandomStream(int seed) {
    std::mt19937_64 random(seed);
    const auto count = 1 + static_cast<int64_t>(random() % 60);
    lengths = random_lengths(random, count, 1 + static_cast<int64_t>(random() % 300));
    lengths[random() % count] = 1;
    inputs = random_inputs(random, *std::max_element(lengths.begin(), lengths.end()), seed % 2 == 1);
  }

  std::vector<int64_t> lengths;
  BatchInputs inputs;
};

class RandomStreams : public testing::Test {
 protected:
  static void for_each_seed(
      const std::function<void(const std::vector<int64_t>&, const BatchInputs&)>& body) {
    for (int seed = 0; seed < 40; ++seed) {
      SCOPED_TRACE(testing::Message() << "seed " << seed);
      const RandomStream stream(seed);
      body(stream.lengths, stream.inputs);
    }
  }
};

TEST_F(RandomStreams, EveryTokenComesOnceAnEpochAndNoneIsLostOrDoubled) {
  for_each_seed([](const std::vector<int64_t>& lengths, const BatchInputs& inputs) {
    BatchStream stream(source_of(lengths), inputs);
    std::map<std::pair<int64_t, int64_t>, int64_t> times;  // (document, token)
    for (int step = 0; step < 40; ++step) {
      const GlobalBatch batch = stream.next();
      for (const NanoBatch& nano_batch : batch.nano_batches)
        for (const Piece& piece : nano_batch.documents)
          for (int64_t p = piece.tokens.begin; p < piece.tokens.end; ++p) ++times[{piece.doc, p}];
    }
    for (const Piece& piece : stream.state().passed_over)
      for (int64_t p = piece.tokens.begin; p < piece.tokens.end; ++p) ++times[{piece.doc, p}];
    // Taken or passed over are exactly the first documents of the order: all of `epoch` epochs, some of the
    // next.
    const int64_t epoch = stream.state().epoch;
    for (int64_t doc = 0; doc < static_cast<int64_t>(lengths.size()); ++doc) {
      for (int64_t p = 0; p < lengths[doc]; ++p) {
        const int64_t n = times[{doc, p}];
        EXPECT_TRUE(n == epoch || n == epoch + 1)
            << "token " << p << " of document " << doc << " came " << n << " times in epoch " << epoch;
        times.erase({doc, p});
      }
    }
    EXPECT_TRUE(times.empty()) << "tokens that no document has";
  });
}

TEST_F(RandomStreams, NanoBatchesKeepTheirRowsAndCountTheirPadding) {
  for_each_seed([](const std::vector<int64_t>& lengths, const BatchInputs& inputs) {
    BatchStream stream(source_of(lengths), inputs);
    for (int step = 0; step < 20; ++step) {
      const GlobalBatch batch = stream.next();
      EXPECT_EQ(batch.step, step);
      ASSERT_EQ(static_cast<int64_t>(batch.nano_batches.size()), inputs.micro_batches * inputs.nano_batches);
      for (const NanoBatch& nano_batch : batch.nano_batches) {
        EXPECT_LE(nano_batch.tokens(), inputs.rows());
        for (int64_t length : nano_batch.lengths()) {
          EXPECT_GT(length, 0);
          EXPECT_LE(length, inputs.context);
        }
      }
      EXPECT_EQ(batch.tokens() + batch.padding(), inputs.tokens_per_batch);
      EXPECT_LE(static_cast<int64_t>(stream.state().passed_over.size()), inputs.window);
    }
  });
}

TEST_F(RandomStreams, WhatIsPassedOverFitsNowhereAndComesFirstInTheNextStep) {
  for_each_seed([](const std::vector<int64_t>& lengths, const BatchInputs& inputs) {
    BatchStream stream(source_of(lengths), inputs);
    for (int step = 0; step < 20; ++step) {
      const std::vector<Piece> before = stream.state().passed_over;
      const GlobalBatch batch = stream.next();
      if (!before.empty()) {
        EXPECT_EQ(batch.nano_batches[0].documents.at(0), before[0]);
      }
      int64_t most_room = 0;
      for (const NanoBatch& nano_batch : batch.nano_batches)
        most_room = std::max(most_room, inputs.rows() - nano_batch.tokens());
      if (most_room > 0) {
        EXPECT_EQ(static_cast<int64_t>(stream.state().passed_over.size()), inputs.window);
      }
      for (const Piece& piece : stream.state().passed_over) EXPECT_GT(piece.tokens.size(), most_room);
    }
  });
}

TEST_F(RandomStreams, AResumedStreamGoesOnAsIfNothingHadHappened) {
  for_each_seed([](const std::vector<int64_t>& lengths, const BatchInputs& inputs) {
    const TokenSource source = source_of(lengths);
    BatchStream stream(source, inputs);
    for (int step = 0; step < 15; ++step) {
      const std::string saved = stream.dump_state();
      BatchStream resumed(source, inputs);
      resumed.restore_state(saved, "state.json");
      const GlobalBatch here = stream.next(), there = resumed.next();
      ASSERT_EQ(here.step, there.step);
      for (size_t i = 0; i < here.nano_batches.size(); ++i)
        ASSERT_EQ(here.nano_batches[i].documents, there.nano_batches[i].documents) << "step " << step;
      ASSERT_EQ(stream.state(), resumed.state());
    }
  });
}

TEST(GlobalBatch, PacksTheEarliestThatFitsIntoTheNanoBatchWithMostRoom) {
  // All documents alike but for the seed's order: two nano-batches of 10 rows, documents of 4.
  BatchInputs inputs{20, 1, 2, 10, 3, false, 1};
  BatchStream stream(source_of(std::vector<int64_t>(50, 4)), inputs);
  const GlobalBatch batch = stream.next();
  EXPECT_THAT(batch.nano_batches[0].lengths(), testing::ElementsAre(4, 4));
  EXPECT_THAT(batch.nano_batches[1].lengths(), testing::ElementsAre(4, 4));
  EXPECT_EQ(batch.padding(), 4);
  EXPECT_EQ(batch.targets(), 12);
  EXPECT_EQ(stream.state().passed_over.size(), 3u);
}

TEST(GlobalBatch, AShortDocumentOvertakesALongOneThatDoesNotFit) {
  // Half of the documents fill a nano-batch, the others are single tokens: no row stays empty.
  std::vector<int64_t> lengths(20, 1);
  for (int i = 0; i < 10; ++i) lengths[i] = 9;
  BatchStream stream(source_of(lengths), {10, 1, 1, 10, 20, false, 3});
  for (int step = 0; step < 8; ++step) EXPECT_EQ(stream.next().padding(), 0) << "step " << step;
}

TEST(GlobalBatch, SplitDocumentsAreCountedAndTheirPartsStandAlone) {
  const TokenSource source = source_of({10, 0, 3, 25});
  const LongDocuments found = find_long_documents(source, 10);
  EXPECT_EQ(found.count, 1);
  EXPECT_EQ(found.parts, 3);
  EXPECT_EQ(found.first, 3);
  BatchStream stream(source, {50, 1, 1, 10, 8, true, 0});
  std::vector<int64_t> parts;
  const GlobalBatch batch = stream.next();
  for (const Piece& piece : batch.nano_batches[0].documents)
    if (piece.doc == 3) parts.push_back(piece.tokens.size());
  ASSERT_GE(parts.size(), 3u);
  parts.resize(3);
  EXPECT_THAT(parts, testing::ElementsAre(10, 10, 5));
}

TEST(GlobalBatch, ALongDocumentIsNamed) {
  EXPECT_THAT(error_of([] {
                BatchStream(source_of({5, 11, 30}), {20, 1, 2, 10, 8, false, 0});
              }),
              HasSubstr("text: document 1 has 11 tokens, more than the context of 10 (the first of 2 such)"));
}

TEST(GlobalBatch, InputsThatCannotBeRightAreNamed) {
  const TokenSource source = source_of({5});
  EXPECT_THAT(error_of([&] { BatchStream(source, {21, 1, 2, 10, 8, false, 0}); }), HasSubstr("21 tokens"));
  EXPECT_THAT(error_of([&] {
                BatchStream(source, {20, 1, 2, 11, 8, false, 0});
              }),
              HasSubstr("context of 11"));
  EXPECT_THAT(error_of([&] { BatchStream(source, {20, 1, 2, 0, 8, false, 0}); }), HasSubstr("context of 0"));
  EXPECT_THAT(error_of([&] { BatchStream(source, {20, 1, 2, 10, 0, false, 0}); }), HasSubstr("window"));
  EXPECT_THAT(error_of([&] {
                BatchStream(source_of({}), {20, 1, 2, 10, 8, false, 0});
              }),
              HasSubstr("no tokens"));
  EXPECT_THAT(error_of([&] {
                BatchStream(source_of({0, 0}), {20, 1, 2, 10, 8, false, 0});
              }),
              HasSubstr("no tokens"));
}

TEST(GlobalBatch, AStateOfAnotherRunIsRefusedByTheKeyThatDiffers) {
  BatchInputs inputs{20, 1, 2, 10, 8, false, 4};
  BatchStream stream(source_of({5, 6}), inputs);
  stream.next();
  const std::string saved = stream.dump_state();
  const auto refusal = [&](TokenSource source, BatchInputs other) {
    return error_of([&] { BatchStream(source, other).restore_state(saved, "ckpt/data.json"); });
  };
  EXPECT_EQ(refusal(source_of({5, 6}), inputs), "no error");
  EXPECT_THAT(refusal(source_of({5, 7}), inputs), HasSubstr("ckpt/data.json: written for another dataset"));
  EXPECT_THAT(refusal(source_of({5, 6, 7}), inputs), HasSubstr("another dataset"));
  inputs.seed = 5;
  EXPECT_THAT(refusal(source_of({5, 6}), inputs), HasSubstr("train.seed = 4, not 5"));
  EXPECT_THAT(error_of([&] { stream.restore_state("{}", "x"); }), HasSubstr("x: not the state"));
  EXPECT_THAT(error_of([&] { stream.restore_state("{", "x"); }), HasSubstr("x:1:2"));
}

TEST(GlobalBatch, PackedByWorkloadEveryDocumentComesOnceAndGroupsKeepTheirRows) {
  const uint64_t seed = 5;
  std::mt19937_64 random(seed);
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  BatchInputs inputs;
  inputs.tokens_per_batch = 16384, inputs.context = 4096;
  const TokenSource source = source_of(random_lengths(random, 4000, 4096));
  BatchStream in_order(source, inputs), packed(source, inputs);
  packed.pack_by_workload(2);
  std::map<int64_t, int> drawn, given;
  int64_t delayed = 0;
  for (int step = 0; step < 12; ++step) {
    for (const NanoBatch& nano_batch : in_order.next().nano_batches)
      for (const Piece& piece : nano_batch.documents) ++drawn[piece.doc];
    const GlobalBatch batch = packed.next();
    ASSERT_EQ(batch.nano_batches.size(), 2U);
    for (const NanoBatch& nano_batch : batch.nano_batches) {
      ASSERT_EQ(nano_batch.groups.size(), 2U);
      size_t doc = 0;
      for (const int64_t members : nano_batch.groups) {
        int64_t tokens = 0;
        for (int64_t i = 0; i < members; ++i) {
          const Piece& piece = nano_batch.documents.at(doc++);
          tokens += piece.tokens.size();
          EXPECT_EQ(++given[piece.doc], 1);
        }
        EXPECT_LE(tokens, 4096 * 5 / 4);
      }
      EXPECT_EQ(doc, nano_batch.documents.size());
    }
    delayed = std::max<int64_t>(delayed, packed.state().waiting.size());
  }
  EXPECT_GT(delayed, 0);
  for (const Piece& piece : packed.state().waiting) EXPECT_EQ(++given[piece.doc], 1);
  EXPECT_EQ(given, drawn);
}

TEST(GlobalBatch, PackedByWorkloadARestoredStreamGoesOn) {
  std::mt19937_64 random(6);
  BatchInputs inputs;
  inputs.tokens_per_batch = 8192, inputs.context = 2048;
  const TokenSource source = source_of(random_lengths(random, 2000, 2048));
  BatchStream stream(source, inputs);
  stream.pack_by_workload(2);
  for (int step = 0; step < 5; ++step) stream.next();
  ASSERT_FALSE(stream.state().waiting.empty());
  BatchStream restored(source, inputs), unpacked(source, inputs);
  restored.pack_by_workload(2);
  restored.restore_state(stream.dump_state(), "state");
  unpacked.restore_state(stream.dump_state(), "state");
  EXPECT_EQ(unpacked.next().nano_batches[0].documents[0], stream.state().waiting[0]);
  for (int step = 0; step < 5; ++step) {
    const GlobalBatch one = stream.next(), other = restored.next();
    for (size_t i = 0; i < one.nano_batches.size(); ++i) {
      EXPECT_EQ(one.nano_batches[i].documents, other.nano_batches[i].documents);
      EXPECT_EQ(one.nano_batches[i].groups, other.nano_batches[i].groups);
    }
  }
  EXPECT_EQ(stream.state(), restored.state());
}

}  // namespace
}  // namespace distca
