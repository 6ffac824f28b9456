// Which weights a GPU takes is asked before anything is loaded, in every build.
#include <gmock/gmock.h>

#include "engine/backend.h"
#include "model/presets.h"

namespace hadal {
namespace {

using ::testing::HasSubstr;
using enum LoadQuantization;

ModelConfig preset(const char* name) {
  return parse_model_config(preset_config_json(name).value(), name).value();
}

std::string refusal(const char* name, LoadQuantization quantization) {
  const auto checked = check_gpu_formats(preset(name), quantization);
  if (checked.ok()) return "taken";
  EXPECT_EQ(checked.status().code, StatusCode::kUnsupported);
  return checked.status().message;
}

TEST(GpuFormats, Bf16AndFp8BlocksAreTaken) {
  EXPECT_EQ(refusal("v2-lite", kNone), "taken");
  EXPECT_EQ(refusal("v2-lite", kFp8), "taken");
  EXPECT_EQ(refusal("v3", kNone), "taken");
  EXPECT_EQ(refusal("v3", kFp8), "taken");
}

TEST(GpuFormats, OthersAreRefusedInWords) {
  constexpr const char* kAllowed = "on a GPU: bf16 and fp8 (128x128 blocks)";
  EXPECT_THAT(refusal("v2-lite", kW8A8Int8), AllOf(HasSubstr("int8, a scale a row"), HasSubstr(kAllowed)));
  EXPECT_THAT(refusal("v2-lite", kW8A8Fp8),
              HasSubstr("fp8 e4m3, a scale a row run on the CPU (--device cpu)"));
  EXPECT_THAT(refusal("v2-lite", kBlockwiseInt8), HasSubstr("int8, 128x128 blocks"));
  EXPECT_THAT(refusal("coder-v2-lite-fp8", kNone), HasSubstr("fp8 e4m3, a scale a matrix"));
  EXPECT_THAT(refusal("coder-v2-lite-fp8", kFp8), HasSubstr(kAllowed));
  EXPECT_THAT(refusal("r1-channel-int8", kNone), HasSubstr("int8, a scale a row"));
  EXPECT_THAT(refusal("r1-block-int8", kBlockwiseInt8), HasSubstr("int8, 128x128 blocks"));
}

TEST(GpuFormats, LoadingAsksFirst) {
  ThreadPool pool(1);
  const auto backend = load_backend(DeviceType::kCuda, "/nowhere", preset("r1-block-int8"), {}, pool);
  ASSERT_FALSE(backend.ok());
  EXPECT_THAT(backend.status().message, HasSubstr("int8, 128x128 blocks run on the CPU"));
}

}  // namespace
}  // namespace hadal
