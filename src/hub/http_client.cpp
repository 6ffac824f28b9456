#include "hub/http_client.h"

#include <curl/curl.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <exception>
#include <mutex>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "base/printable.h"
#include "base/version.h"
#include "hub/repository_info.h"

namespace hadal::hub {
namespace {

constexpr long kConnectTimeoutS = 20;
constexpr long kSilenceTimeoutS = 60;  // a connection without data for this long is given up
constexpr int kMaxRedirects = 5;
constexpr size_t kMaxErrorBytes = 4096;

template <typename Value>
void set(CURL* curl, CURLoption option, Value value) {
  const CURLcode code = curl_easy_setopt(curl, option, value);
  HADAL_CHECK(code == CURLE_OK, "curl_easy_setopt({}): {}", static_cast<int>(option),
              curl_easy_strerror(code));
}

std::string percent_encoded(std::string_view text) {
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (std::isalnum(byte) != 0 || std::string_view("-._~").find(c) != std::string_view::npos) {
      out += c;
    } else {
      out += fmt::format("%{:02X}", byte);
    }
  }
  return out;
}

// Returns the text of an entity tag: W/"abc" is abc.
std::string without_quotes(std::string_view tag) {
  if (tag.starts_with("W/")) tag.remove_prefix(2);
  if (tag.size() >= 2 && tag.front() == '"' && tag.back() == '"') tag = tag.substr(1, tag.size() - 2);
  return std::string(tag);
}

int64_t number_or(std::string_view text, int64_t otherwise) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && value >= 0 ? value : otherwise;
}

bool is_transient_error(CURLcode code) {
  switch (code) {
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_CONNECT:
    case CURLE_PARTIAL_FILE:
    case CURLE_OPERATION_TIMEDOUT:
    case CURLE_GOT_NOTHING:
    case CURLE_SEND_ERROR:
    case CURLE_RECV_ERROR:
    case CURLE_SSL_CONNECT_ERROR:
    case CURLE_WEIRD_SERVER_REPLY:
      return true;
    default:
      return false;
  }
}

// Returns an address as errors show it. The part after '?' is left out, because a storage server's address
// holds a signature there.
std::string shown_url(const std::string& url) {
  return printable(cut_text(url.substr(0, url.find('?')), 300));
}

StatusCode code_of(int http_status) {
  if (http_status == 404) return StatusCode::kNotFound;
  if (http_status == 401 || http_status == 403) return StatusCode::kInvalidArgument;
  return StatusCode::kInternal;
}

}  // namespace

