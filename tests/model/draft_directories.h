// Writes directories with a NextN layer that is taken from another checkpoint's files, for tests.
#pragma once

#include <string>
#include <utility>

#include "model/checkpoint.h"
#include "tests/model/checkpoint_files.h"

namespace hadal::testing {

// Returns the tensors of model.layers.`layer_idx` in a checkpoint, with the names of model.layers.0.
inline FileTensors exported_layer(const std::filesystem::path& checkpoint_dir, int64_t layer_idx) {
  const Checkpoint checkpoint = Checkpoint::open(checkpoint_dir).value();
  const std::string prefix = layer_prefix(layer_idx);
  FileTensors tensors;
  for (const Checkpoint::Entry& entry : checkpoint.entries()) {
    if (!entry.info.name.starts_with(prefix)) continue;
    tensors[layer_prefix(0) + entry.info.name.substr(prefix.size())] = {
        entry.info.dtype_name, entry.info.shape,
        std::string(reinterpret_cast<const char*>(entry.data.data()), entry.data.size())};
  }
  return tensors;
}

// Returns the config.json of SGLang's export of the NextN layer of a checkpoint.
inline Json export_config(Json config) {
  config["architectures"] = Json::array({"DeepseekV3ForCausalLMNextN"});
  config["num_hidden_layers"] = 1;
  return config;
}

inline void write_directory(const std::filesystem::path& dir, const Json& config,
                            const FileTensors& tensors) {
  write_file(dir / "config.json", config.dump());
  write_file(dir / "model.safetensors", safetensors_file(tensors));
}

}  // namespace hadal::testing
