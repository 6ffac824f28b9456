#include "engine/cuda/slot_states.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "base/check.h"

namespace hadal {
namespace {

using cuda::kMaxBias;
using cuda::kMaxEnds;
using cuda::SlotSampling;

// Returns end and stop tokens, each once. They are used only until min_new_tokens is reached.
std::vector<int32_t> ends_of(const SlotStart& start) {
  std::vector<int32_t> ends;
  if (start.sampling.min_new_tokens == 0) return ends;
  ends = start.eos_token_ids;
  ends.insert(ends.end(), start.sampling.stop_token_ids.begin(), start.sampling.stop_token_ids.end());
  std::sort(ends.begin(), ends.end());
  ends.erase(std::unique(ends.begin(), ends.end()), ends.end());
  return ends;
}

// Describes what exceeds the device's tables.
std::string unsupported(const SlotStart& start, size_t num_ends) {
  if (num_ends > kMaxEnds) {
    return fmt::format("min_new_tokens with {} end and stop tokens; allowed on a GPU: {}", num_ends,
                       kMaxEnds);
  }
  if (start.sampling.logit_bias.size() > kMaxBias) {
    return fmt::format("logit_bias has {} entries; allowed on a GPU: {}", start.sampling.logit_bias.size(),
                       kMaxBias);
  }
  return {};
}

SlotSampling sampling_of(const SlotStart& start, const std::vector<int32_t>& ends) {
  const SamplingParams& from = start.sampling;
  SlotSampling to;
  to.temperature = from.top_k == 1 ? 0.0F : from.temperature;
  to.top_p = from.top_p;
  to.min_p = from.min_p;
  to.top_k = static_cast<int32_t>(std::min<int64_t>(from.top_k, INT32_MAX));
  to.frequency_penalty = from.frequency_penalty;
  to.presence_penalty = from.presence_penalty;
  to.repetition_penalty = from.repetition_penalty;
  to.seed = start.seed;
  to.min_new_tokens = from.min_new_tokens;
  to.num_generated = start.history.num_generated();
  to.num_ends = static_cast<int32_t>(ends.size());
  to.num_bias = static_cast<int32_t>(from.logit_bias.size());
  std::copy(ends.begin(), ends.end(), to.ends);
  to.uses_counts = uses_token_counts(from) ? 1 : 0;
  to.num_top_logprobs = start.logprobs.enabled ? static_cast<int32_t>(start.logprobs.top_num) : -1;
  return to;
}

// Says where in a list of ids those are that yield a slot's counts: each token of the prompt once, and
// generated tokens as often as they occurred.
struct CountLists {
  size_t prompt = 0, num_prompt = 0;
  size_t generated = 0, num_generated = 0;
};

// Adds the ids of all starts to `ids`; choices of one prompt share its tokens.
std::vector<CountLists> count_lists(std::span<const SlotStart> starts, std::vector<int32_t>& ids) {
  std::vector<CountLists> lists(starts.size());
  std::map<const int32_t*, size_t> prompts;
  for (size_t i = 0; i < starts.size(); ++i) {
    if (!uses_token_counts(starts[i].sampling)) continue;
    CountLists& list = lists[i];
    const std::span<const int32_t> prompt = starts[i].history.prompt();
    const auto [at, is_new] = prompts.try_emplace(prompt.data(), ids.size());
    if (is_new) ids.insert(ids.end(), prompt.begin(), prompt.end());
    list.prompt = at->second;
    list.num_prompt = prompt.size();
    list.generated = ids.size();
    for (const TokenHistory::Counted& counted : starts[i].history.generated())
      ids.insert(ids.end(), static_cast<size_t>(counted.count), counted.token);
    list.num_generated = ids.size() - list.generated;
  }
  return lists;
}

}  // namespace

SlotStates::SlotStates(int64_t max_slots, int64_t vocab_size)
    : vocab_size_(vocab_size),
      host_(static_cast<size_t>(max_slots)),
      slots_(static_cast<size_t>(max_slots) * sizeof(SlotSampling)),
      last_token_(static_cast<size_t>(max_slots) * sizeof(int32_t)),
      bias_ids_(static_cast<size_t>(max_slots) * kMaxBias * sizeof(int32_t)),
      bias_values_(static_cast<size_t>(max_slots) * kMaxBias * sizeof(float)),
      counts_(static_cast<size_t>(max_slots * vocab_size) * sizeof(uint16_t)) {
  CudaStream stream;
  fill_device(last_token_.data(), 0, last_token_.size(), stream.handle());
  stream.synchronize();
}

int64_t SlotStates::device_bytes(int64_t max_slots, int64_t vocab_size) {
  const auto slot = static_cast<int64_t>(sizeof(SlotSampling) + sizeof(int32_t) +
                                         kMaxBias * (sizeof(int32_t) + sizeof(float)));
  return max_slots * (slot + vocab_size * static_cast<int64_t>(sizeof(uint16_t)));
}

void SlotStates::start(std::span<const SlotStart> starts, int step_idx, const cuda::Launch& launch) {
  if (starts.empty()) return;
  std::vector<int32_t> counted_ids;
  const std::vector<CountLists> lists = count_lists(starts, counted_ids);
  const size_t list_bytes = counted_ids.size() * sizeof(int32_t);
  size_t bytes = 0;
  for (const SlotStart& start : starts) {
    HADAL_CHECK_LT(static_cast<size_t>(start.slot), host_.size());
    bytes += sizeof(SlotSampling) + start.sampling.logit_bias.size() * (sizeof(int32_t) + sizeof(float));
  }
  if (lists_.size() < list_bytes) {
    lists_ = DeviceBuffer();
    lists_ = DeviceBuffer(2 * list_bytes);
  }
  std::byte* const block = staging_.block(step_idx, list_bytes + bytes + starts.size() * 8);

  // Token lists come first, in one copy.
  if (!counted_ids.empty()) std::memcpy(block, counted_ids.data(), list_bytes);
  std::byte* at = block + list_bytes;
  copy_to_device(lists_.data(), block, list_bytes, launch.stream);

  const auto* const device_ids = lists_.as<int32_t>();
  for (size_t i = 0; i < starts.size(); ++i) {
    const SlotStart& start = starts[i];
    const std::vector<int32_t> ends = ends_of(start);
    HostSlot& host = host_[start.slot];
    host = {.logprobs = start.logprobs, .error = unsupported(start, ends.size())};
    if (!host.error.empty()) continue;
    const SlotSampling sampling = sampling_of(start, ends);
    at = block + (at - block + 7) / 8 * 8;
    std::memcpy(at, &sampling, sizeof(sampling));
    copy_to_device(slots_.as<SlotSampling>() + start.slot, at, sizeof(sampling), launch.stream);
    at += sizeof(sampling);
    const auto& bias = start.sampling.logit_bias;
    if (!bias.empty()) {
      auto* ids = reinterpret_cast<int32_t*>(at);
      auto* values = reinterpret_cast<float*>(ids + bias.size());
      for (size_t j = 0; j < bias.size(); ++j) std::tie(ids[j], values[j]) = bias[j];
      copy_to_device(bias_ids_.as<int32_t>() + start.slot * kMaxBias, ids, bias.size() * sizeof(int32_t),
                     launch.stream);
      copy_to_device(bias_values_.as<float>() + start.slot * kMaxBias, values, bias.size() * sizeof(float),
                     launch.stream);
      at = reinterpret_cast<std::byte*>(values + bias.size());
    }
    if (sampling.uses_counts == 0) continue;
    const CountLists& list = lists[i];
    cuda::start_counts(counts_.as<uint16_t>(), vocab_size_, start.slot, device_ids + list.prompt,
                       static_cast<int64_t>(list.num_prompt), device_ids + list.generated,
                       static_cast<int64_t>(list.num_generated), launch);
  }
}

void SlotStates::bind(cuda::SampleParams& params) const {
  params.vocab = vocab_size_;
  params.slots = slots_.as<SlotSampling>();
  params.bias_ids = bias_ids_.as<int32_t>();
  params.bias_values = bias_values_.as<float>();
  params.counts = counts_.as<uint16_t>();
  params.last_token = last_token_.as<int32_t>();
}

}  // namespace hadal
