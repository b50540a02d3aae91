#include "model/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/check.h"

namespace distca {
namespace {

using testing::AllOf;
using testing::HasSubstr;

const char* const kSizes = R"("vocab_size": 99, "hidden_size": 60, "intermediate_size": 70,
    "num_hidden_layers": 2, "num_attention_heads": 6)";

LlamaConfig parse(const std::string& more) {
  return parse_llama_config("{" + std::string(kSizes) + (more.empty() ? "" : ", ") + more + "}", "here.json");
}

void expect_error(const std::string& more, const std::string& field) {
  try {
    parse(more);
    ADD_FAILURE() << more << " was accepted";
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("here.json"), HasSubstr(field)));
  }
}

// Parameter counts as published with the models.
TEST(LlamaConfig, PresetsHaveThePublishedNumberOfParameters) {
  EXPECT_EQ(llama_preset("llama-8b").parameters(), 8030261248);
  EXPECT_EQ(llama_preset("llama-70b").parameters(), 70553706496);
  EXPECT_EQ(llama_preset("llama-34b").parameters(), 33743970304);
  for (const char* name : {"llama-8b", "llama-34b", "llama-70b", "tiny"}) {
    EXPECT_NO_THROW(llama_preset(name).check(name));
  }
}

TEST(LlamaConfig, UnknownPresetListsThoseThereAre) {
  try {
    find_llama_config("llama-9b");
    FAIL();
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("llama-9b"), HasSubstr("llama-34b"), HasSubstr("tiny")));
  }
}

TEST(LlamaConfig, MissingFieldsTakeHuggingFacesDefaults) {
  const LlamaConfig config = parse("");
  EXPECT_EQ(config.num_key_value_heads, 6);
  EXPECT_EQ(config.head_dim, 10);
  EXPECT_EQ(config.rms_norm_eps, 1e-6);
  EXPECT_EQ(config.rope_theta, 10000);
  EXPECT_FALSE(config.rope_scaling.has_value());
  EXPECT_FALSE(config.tie_word_embeddings);
}

TEST(LlamaConfig, BothWaysOfWritingRotarySettingsAreTheSame) {
  const std::string scaling = R"("factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
      "original_max_position_embeddings": 8192)";
  const LlamaConfig now =
      parse(R"("rope_parameters": {"rope_theta": 5e5, "rope_type": "llama3", )" + scaling + "}");
  const LlamaConfig before =
      parse(R"("rope_theta": 500000.0, "rope_scaling": {"rope_type": "llama3", )" + scaling + "}");
  const LlamaConfig first =
      parse(R"("rope_theta": 500000, "rope_scaling": {"type": "llama3", )" + scaling + "}");
  ASSERT_TRUE(now.rope_scaling.has_value());
  EXPECT_EQ(now.rope_scaling->factor, 32);
  EXPECT_EQ(now.rope_theta, 500000);
  EXPECT_EQ(now, before);
  EXPECT_EQ(now, first);
  EXPECT_FALSE(parse(R"("rope_theta": 1e6, "rope_scaling": null)").rope_scaling.has_value());
}

TEST(LlamaConfig, WhatIsWrittenIsReadBack) {
  for (const char* name : {"llama-8b", "llama-34b", "llama-70b", "tiny"}) {
    LlamaConfig config = llama_preset(name);
    EXPECT_EQ(parse_llama_config(dump_llama_config(config, "float32"), name), config);
    config.tie_word_embeddings = true;
    config.eos_token_id = {1, 2, 3};
    EXPECT_EQ(parse_llama_config(dump_llama_config(config, "bfloat16"), name), config);
  }
}

TEST(LlamaConfig, ErrorsNameFileAndField) {
  expect_error(R"("num_key_value_heads": 4)",
               "num_attention_heads 6 is not a multiple of num_key_value_heads 4");
  expect_error(R"("num_key_value_heads": 0)", "num_key_value_heads is 0");
  expect_error(R"("head_dim": 15)", "head_dim is 15");
  expect_error(R"("head_dim": -2)", "head_dim is -2");
  expect_error(R"("head_dim": 10.0)", "head_dim is 10.0, not an integer");
  expect_error(R"("head_dim": 4611686018427387904)", "head_dim");
  expect_error(R"("head_dim": 18446744073709551615)", "head_dim");
  expect_error(R"("rms_norm_eps": 0)", "rms_norm_eps is 0");
  expect_error(R"("rms_norm_eps": "1e-5")", "rms_norm_eps is \"1e-5\", not a number");
  expect_error(R"("tie_word_embeddings": 1)", "tie_word_embeddings is 1");
  expect_error(R"("attention_bias": true)", "attention_bias is true");
  expect_error(R"("hidden_act": "gelu")", "hidden_act is \"gelu\"");
  expect_error(R"("model_type": "mistral")", "model_type");
  expect_error(R"("rope_scaling": {"rope_type": "yarn", "factor": 2})",
               "rope_scaling: rope_type is \"yarn\"");
  expect_error(R"("rope_scaling": {"rope_type": "llama3", "factor": 8.0})",
               "rope_scaling: low_freq_factor is missing");
  expect_error(R"("rope_parameters": 3)", "rope_parameters: is 3");
  expect_error(R"("rope_parameters": {"rope_theta": -1})", "rope_theta is -1");
}

TEST(LlamaConfig, HiddenSizeThatHeadsDontDivideNeedsHeadDim) {
  const std::string text =
      R"({"vocab_size": 9, "hidden_size": 50, "intermediate_size": 7, "num_hidden_layers": 1,
      "num_attention_heads": 6)";
  EXPECT_THROW(parse_llama_config(text + "}", "here.json"), InputError);
  EXPECT_EQ(parse_llama_config(text + ", \"head_dim\": 16}", "here.json").head_dim, 16);
}

TEST(LlamaConfig, MissingSizeIsNamed) {
  try {
    parse_llama_config(R"({"hidden_size": 8})", "here.json");
    FAIL();
  } catch (const InputError& error) {
    EXPECT_STREQ(error.what(), "here.json: vocab_size is missing");
  }
}

}  // namespace
}  // namespace distca
