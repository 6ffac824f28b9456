#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "cli/flags/flag_parser.h"
#include "cli/flags/flag_values.h"
#include "cli/flags/foreign_names.h"
#include "cli/run.h"
#include "tests/cli/words.h"

namespace hadal::cli {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

TEST(WrongFlags, AreAllReportedInOneLine) {
  EXPECT_EQ(error_of(Command::kGenerate, "x --top-p 2 --jsno --prompt"),
            "(1) unknown flag --jsno; the nearest one is --json; (2) --prompt needs a value (write "
            "--prompt=VALUE if it begins with -); (3) --top-p 2: must be in [1e-30, 1]");
  EXPECT_EQ(error_of(Command::kGenerate, "x --top-p 2"), "--top-p 2: must be in [1e-30, 1]");
}

TEST(WrongFlags, ShareAReasonThatIsTheSame) {
  EXPECT_THAT(error_of(Command::kServe, "x --enable-dp-attention --moe-dense-tp-size 1"),
              HasSubstr("--enable-dp-attention, --moe-dense-tp-size: ranks share a model"));
}

TEST(WrongFlags, TheValuesOfAnUnknownFlagAreNoFaultsOfTheirOwn) {
  EXPECT_EQ(error_of(Command::kInfo, "--xyzzyxyzzy 4 5"),
            "unknown flag --xyzzyxyzzy; `hadal info --help` lists the flags");
}

TEST(WrongFlags, TheNearestFlagIsOneOfTheCommand) {
  EXPECT_THAT(error_of(Command::kServe, "x --prot 1"), HasSubstr("the nearest one is --port"));
  EXPECT_THAT(error_of(Command::kServe, "x --temprature 1"),
              HasSubstr("the nearest one is --temperature, which belongs to generate, chat"));
  EXPECT_THAT(error_of(Command::kServe, "x --trust-remot-code"),
              HasSubstr("the nearest one is --trust-remote-code"));
}

TEST(WrongFlags, NamesOfOtherEnginesSayWhatToUseHere) {
  for (const auto& [line, wanted] :
       {std::pair("-c 4096", "-c: is llama.cpp's name; use --context-length here"),
        {"--ctx_size 4096", "use --context-length here"},
        {"-ngl 99", "-ngl: is llama.cpp's; all layers run on the device"},
        {"--temp 1", "each request to the server has a field for it"},
        {"-m x", "use --model-path here"},
        {"--parallel 4", "use --max-running-requests here"},
        {"--max-model-len 4", "is vLLM's name; use --context-length here"},
        {"--gpu-memory-utilization 0.9", "use --mem-fraction-static here"},
        {"--max-num-seqs=4", "use --max-running-requests here"},
        {"--num-ctx 4096", "is Ollama's name; use --context-length here"},
        {"-n 3", "-n: is llama.cpp's; each request"}}) {
    EXPECT_THAT(error_of(Command::kServe, line), HasSubstr(wanted)) << line;
  }
  // If the name is the beginning of one of the command's flags, it means that flag.
  EXPECT_TRUE(parse_flags(Command::kGenerate, words_of("--temp 1")).ok());
  EXPECT_THAT(error_of(Command::kTokenize, "-ctk f16"),
              HasSubstr("is llama.cpp's name for --kv-cache-dtype, which belongs to serve, generate"));
}

TEST(ForeignNames, PointToFlagsThatExistAndStandInOneRow) {
  std::set<std::string_view> seen;
  for (const ForeignFlag& foreign : foreign_flags()) {
    EXPECT_FALSE(foreign.flag.empty() && foreign.text.empty()) << foreign.names;
    if (!foreign.flag.empty()) {
      const Flag* flag = find_flag(foreign.flag);
      ASSERT_NE(flag, nullptr) << foreign.names;
      EXPECT_EQ(flag->flag_class, FlagClass::kHonoured) << foreign.names;
    }
    for (const std::string_view name : split(foreign.names, " "))
      EXPECT_TRUE(seen.insert(name).second) << name << " is in two rows";
  }
}

TEST(ForeignNames, CommandsOfOtherEnginesSayWhatToUseHere) {
  for (const auto& [line, meant] : {std::pair("run deepseek-r1", "chat"),
                                    {"llama-server -m x", "serve"},
                                    {"bench serve", "bench serving"},
                                    {"bench throughput", "bench offline"},
                                    {"bench_one_batch_server", "bench serving"},
                                    {"gsm8k", "eval gsm8k"},
                                    {"gsm9k", "eval gsm8k"}}) {
    EXPECT_THAT(find_command(words_of(line)).status().message,
                HasSubstr(fmt::format("did you mean {}?", meant)))
        << line;
  }
  EXPECT_EQ(find_command(words_of("sglang.launch_server --tp 8"))->first, Command::kServe);
}

TEST(ModelPath, MayComeFirstWithoutItsFlag) {
  for (const auto& [command, line] : {std::pair(Command::kServe, "dir --port 1"),
                                      {Command::kTokenize, "dir"},
                                      {Command::kTuneMoe, "dir --output-dir x"}}) {
    const auto parsed = parse_flags(command, words_of(line));
    ASSERT_TRUE(parsed.ok()) << line << ": " << parsed.status().message;
    EXPECT_EQ(parsed->text("model-path"), "dir") << line;
  }
  EXPECT_THAT(error_of(Command::kServe, "--port 1 dir"),
              HasSubstr("unexpected argument 'dir'; all arguments but the model, which may come first"));
  EXPECT_THAT(error_of(Command::kServe, "dir --model other"),
              HasSubstr("'dir' and --model other both name the model"));
  // In these commands the flag names a model of the server, and a first word may be anything.
  EXPECT_THAT(error_of(Command::kBenchServing, "dir"), HasSubstr("unexpected argument 'dir'"));
  EXPECT_EQ(*find_command(words_of("eval ./dir --data F")), std::pair(Command::kEval, size_t{1}));
}

TEST(ChatTemplate, PathsAreLeftToTheModelAndWordsAreNot) {
  EXPECT_TRUE(parse_flags(Command::kServe, words_of("x --chat-template ./my.jinja")).ok());
  EXPECT_THAT(error_of(Command::kServe, "x --chat-template chatml"),
              AllOf(HasSubstr("must be one of v2, v2.5, r1, v3.1, v3.2"), Not(HasSubstr("did you mean"))));
}

}  // namespace
}  // namespace hadal::cli
