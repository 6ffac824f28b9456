#include "cli/flags/config_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "cli/flags/flag_parser.h"

namespace hadal::cli {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Parses a command line together with a file of this text.
Result<ParsedFlags> parse_with_file(Command command, const std::string& yaml,
                                    std::vector<std::string> words) {
  auto file = parse_config(yaml, "f.yaml");
  if (!file.ok()) return file.status();
  return parse_flags(command, words, *file);
}

std::string file_error(const std::string& yaml, std::vector<std::string> words = {}) {
  const auto parsed = parse_with_file(Command::kServe, yaml, std::move(words));
  EXPECT_FALSE(parsed.ok()) << yaml;
  if (parsed.ok()) return "";
  EXPECT_EQ(parsed.status().code, StatusCode::kInvalidArgument);
  EXPECT_EQ(parsed.status().message.find('\n'), std::string::npos) << "one line";
  return parsed.status().message;
}

TEST(ConfigFile, KeysAreNamesOfFlagsInAnySpelling) {
  const auto parsed = parse_with_file(Command::kServe,
                                      "# a server\n"
                                      "model-path: deepseek-ai/DeepSeek-V3  # the model\n"
                                      "tp_size: 8\n"
                                      "max-run: 64\n"
                                      "mem-fraction-static: 0.85\n"
                                      "trust-remote-code: true\n"
                                      "enable-metrics: true\n"
                                      "log-requests: false\n"
                                      "json-model-override-args: '{\"num_hidden_layers\": 4}'\n"
                                      "cuda-graph-bs: [1, 2, 4]\n",
                                      {});
  ASSERT_TRUE(parsed.ok()) << parsed.status().message;
  EXPECT_EQ(parsed->text("model-path"), "deepseek-ai/DeepSeek-V3");
  EXPECT_EQ(parsed->integer("tp-size"), 8);
  EXPECT_EQ(parsed->integer("max-running-requests"), 64);
  EXPECT_EQ(parsed->number("mem-fraction-static"), 0.85);
  EXPECT_TRUE(parsed->has("enable-metrics"));
  EXPECT_FALSE(parsed->has("log-requests"));
  EXPECT_EQ(parsed->text("json-model-override-args"), "{\"num_hidden_layers\": 4}");
  EXPECT_THAT(parsed->texts("cuda-graph-bs-decode"), ElementsAre("1", "2", "4"));
  EXPECT_THAT(parsed->notes, ElementsAre(HasSubstr("f.yaml:6: trust-remote-code")));
}

TEST(ConfigFile, FlagsOfTheCommandLineWin) {
  const auto parsed = parse_with_file(Command::kGenerate, "model-path: a\nstop: [x, y]\ntop-k: 3\nseed: 1\n",
                                      {"b", "--stop", "z", "--top-k=4"});
  ASSERT_TRUE(parsed.ok()) << parsed.status().message;
  EXPECT_EQ(parsed->text("model-path"), "b");
  EXPECT_THAT(parsed->texts("stop"), ElementsAre("z"));
  EXPECT_EQ(parsed->integer("top-k"), 4);
  EXPECT_EQ(parsed->integer("seed"), 1);
}

TEST(ConfigFile, ErrorsNameFileLineAndKey) {
  EXPECT_EQ(file_error("\nport: 99999\n"), "f.yaml:2: port 99999: must be in [0, 65535]");
  EXPECT_EQ(file_error("port: 1\nprot: 2\n"), "f.yaml:2: unknown flag --prot; the nearest one is --port");
  EXPECT_EQ(file_error("enable-metrics: 3\n"),
            "f.yaml:1: enable-metrics 3: is a switch; must be true or false");
  EXPECT_EQ(file_error("host: [a, b]\n"), "f.yaml:1: host: is a list; must be one value");
  EXPECT_EQ(file_error("port: 1\nport: 2\n"), "f.yaml:2: port: appears twice, first at f.yaml:1");
  EXPECT_EQ(file_error("port:\n"), "f.yaml:1: port: has no value; remove the key, or write a value");
  EXPECT_THAT(file_error("port: {a: 1}\n"), HasSubstr("f.yaml:1: port: is a mapping; must be a text"));
  EXPECT_THAT(file_error("port: [1, [2]]\n"),
              HasSubstr("f.yaml:1: port: item 2 is a list; must be a text or a number"));
  EXPECT_THAT(file_error("port: []\n"), HasSubstr("f.yaml:1: port: the list is empty"));
  EXPECT_THAT(file_error("- port\n"), HasSubstr("f.yaml:1: must be a mapping of flags to values"));
  EXPECT_THAT(file_error("port: 1\n  host: [\n"), HasSubstr("f.yaml:2: is not YAML: "));
  EXPECT_THAT(file_error("a: 1\n---\nb: 2\n"), HasSubstr("f.yaml: has 2 documents; must have one"));
  EXPECT_THAT(file_error("config: other.yaml\n"),
              HasSubstr("f.yaml:1: config: a file cannot name another one"));
  EXPECT_THAT(file_error("prompt: x\n"), HasSubstr("f.yaml:1: --prompt does not apply to `hadal serve`"));
}

TEST(ConfigFile, ItsFaultsAreReportedWithThoseOfTheCommandLine) {
  EXPECT_EQ(
      file_error("port: 99999\n", {"--stream-interval", "0x"}),
      "(1) f.yaml:1: port 99999: must be in [0, 65535]; (2) --stream-interval 0x: must be a whole number");
}

TEST(ConfigFile, AllFaultsOfAFileAreReportedAtOnce) {
  EXPECT_EQ(
      file_error("port:\nprot: 2\nhost: [a, b]\nstream-interval: {a: 1}\nlog-level: loud\nport: 5\n",
                 {"--chunked-prefill-size", "x"}),
      "(1) f.yaml:1: port: has no value; remove the key, or write a value; "
      "(2) f.yaml:2: unknown flag --prot; the nearest one is --port; "
      "(3) f.yaml:3: host: is a list; must be one value; "
      "(4) f.yaml:4: stream-interval: is a mapping; must be a text, a number, true, false or a list (write "
      "JSON as a quoted text); "
      "(5) f.yaml:6: port: appears twice, first at f.yaml:1; "
      "(6) f.yaml:5: log-level loud: must be one of debug, info, warning, error, critical, off; "
      "(7) --chunked-prefill-size x: must be a whole number");
}

TEST(ConfigFile, AnEmptyFileHasNoEntries) {
  for (const char* text : {"", "# nothing\n", "---\n"}) {
    const auto entries = parse_config(text, "f.yaml");
    ASSERT_TRUE(entries.ok()) << text << entries.status().message;
    EXPECT_TRUE(entries->empty());
  }
}

TEST(ConfigPath, IsTheLastOneUnlessHelpIsAskedFor) {
  const std::vector<std::string> words = {"--config", "a", "--config=b"};
  EXPECT_EQ(config_path(Command::kServe, words), "b");
  const std::vector<std::string> help = {"--config", "a", "--help"};
  EXPECT_EQ(config_path(Command::kServe, help), std::nullopt);
}

TEST(ReadConfigFile, NamesAFileThatIsNotThere) {
  EXPECT_THAT(read_config_file("/nonexistent.yaml").status().message,
              HasSubstr("--config /nonexistent.yaml: no such file"));
}

}  // namespace
}  // namespace hadal::cli
