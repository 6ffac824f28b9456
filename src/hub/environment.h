// Holds the environment's settings for the Hugging Face hub: where its cache is, which server is asked, and
// with which token. The functions only read the file system; any thread may call them.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "base/result.h"

namespace hadal::hub {

// HubEnvironment has the variables as main reads them; empty: not set.
struct HubEnvironment {
  std::string hf_hub_cache;    // HF_HUB_CACHE: the cache itself
  std::string hf_home;         // HF_HOME: the cache is its hub/, the token its file token
  std::string xdg_cache_home;  // XDG_CACHE_HOME: HF_HOME is its huggingface/
  std::string home;            // HOME: HF_HOME is its .cache/huggingface/
  std::string hf_endpoint;     // HF_ENDPOINT: the server that is asked
  std::string hf_token;        // HF_TOKEN
  std::string hf_token_path;   // HF_TOKEN_PATH: the file that holds the token
  std::string ssl_cert_file;   // SSL_CERT_FILE: the certificates that are trusted
  bool offline = false;        // HF_HUB_OFFLINE or --offline: no connection is made
};

// Tells whether a variable such as HF_HUB_OFFLINE is on: 1, on, yes or true, in any case.
bool is_on(std::string_view value);

// Returns the cache's directory by the first variable that is set: HF_HUB_CACHE, HF_HOME, XDG_CACHE_HOME or
// HOME. Returns an empty path if none is set.
std::filesystem::path hub_cache_dir(const HubEnvironment& environment);

// Returns HF_ENDPOINT without a slash at its end, or https://huggingface.co. The error is kInvalidArgument
// when it is not an http or https address without user, query and fragment.
Result<std::string> hub_endpoint(const HubEnvironment& environment);

// Returns HF_TOKEN, else the content of the file HF_TOKEN_PATH or of the file `token` in HF_HOME, without
// white space around it. Returns an empty text if there is no token. The error is kInvalidArgument for a
// character that no token has, because it might end the header line.
Result<std::string> hub_token(const HubEnvironment& environment);

// Returns SSL_CERT_FILE, else the first existing file among the places where common distributions keep
// certificates. Returns an empty text if there is none, which leaves the choice to libcurl. Without this
// search, a copied binary would look in the build machine's place.
std::string certificates_file(const HubEnvironment& environment);

}  // namespace hadal::hub
