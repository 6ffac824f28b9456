// The split-KV plan, made on the device and read back: every page of every sequence belongs to exactly one
// piece, split sequences get slots of their own in order, and the shares are balanced.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "kernels/cuda/mla/decode.h"
#include "tests/cuda/device_array.h"

namespace hadal::testing {
namespace {

using cuda::DecodeMerge;
using cuda::DecodePart;
using cuda::DecodeSequence;

struct Plan {
  std::vector<DecodePart> parts;
  std::vector<DecodeSequence> sequences;
  std::vector<DecodeMerge> merges;
};

template <typename T>
std::vector<T> read_device(const T* device, size_t count) {
  std::vector<T> values(count);
  copy_to_host(values.data(), device, count * sizeof(T), test_stream().handle());
  test_stream().synchronize();
  return values;
}

Plan make_plan(const cuda::MlaPlanShape& shape, const std::vector<int32_t>& lengths) {
  const DeviceArray<int32_t> kv_len(lengths);
  const DeviceArray<std::byte> plan(cuda::mla_plan_bytes(shape));
  cuda::mla_decode_plan(shape, kv_len.data(), plan.data(),
                        {.stream = test_stream().handle(), .num_sms = shape.num_sms});
  const cuda::DecodePlanView view = cuda::decode_plan_view(shape, plan.data());
  Plan result;
  result.parts = read_device(view.parts, cuda::decode_geometry(shape).num_parts);
  result.sequences = read_device(view.sequences, lengths.size());
  result.merges = read_device(view.merges, read_device(view.num_merges, 1)[0]);
  return result;
}

int pages_of(int length) {
  return (std::max(length, 0) + kPageSize - 1) / kPageSize;
}

// Walks the parts as the kernels do.
void check_plan(const cuda::MlaPlanShape& shape, const std::vector<int32_t>& lengths) {
  const cuda::DecodeGeometry geometry = cuda::decode_geometry(shape);
  const Plan plan = make_plan(shape, lengths);
  const int num_seqs = static_cast<int>(lengths.size());
  std::vector<int> next_page(num_seqs, 0), visits(num_seqs, 0), pieces(num_seqs, 0);
  std::vector<int> slot_uses(geometry.max_slots, 0);
  double most = 0.0;
  double total = 0.0;
  for (int p = 0; p < geometry.num_parts; ++p) {
    const DecodePart& part = plan.parts[p];
    if (part.begin_seq < num_seqs) {
      ASSERT_EQ(part.num_keys, std::max(lengths[part.begin_seq], 0));
      ASSERT_EQ(part.split.num_splits, plan.sequences[part.begin_seq].num_splits);
    }
    double load = 0.0;
    int page = part.begin_page;
    for (int seq = part.begin_seq; seq <= std::min(part.end_seq, num_seqs - 1); ++seq, page = 0) {
      const int end = seq == part.end_seq ? part.end_page : pages_of(lengths[seq]);
      if (seq == part.end_seq && page >= end) break;
      const DecodeSequence& split = plan.sequences[seq];
      do {
        const int stop =
            split.split_pages > 0 ? std::min(end, (page / split.split_pages + 1) * split.split_pages) : end;
        ASSERT_EQ(page, next_page[seq]) << "part " << p << ", sequence " << seq;
        if (split.num_splits > 1) {
          const int slot =
              split.first_slot + (split.split_pages > 0 ? page / split.split_pages : p - split.first_part);
          ASSERT_EQ(slot, split.first_slot + pieces[seq]) << "slots in order of pages";
          ASSERT_LT(slot, geometry.max_slots);
          ASSERT_EQ(slot_uses[slot]++, 0);
        }
        ++pieces[seq];
        ++visits[seq];
        load += stop - page;
        page = next_page[seq] = stop;
      } while (page < end);
    }
    most = std::max(most, load);
    total += load;
  }
  size_t merges = 0;
  for (int seq = 0; seq < num_seqs; ++seq) {
    ASSERT_EQ(next_page[seq], pages_of(lengths[seq])) << "sequence " << seq;
    ASSERT_GE(visits[seq], 1) << "sequence " << seq << " is never written";
    ASSERT_EQ(pieces[seq], plan.sequences[seq].num_splits);
    if (pieces[seq] == 1) continue;
    ASSERT_LT(merges, plan.merges.size());
    ASSERT_EQ(plan.merges[merges].seq, seq);
    ASSERT_EQ(plan.merges[merges].num_splits, pieces[seq]);
    ASSERT_EQ(plan.merges[merges].first_slot, plan.sequences[seq].first_slot);
    ++merges;
  }
  ASSERT_EQ(merges, plan.merges.size());
  if (shape.split_pages == 0) {
    // Sequences' overheads count too, at most two pages each.
    EXPECT_LE(most, total / geometry.num_parts * 17 / 16 + 2.0 * num_seqs / geometry.num_parts + 4.0);
  }
}

TEST(MlaDecodePlan, CoversEveryPageOnce) {
  std::mt19937_64 random(20261121);
  for (int round = 0; round < 400; ++round) {
    const int num_seqs = 1 + static_cast<int>(random() % std::vector<int>{1, 4, 40, 600, 1500}[round % 5]);
    std::vector<int32_t> lengths(num_seqs);
    for (int32_t& length : lengths) {
      const int choices[] = {
          0, 1, 63, 64, 65, static_cast<int>(random() % 300), static_cast<int>(random() % 20000), -1};
      length = round % 4 == 0 ? 2000 + static_cast<int>(random() % 100) : choices[random() % 8];
    }
    const cuda::MlaPlanShape shape{.num_seqs = num_seqs,
                                   .q_len = 1 + static_cast<int>(random() % 8),
                                   .num_heads = std::vector<int>{1, 16, 20, 64, 128}[random() % 5],
                                   .num_sms = std::vector<int>{1, 78, 132}[random() % 3],
                                   .split_pages = std::vector<int>{0, 0, 0, 1, 4, 64}[random() % 6]};
    SCOPED_TRACE("round " + std::to_string(round) + ", sequences " + std::to_string(num_seqs) +
                 ", split pages " + std::to_string(shape.split_pages));
    check_plan(shape, lengths);
    if (HasFatalFailure()) return;
  }
}

TEST(MlaDecodePlan, AllEmpty) {
  check_plan({.num_seqs = 5, .num_heads = 16}, {0, 0, 0, 0, 0});
}

// Equal lengths: whole sequences, or equal splits, and no piece much longer than the mean rounded up.
TEST(MlaDecodePlan, EqualLengthsAreCutEvenly) {
  for (int num_seqs : {1, 4, 16, 32, 64, 128, 132}) {
    for (int pages : {1, 16, 64, 256}) {
      SCOPED_TRACE(std::to_string(num_seqs) + " sequences of " + std::to_string(pages) + " pages");
      const cuda::MlaPlanShape shape{.num_seqs = num_seqs, .num_heads = 16, .num_sms = 132};
      const std::vector<int32_t> lengths(num_seqs, pages * kPageSize);
      check_plan(shape, lengths);
      const Plan plan = make_plan(shape, lengths);
      for (const DecodePart& part : plan.parts) {
        if (part.begin_seq == num_seqs) continue;
        EXPECT_LE((part.end_seq - part.begin_seq) * pages + part.end_page - part.begin_page,
                  (num_seqs * pages + 131) / 132 * 17 / 16 + 4);
      }
      if (num_seqs > 66) {
        EXPECT_TRUE(plan.merges.empty());
        const cuda::MlaPlanShape two_tiles{.num_seqs = num_seqs, .num_heads = 128, .num_sms = 132};
        check_plan(two_tiles, lengths);
        EXPECT_TRUE(make_plan(two_tiles, lengths).merges.empty());
      }
    }
  }
}

}  // namespace
}  // namespace hadal::testing
