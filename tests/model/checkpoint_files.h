// Makes checkpoints for tests: the text of a small config, tensors with recognisable values, and safetensors
// files built byte by byte, so that broken ones are as easy to build.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "model/config.h"
#include "model/tensor_list.h"

namespace hadal::testing {

using Json = nlohmann::json;

// Makes a temporary directory and removes it at the end.
class TempDir {
 public:
  TempDir() {
    std::string pattern = (std::filesystem::temp_directory_path() / "hadal-test-XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
    path_ = pattern;
  }
  ~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

// Replaces the file instead of overwriting it, because a mapping of the old one must stay valid.
inline void write_file(const std::filesystem::path& path, std::string_view bytes) {
  std::filesystem::create_directories(path.parent_path());
  std::filesystem::remove(path);
  std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

// Returns a V3-like config of a few MB: one dense layer, one MoE layer; hidden and q_lora_rank are no
// multiples of 128.
inline Json tiny_config() {
  return Json::parse(R"({
    "architectures": ["DeepseekV3ForCausalLM"], "hidden_size": 144, "intermediate_size": 200,
    "moe_intermediate_size": 72, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2,
    "q_lora_rank": 136, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
    "n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1,
    "scoring_func": "sigmoid", "topk_method": "noaux_tc", "norm_topk_prob": true, "routed_scaling_factor": 2.5,
    "first_k_dense_replace": 1, "moe_layer_freq": 1, "vocab_size": 96, "max_position_embeddings": 4096,
    "rope_theta": 10000, "rms_norm_eps": 1e-6, "hidden_act": "silu", "tie_word_embeddings": false,
    "bos_token_id": 0, "eos_token_id": 1, "torch_dtype": "bfloat16"})");
}

inline Json fp8_config_field() {
  return Json::parse(R"({"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
                         "weight_block_size": [128, 128]})");
}

inline ModelConfig parsed(const Json& json) {
  auto config = parse_model_config(json.dump(), "config.json");
  if (!config.ok()) throw std::runtime_error(config.status().message);
  return std::move(config).value();
}

struct FileTensor {
  std::string dtype;  // safetensors' name
  std::vector<int64_t> shape;
  std::string bytes;
};
using FileTensors = std::map<std::string, FileTensor>;

// Returns element `i` of tensor `name`: exact in bf16 and f16, in (-2, 2), different for every tensor.
inline float pattern(const std::string& name, int64_t i) {
  const auto h =
      static_cast<uint64_t>(std::hash<std::string>{}(name)) + static_cast<uint64_t>(i) * 2654435761U;
  return static_cast<float>(static_cast<int>((h >> 7) % 255) - 127) / 64.0F;
}

// Returns the same plus a small part that bf16 cannot represent.
inline float fine_pattern(const std::string& name, int64_t i) {
  return pattern(name, i) + static_cast<float>(i % 7) * 0x1p-9F;
}

template <typename T>
std::string bytes_of(const std::vector<T>& values) {
  std::string bytes(values.size() * sizeof(T), '\0');
  if (!bytes.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

// Makes tensor `name` with values f(name, i), stored as dtype.
template <typename F>
FileTensor make_tensor(const std::string& name, DType dtype, const std::vector<int64_t>& shape, const F& f) {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  FileTensor tensor{safetensors_name(dtype), shape, {}};
  const auto fill = [&](auto convert) {
    std::vector<decltype(convert(0.0F))> values;
    for (int64_t i = 0; i < count; ++i) values.push_back(convert(f(name, i)));
    tensor.bytes = bytes_of(values);
  };
  switch (dtype) {
    case DType::kF32:
      fill([](float v) { return v; });
      break;
    case DType::kF16:
      fill([](float v) { return to_f16(v); });
      break;
    case DType::kBF16:
      fill([](float v) { return to_bf16(v); });
      break;
    case DType::kF8E4M3:
      fill([](float v) { return to_fp8_e4m3(v); });
      break;
    case DType::kI8:  // steps of 1/64, like pattern()
      fill([](float v) { return static_cast<int8_t>(std::lrint(v * 62.0F)); });
      break;
    default:
      throw std::runtime_error("no such tensor in tests");
  }
  return tensor;
}

// Returns every tensor of a checkpoint of `config`, stored as the config says; optional ones on request.
inline FileTensors tensors_of(const ModelConfig& config, bool with_optional = false) {
  FileTensors tensors;
  for (const TensorSpec& spec : expected_tensors(config)) {
    if (spec.optional && !with_optional) continue;
    tensors[spec.name] = make_tensor(spec.name, spec.dtype, spec.shape, fine_pattern);
  }
  return tensors;
}

// Returns a whole safetensors file. `padding` spaces lengthen the header: an odd number misaligns the data.
inline std::string safetensors_file(const FileTensors& tensors, int padding = 0) {
  nlohmann::ordered_json header;
  header["__metadata__"] = {{"format", "pt"}};
  std::string data;
  for (const auto& [name, tensor] : tensors) {
    header[name] = {{"dtype", tensor.dtype},
                    {"shape", tensor.shape},
                    {"data_offsets", {data.size(), data.size() + tensor.bytes.size()}}};
    data += tensor.bytes;
  }
  std::string text = header.dump();
  text.append(static_cast<size_t>((8 - text.size() % 8) % 8 + static_cast<size_t>(padding)), ' ');
  std::string file(8, '\0');
  const uint64_t length = text.size();
  std::memcpy(file.data(), &length, sizeof(length));
  return file + text + data;
}

}  // namespace hadal::testing