std::string origin_of(const std::string& url) {
  const std::unique_ptr<CURLU, void (*)(CURLU*)> parsed(curl_url(), curl_url_cleanup);
  if (!parsed || curl_url_set(parsed.get(), CURLUPART_URL, url.c_str(), 0) != CURLUE_OK) return {};
  std::string parts[3];
  constexpr CURLUPart kParts[] = {CURLUPART_SCHEME, CURLUPART_HOST, CURLUPART_PORT};
  for (size_t i = 0; i < std::size(kParts); ++i) {
    char* text = nullptr;
    if (curl_url_get(parsed.get(), kParts[i], &text, CURLU_DEFAULT_PORT) != CURLUE_OK) return {};
    parts[i] = text;
    curl_free(text);
    std::transform(parts[i].begin(), parts[i].end(), parts[i].begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  }
  return fmt::format("{}://{}:{}", parts[0], parts[1], parts[2]);
}

std::string file_url(const std::string& endpoint, const std::string& repository, const std::string& commit,
                     const std::string& name) {
  return fmt::format("{}/{}/resolve/{}/{}", endpoint, repository, commit, percent_encoded(name));
}

std::string info_url(const std::string& endpoint, const std::string& repository,
                     const std::string& revision) {
  return fmt::format("{}/api/models/{}/revision/{}?blobs=true", endpoint, repository,
                     percent_encoded(revision));
}

struct HttpClient::Transfer {
  const StopSignal& stop;
  const std::string hub_origin;
  CURL* curl = nullptr;
  curl_slist* token_header = nullptr;

  // The fields below belong to one request.
  BodySink* sink = nullptr;
  HttpAnswer answer;
  bool is_from_hub = false;  // the answer that arrives comes from the hub's own host
  bool has_begun = false;
  std::string error_body;
  std::optional<Failure> failure;  // of the sink

  Transfer(const HubAccess& access, const StopSignal& stop_signal)
      : stop(stop_signal), hub_origin(origin_of(access.endpoint)) {
    static std::once_flag once;  // libcurl's global state
    std::call_once(once, [] { HADAL_CHECK(curl_global_init(CURL_GLOBAL_DEFAULT) == CURLE_OK); });
    curl = curl_easy_init();
    HADAL_CHECK(curl != nullptr);
    if (!access.token.empty()) {
      token_header =
          curl_slist_append(nullptr, fmt::format("Authorization: Bearer {}", access.token).c_str());
    }
    set(curl, CURLOPT_PROTOCOLS_STR, "http,https");
    set(curl, CURLOPT_HTTP_VERSION, long{CURL_HTTP_VERSION_1_1});  // a connection for each client
    set(curl, CURLOPT_USERAGENT, fmt::format("hadal/{}", version()).c_str());
    set(curl, CURLOPT_NOSIGNAL, 1L);
    set(curl, CURLOPT_SUPPRESS_CONNECT_HEADERS, 1L);  // they are the proxy's
    set(curl, CURLOPT_CONNECTTIMEOUT, kConnectTimeoutS);
    set(curl, CURLOPT_LOW_SPEED_LIMIT, 1L);
    set(curl, CURLOPT_LOW_SPEED_TIME, kSilenceTimeoutS);
    set(curl, CURLOPT_BUFFERSIZE, long{CURL_MAX_READ_SIZE});
    if (!access.certificates.empty()) set(curl, CURLOPT_CAINFO, access.certificates.c_str());
    set(curl, CURLOPT_HEADERFUNCTION, &on_header);
    set(curl, CURLOPT_HEADERDATA, this);
    set(curl, CURLOPT_WRITEFUNCTION, &on_body);
    set(curl, CURLOPT_WRITEDATA, this);
    set(curl, CURLOPT_NOPROGRESS, 0L);
    set(curl, CURLOPT_XFERINFOFUNCTION, &on_progress);
    set(curl, CURLOPT_XFERINFODATA, this);
  }
  ~Transfer() {
    curl_easy_cleanup(curl);
    curl_slist_free_all(token_header);
  }
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;

  static size_t on_header(char* data, size_t, size_t size, void* self) {
    auto& transfer = *static_cast<Transfer*>(self);
    const auto work = [&] {
      transfer.read_header(std::string_view(data, size));
      return true;
    };
    return transfer.guarded(work) ? size : 0;
  }
  static size_t on_body(char* data, size_t, size_t size, void* self) {
    auto& transfer = *static_cast<Transfer*>(self);
    const auto work = [&] { return transfer.read_body(std::as_bytes(std::span(data, size))); };
    return transfer.guarded(work) ? size : 0;
  }
  static int on_progress(void* self, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
    return static_cast<Transfer*>(self)->stop.is_set() ? 1 : 0;
  }

  // Returns what `work` returns, and false if it throws, because an exception must not pass through libcurl.
  template <typename Work>
  bool guarded(const Work& work) {
    try {
      return work();
    } catch (const std::exception& error) {
      failure = Failure{.status = {StatusCode::kInternal, error.what()}};
      return false;
    }
  }

  void read_header(std::string_view line) {
    const size_t colon = line.find(':');
    if (colon == std::string_view::npos) return;
    std::string name(line.substr(0, colon));
    std::transform(name.begin(), name.end(), name.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    std::string_view value = line.substr(colon + 1);
    while (!value.empty() && std::isspace(static_cast<unsigned char>(value.front())) != 0)
      value.remove_prefix(1);
    while (!value.empty() && std::isspace(static_cast<unsigned char>(value.back())) != 0)
      value.remove_suffix(1);
    if (name == "content-range" && value.starts_with("bytes "))
      answer.range_begin = number_or(value.substr(6), -1);
    if (!is_from_hub) return;
    if (name == "x-repo-commit") answer.commit = value;
    if (name == "x-linked-etag") answer.linked_etag = without_quotes(value);
    if (name == "x-linked-size") answer.linked_size = number_or(value, -1);
    if (name == "x-error-message") answer.error_message = cut_text(value, 200);
  }

  // Passes the head of a successful answer to the sink. Returns whether the transfer continues.
  bool begin() {
    if (has_begun) return true;
    has_begun = true;
    failure = sink->begin(answer);
    return !failure;
  }

  bool read_body(std::span<const std::byte> piece) {
    long status = 0;
    curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &status);
    answer.status = static_cast<int>(status);
    if (status != 200 && status != 206) {
      const size_t room = kMaxErrorBytes - std::min(error_body.size(), kMaxErrorBytes);
      error_body.append(reinterpret_cast<const char*>(piece.data()), std::min(room, piece.size()));
      return true;
    }
    if (!begin()) return false;
    failure = sink->add(piece);
    return !failure;
  }

  // Makes one request and follows no redirect. Sets answer.status; returns a failure if there is no answer.
  std::optional<Failure> perform(const std::string& url, int64_t range_begin) {
    is_from_hub = origin_of(url) == hub_origin;
    answer.status = 0;
    answer.range_begin = -1;
    answer.error_message.clear();
    error_body.clear();
    set(curl, CURLOPT_URL, url.c_str());
    set(curl, CURLOPT_HTTPHEADER, is_from_hub ? token_header : nullptr);
    const std::string range = fmt::format("{}-", range_begin);
    set(curl, CURLOPT_RANGE, range_begin > 0 ? range.c_str() : nullptr);
    const CURLcode code = curl_easy_perform(curl);
    if (stop.is_set()) return Failure{.status = {StatusCode::kCancelled, "interrupted"}};
    if (failure) return failure;
    if (code != CURLE_OK) {
      return Failure{
          .status = make_status(StatusCode::kInternal, "{}: {}", shown_url(url), curl_easy_strerror(code)),
          .is_transient = is_transient_error(code)};
    }
    long status = 0;
    curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &status);
    answer.status = static_cast<int>(status);
    return std::nullopt;
  }

  Failure refused(const std::string& url) {
    std::string said = answer.error_message.empty() ? parse_error_answer(error_body) : answer.error_message;
    if (!said.empty()) said = ": " + printable(cut_text(said, 200));
    curl_off_t retry_after = 0;
    curl_easy_getinfo(curl, CURLINFO_RETRY_AFTER, &retry_after);
    return Failure{.status = make_status(code_of(answer.status), "{}: HTTP status {}{}", shown_url(url),
                                         answer.status, said),
                   .is_transient = is_transient_status(answer.status),
                   .http_status = answer.status,
                   .retry_after_s = retry_after > 0 ? static_cast<int64_t>(retry_after) : -1};
  }
};

