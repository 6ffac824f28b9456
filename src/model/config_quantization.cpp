#include "model/config_quantization.h"

#include <utility>

namespace hadal::config_json {
namespace {

constexpr std::string_view kScale = "_scale";
constexpr std::string_view kScaleInv = "_scale_inv";

bool is_empty(const Json& value) {
  return (value.is_object() || value.is_array()) && value.empty();
}

// Reads a field that must be absent, null or empty.
void read_absent(ConfigReader& in, const char* name) {
  const Json* value = in.find(name);
  if (value != nullptr && !is_empty(*value)) in.fail(name, "is {}; only null is supported", describe(*value));
}

std::vector<std::string> read_names(ConfigReader& in, const char* name) {
  std::vector<std::string> names;
  const Json* list = in.find(name);
  if (list == nullptr) return names;
  if (!list->is_array()) {
    in.fail(name, "is {}; allowed: a list of module names or null", describe(*list));
    return names;
  }
  for (const Json& entry : *list) {
    if (!entry.is_string()) {
      in.fail(name, "contains {}; allowed: module names and \"re:\" patterns", describe(entry));
      return {};
    }
    names.push_back(entry.get<std::string>());
  }
  return names;
}

ModuleList to_list(ConfigReader& in, const char* name, std::vector<std::string> names) {
  auto list = ModuleList::parse(std::move(names));
  if (list.ok()) return std::move(list).value();
  in.fail(name, "{}", list.status().message);
  return {};
}

// Checks for [128, 128], or "128x128" in older files of compressed-tensors.
void check_block_size(ConfigReader& in, const char* name) {
  const Json* size = in.find(name);
  if (size != nullptr && (*size == Json::array({kFp8BlockSize, kFp8BlockSize}) || *size == Json("128x128")))
    return;
  in.fail(name, "is {}; supported: [128, 128]", size == nullptr ? std::string("missing") : describe(*size));
}

// Reads the modules that are not quantised, under each of the names that writers of these configs use.
void read_unquantised(ConfigReader& in, WeightQuantization& quantization) {
  std::vector<std::string> names;
  const char* found = "ignore";
  for (const char* field : {"ignored_layers", "modules_to_not_convert", "ignore"}) {
    for (std::string& name : read_names(in, field)) {
      found = field;
      names.push_back(std::move(name));
    }
  }
  quantization.unquantised = to_list(in, found, std::move(names));
}

// Scales of activations are computed while the model runs, so those in a file (input_scale) are ignored.
enum class Activations { kAny, kDynamic };
void read_activation_scheme(ConfigReader& in, Activations allowed) {
  if (allowed == Activations::kDynamic) {
    in.one_of("activation_scheme", {"dynamic"}, 0);
  } else {
    in.one_of("activation_scheme", {"dynamic", "static"}, 0);
  }
  read_absent(in, "kv_cache_scheme");
  read_absent(in, "kv_cache_quant_targets");
}

// Reads quant_method fp8: DeepSeek's own blocks, or one scale per matrix if weight_block_size is absent.
void read_fp8(ConfigReader& in, WeightQuantization& quantization) {
  in.one_of("fmt", {"e4m3"}, 0);
  quantization.ue8m0_scales = in.one_of("scale_fmt", {"float", "ue8m0"}, 0) == 1;
  if (in.find("weight_block_size") != nullptr) {
    quantization.type = WeightType::kFp8Block;
    check_block_size(in, "weight_block_size");
    read_activation_scheme(in, Activations::kDynamic);
  } else {
    quantization.type = WeightType::kFp8Channel;
    quantization.one_scale = true;
    quantization.scale_suffix = kScale;
    if (quantization.ue8m0_scales)
      in.fail("scale_fmt", "is \"ue8m0\", which needs weight_block_size [128, 128]");
    read_activation_scheme(in, Activations::kAny);
  }
  read_unquantised(in, quantization);
}

void read_channels(ConfigReader& in, WeightType type, WeightQuantization& quantization) {
  quantization.type = type;
  quantization.scale_suffix = kScale;
  read_absent(in, "weight_block_size");
  read_activation_scheme(in, Activations::kDynamic);
  if (!in.boolean("is_dynamic", true)) in.fail("is_dynamic", "is false; only true is supported");
  read_unquantised(in, quantization);
}

void read_int8_blocks(ConfigReader& in, WeightQuantization& quantization) {
  quantization.type = WeightType::kInt8Block;
  check_block_size(in, "weight_block_size");
  read_activation_scheme(in, Activations::kDynamic);
  read_unquantised(in, quantization);
}

// Reads "weights" of one group of compressed-tensors.
void read_scheme(ConfigReader& in, WeightQuantization& quantization) {
  in.fixed("num_bits", 8);
  const bool is_int = in.one_of("type", {"float", "int"}) == 1;
  const size_t strategy = in.one_of("strategy", {"tensor", "channel", "block"});
  if (!in.boolean("symmetric", true)) in.fail("symmetric", "is false; only true is supported");
  if (in.boolean("dynamic", false)) in.fail("dynamic", "is true; only false is supported for weights");
  read_absent(in, "group_size");
  read_absent(in, "actorder");
  quantization.scale_suffix = kScale;
  if (strategy == 2) {
    check_block_size(in, "block_structure");
    quantization.type = is_int ? WeightType::kInt8Block : WeightType::kFp8Block;
  } else {
    read_absent(in, "block_structure");
    quantization.type = is_int ? WeightType::kInt8Channel : WeightType::kFp8Channel;
    quantization.one_scale = strategy == 0;
  }
}

// Reads "input_activations". The settings are checked and then ignored, because the backend decides: it
// scales each token separately or does not quantise activations at all.
void read_activations(ConfigReader& in, const WeightQuantization& quantization) {
  const bool is_int = is_int8(quantization.type);
  in.fixed("num_bits", 8);
  if ((in.one_of("type", {"float", "int"}) == 1) != is_int) {
    in.fail("type", "differs from the weights', which is {}", is_int ? "int" : "float");
  }
  in.one_of("strategy", {"tensor", "token", "group"}, 0);
  if (!in.boolean("symmetric", true)) in.fail("symmetric", "is false; only true is supported");
  in.boolean("dynamic", false);
}

std::vector<std::string> read_targets(ConfigReader& in) {
  std::vector<std::string> targets = read_names(in, "targets");
  if (targets.empty()) in.fail("targets", "is missing or empty; supported: [\"Linear\"] or module names");
  for (const std::string& target : targets) {
    const bool is_class = target != "Linear" && !target.starts_with("re:") &&
                          target.find('.') == std::string::npos && !target.empty() && target[0] >= 'A' &&
                          target[0] <= 'Z';
    if (is_class) in.fail("targets", "contains \"{}\"; the only supported class is Linear", target);
  }
  return targets;
}

void read_format(ConfigReader& in) {
  in.one_of("format", {"float-quantized", "int-quantized", "naive-quantized"}, 0);
}

// Reads one entry of config_groups; the modules to which it applies are added to `targets`.
WeightQuantization read_group(ConfigReader& in, std::string_view source, const std::string& prefix,
                              std::vector<std::string>& targets) {
  WeightQuantization quantization;
  for (std::string& target : read_targets(in)) targets.push_back(std::move(target));
  read_absent(in, "output_activations");
  read_format(in);
  const Json* weights = in.object("weights");
  if (weights == nullptr) {
    in.fail("weights", "is missing; allowed: an object");
    return quantization;
  }
  ConfigReader scheme(*weights, source, prefix + "weights.");
  read_scheme(scheme, quantization);
  if (!scheme.ok()) in.fail(scheme.status());
  if (const Json* activations = in.object("input_activations")) {
    ConfigReader reader(*activations, source, prefix + "input_activations.");
    read_activations(reader, quantization);
    if (!reader.ok()) in.fail(reader.status());
  }
  return quantization;
}

void read_compressed_tensors(ConfigReader& in, std::string_view source, const std::string& prefix,
                             WeightQuantization& quantization) {
  read_format(in);
  in.one_of("quantization_status", {"compressed", "frozen"}, 0);
  read_absent(in, "kv_cache_scheme");
  read_absent(in, "transform_config");
  if (const Json* sparsity = in.object("sparsity_config"); sparsity != nullptr && !sparsity->empty()) {
    ConfigReader reader(*sparsity, source, prefix + "sparsity_config.");
    reader.one_of("format", {"dense"});
    if (!reader.ok()) in.fail(reader.status());
  }
  const Json* groups = in.object("config_groups");
  if (groups == nullptr || groups->empty())
    return in.fail("config_groups", "is missing or empty; allowed: an object of groups");
  std::vector<std::string> targets;
  bool first = true;
  for (const auto& [name, group] : groups->items()) {
    const std::string field = "config_groups." + name.substr(0, 40);
    if (!group.is_object()) return in.fail(field.c_str(), "is {}; allowed: an object", describe(group));
    const std::string group_prefix = prefix + field + ".";
    ConfigReader reader(group, source, group_prefix);
    WeightQuantization found = read_group(reader, source, group_prefix, targets);
    if (!reader.ok()) return in.fail(reader.status());
    if (!first && (found.type != quantization.type || found.one_scale != quantization.one_scale))
      return in.fail("config_groups", "contains different schemes; supported: one for all weights");
    if (first) quantization = std::move(found);
    first = false;
  }
  // If a group names module classes, names of single modules have no further effect.
  for (const std::string& target : targets) {
    if (target == "Linear") return read_unquantised(in, quantization);
  }
  quantization.targets = to_list(in, "config_groups targets", std::move(targets));
  read_unquantised(in, quantization);
}

}  // namespace

void read_quantization(ConfigReader& in, std::string_view source, ModelConfig& config) {
  const char* name = "quantization_config";
  const Json* object = in.object(name);
  const Json* older = in.object("compression_config");
  if (object != nullptr && older != nullptr)
    return in.fail("compression_config", "and quantization_config are both given; allowed: one of the two");
  if (object == nullptr && older != nullptr) {
    name = "compression_config";
    object = older;
  }
  if (object == nullptr) return;
  const std::string prefix = fmt::format("{}.", name);
  ConfigReader quant(*object, source, prefix);
  WeightQuantization quantization;
  switch (quant.one_of("quant_method",
                       {"fp8", "compressed-tensors", "w8a8_fp8", "w8a8_int8", "blockwise_int8"})) {
    case 0:
      read_fp8(quant, quantization);
      break;
    case 1:
      read_compressed_tensors(quant, source, prefix, quantization);
      break;
    case 2:
      read_channels(quant, WeightType::kFp8Channel, quantization);
      break;
    case 3:
      read_channels(quant, WeightType::kInt8Channel, quantization);
      break;
    default:
      read_int8_blocks(quant, quantization);
      break;
  }
  if (!quant.ok()) return in.fail(quant.status());
  config.quantization = std::move(quantization);
}

}  // namespace hadal::config_json
