// Holds what the environment says about the Hugging Face hub: where its cache is, which server is asked, and
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

// Returns the cache of the first that is set of HF_HUB_CACHE, HF_HOME, XDG_CACHE_HOME and HOME, or an empty
// path if none is.
std::filesystem::path hub_cache_dir(const HubEnvironment& environment);

// Returns HF_ENDPOINT without a slash at its end, or https://huggingface.co. The error is kInvalidArgument
// when it is not an http or https address without user, query and fragment.
Result<std::string> hub_endpoint(const HubEnvironment& environment);

// Returns HF_TOKEN, else what HF_TOKEN_PATH or the file `token` of HF_HOME holds, without white space around
// it; empty if there is none. The error is kInvalidArgument for a character that no token has, because it
// would end the header line.
Result<std::string> hub_token(const HubEnvironment& environment);

// Returns SSL_CERT_FILE, else the first file of certificates that a common distribution has; empty if there
// is none, which leaves the choice to libcurl. A copied binary would otherwise look where its build machine
// had them.
std::string certificates_file(const HubEnvironment& environment);

}  // namespace hadal::hub
