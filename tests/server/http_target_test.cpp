// Tests how the target of a request line is split into path and query.
#include "server/http/http_target.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>

namespace hadal::server {
namespace {

TEST(HttpTarget, HasADecodedPathAndTheQueryAsItWasSent) {
  const struct {
    std::string_view target, path, query;
  } cases[] = {
      {"/v1/models", "/v1/models", ""},
      {"/a%20b/%C3%A9?x=%20", "/a b/é", "x=%20"},
      {"/a?b?c", "/a", "b?c"},
      {"/a#f?b", "/a", ""},
      {"/a?b#f", "/a", "b"},
      {"http://host/a?b", "/a", "b"},
      {"https://host:1", "/", ""},
      {"http://host?b", "/", "b"},
      {"?b", "/", "b"},
      {"*", "*", ""},
  };
  for (const auto& one : cases) {
    const auto read = read_target(one.target);
    ASSERT_TRUE(read.ok()) << one.target;
    EXPECT_EQ(read->path, one.path) << one.target;
    EXPECT_EQ(read->query, one.query) << one.target;
  }
}

TEST(HttpTarget, AMalformedPathIsAnErrorThatShowsIt) {
  for (const std::string_view target :
       {"a", "ftp://host/a", "/%", "/%4", "/%zz", "/%00", "/a%0a", "/%ff", "**"}) {
    const auto read = read_target(target);
    ASSERT_FALSE(read.ok()) << target;
    EXPECT_TRUE(read.status().message.starts_with("the request's path is \"")) << read.status().message;
    EXPECT_NE(read.status().message.find(target), std::string::npos) << read.status().message;
  }
}

}  // namespace
}  // namespace hadal::server
