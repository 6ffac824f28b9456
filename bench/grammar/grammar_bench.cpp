// Measures the time of a mask in each step of a request, and of compiling a grammar for a request with a new
// schema. The vocabulary has the published models' size: 129,280 tokens, which are pairs of the bundled
// model's tokens.
#include <benchmark/benchmark.h>

#include <random>

#include <boost/json.hpp>

#include "tests/source_dir.h"
#include "text/grammar/grammar.h"
#include "text/tokenizer/tokenizer.h"

namespace hadal {
namespace {

namespace json = boost::json;

constexpr int kVocab = 129280;
constexpr const char* kSchema = R"({"type": "object", "properties": {"name": {"type": "string"},
  "age": {"type": "integer", "minimum": 0, "maximum": 120}, "email": {"type": "string", "format": "email"},
  "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 8},
  "kind": {"enum": ["person", "company", "other"]},
  "address": {"type": "object", "properties": {"street": {"type": "string"}, "city": {"type": "string"},
    "zip": {"type": "string", "pattern": "^[0-9]{5}$"}}, "required": ["street", "city"]}},
  "required": ["name", "age", "address"]})";

const Tokenizer& large_tokenizer() {
  static const auto tokenizer = [] {
    const std::string dir = source_dir() + "/models/hadal-tiny";
    const auto small = Tokenizer::load(dir).value();
    std::vector<std::string> tokens;
    for (int32_t t = 0; t < small->vocab_size(); ++t)
      if (!small->is_added(t) && !small->is_special(t) && !small->id_to_token(t).empty())
        tokens.push_back(small->id_to_token(t));
    json::object vocab;
    int id = 0;
    for (const std::string& token : tokens) vocab[token] = id++;
    std::mt19937 random(1);
    while (id < kVocab - 1) {
      const std::string pair = tokens[random() % tokens.size()] + tokens[random() % tokens.size()];
      if (pair.size() < 24 && vocab.emplace(pair, id).second) ++id;
    }
    const json::object bytes{
        {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", false}};
    const json::object end{
        {"id", id},        {"content", "<eos>"}, {"special", true},     {"normalized", false},
        {"lstrip", false}, {"rstrip", false},    {"single_word", false}};
    return Tokenizer::from_json(
               json::serialize(
                   json::object{{"added_tokens", json::array{end}},
                                {"normalizer", nullptr},
                                {"pre_tokenizer", bytes},
                                {"post_processor", nullptr},
                                {"decoder", bytes},
                                {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", json::array()}}}}))
        .value();
  }();
  return *tokenizer;
}

std::unique_ptr<GrammarCompiler> make_compiler() {
  GrammarCompilerOptions options;
  options.end_ids = {kVocab - 1};
  return GrammarCompiler::create(large_tokenizer(), options).value();
}

GrammarSpec spec_of(int64_t kind) {
  GrammarSpec spec;
  spec.kind = static_cast<GrammarKind>(kind);
  if (spec.kind == GrammarKind::kJsonSchema) spec.text = kSchema;
  if (spec.kind == GrammarKind::kRegex)
    spec.text = "[A-Z][a-z]{2,30}( [A-Z][a-z]+)*, [0-9]{4}-[0-9]{2}-[0-9]{2}";
  return spec;
}

void BM_GrammarCompile(benchmark::State& state) {
  if (!grammar_available()) return state.SkipWithError("built without xgrammar");
  const auto compiler = make_compiler();
  const GrammarSpec spec = spec_of(state.range(0));
  state.SetLabel(to_string(spec.kind));
  for (auto _ : state) {
    compiler->clear_cache();
    benchmark::DoNotOptimize(compiler->compile(spec).value());
  }
}
BENCHMARK(BM_GrammarCompile)->Arg(0)->Arg(1)->Arg(2)->Unit(benchmark::kMillisecond);

// One step computes the mask and accepts a token chosen among the allowed ones.
void BM_GrammarStep(benchmark::State& state) {
  if (!grammar_available()) return state.SkipWithError("built without xgrammar");
  const GrammarSpec spec = spec_of(state.range(0));
  state.SetLabel(to_string(spec.kind));
  const auto grammar = make_compiler()->compile(spec).value();
  std::vector<uint32_t> words(kVocab / 32);
  std::mt19937 random(2);
  GrammarMatcher matcher(grammar);
  for (auto _ : state) {
    std::fill(words.begin(), words.end(), 0);
    matcher.fill_mask(words);
    const size_t start = random() % words.size();
    for (size_t i = 0; i < words.size(); ++i) {
      const size_t w = (start + i) % words.size();
      if (words[w] == 0) continue;
      benchmark::DoNotOptimize(matcher.accept_token(static_cast<int32_t>(w * 32 + __builtin_ctz(words[w]))));
      break;
    }
    if (matcher.is_terminated()) {
      state.PauseTiming();
      matcher = GrammarMatcher(grammar);
      state.ResumeTiming();
    }
  }
}
BENCHMARK(BM_GrammarStep)->Arg(0)->Arg(1)->Arg(2)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace hadal

BENCHMARK_MAIN();
