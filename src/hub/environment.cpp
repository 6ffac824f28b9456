#include "hub/environment.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <system_error>
#include <utility>

#include "base/mapped_file.h"
#include "base/printable.h"

namespace hadal::hub {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kDefaultEndpoint = "https://huggingface.co";
constexpr size_t kMaxTokenBytes = 4096;

fs::path hf_home(const HubEnvironment& environment) {
  if (!environment.hf_home.empty()) return environment.hf_home;
  if (!environment.xdg_cache_home.empty()) return fs::path(environment.xdg_cache_home) / "huggingface";
  if (!environment.home.empty()) return fs::path(environment.home) / ".cache" / "huggingface";
  return {};
}

std::string trimmed(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n";
  const size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) return {};
  return std::string(text.substr(begin, text.find_last_not_of(kSpace) - begin + 1));
}

}  // namespace

bool is_on(std::string_view value) {
  std::string word(value);
  std::transform(word.begin(), word.end(), word.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return word == "1" || word == "on" || word == "yes" || word == "true";
}

fs::path hub_cache_dir(const HubEnvironment& environment) {
  if (!environment.hf_hub_cache.empty()) return environment.hf_hub_cache;
  const fs::path home = hf_home(environment);
  return home.empty() ? fs::path() : home / "hub";
}

Result<std::string> hub_endpoint(const HubEnvironment& environment) {
  std::string endpoint =
      environment.hf_endpoint.empty() ? std::string(kDefaultEndpoint) : environment.hf_endpoint;
  while (endpoint.ends_with('/')) endpoint.pop_back();
  const size_t host = endpoint.starts_with("https://") ? 8 : endpoint.starts_with("http://") ? 7 : 0;
  const bool has_host = host != 0 && endpoint.size() > host && endpoint[host] != '/';
  if (!has_host || !is_visible_ascii(endpoint) || endpoint.find_first_of("@?#\\") != std::string::npos) {
    return invalid_argument(
        "HF_ENDPOINT is {}; allowed: http://HOST or https://HOST, with a port and a path if need be",
        shown_text(environment.hf_endpoint));
  }
  return endpoint;
}

Result<std::string> hub_token(const HubEnvironment& environment) {
  std::string token = trimmed(environment.hf_token);
  std::string source = "HF_TOKEN";
  if (token.empty()) {
    fs::path path = environment.hf_token_path;
    if (path.empty() && !hf_home(environment).empty()) path = hf_home(environment) / "token";
    std::error_code ignored;
    if (path.empty() || !fs::exists(path, ignored)) return std::string();
    HADAL_ASSIGN_OR_RETURN(const std::string text, read_text_file(path, kMaxTokenBytes));
    token = trimmed(text);
    source = path.string();
  }
  if (!token.empty() && !is_visible_ascii(token)) {  // the value is a secret, so it is not shown
    return invalid_argument("{} holds a character that no token has; allowed: visible ASCII characters",
                            source);
  }
  return token;
}

std::string certificates_file(const HubEnvironment& environment) {
  if (!environment.ssl_cert_file.empty()) return environment.ssl_cert_file;
  constexpr std::array kUsual = {
      "/etc/ssl/certs/ca-certificates.crt",  // Debian, Ubuntu, Arch
      "/etc/pki/tls/certs/ca-bundle.crt",    // Fedora, RHEL
      "/etc/ssl/ca-bundle.pem",              // openSUSE
      "/etc/ssl/cert.pem",                   // Alpine
  };
  std::error_code ignored;
  for (const char* path : kUsual) {
    if (fs::exists(path, ignored)) return path;
  }
  return {};
}

}  // namespace hadal::hub
