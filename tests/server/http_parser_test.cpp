#include "server/http/http_parser.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace hadal::server {
namespace {

using State = HttpRequestParser::State;

constexpr size_t kHeaderLimit = 4096;
constexpr size_t kBodyLimit = 1000;

// Feeds `wire` in pieces that end at the given places, as a connection would: unread bytes are kept.
State feed_in_pieces(HttpRequestParser& parser, std::string_view wire, const std::vector<size_t>& ends) {
  std::string waiting;
  size_t begin = 0;
  for (size_t end : ends) {
    waiting.append(wire.substr(begin, end - begin));
    begin = end;
    waiting.erase(0, parser.feed(waiting));
    if (parser.state() != State::kNeedMore) break;
  }
  return parser.state();
}

State feed_whole(HttpRequestParser& parser, std::string_view wire) {
  return feed_in_pieces(parser, wire, {wire.size()});
}

const std::string kWithLength =
    "POST /v1/a%20b?x=1&y=%20 HTTP/1.1\r\nHost: h\r\nX-Two:  spaced \r\nContent-Length: 11\r\n\r\nhello "
    "world";
const std::string kChunked =
    "POST /v1/a%20b?x=1&y=%20 HTTP/1.1\r\nHost: h\r\nX-Two: spaced\r\nTransfer-Encoding: chunked\r\n\r\n"
    "5;ext=1\r\nhello\r\n6\r\n world\r\n0\r\nTrailer: t\r\n\r\n";

std::string repeated(int n, const std::string& text) {
  std::string out;
  for (int i = 0; i < n; ++i) out += text;
  return out;
}

void expect_whole(HttpRequestParser& parser) {
  const HttpRequest& request = parser.request();
  EXPECT_EQ(request.method, "POST");
  EXPECT_EQ(request.path, "/v1/a b");
  EXPECT_EQ(request.query, "x=1&y=%20");
  EXPECT_EQ(request.header("host"), "h");
  EXPECT_EQ(request.header("x-two"), "spaced");
  EXPECT_FALSE(request.header("trailer").has_value());
  EXPECT_EQ(request.body, "hello world");
  EXPECT_TRUE(parser.http11());
  EXPECT_TRUE(parser.keep_alive());
}

TEST(HttpParser, AnEmptyChunkedBodyMayArriveByteByByte) {
  const std::string head = "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n";
  for (const std::string end : {"0\r\n\r\n", "0\r\nA: b\r\n\r\n", "1\r\n0\r\n0\r\n\r\n"}) {
    const std::string wire = head + end;
    std::vector<size_t> every;
    for (size_t cut = 1; cut <= wire.size(); ++cut) every.push_back(cut);
    HttpRequestParser parser(kHeaderLimit, kBodyLimit);
    ASSERT_EQ(feed_in_pieces(parser, wire, every), State::kComplete) << end << parser.error_message();
    EXPECT_EQ(parser.request().body, end.starts_with("1") ? "0" : "");
  }
}

TEST(HttpParser, GivesTheSameRequestCutAtEveryByte) {
  for (const std::string& wire : {kWithLength, kChunked}) {
    std::vector<size_t> every;
    for (size_t cut = 1; cut <= wire.size(); ++cut) every.push_back(cut);
    HttpRequestParser one_by_one(kHeaderLimit, kBodyLimit);
    ASSERT_EQ(feed_in_pieces(one_by_one, wire, every), State::kComplete) << one_by_one.error_message();
    expect_whole(one_by_one);
    for (size_t cut = 1; cut < wire.size(); ++cut) {
      HttpRequestParser parser(kHeaderLimit, kBodyLimit);
      ASSERT_EQ(feed_in_pieces(parser, wire, {cut, wire.size()}), State::kComplete)
          << cut << " " << parser.error_message();
      expect_whole(parser);
    }
  }
}

TEST(HttpParser, DoesNotReadTheNextRequest) {
  HttpRequestParser parser(kHeaderLimit, kBodyLimit);
  const std::string wire = kWithLength + "\r\n" + kChunked;
  size_t used = parser.feed(wire);
  EXPECT_EQ(used, kWithLength.size());
  ASSERT_EQ(parser.state(), State::kComplete);
  parser.reset();
  EXPECT_FALSE(parser.started());
  used += parser.feed(std::string_view(wire).substr(used));
  EXPECT_EQ(used, wire.size());
  ASSERT_EQ(parser.state(), State::kComplete);
  expect_whole(parser);
}

TEST(HttpParser, RefusesMalformedRequestsWithTheRightStatus) {
  const std::string head = "GET / HTTP/1.1\r\nHost: h\r\n";
  const struct {
    const char* what;
    std::string wire;
    int status;
  } cases[] = {
      {"binary", std::string("\x16\x03\x01\x02", 4), 400},
      {"no version", "GET /\r\n\r\n", 400},
      {"HTTP/2 preface", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400},
      {"future version", "GET / HTTP/1.2\r\n\r\n", 400},
      {"bare line feeds", "GET / HTTP/1.1\nHost: h\n\n", 400},
      {"space before colon", head + "A : b\r\n\r\n", 400},
      {"no colon", head + "nonsense\r\n\r\n", 400},
      {"no host", "GET / HTTP/1.1\r\n\r\n", 400},
      {"two hosts", head + "Host: i\r\n\r\n", 400},
      {"two keys", head + "Authorization: Bearer a\r\nAUTHORIZATION: Bearer a\r\n\r\n", 400},
      {"two keys of Anthropic's form", head + "x-api-key: a\r\nX-Api-Key: a\r\n\r\n", 400},
      {"empty lines without an end", repeated(kHeaderLimit / 2 + 1, "\r\n"), 431},
      {"empty lines and headers together",
       repeated(kHeaderLimit / 4, "\r\n") + head + "A: " + std::string(kHeaderLimit / 2, 'a') + "\r\n\r\n",
       431},
      {"bad escape", "GET /%zz HTTP/1.1\r\nHost: h\r\n\r\n", 400},
      {"no UTF-8", "GET /%ff HTTP/1.1\r\nHost: h\r\n\r\n", 400},
      {"cut escape", "GET /%4 HTTP/1.1\r\nHost: h\r\n\r\n", 400},
      {"escaped NUL", "GET /%00 HTTP/1.1\r\nHost: h\r\n\r\n", 400},
      {"escaped line feed", "GET /a%0ab HTTP/1.1\r\nHost: h\r\n\r\n", 400},
      {"relative path", "GET a HTTP/1.1\r\nHost: h\r\n\r\n", 400},
      {"NUL in a value", head + std::string("A: b\0c\r\n\r\n", 10), 400},
      {"proxy", "CONNECT h:443 HTTP/1.1\r\nHost: h\r\n\r\n", 501},
      {"negative length", head + "Content-Length: -1\r\n\r\n", 400},
      {"length with sign", head + "Content-Length: +1\r\n\r\n", 400},
      {"huge length", head + "Content-Length: 99999999999999999999999\r\n\r\n", 400},
      {"two lengths", head + "Content-Length: 1\r\nContent-Length: 2\r\n\r\n", 400},
      {"length and chunked", head + "Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", 400},
      {"chunked and length", head + "Transfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n", 400},
      {"chunked twice", head + "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n", 400},
      {"gzip", head + "Transfer-Encoding: gzip\r\n\r\n", 501},
      {"gzip, chunked", head + "Transfer-Encoding: gzip, chunked\r\n\r\n", 501},
      {"chunked in 1.0", "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", 400},
      {"expectation", head + "Expect: 200-maybe\r\n\r\n", 417},
      {"body too long", head + "Content-Length: 1001\r\n\r\n", 413},
      {"chunk not hex", head + "Transfer-Encoding: chunked\r\n\r\nxyz\r\n", 400},
      {"chunk size overflows", head + "Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n", 400},
      {"chunk without end", head + "Transfer-Encoding: chunked\r\n\r\n1\r\nabc\r\n", 400},
      {"chunk too long", head + "Transfer-Encoding: chunked\r\n\r\n3e9\r\n", 413},
      {"chunks too long together",
       head + "Transfer-Encoding: chunked\r\n\r\n3e8\r\n" + std::string(1000, 'x') + "\r\n1\r\n", 413},
      {"endless chunk extension",
       head + "Transfer-Encoding: chunked\r\n\r\n1;" + std::string(2 * kHeaderLimit, 'e'), 400},
      {"long chunk extensions together",
       head + "Transfer-Encoding: chunked\r\n\r\n" + repeated(20, "1;" + std::string(250, 'e') + "\r\na\r\n"),
       400},
      {"zeros before the sizes of chunks",
       head + "Transfer-Encoding: chunked\r\n\r\n" + repeated(20, repeated(250, "0") + "1\r\na\r\n"), 400},
      {"bare line feed after a chunk's size", head + "Transfer-Encoding: chunked\r\n\r\n5\nabcde", 400},
      {"bare line feed after a chunk's extension", head + "Transfer-Encoding: chunked\r\n\r\n5;a=b\n", 400},
      {"bare line feed after a chunk", head + "Transfer-Encoding: chunked\r\n\r\n1\r\na\n0\r\n\r\n", 400},
      {"bare line feed after a later size", head + "Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n2\nbc", 400},
      {"bare line feeds after the last chunk", head + "Transfer-Encoding: chunked\r\n\r\n0\n\n", 400},
      {"bare line feed after a trailer", head + "Transfer-Encoding: chunked\r\n\r\n0\r\nA: b\n", 400},
      {"long trailers",
       head + "Transfer-Encoding: chunked\r\n\r\n0\r\n" + repeated(500, "A: 12345\r\n") + "\r\n", 400},
      {"folded value", head + "A: b\r\n c\r\n\r\n", 400},
      {"folded before the value", head + "A:\r\n b\r\n\r\n", 400},
      {"folded before an empty value", head + "A:\r\n\t\r\n\r\n", 400},
      {"folded after the value", head + "A: b\r\n \r\n\r\n", 400},
      {"folded trailer", head + "Transfer-Encoding: chunked\r\n\r\n0\r\nA: b\r\n c\r\n\r\n", 400},
      {"spaces around values", head + repeated(20, "A:" + std::string(250, ' ') + "b\r\n") + "\r\n", 431},
      {"long target", "GET /" + std::string(kHeaderLimit, 'a'), 431},
      {"long header", head + "A: " + std::string(kHeaderLimit, 'a'), 431},
      {"complete long header", head + "A: " + std::string(kHeaderLimit, 'a') + "\r\n\r\n", 431},
  };
  for (const auto& c : cases) {
    HttpRequestParser parser(kHeaderLimit, kBodyLimit);
    EXPECT_EQ(feed_whole(parser, c.wire), State::kFailed) << c.what;
    EXPECT_EQ(parser.error_status(), c.status) << c.what << ": " << parser.error_message();
    EXPECT_FALSE(parser.error_message().empty()) << c.what;
    // Feeding byte by byte ends the same way.
    HttpRequestParser slow(kHeaderLimit, kBodyLimit);
    std::vector<size_t> every;
    for (size_t cut = 1; cut <= c.wire.size(); ++cut) every.push_back(cut);
    EXPECT_EQ(feed_in_pieces(slow, c.wire, every), State::kFailed) << c.what;
    EXPECT_EQ(slow.error_status(), c.status) << c.what << ": " << slow.error_message();
  }
}

TEST(HttpParser, SaysWhatIsAllowedInsteadOfAMalformedRequest) {
  const std::string head = "GET / HTTP/1.1\r\nHost: h\r\n";
  const std::string chunked = head + "Transfer-Encoding: chunked\r\n\r\n";
  const struct {
    std::string wire;
    const char* says;
  } cases[] = {
      {"G@T / HTTP/1.1\r\n\r\n", "begin with its method"},
      {"GET  / HTTP/1.1\r\n\r\n", "followed by one space, a path without spaces"},
      {"GET / HTTP/2.0\r\n\r\n", "only HTTP/1.0 and HTTP/1.1"},
      {"GET / HTTP/1.1\n", "a line must end in CR LF"},
      {"GET /%zz HTTP/1.1\r\nHost: h\r\n\r\n",
       "path is \"/%zz\"; must begin with / and be UTF-8, with % only"},
      {"GET /" + repeated(100, "%") + " HTTP/1.1\r\nHost: h\r\n\r\n", "%%%…\"; must begin with /"},
      {head + "A : b\r\n\r\n", "a name without spaces, a colon and a value"},
      {head + std::string("A: b\0c\r\n\r\n", 10), "a header's value must have no control characters"},
      {head + "A: b\r\n c\r\n\r\n", "several lines (obs-fold)"},
      {head + "Authorization: a\r\nAuthorization: b\r\n\r\n", "more than one Authorization header"},
      {head + "x-api-key: a\r\nX-API-Key: b\r\n\r\n", "more than one x-api-key header"},
      {head + "Host: i\r\n\r\n", "Host is \"h\" and \"i\"; more than one Host header is not allowed"},
      {head + "Content-Length: -1\r\n\r\n",
       "Content-Length is \"-1\"; must be one decimal number below 2^64"},
      {head + "content-length:  \"\xff\" \r\n\r\n", "Content-Length is \"\"\\xff\"\"; must be one decimal"},
      {head + "Content-Length: " + repeated(100, "9") + "\r\n\r\n", "999…\"; must be one decimal number"},
      {head + "Content-Length: 1\r\nContent-Length: 2\r\n\r\n",
       "Content-Length is \"1\" and \"2\"; must be one decimal number below 2^64, and not more than one"},
      {head + "Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
       "Transfer-Encoding is \"chunked\" and Content-Length is \"1\"; must be \"chunked\", once and without "
       "a "
       "Content-Length"},
      {head + "Content-Length: 1001\r\n\r\n",
       "Content-Length is 1001: the request's body exceeds 1000 bytes"},
      {head + "Transfer-Encoding: gzip\r\n\r\n", "Transfer-Encoding is \"gzip\"; must be \"chunked\""},
      {head + "Expect: 200-maybe\r\n\r\n", "Expect is \"200-maybe\"; must be \"100-continue\""},
      {chunked + "5\nabcde", "a line must end in CR LF"},
      {chunked + "xyz\r\n", "its size in hexadecimal digits"},
      {chunked + "1\r\nabc\r\n", "as many bytes as its size says"},
      {chunked + "1;=\r\na\r\n", ";name or ;name=value"},
      {repeated(kHeaderLimit, "\r\n"), "empty lines before a request exceed 4096 bytes"},
  };
  for (const auto& c : cases) {
    HttpRequestParser parser(kHeaderLimit, kBodyLimit);
    EXPECT_EQ(feed_whole(parser, c.wire), State::kFailed) << c.wire;
    EXPECT_NE(parser.error_message().find(c.says), std::string::npos) << parser.error_message();
  }
}

TEST(HttpParser, MoreThanOneEmptyLineBeginsARequest) {
  HttpRequestParser parser(kHeaderLimit, kBodyLimit);
  EXPECT_EQ(parser.feed("\r\n"), 2U);
  EXPECT_FALSE(parser.started()) << "some clients end a body with an empty line";
  EXPECT_EQ(parser.feed("\r"), 1U);
  EXPECT_TRUE(parser.started());
  EXPECT_EQ(feed_whole(parser, "\n\r\n" + kWithLength), State::kComplete) << parser.error_message();
  expect_whole(parser);
  parser.reset();
  EXPECT_FALSE(parser.started());
}

TEST(HttpParser, CountsAllHeadersTogether) {
  std::string many = "GET / HTTP/1.1\r\nHost: h\r\n";
  for (int i = 0; i < 500; ++i) many += "A: 0123456789\r\n";
  HttpRequestParser parser(kHeaderLimit, kBodyLimit);
  EXPECT_EQ(feed_whole(parser, many + "\r\n"), State::kFailed);
  EXPECT_EQ(parser.error_status(), 431);
  HttpRequestParser roomy(1 << 20, kBodyLimit);
  EXPECT_EQ(feed_whole(roomy, many + "\r\n"), State::kComplete);
  std::string very_many = many;
  for (int i = 0; i < 600; ++i) very_many += "B: 1\r\n";
  HttpRequestParser counted(1 << 20, kBodyLimit);
  EXPECT_EQ(feed_whole(counted, very_many + "\r\n"), State::kFailed);
  EXPECT_EQ(counted.error_status(), 431);
}

TEST(HttpParser, ListsOfARequestHave64EntriesAtMost) {
  const auto list = [](int entries) { return repeated(entries - 1, "a,") + "close"; };
  const std::string head = "POST / HTTP/1.1\r\nHost: h\r\nAccept: " + repeated(200, "a,") + "\r\n";
  const std::string body = "Content-Length: 12\r\n\r\nConnection: ";
  std::vector<size_t> every;
  for (size_t cut = 1; cut <= kHeaderLimit; ++cut) every.push_back(cut);
  for (const std::string& lists :
       {"Connection: " + list(63), "Connection: " + list(40) + "\r\nConnection: " + list(23)}) {
    const std::string wire = head + lists + "\r\n" + body + repeated(200, ",") + "\r\n";
    for (const std::vector<size_t>& ends : {std::vector<size_t>{wire.size()}, every}) {
      HttpRequestParser parser(kHeaderLimit, kBodyLimit);
      ASSERT_EQ(feed_in_pieces(parser, wire, ends), State::kComplete) << parser.error_message();
      EXPECT_EQ(parser.request().body, "Connection: ");
      EXPECT_FALSE(parser.keep_alive()) << "the last entry counts";
    }
  }
  const std::string twelves = "12" + repeated(64, ",12");
  for (const std::string& lists :
       {"Connection: " + list(65), "proxy-CONNECTION:" + list(65), "Content-Length: " + twelves,
        "Transfer-Encoding: " + list(65), "Connection: " + list(40) + "\r\nConnection: " + list(25),
        "Connection: " + repeated(33, "a,\r\n b,") + "close"}) {
    const std::string wire = head + lists + "\r\n" + body;
    for (const std::vector<size_t>& ends : {std::vector<size_t>{wire.size()}, every}) {
      HttpRequestParser parser(kHeaderLimit, kBodyLimit);
      EXPECT_EQ(feed_in_pieces(parser, wire, ends), State::kFailed) << lists;
      EXPECT_EQ(parser.error_status(), 400);
      EXPECT_NE(parser.error_message().find("request's lists to 65 entries; at most 64"), std::string::npos)
          << parser.error_message();
    }
  }
  HttpRequestParser parser(1 << 20, kBodyLimit);
  EXPECT_EQ(feed_whole(parser, head + "Connection: " + list(30'000) + "\r\n\r\n"), State::kFailed);
  EXPECT_EQ(parser.error_message(),
            "Connection brings the request's lists to 30000 entries; at most 64 are allowed");
}

TEST(HttpParser, UnderstandsAbsoluteTargetsAndHttp10) {
  HttpRequestParser parser(kHeaderLimit, kBodyLimit);
  ASSERT_EQ(feed_whole(parser, "GET http://h:1/a?b HTTP/1.0\r\n\r\n"), State::kComplete)
      << parser.error_message();
  EXPECT_EQ(parser.request().path, "/a");
  EXPECT_EQ(parser.request().query, "b");
  EXPECT_FALSE(parser.http11());
  EXPECT_FALSE(parser.keep_alive());
  parser.reset();
  ASSERT_EQ(feed_whole(parser, "GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"), State::kComplete);
  EXPECT_TRUE(parser.keep_alive());
  parser.reset();
  ASSERT_EQ(feed_whole(parser, "GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"), State::kComplete);
  EXPECT_FALSE(parser.keep_alive());
}

TEST(HttpParser, SendsContinueOnceAndOnlyBeforeTheBody) {
  const std::string head = "POST / HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n";
  HttpRequestParser parser(kHeaderLimit, kBodyLimit);
  EXPECT_EQ(feed_whole(parser, head), State::kNeedMore);
  EXPECT_TRUE(parser.take_expect_continue());
  EXPECT_FALSE(parser.take_expect_continue());
  EXPECT_EQ(feed_whole(parser, "abc"), State::kComplete);
  HttpRequestParser eager(kHeaderLimit, kBodyLimit);
  EXPECT_EQ(feed_whole(eager, head + "a"), State::kNeedMore);
  EXPECT_FALSE(eager.take_expect_continue());
}

TEST(HttpParser, AnyNumberOfSmallChunksIsAllowed) {
  HttpRequestParser parser(kHeaderLimit, 100'000);
  const std::string wire = "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n" +
                           repeated(50'000, "1\r\na\r\n") + repeated(10, "10\r\n0123456789abcdef\r\n") +
                           "0\r\nA: b\r\n\r\n";
  ASSERT_EQ(feed_whole(parser, wire), State::kComplete) << parser.error_message();
  EXPECT_EQ(parser.request().body.size(), 50'160U);
}

TEST(HttpParser, ABodyThatIsNotWantedIsNotRead) {
  HttpRequestParser parser(kHeaderLimit, kBodyLimit, {.on_headers = [](const HttpRequest&) {
                             return HttpRequestParser::BodyRule{.read = false};
                           }});
  const std::string head = "POST / HTTP/1.1\r\nHost: h\r\n";
  for (const std::string& with_body :
       {head + "Content-Length: 1\r\n\r\n", head + "Content-Length: 99999999999\r\n\r\n",
        head + "Transfer-Encoding: chunked\r\n\r\n",
        head + "Expect: 100-continue\r\nContent-Length: 5\r\n\r\n"}) {
    EXPECT_EQ(parser.feed(with_body + "body"), with_body.size());
    EXPECT_EQ(parser.state(), State::kComplete) << with_body;
    EXPECT_FALSE(parser.keep_alive()) << with_body;
    parser.reset();
  }
  for (const std::string& without : {head + "\r\n", head + "Content-Length: 0\r\n\r\n"}) {
    EXPECT_EQ(feed_whole(parser, without), State::kComplete) << without;
    EXPECT_TRUE(parser.keep_alive()) << without;
    parser.reset();
  }
}

}  // namespace
}  // namespace hadal::server
