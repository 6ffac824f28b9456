// Tests the split-KV plan, which is made on the device and read back. Every page of every sequence must
// belong to exactly one piece, split sequences must get separate slots in order, and the shares must be
// balanced.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "kernels/cuda/mla/decode/decode.h"
#include "tests/cuda/device_array.h"

namespace hadal::testing {
namespace {

using cuda::DecodeGeometry;
using cuda::DecodeKernel;
using cuda::DecodeMerge;
using cuda::DecodePart;
using cuda::DecodeSchedule;
using cuda::DecodeSequence;
using cuda::MlaPlanShape;

struct Plan {
  std::vector<DecodePart> parts;
  std::vector<DecodeSequence> sequences;
  std::vector<DecodeMerge> merges;  // where the merge kernel follows
};

template <typename T>
std::vector<T> read_device(const T* device, size_t count) {
  std::vector<T> values(count);
  copy_to_host(values.data(), device, count * sizeof(T), test_stream().handle());
  test_stream().synchronize();
  return values;
}

Plan make_plan(const DecodeGeometry& geometry, const std::vector<int32_t>& lengths) {
  const DeviceArray<int32_t> kv_len(lengths);
  const DeviceArray<std::byte> plan(cuda::decode_plan_bytes(geometry));
  cuda::mla_decode_plan(geometry, kv_len.data(), plan.data(), {.stream = test_stream().handle()});
  const cuda::DecodePlanView view = cuda::decode_plan_view(geometry, plan.data());
  Plan result;
  result.parts = read_device(view.parts, geometry.num_parts);
  result.sequences = read_device(view.sequences, lengths.size());
  if (!geometry.merge_inside) result.merges = read_device(view.merges, read_device(view.num_merges, 1)[0]);
  for (int32_t count : read_device(view.arrivals, lengths.size() * 2 * geometry.num_tiles)) {
    EXPECT_EQ(count, 0) << "arrivals begin at zero";
  }
  return result;
}

std::vector<DecodeSequence> split_sequences(const Plan& plan) {
  std::vector<DecodeSequence> split;
  for (const DecodeSequence& sequence : plan.sequences) {
    if (sequence.num_splits > 1) split.push_back(sequence);
  }
  return split;
}

int pages_of(int length) {
  return (std::max(length, 0) + kPageSize - 1) / kPageSize;
}

int strides_of(int pages, int cluster) {
  return (pages + cluster - 1) / cluster;
}

// Holds the load of the longest part and of all parts together: in strides of `cluster` pages, and in ns,
// which include the cost of pieces besides their pages.
struct Load {
  double most = 0.0;
  double total = 0.0;
  double most_ns = 0.0;
  double total_ns = 0.0;
};

// Walks the parts as the kernels do.
void check_plan(const DecodeGeometry& geometry, const std::vector<int32_t>& lengths,
                Load* load_of_all = nullptr) {
  const Plan plan = make_plan(geometry, lengths);
  const int num_seqs = static_cast<int>(lengths.size());
  std::vector<int> next_page(num_seqs, 0), visits(num_seqs, 0), pieces(num_seqs, 0);
  std::vector<int> slot_uses(geometry.max_slots, 0);
  Load all;
  int working = 0;
  int most_splits = 1;
  for (int p = 0; p < geometry.num_parts; ++p) {
    const DecodePart& part = plan.parts[p];
    if (part.begin_seq < num_seqs) {
      ASSERT_EQ(part.num_keys, std::max(lengths[part.begin_seq], 0));
      const DecodeSequence& split = plan.sequences[part.begin_seq];
      ASSERT_EQ(part.split.num_splits, split.num_splits);
      ASSERT_EQ(part.split.first_slot, split.first_slot);
      ASSERT_EQ(part.split.split_pages, split.split_pages);
      ASSERT_EQ(part.split.first_part, split.first_part);
    }
    double load = 0.0;
    int begun = 0;
    int page = part.begin_page;
    for (int seq = part.begin_seq; seq <= std::min(part.end_seq, num_seqs - 1); ++seq, page = 0) {
      const int end = seq == part.end_seq ? part.end_page : pages_of(lengths[seq]);
      if (seq == part.end_seq && page >= end) break;
      const DecodeSequence& split = plan.sequences[seq];
      most_splits = std::max(most_splits, split.num_splits);
      do {
        const int stop =
            split.split_pages > 0 ? std::min(end, (page / split.split_pages + 1) * split.split_pages) : end;
        ASSERT_EQ(page, next_page[seq]) << "part " << p << ", sequence " << seq;
        ASSERT_EQ(page % geometry.cluster, 0) << "a split begins at a whole stride";
        if (split.num_splits > 1) {
          const int slot =
              split.first_slot + (split.split_pages > 0 ? page / split.split_pages : p - split.first_part);
          ASSERT_EQ(slot, split.first_slot + pieces[seq]) << "slots in order of pages";
          ASSERT_LT(slot, geometry.max_slots);
          ASSERT_EQ(slot_uses[slot]++, 0);
        }
        ++pieces[seq];
        ++begun;
        ++visits[seq];
        load += strides_of(stop - page, geometry.cluster);
        page = next_page[seq] = stop;
      } while (page < end);
    }
    all.most = std::max(all.most, load);
    all.total += load;
    const double ns = load * geometry.page_ns + 1.0 * begun * geometry.sequence_ns;
    all.most_ns = std::max(all.most_ns, ns);
    all.total_ns += ns;
    if (load > 0.0) ++working;
  }
  size_t merges = 0;
  for (int seq = 0; seq < num_seqs; ++seq) {
    ASSERT_EQ(next_page[seq], pages_of(lengths[seq])) << "sequence " << seq;
    ASSERT_GE(visits[seq], 1) << "sequence " << seq << " is never written";
    ASSERT_EQ(pieces[seq], plan.sequences[seq].num_splits);
    if (pieces[seq] == 1 || geometry.merge_inside) continue;
    ASSERT_LT(merges, plan.merges.size());
    ASSERT_EQ(plan.merges[merges].seq, seq);
    ASSERT_EQ(plan.merges[merges].num_splits, pieces[seq]);
    ASSERT_EQ(plan.merges[merges].first_slot, plan.sequences[seq].first_slot);
    ++merges;
  }
  ASSERT_EQ(merges, plan.merges.size());
  if (load_of_all != nullptr) *load_of_all = all;
  if (geometry.fixed_splits) return;
  // By the geometry's own times the longest part ends no later than it would if the costs were cut into equal
  // shares and the splits joined. (Parts that leave others without work have more of the memory's bandwidth.)
  const double ideal =
      (all.total * geometry.page_ns + 1.0 * num_seqs * geometry.sequence_ns) / geometry.num_parts;
  const double page_ns =
      std::max<double>(geometry.lone_page_ns, 1.0 * geometry.page_ns * working / geometry.num_parts);
  const double join =
      geometry.merge_ns +
      (most_splits + 2.0 + all.total * geometry.page_ns / std::max(ideal, 1.0)) * geometry.split_ns;
  EXPECT_LE(all.most * page_ns,
            ideal + join + (geometry.pages_at_once + 1.0) * geometry.page_ns + 2.0 * geometry.sequence_ns);
}

DecodeGeometry geometry_of(const MlaPlanShape& shape, const DecodeSchedule& schedule) {
  return cuda::decode_geometry(shape, schedule, cuda::full_capacity(shape.num_sms));
}

TEST(MlaDecodePlan, CoversEveryPageOnce) {
  std::mt19937_64 random(20261121);
  for (int round = 0; round < 600; ++round) {
    const int num_seqs = 1 + static_cast<int>(random() % std::vector<int>{1, 4, 40, 600, 4096}[round % 5]);
    std::vector<int32_t> lengths(num_seqs);
    for (int32_t& length : lengths) {
      const int choices[] = {
          0, 1, 63, 64, 65, static_cast<int>(random() % 300), static_cast<int>(random() % 20000), -1};
      length = round % 4 == 0 ? 2000 + static_cast<int>(random() % 100) : choices[random() % 8];
    }
    if (round % 7 == 0) lengths[random() % num_seqs] = 163840;
    const MlaPlanShape shape{.num_seqs = num_seqs,
                             .q_len = 1 + static_cast<int>(random() % 8),
                             .num_heads = std::vector<int>{1, 16, 20, 64, 128}[random() % 5],
                             .num_sms = std::vector<int>{1, 78, 132}[random() % 3],
                             .split_pages = std::vector<int>{0, 0, 0, 1, 4, 64}[random() % 6]};
    DecodeSchedule schedule{DecodeKernel::kTiles, 64, 1};
    if (random() % 3 > 0) {
      schedule = {DecodeKernel::kSwapped, random() % 2 == 0 ? 16 : 32,
                  shape.split_pages > 0 ? 1 : 1 << random() % 5};
    }
    SCOPED_TRACE("round " + std::to_string(round) + ", sequences " + std::to_string(num_seqs) +
                 ", split pages " + std::to_string(shape.split_pages) + ", tile rows " +
                 std::to_string(schedule.tile_rows) + ", cluster " + std::to_string(schedule.cluster));
    check_plan(geometry_of(shape, schedule), lengths);
    if (HasFailure()) return;
  }
}

TEST(MlaDecodePlan, CoversBatchesWithoutKeys) {
  for (int cluster : {1, 16}) {
    check_plan(geometry_of({.num_seqs = 5, .num_heads = 16}, {DecodeKernel::kSwapped, 16, cluster}),
               {0, 0, 0, 0, 0});
  }
}

// A sequence is not split if it has only a few pages for each of a part's blocks; a long sequence is split.
TEST(MlaDecodePlan, SplitsOnlyALongSequence) {
  const DecodeGeometry geometry =
      geometry_of({.num_seqs = 1, .num_heads = 16}, {DecodeKernel::kSwapped, 16, 16});
  ASSERT_EQ(geometry.num_parts, 8);
  for (int length : {1, 64, 1000, 1024})
    EXPECT_TRUE(split_sequences(make_plan(geometry, {length})).empty()) << length;
  for (int length : {65536, 131072}) {
    const std::vector<DecodeSequence> split = split_sequences(make_plan(geometry, {length}));
    ASSERT_EQ(split.size(), 1U) << length;
    EXPECT_EQ(split[0].num_splits, 8) << length;
  }
}

// With equal lengths no sequence is split if there are about as many sequences as parts.
TEST(MlaDecodePlan, EqualLengthsAreCutEvenly) {
  for (int num_seqs : {1, 4, 8, 16, 32, 64, 128, 132}) {
    for (int pages : {1, 16, 64, 256}) {
      SCOPED_TRACE(std::to_string(num_seqs) + " sequences of " + std::to_string(pages) + " pages");
      const std::vector<int32_t> lengths(num_seqs, pages * kPageSize);
      for (const DecodeSchedule& schedule :
           {DecodeSchedule{DecodeKernel::kSwapped, 16, 1}, DecodeSchedule{DecodeKernel::kSwapped, 16, 4},
            DecodeSchedule{DecodeKernel::kTiles, 64, 1}}) {
        const DecodeGeometry geometry = geometry_of({.num_seqs = num_seqs, .num_heads = 128}, schedule);
        check_plan(geometry, lengths);
        if (num_seqs * 8 >= geometry.num_parts * 7 && num_seqs <= geometry.num_parts) {
          EXPECT_TRUE(split_sequences(make_plan(geometry, lengths)).empty());
        }
      }
    }
  }
}

// With log-uniform lengths from 64 to 32k the longest part is hardly longer than the mean.
TEST(MlaDecodePlan, RaggedBatchesAreBalanced) {
  std::mt19937_64 random(20261122);
  std::uniform_real_distribution<double> exponent(6.0, 15.0);
  for (int round = 0; round < 20; ++round) {
    std::vector<int32_t> lengths(64);
    for (int32_t& length : lengths) length = static_cast<int32_t>(std::exp2(exponent(random)));
    for (const DecodeSchedule& schedule :
         {DecodeSchedule{DecodeKernel::kSwapped, 16, 1}, DecodeSchedule{DecodeKernel::kSwapped, 16, 2},
          DecodeSchedule{DecodeKernel::kTiles, 64, 1}}) {
      SCOPED_TRACE("round " + std::to_string(round) + ", cluster " + std::to_string(schedule.cluster));
      const DecodeGeometry geometry = geometry_of({.num_seqs = 64, .num_heads = 16}, schedule);
      Load load;
      check_plan(geometry, lengths, &load);
      // A part that begins inside a sequence has the costs of one more sequence than the cut has counted.
      EXPECT_LE(load.most_ns,
                load.total_ns / geometry.num_parts + geometry.sequence_ns + 3.0 * geometry.page_ns);
      // The same holds in strides, whatever cost the geometry assumes for a piece: with some 40 strides per
      // part, a part in which no sequence begins has up to six more.
      EXPECT_LE(load.most, load.total / geometry.num_parts + 8.0);
    }
  }
}

}  // namespace
}  // namespace hadal::testing