HttpClient::HttpClient(const HubAccess& access, const StopSignal& stop)
    : transfer_(std::make_unique<Transfer>(access, stop)) {}
HttpClient::~HttpClient() = default;

std::optional<Failure> HttpClient::get(const std::string& url, int64_t range_begin, BodySink& sink) {
  Transfer& transfer = *transfer_;
  transfer.sink = &sink;
  transfer.answer = {};
  transfer.has_begun = false;
  transfer.failure.reset();
  std::string at = url;
  for (int redirects = 0; redirects <= kMaxRedirects; ++redirects) {
    if (auto failure = transfer.perform(at, range_begin)) return failure;
    const int status = transfer.answer.status;
    if (status == 200 || status == 206) {
      if (!transfer.begin()) return transfer.failure;  // the body was empty
      return std::nullopt;
    }
    char* next = nullptr;
    curl_easy_getinfo(transfer.curl, CURLINFO_REDIRECT_URL, &next);
    if (next == nullptr) return transfer.refused(at);
    const std::string target = next;
    if (at.starts_with("https:") && !target.starts_with("https:")) {
      return Failure{.status = make_status(StatusCode::kInternal, "{}: leads to {}, which is not encrypted",
                                           shown_url(at), shown_url(target))};
    }
    at = target;
  }
  return Failure{.status = make_status(StatusCode::kInternal, "{}: leads through more than {} redirects",
                                       shown_url(url), kMaxRedirects)};
}

}  // namespace hadal::hub
