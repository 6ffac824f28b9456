#include "cli/flags/flag_parser.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "cli/run.h"
#include "cli/speculation_options.h"
#include "tests/cli/words.h"

namespace hadal::cli {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

// Returns the names that a command line resolves to.
std::vector<std::string> resolved(Command command, const std::string& line) {
  const auto uses = resolve_flags(command, words_of(line));
  EXPECT_TRUE(uses.ok()) << line << ": " << (uses.ok() ? "" : uses.status().message);
  std::vector<std::string> names;
  if (!uses.ok()) return names;
  for (const FlagUse& use : *uses) names.push_back(use.flag->name);
  return names;
}

ParsedFlags parse(Command command, const std::string& line) {
  auto parsed = parse_flags(command, words_of(line));
  EXPECT_TRUE(parsed.ok()) << line << ": " << (parsed.ok() ? "" : parsed.status().message);
  return parsed.ok() ? std::move(parsed).value() : ParsedFlags();
}

TEST(PublishedCommandLines, ServerLinesResolve) {
  EXPECT_THAT(resolved(Command::kNone,
                       "--model deepseek-ai/DeepSeek-Coder-V2-Instruct --tp 8 --trust-remote-code "
                       "--enable-torch-compile --max-torch-compile-bs 1"),
              ElementsAre("model-path", "tp-size", "trust-remote-code", "enable-torch-compile",
                          "torch-compile-max-bs"));
  EXPECT_THAT(resolved(Command::kNone, "--kv-cache-dtype fp8_e5m2"), ElementsAre("kv-cache-dtype"));
  EXPECT_THAT(
      resolved(Command::kNone,
               "--speculative-algo NEXTN --speculative-draft SGLang/DeepSeek-V3-NextN "
               "--speculative-num-steps 2 --speculative-eagle-topk 4 --speculative-num-draft-tokens 4"),
      ElementsAre("speculative-algorithm", "speculative-draft-model-path", "speculative-num-steps",
                  "speculative-eagle-topk", "speculative-num-draft-tokens"));
  EXPECT_THAT(resolved(Command::kNone, "--tp 8 --dp 8 --enable-dp-attention"),
              ElementsAre("tp-size", "dp-size", "enable-dp-attention"));
  EXPECT_THAT(resolved(Command::kNone, "--disable-overlap-schedule"),
              ElementsAre("disable-overlap-schedule"));
  EXPECT_THAT(resolved(Command::kNone,
                       "--nsa-prefill flashmla_sparse --nsa-decode fa3 --cuda-graph-bs 1 2 4 --port 3"),
              ElementsAre("dsa-prefill-backend", "dsa-decode-backend", "cuda-graph-bs-decode", "port"));
}

TEST(SpeculationFlags, TheWidthFollowsFromStepsAndTopK) {
  const auto width = [](const std::string& line) {
    return speculation_width(parse(Command::kGenerate, line));
  };
  EXPECT_EQ(width(""), 0);
  EXPECT_EQ(width("--speculative-algo NEXTN"), 4);
  EXPECT_EQ(width("--speculative-algo EAGLE --speculative-num-steps 1"), 2);
  // Only one token is drafted per position, so the number of draft tokens is --speculative-num-steps plus
  // one.
  EXPECT_EQ(width("--speculative-algo NEXTN --speculative-num-steps 5 --speculative-num-draft-tokens 2"), 6);
  // A tree has as many nodes as the flags say.
  const std::string tree = "--speculative-algo NEXTN --speculative-num-steps 3 --speculative-eagle-topk 4 ";
  for (const int nodes : {3, 8}) {
    const std::string line = tree + "--speculative-num-draft-tokens " + std::to_string(nodes);
    EXPECT_EQ(width(line), nodes);
    const ParsedFlags flags = parse(Command::kGenerate, line);
    EXPECT_EQ(draft_shape(flags).topk, 4);
    EXPECT_EQ(draft_shape(flags).num_steps, 3);
  }
  EXPECT_EQ(width(tree), 4);
}

TEST(SpeculationFlags, ATreeIsNoLargerThanItsStepsCanMakeIt) {
  const auto check = [](const std::string& nodes) {
    return check_speculation_flags(
        parse(Command::kGenerate,
              "--speculative-algo NEXTN --speculative-num-steps 2 --speculative-eagle-topk 2 "
              "--speculative-num-draft-tokens " +
                  nodes));
  };
  EXPECT_TRUE(check("7").ok());  // the root, two drafts and four after them
  EXPECT_THAT(check("8").status().message,
              ::testing::HasSubstr("--speculative-num-draft-tokens 8: allowed: at most 7"));
}

TEST(PublishedCommandLines, BenchLinesResolve) {
  const char* one_batch =
      "--batch-size 1 --input 256 --output 32 --torch-compile-max-bs 1 --cuda-graph-max-bs 1 "
      "--disable-cuda-graph";
  EXPECT_THAT(resolved(Command::kBenchOneBatch, std::string(one_batch) + " --profile"),
              ElementsAre("batch-size", "input-len", "output-len", "torch-compile-max-bs",
                          "cuda-graph-max-bs-decode", "disable-cuda-graph", "profile"));
  const ParsedFlags flags = parse(Command::kBenchOneBatch, one_batch);
  EXPECT_EQ(flags.text("input-len"), "256");
  EXPECT_EQ(flags.text("output-len"), "32");
  EXPECT_EQ(flags.notes.size(), 2U);  // because --disable-cuda-graph has an effect
  EXPECT_THAT(resolved(Command::kNone,
                       "--backend sglang --dataset-name random --random-input 256 --random-output 32 "
                       "--random-range-ratio 1 --num-prompts 1 --host 127.0.0.1 --port 30000"),
              ElementsAre("backend", "dataset-name", "random-input-len", "random-output-len",
                          "random-range-ratio", "num-prompts", "host", "port"));
}

TEST(PublishedCommandLines, SayWhatThisBuildCannotDo) {
  EXPECT_THAT(
      error_of(Command::kGenerate, "--model x --dp 8 --trust-remote-code"),
      HasSubstr("--dp 8: only 1 is possible here: ranks share a model by --tp-size and --ep-size alone"));
  EXPECT_THAT(error_of(Command::kGenerate, "--enable-dp-attention"),
              HasSubstr("by --tp-size and --ep-size alone"));
  EXPECT_THAT(error_of(Command::kGenerate, "--speculative-algo EAGLE3"), HasSubstr("EAGLE3"));
  EXPECT_THAT(error_of(Command::kGenerate, "--speculative-accept-threshold-single 0.5"),
              HasSubstr("would change the output"));
  EXPECT_THAT(error_of(Command::kGenerate, "--port 30000"),
              HasSubstr("does not apply to `hadal generate`; it belongs to serve, bench serving"));
  EXPECT_THAT(error_of(Command::kLogits, "--mem-fraction-static 0.8"),
              HasSubstr("belongs to serve, generate"));
}

TEST(FlagParser, AcceptsFlagsWithoutEffectWithOneLineEach) {
  const ParsedFlags flags = parse(
      Command::kGenerate,
      "--model x --dp 1 --trust-remote-code --attention_backend fa3 --page-size 64 --enable-mixed-chunk");
  EXPECT_EQ(flags.text("model-path"), "x");
  ASSERT_EQ(flags.notes.size(), 5U);
  EXPECT_THAT(flags.notes[2], HasSubstr("--attention_backend value=fa3"));
  EXPECT_THAT(error_of(Command::kGenerate, "--page-size 16"), HasSubstr("64"));
}

TEST(FlagParser, ReadsTheSpellingsOfArgparse) {
  const ParsedFlags flags =
      parse(Command::kGenerate, "--max_new_tokens=7 --temp 0.5 --frequency-pen -1.5 -n 2");
  EXPECT_EQ(flags.integer("max-new-tokens"), 7);
  EXPECT_EQ(flags.number("temperature"), 0.5);
  EXPECT_EQ(flags.number("frequency-penalty"), -1.5);
  EXPECT_EQ(flags.integer("n"), 2);
  EXPECT_EQ(parse(Command::kGenerate, "--prompt=--x=1").text("prompt"), "--x=1");
  const std::vector<std::string> words = {"--prompt", "- a list", "--stop", "a", "--stop=--b"};
  const auto parsed = parse_flags(Command::kGenerate, words);
  ASSERT_TRUE(parsed.ok()) << parsed.status().message;
  EXPECT_EQ(parsed->text("prompt"), "- a list");
  EXPECT_THAT(parsed->texts("stop"), ElementsAre("a", "--b"));
  EXPECT_TRUE(parse(Command::kGenerate, "--nonsense --help").help);
  EXPECT_TRUE(parse(Command::kGenerate, "--prompt x -h").help);
  EXPECT_TRUE(parse(Command::kGenerate, "--json -h").help);
  EXPECT_EQ(parse(Command::kGenerate, "--prompt=-h").text("prompt"), "-h");
  for (const char* line : {"--prompt -h", "--prompt --help", "--prompt -n 3", "-n -h", "--input-ids -h"}) {
    EXPECT_THAT(error_of(Command::kGenerate, line), HasSubstr("needs a value")) << line;
  }
}

TEST(FlagParser, RefusesAFlagThatIsGivenAgain) {
  EXPECT_EQ(error_of(Command::kGenerate, "--prompt a --prompt b"),
            "--prompt b: --prompt a is given before it; must be given once");
  EXPECT_EQ(error_of(Command::kGenerate, "--tp 2 --tp-size 4"),
            "--tp-size 4: --tp 2 is given before it; must be given once");
  EXPECT_EQ(error_of(Command::kGenerate, "--input-ids 1 2 --input-ids 3"),
            "--input-ids 3: --input-ids 1 is given before it; must be given once");
  EXPECT_THAT(error_of(Command::kGenerate, "m --model-path n"),
              HasSubstr("'m' and --model-path n both name"));
  EXPECT_THAT(error_of(Command::kGenerate, "--model-path m --model n"),
              HasSubstr("--model n: --model-path m"));
  const ParsedFlags flags = parse(Command::kGenerate, "--json --json --stop a --stop b");
  EXPECT_TRUE(flags.has("json"));
  EXPECT_THAT(flags.texts("stop"), ElementsAre("a", "b"));
}

TEST(FlagParser, TheLastOneCountsInTheCommandsOfSglang) {
  const ParsedFlags flags = parse(Command::kServe, "--port 1 --tp 8 --port 2 --tp-size=4");
  EXPECT_EQ(flags.integer("port"), 2);
  EXPECT_EQ(flags.integer("tp-size"), 4);
  EXPECT_EQ(parse(Command::kBenchOneBatch, "--batch-size 1 2 --batch 8").texts("batch-size"),
            std::vector<std::string>{"8"});
  for (const Command command : {Command::kBenchServing, Command::kBenchOffline})
    EXPECT_EQ(parse(command, "--num-prompts 1 --num-prompts 2").integer("num-prompts"), 2);
}

TEST(FlagParser, NamesTheNearestFlag) {
  EXPECT_THAT(error_of(Command::kGenerate, "--max-new-token-s 3"),
              HasSubstr("the nearest one is --max-new-tokens"));
  EXPECT_THAT(error_of(Command::kGenerate, "--temprature 1"), HasSubstr("--temperature"));
  EXPECT_THAT(error_of(Command::kInfo, "--jsno"), HasSubstr("--json"));
  EXPECT_THAT(error_of(Command::kGenerate, "--xyzzyxyzzy"), HasSubstr("hadal generate --help"));
  EXPECT_THAT(error_of(Command::kTokenize, "--temperature 1"), HasSubstr("belongs to generate, chat"));
}

TEST(FlagParser, RefusesBadValuesByNameAndRange) {
  EXPECT_THAT(error_of(Command::kGenerate, "--top-p 1.5"), HasSubstr("--top-p 1.5: must be in [1e-30, 1]"));
  EXPECT_THAT(error_of(Command::kGenerate, "--top-p 0"), HasSubstr("[1e-30, 1]"));
  EXPECT_THAT(error_of(Command::kGenerate, "--temperature nan"), HasSubstr("must be a number"));
  EXPECT_THAT(error_of(Command::kGenerate, "--temperature -1"), HasSubstr("must be in [0, 1e+30]"));
  EXPECT_THAT(error_of(Command::kGenerate, "--temperature 1e308"), HasSubstr("1e308: must be in [0, 1e+30]"));
  EXPECT_THAT(error_of(Command::kGenerate, "--repetition-penalty 1e-45"),
              HasSubstr("1e-45: must be in [1e-30"));
  EXPECT_THAT(error_of(Command::kGenerate, "--max-new-tokens 3.5"), HasSubstr("whole number"));
  EXPECT_THAT(error_of(Command::kGenerate, "--presence-penalty 3"), HasSubstr("[-2, 2]"));
  EXPECT_THAT(error_of(Command::kGenerate, "--repetition-penalty 0"), HasSubstr("[1e-30, 2]"));
  EXPECT_THAT(error_of(Command::kGenerate, "--dtype bfloat61"), HasSubstr("did you mean bfloat16?"));
  EXPECT_THAT(error_of(Command::kGenerate, "--ignore-eos=1"), HasSubstr("takes no value"));
  EXPECT_THAT(error_of(Command::kGenerate, "--prompt"), HasSubstr("needs a value"));
  EXPECT_THAT(error_of(Command::kGenerate, "--prompt a b"), HasSubstr("unexpected argument 'b'"));
  EXPECT_THAT(error_of(Command::kGenerate, "--to 1"), HasSubstr("may stand for any of"));
  EXPECT_THAT(error_of(Command::kGenerate, "--context-length 1"),
              HasSubstr("--context-length 1: must be in [2, "));
}

TEST(FlagParser, RefusesNumbersOutOfRangeWithTheRange) {
  EXPECT_THAT(error_of(Command::kGenerate, "--seed 99999999999999999999"),
              HasSubstr("must be in [0, 9223372036854775807]"));
  EXPECT_EQ(parse(Command::kGenerate, "--seed 9223372036854775807").integer("seed"),
            std::numeric_limits<int64_t>::max());
  EXPECT_THAT(error_of(Command::kGenerate, "--max-new-tokens 99999999999999999999"),
              HasSubstr("must be in [0, 1000000000000]"));
  for (const char* value : {"inf", "-inf"}) {
    EXPECT_THAT(error_of(Command::kGenerate, std::string("--temperature ") + value),
                HasSubstr("must be a finite number"));
  }
  EXPECT_THAT(error_of(Command::kGenerate, "--chunked-prefill-size 0"), HasSubstr("must be -1 or in [1, "));
  EXPECT_THAT(error_of(Command::kGenerate, "--chunked-prefill-size -2"), HasSubstr("must be -1 or in [1, "));
  EXPECT_EQ(parse(Command::kGenerate, "--chunked-prefill-size -1").integer("chunked-prefill-size"), -1);
}

TEST(FlagParser, SuggestsAValueOnlyIfOneIsNear) {
  EXPECT_THAT(error_of(Command::kGenerate, "--kv-cache-dtype fp8"), HasSubstr("did you mean fp8_e4m3?"));
  EXPECT_THAT(error_of(Command::kGenerate, "--device gpu"), HasSubstr("did you mean cuda?"));
  EXPECT_THAT(error_of(Command::kGenerate, "--device cup"), HasSubstr("did you mean cpu?"));
  EXPECT_THAT(error_of(Command::kGenerate, "--log-level foo"),
              AllOf(HasSubstr("must be one of debug, info"), Not(HasSubstr("did you mean"))));
  EXPECT_THAT(error_of(Command::kGenerate, "--log-level inof"), HasSubstr("did you mean info?"));
  EXPECT_THAT(error_of(Command::kGenerate, "--log-level="),
              AllOf(HasSubstr("--log-level '': must be one of"), Not(HasSubstr("did you mean"))));
  EXPECT_THAT(error_of(Command::kGenerate, "--temperature="),
              HasSubstr("--temperature '': must be a number"));
}

TEST(FlagParser, TheCommandsOwnFlagsComeFirst) {
  // SGLang has --log-requests and --quantize-and-serve, which are refused here.
  EXPECT_THAT(resolved(Command::kInfo, "--log debug"), ElementsAre("log-level"));
  EXPECT_THAT(resolved(Command::kInfo, "--quant fp8 --max-to 9"),
              ElementsAre("quantization", "max-total-tokens"));
  EXPECT_THAT(error_of(Command::kGenerate, "--top 1"),
              HasSubstr("may stand for any of --top-k, --top-logprobs"));
  // The full name of another command's flag is not read as the beginning of one of this command's flags.
  for (const char* line : {"--stop x", "--chat", "--n 3", "--output x"}) {
    EXPECT_THAT(error_of(Command::kInfo, line), HasSubstr("does not apply to `hadal info`")) << line;
  }
  EXPECT_THAT(error_of(Command::kTokenize, "--n 3"), HasSubstr("does not apply to `hadal tokenize`"));
  EXPECT_THAT(resolved(Command::kBenchOneBatch, "--output 3"), ElementsAre("output-len"));
}

TEST(FlagParser, NamesTheEmptyItemOfAListOfIds) {
  for (const auto& [text, wanted] : {std::pair("1,,2", "x: item 2 is empty"),
                                     {"1,2,", "x: item 3 is empty"},
                                     {",1", "x: item 1 is empty"},
                                     {"[1, 2, , 3]", "x: item 3 is empty"}}) {
    const auto ids = parse_ids(text, "x");
    ASSERT_FALSE(ids.ok()) << text;
    EXPECT_THAT(ids.status().message, HasSubstr(wanted)) << text;
  }
  EXPECT_THAT(*parse_ids("1, 2 ,3 4", "x"), ElementsAre(1, 2, 3, 4));
}

TEST(FlagParser, ReadsIdsInEverySpelling) {
  for (const char* text : {"1,2,3", "[1, 2, 3]", " 1 2 3\n", "[1,2,3]\n"}) {
    const auto ids = parse_ids(text, "x");
    ASSERT_TRUE(ids.ok()) << text;
    EXPECT_THAT(*ids, ElementsAre(1, 2, 3)) << text;
  }
  for (const char* text : {"", "[]", "1,a", "-1", "[1,2", "1.5", "99999999999"}) {
    EXPECT_FALSE(parse_ids(text, "x").ok()) << text;
  }
}

TEST(FlagParser, ReadsListsOfCounts) {
  const ParsedFlags flags = parse(Command::kBenchOneBatch, "--batch-size 1,4 16 --input-len=8");
  EXPECT_THAT(*parse_counts(flags, "batch-size", {1}), ElementsAre(1, 4, 16));
  EXPECT_THAT(*parse_counts(flags, "input-len", {1}), ElementsAre(8));
  EXPECT_THAT(*parse_counts(flags, "output-len", {16}), ElementsAre(16));
  EXPECT_FALSE(parse_counts(parse(Command::kBenchOneBatch, "--batch-size 0"), "batch-size", {1}).ok());
}

TEST(FindCommand, ResolvesCommandsOfOneAndOfTwoWords) {
  const auto bench = find_command(words_of("bench one-batch --help"));
  ASSERT_TRUE(bench.ok());
  EXPECT_EQ(bench->first, Command::kBenchOneBatch);
  EXPECT_EQ(bench->second, 2U);
  EXPECT_TRUE(find_command(words_of("bench one_batch")).ok());
  EXPECT_EQ(*find_command(words_of("tune moe --dry-run")), std::pair(Command::kTuneMoe, size_t{2}));
  EXPECT_EQ(find_command(words_of("tune fp8_gemm"))->first, Command::kTuneGemm);
  EXPECT_THAT(find_command(words_of("tune")).status().message, HasSubstr("fp8-gemm or moe"));
  EXPECT_THAT(find_command(words_of("tune --n 5")).status().message, HasSubstr("needs a second word"));
  EXPECT_THAT(find_command(words_of("tune fp8 --n 5")).status().message,
              AllOf(HasSubstr("'tune fp8'"), HasSubstr("fp8-gemm or moe"), HasSubstr("mean fp8-gemm?")));
  EXPECT_THAT(find_command(words_of("bench servin")).status().message,
              AllOf(HasSubstr("one-batch, serving or offline"), HasSubstr("mean serving?")));
  EXPECT_EQ(find_command(words_of("serve --model x"))->first, Command::kServe);
  EXPECT_EQ(*find_command(words_of("bench serving --port 1")), std::pair(Command::kBenchServing, size_t{2}));
  for (const auto& [module, command] : {std::pair("bench_serving", Command::kBenchServing),
                                        {"bench_one_batch", Command::kBenchOneBatch},
                                        {"bench_offline_throughput", Command::kBenchOffline},
                                        {"launch_server", Command::kServe}}) {
    EXPECT_EQ(*find_command(words_of(module)), std::pair(command, size_t{1})) << module;
  }
  EXPECT_THAT(find_command(words_of("generat")).status().message, HasSubstr("generate"));
  EXPECT_EQ(*find_command(words_of("eval gsm8k --data F")), std::pair(Command::kEvalGsm8k, size_t{2}));
  EXPECT_EQ(*find_command(words_of("eval --data F")), std::pair(Command::kEval, size_t{1}));
  EXPECT_FALSE(find_command({}).ok());
}

TEST(FindCommand, SuggestsTheNearestCommandForAMisspeltOne) {
  for (const auto& [line, meant] : {std::pair("genrate --prompt x", "generate"),
                                    {"srve", "serve"},
                                    {"servr --port 1", "serve"},
                                    {"evla --data F", "eval"},
                                    {"eval gsm9k --data F", "gsm8k"},
                                    {"evl gpqa", "eval gpqa"},
                                    {"bnch serving", "bench serving"},
                                    {"bench_servng", "bench-serving"},
                                    {"benchserving --port 1", "bench serving"},
                                    {"bench one-bach", "one-batch"},
                                    {"tne moe", "tune moe"},
                                    {"tune mo", "moe"},
                                    {"launch_servr", "launch-server"}}) {
    EXPECT_THAT(find_command(words_of(line)).status().message,
                HasSubstr(fmt::format("did you mean {}?", meant)))
        << line;
  }
  EXPECT_THAT(find_command(words_of("qwertyuiop")).status().message, Not(HasSubstr("did you mean")));
  EXPECT_THAT(find_command(words_of("--model-path x")).status().message,
              HasSubstr("'--model-path' is where the command should be"));
}

}  // namespace
}  // namespace hadal::cli
