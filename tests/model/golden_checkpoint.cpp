#include "tests/model/golden_checkpoint.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <system_error>

#include <nlohmann/json.hpp>

#include "base/mapped_file.h"
#include "base/thread_pool.h"
#include "model/random_checkpoint.h"
#include "model/safetensors.h"
#include "tests/source_dir.h"

namespace hadal::testing {
namespace {

namespace fs = std::filesystem;

const fs::path kGoldens = fs::path(source_dir()) / "tests/model/goldens";

RandomWeightOptions weight_options(const Golden& golden) {
  RandomWeightOptions options = RandomWeightOptions::for_config(golden.config, golden.seed);
  options.gate_bias_amplitude = golden.gate_bias_amplitude;
  return options;
}

}  // namespace

std::vector<std::string> golden_names() {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(kGoldens)) {
    if (fs::exists(entry.path() / "golden.json")) names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

Golden load_golden(const std::string& name) {
  const fs::path dir = kGoldens / name;
  Golden golden;
  golden.name = name;
  golden.config_path = dir / "config.json";
  golden.config =
      parse_model_config(read_text_file(golden.config_path).value(), golden.config_path.string()).value();
  const nlohmann::json json = nlohmann::json::parse(read_text_file(dir / "golden.json").value());
  golden.seed = json.at("seed").get<uint64_t>();
  golden.gate_bias_amplitude = json.at("gate_bias_amplitude").get<double>();
  golden.weights_checksum = std::stoull(json.at("weights_checksum").get<std::string>(), nullptr, 16);

  const MappedFile file = MappedFile::open(dir / "logits.safetensors").value();
  const auto tensors = parse_safetensors_header(file.bytes(), "logits.safetensors").value();
  for (const auto& item : json.at("cases")) {
    GoldenCase& golden_case = golden.cases.emplace_back();
    golden_case.input_ids = item.at("input_ids").get<std::vector<int32_t>>();
    golden_case.greedy_ids = item.at("greedy_ids").get<std::vector<int32_t>>();
    const std::string tensor_name = fmt::format("logits.{}", golden.cases.size() - 1);
    const auto tensor = std::find_if(tensors.begin(), tensors.end(),
                                     [&](const SafetensorsTensor& t) { return t.name == tensor_name; });
    HADAL_CHECK(tensor != tensors.end(), "{} has no {}", name, tensor_name);
    golden_case.logits.resize(golden_case.input_ids.size() * static_cast<size_t>(golden.config.vocab_size));
    HADAL_CHECK_EQ(tensor->end - tensor->begin, golden_case.logits.size() * sizeof(float));
    std::memcpy(golden_case.logits.data(), file.bytes().data() + tensor->begin, tensor->end - tensor->begin);
  }
  return golden;
}

GoldenCheckpoint::GoldenCheckpoint(const Golden& golden) {
  const RandomWeightOptions options = weight_options(golden);
  const uint64_t checksum = random_checkpoint_checksum(golden.config, options).value();
  HADAL_CHECK_EQ(checksum, golden.weights_checksum);
  dir_ = make_temporary_directory("hadal_golden_" + golden.name);
  ThreadPool pool(1);
  RandomCheckpointOptions checkpoint;
  checkpoint.weights = options;
  const auto written = write_random_checkpoint(dir_, read_text_file(golden.config_path).value(),
                                               golden.config, checkpoint, pool);
  HADAL_CHECK(written.ok(), "{}", written.status().message);
}

GoldenCheckpoint::~GoldenCheckpoint() {
  std::error_code ignored;
  fs::remove_all(dir_, ignored);
}

fs::path make_temporary_directory(const std::string& prefix) {
  std::string pattern = (fs::temp_directory_path() / (prefix + "_XXXXXX")).string();
  HADAL_CHECK(::mkdtemp(pattern.data()) != nullptr, "{}: {}", pattern, std::strerror(errno));
  return pattern;
}

}  // namespace hadal::testing
