#include "engine/model_runner.h"

#include <cstring>

#include "base/check.h"
#include "model/random_cache.h"

namespace hadal {

void copy_pages(const KvCache& cache, int64_t num_layers, std::span<const PageCopy> copies) {
  const KvLayout& layout = cache.layout();
  // Copies `bytes` bytes at `offset` in the page of one pool.
  const auto copy_part = [](const PageCopy& copy, std::byte* pool, int64_t page_bytes, int64_t offset,
                            int64_t bytes) {
    std::memcpy(pool + copy.target * page_bytes + offset, pool + copy.source * page_bytes + offset,
                static_cast<size_t>(bytes));
  };
  for (const PageCopy& copy : copies) {
    for (int64_t layer = 0; layer < num_layers; ++layer) {
      copy_part(copy, cache.layer(layer), layout.page_bytes(), 0, copy.num_rows * layout.row_bytes());
      if (layout.index == KvIndex::kNone) continue;
      std::byte* index = cache.index_layer(layer);
      const int64_t key_bytes = layout.index_key_bytes();
      copy_part(copy, index, layout.index_page_bytes(), 0, copy.num_rows * key_bytes);
      copy_part(copy, index, layout.index_page_bytes(), kPageSize * key_bytes,
                copy.num_rows * (layout.index_row_bytes() - key_bytes));
    }
  }
}

void move_records(const KvCache& cache, int64_t num_layers, std::span<const RecordMove> moves) {
  const KvLayout& layout = cache.layout();
  // Returns where the part of a slot is whose parts lie side by side in a page, from `offset` on.
  const auto part = [](std::byte* pool, int64_t page_bytes, int64_t offset, int64_t part_bytes,
                       int64_t slot) {
    return pool + slot / kPageSize * page_bytes + offset + slot % kPageSize * part_bytes;
  };
  for (const RecordMove& move : moves) {
    const auto move_part = [&](std::byte* pool, int64_t page_bytes, int64_t offset, int64_t part_bytes) {
      std::memcpy(part(pool, page_bytes, offset, part_bytes, move.target),
                  part(pool, page_bytes, offset, part_bytes, move.source), static_cast<size_t>(part_bytes));
    };
    for (int64_t layer = 0; layer < num_layers; ++layer) {
      move_part(cache.layer(layer), layout.page_bytes(), 0, layout.row_bytes());
      if (layout.index == KvIndex::kNone) continue;
      const int64_t key_bytes = layout.index_key_bytes();
      move_part(cache.index_layer(layer), layout.index_page_bytes(), 0, key_bytes);
      move_part(cache.index_layer(layer), layout.index_page_bytes(), kPageSize * key_bytes,
                layout.index_row_bytes() - key_bytes);
    }
  }
}

ForwardRows ModelRunner::forward_with_hidden(const ForwardBatch& /*batch*/) {
  throw Error("this runner has no NextN layer");
}

ForwardRows ModelRunner::forward_nextn(const ForwardBatch& /*batch*/, std::span<const float> /*hidden*/) {
  throw Error("this runner has no NextN layer");
}

std::span<float> room_for_rows(Buffer& buffer, size_t num_rows, int64_t width) {
  const size_t count = num_rows * static_cast<size_t>(width);
  if (buffer.size() < count * sizeof(float)) buffer = Buffer(count * sizeof(float));
  return {reinterpret_cast<float*>(buffer.data()), count};
}

CpuRunner::CpuRunner(Model& model, ThreadPool& pool, int64_t num_pages, KvLayout layout, KernelSet kernels)
    : model_(model), pool_(pool), kernels_(kernels), cache_(num_cache_layers(model), num_pages, layout) {}

ExecContext CpuRunner::context() {
  return {.device = {}, .pool = pool_, .workspace = workspace_, .stream = {}, .kernels = kernels_};
}

std::span<const float> CpuRunner::forward(const ForwardBatch& batch) {
  const std::span<float> logits = room_for_rows(logits_, batch.logit_rows.size(), config().vocab_size);
  ExecContext exec = context();
  model_.forward(batch, cache_, {.logits = logits.data()}, exec);
  return logits;
}

ForwardRows CpuRunner::forward_with_hidden(const ForwardBatch& batch) {
  const std::span<float> logits = room_for_rows(logits_, batch.logit_rows.size(), config().vocab_size);
  const std::span<float> hidden = room_for_rows(hidden_, batch.token_ids.size(), config().hidden_size);
  ExecContext exec = context();
  model_.forward(batch, cache_, {.logits = logits.data(), .hidden = hidden.data()}, exec);
  return {.logits = logits, .hidden = hidden};
}

ForwardRows CpuRunner::forward_nextn(const ForwardBatch& batch, std::span<const float> hidden) {
  HADAL_CHECK_EQ(static_cast<int64_t>(hidden.size()), batch.num_tokens() * config().hidden_size);
  const std::span<float> logits = room_for_rows(logits_, batch.logit_rows.size(), config().vocab_size);
  const std::span<float> next = room_for_rows(hidden_, batch.logit_rows.size(), config().hidden_size);
  ExecContext exec = context();
  model_.forward_nextn(batch, hidden.data(), cache_, {.logits = logits.data(), .hidden = next.data()}, exec);
  return {.logits = logits, .hidden = next};
}

void CpuRunner::copy_pages(std::span<const PageCopy> copies) {
  hadal::copy_pages(cache_, num_cache_layers(model_), copies);
}

void CpuRunner::move_records(std::span<const RecordMove> moves) {
  hadal::move_records(cache_, num_cache_layers(model_), moves);
}

void CpuRunner::fill_cache(uint64_t seed) {
  fill_at_random(cache_, num_cache_layers(model_), seed, pool_);
}

}  // namespace hadal
