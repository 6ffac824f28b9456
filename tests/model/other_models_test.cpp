#include "model/other_models.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace hadal {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(OtherModels, AreNamedWithTheFieldAndWhatRunsInstead) {
  const struct {
    const char* config;
    const char* wanted;
  } cases[] = {
      {R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama"})",
       "architectures is LlamaForCausalLM: this is a Llama model, as the distilled R1 models on Llama"},
      {R"({"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"})",
       "architectures is Qwen2ForCausalLM: this is a Qwen model"},
      {R"({"architectures": ["DeepseekV3ForCausalLM"], "model_type": "kimi_k2"})",
       "model_type is kimi_k2: this is a Kimi model"},
      {R"({"architectures": ["Glm4MoeForCausalLM"], "model_type": "glm4_moe"})",
       "model_type is glm4_moe: this is a GLM model"},
      {R"({"architectures": ["DeepseekForCausalLM"], "model_type": "deepseek"})", "this is DeepSeek-MoE"},
      {R"({"architectures": ["DeepseekV4ForCausalLM"]})", "this is DeepSeek-V4"},
  };
  for (const auto& [config, wanted] : cases) {
    const auto refused = refuse_other_model(config, "dir/config.json");
    ASSERT_FALSE(refused.ok()) << config;
    EXPECT_EQ(refused.status().code, StatusCode::kUnsupported);
    EXPECT_THAT(refused.status().message,
                AllOf(HasSubstr("dir/config.json: "), HasSubstr(wanted), HasSubstr("Hadal runs DeepSeek-V2"),
                      HasSubstr("SGLang and vLLM run this model")));
  }
}

TEST(OtherModels, SupportedAndBrokenConfigsAreLeftToTheParser) {
  for (const char* config :
       {R"({"architectures": ["DeepseekV2ForCausalLM"], "model_type": "deepseek_v2"})",
        R"({"architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3"})",
        R"({"architectures": ["DeepseekV32ForCausalLM"], "model_type": "deepseek_v32"})",
        R"({"architectures": [], "model_type": 3})", R"({"architectures": [7]})", "{}", "[]", "{", ""}) {
    EXPECT_TRUE(refuse_other_model(config, "x").ok()) << config;
  }
}

TEST(Gguf, AFileAndADirectoryOfThemAreNamedUnlessAConfigIsThere) {
  const std::filesystem::path dir = std::filesystem::path(::testing::TempDir()) / "hadal_gguf_test";
  std::filesystem::remove_all(dir);
  std::filesystem::create_directories(dir);
  EXPECT_TRUE(refuse_gguf(dir).ok());
  EXPECT_TRUE(refuse_gguf(dir / "absent.gguf").ok());
  std::ofstream(dir / "r1.gguf") << "GGUF";
  EXPECT_THAT(refuse_gguf(dir).status().message,
              AllOf(HasSubstr("has a GGUF file, r1.gguf, and no config.json"), HasSubstr("llama-server -m")));
  EXPECT_THAT(refuse_gguf(dir / "r1.gguf").status().message, HasSubstr("is a GGUF file"));
  std::ofstream(dir / "config.json") << "{}";
  EXPECT_TRUE(refuse_gguf(dir).ok());
  std::filesystem::remove_all(dir);
}

}  // namespace
}  // namespace hadal
