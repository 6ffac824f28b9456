// Reads small tokenizers and the reference library's ids of texts, which tools/tokenizer_reference writes.
#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <memory>
#include <sstream>
#include <string>

#include <nlohmann/json.hpp>

#include "tests/source_dir.h"
#include "text/tokenizer/tokenizer.h"

namespace hadal {

inline std::string read_test_file(const std::string& name) {
  std::ifstream in(source_dir() + "/tests/text/data/" + name, std::ios::binary);
  EXPECT_TRUE(in.good()) << name;
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

inline std::unique_ptr<Tokenizer> load_test_tokenizer(const std::string& name,
                                                      const std::string& config = "") {
  auto tokenizer = Tokenizer::from_json(read_test_file(name + "_small.json"), config);
  if (!tokenizer.ok()) ADD_FAILURE() << tokenizer.status().message;
  return std::move(tokenizer).value();
}

// Returns a valid tokenizer.json with a vocabulary of the 256 bytes and "ab", "abc"; each test breaks one
// part of it.
inline nlohmann::json tiny_tokenizer_json() {
  const auto v3 = nlohmann::json::parse(read_test_file("v3_small.json"));
  nlohmann::json out = v3;
  out["added_tokens"] = nlohmann::json::array();
  out["model"]["vocab"] = nlohmann::json::object();
  int id = 0;
  for (const auto& [token, old_id] : v3["model"]["vocab"].items())
    if (token.size() == 1 || (token.size() == 2 && static_cast<unsigned char>(token[0]) >= 0x80))
      out["model"]["vocab"][token] = id++;
  out["model"]["vocab"]["ab"] = id++;
  out["model"]["vocab"]["abc"] = id++;
  out["model"]["merges"] = {"a b", "ab c"};
  return out;
}

}  // namespace hadal
