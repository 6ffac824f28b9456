#include "comm/device_collectives.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "kernels/cuda/comm/comm.h"

namespace hadal {
namespace {

constexpr int64_t kElementBytes = 2;

cuda::SumPartsParams sums_of(const PartialRows& rows, const cuda::ExchangedParts& parts,
                             const RowSlice& slice, void* sums) {
  return {.parts = parts,
          .first = slice.first * rows.n,
          .count = slice.count * rows.n,
          .sums = sums,
          .f16 = rows.f16};
}

// Copies `bytes` bytes of this device to `target`.
void copy_own(const void* source, int64_t bytes, void* target, const cuda::Launch& launch) {
  cuda::CopyPartsParams copy{
      .parts = {.parts = {source}, .num_ranks = 1}, .num_rows = 1, .out = static_cast<std::byte*>(target)};
  copy.row_bytes[0] = bytes;
  cuda::copy_parts(copy, launch);
}

int64_t sum(std::span<const int64_t> values) {
  return std::accumulate(values.begin(), values.end(), int64_t{0});
}

void check_sizes(std::span<const int64_t> sizes, size_t count, const char* what) {
  HADAL_CHECK(sizes.size() == count, "{} has {} sizes, and needs {}", what, sizes.size(), count);
  HADAL_CHECK(std::all_of(sizes.begin(), sizes.end(), [](int64_t size) { return size >= 0; }),
              "{} has a negative size", what);
}

}  // namespace

RowSlice slice_of_rows(int64_t m, int num_ranks, int rank) {
  const int64_t most = (m + num_ranks - 1) / num_ranks;
  const int64_t first = std::min(m, rank * most);
  return {.first = first, .count = std::min(most, m - first)};
}

void all_reduce_one_shot(DeviceCommunicator& comm, const PartialRows& rows, void* sums,
                         const cuda::Launch& launch) {
  const auto parts = comm.exchange(launch, rows.m * rows.n * kElementBytes);
  cuda::sum_parts(sums_of(rows, parts, {.first = 0, .count = rows.m}, sums), launch);
}

void all_reduce_small(DeviceCommunicator& comm, const PartialRows& rows, void* sums,
                      const cuda::Launch& launch) {
  const int64_t bytes = rows.m * rows.n * kElementBytes;
  const cuda::ExchangeParams* const exchange = comm.small_exchange(launch, bytes);
  if (exchange == nullptr) return all_reduce_one_shot(comm, rows, sums, launch);
  cuda::sum_lines({.exchange = *exchange,
                   .part = comm.partial(bytes),
                   .count = rows.m * rows.n,
                   .sums = sums,
                   .f16 = rows.f16},
                  launch);
}

void all_reduce_two_shot(DeviceCommunicator& comm, const PartialRows& rows, void* sums,
                         const cuda::Launch& launch) {
  const int64_t row_bytes = rows.n * kElementBytes;
  const int64_t slice_bytes = slice_of_rows(rows.m, comm.num_ranks(), 0).count * row_bytes;
  const auto parts = comm.exchange(launch, slice_bytes);
  const RowSlice mine = slice_of_rows(rows.m, comm.num_ranks(), comm.rank());
  cuda::sum_parts(sums_of(rows, parts, mine, comm.partial(slice_bytes)), launch);
  const auto slices = comm.exchange(launch, slice_bytes);
  cuda::CopyPartsParams copy{.parts = slices, .num_rows = 1, .out = static_cast<std::byte*>(sums)};
  for (int r = 0; r < comm.num_ranks(); ++r) {
    const RowSlice slice = slice_of_rows(rows.m, comm.num_ranks(), r);
    copy.target[r] = slice.first * row_bytes;
    copy.row_bytes[r] = slice.count * row_bytes;
  }
  cuda::copy_parts(copy, launch);
}

void reduce_scatter(DeviceCommunicator& comm, const PartialRows& rows, void* sums,
                    const cuda::Launch& launch) {
  const RowSlice mine = slice_of_rows(rows.m, comm.num_ranks(), comm.rank());
  const auto parts = comm.exchange(launch, mine.count * rows.n * kElementBytes);
  cuda::sum_parts(sums_of(rows, parts, mine, sums), launch);
}

void all_gather(DeviceCommunicator& comm, const void* mine, std::span<const int64_t> sizes, void* all,
                const cuda::Launch& launch) {
  check_sizes(sizes, static_cast<size_t>(comm.num_ranks()), "all_gather");
  const int64_t most = *std::max_element(sizes.begin(), sizes.end());
  copy_own(mine, sizes[comm.rank()], comm.partial(most), launch);
  cuda::CopyPartsParams copy{
      .parts = comm.exchange(launch, most), .num_rows = 1, .out = static_cast<std::byte*>(all)};
  for (int r = 0; r < comm.num_ranks(); ++r) {
    copy.target[r] = sum(sizes.first(r));
    copy.row_bytes[r] = sizes[r];
  }
  cuda::copy_parts(copy, launch);
}

void all_to_all(DeviceCommunicator& comm, const void* send, std::span<const int64_t> sizes, void* receive,
                const cuda::Launch& launch) {
  const int num_ranks = comm.num_ranks();
  check_sizes(sizes, static_cast<size_t>(num_ranks * num_ranks), "all_to_all");
  const auto sent_by = [&](int rank) { return sizes.subspan(rank * num_ranks, num_ranks); };
  int64_t most_sent = 0;
  for (int r = 0; r < num_ranks; ++r) most_sent = std::max(most_sent, sum(sent_by(r)));
  copy_own(send, sum(sent_by(comm.rank())), comm.partial(most_sent), launch);
  cuda::CopyPartsParams copy{.parts = comm.exchange(launch, *std::max_element(sizes.begin(), sizes.end())),
                             .num_rows = 1,
                             .out = static_cast<std::byte*>(receive)};
  int64_t target = 0;
  for (int r = 0; r < num_ranks; ++r) {
    copy.source[r] = sum(sent_by(r).first(comm.rank()));
    copy.target[r] = target;
    copy.row_bytes[r] = sent_by(r)[comm.rank()];
    target += copy.row_bytes[r];
  }
  cuda::copy_parts(copy, launch);
}

void gather_columns(DeviceCommunicator& comm, int64_t num_rows, std::span<const int64_t> widths,
                    const int32_t* owners, void* rows, int64_t row_bytes, const cuda::Launch& launch) {
  check_sizes(widths, static_cast<size_t>(comm.num_ranks()), "gather_columns");
  HADAL_CHECK(sum(widths) >= row_bytes, "rows of {} bytes are joined from columns of {}", row_bytes,
              sum(widths));
  // Without owners a rank reads all rows; with owners it reads about as many as every other rank does.
  const int64_t rows_read = owners == nullptr ? num_rows : slice_of_rows(num_rows, comm.num_ranks(), 0).count;
  const int64_t widest = *std::max_element(widths.begin(), widths.end());
  cuda::CopyPartsParams copy{.parts = comm.exchange(launch, rows_read * widest),
                             .num_rows = num_rows,
                             .out = static_cast<std::byte*>(rows),
                             .out_pitch = row_bytes,
                             .rows = owners == nullptr ? cuda::PartRows::kAll : cuda::PartRows::kOwnersOnly,
                             .owners = owners,
                             .rank = comm.rank()};
  int64_t column = 0;
  for (int r = 0; r < comm.num_ranks(); ++r) {
    copy.source_pitch[r] = widths[r];
    copy.target[r] = column;
    copy.row_bytes[r] = std::clamp<int64_t>(row_bytes - column, 0, widths[r]);
    column += widths[r];
  }
  cuda::copy_parts(copy, launch);
}

void gather_rows(DeviceCommunicator& comm, const void* mine, int64_t num_rows, int64_t row_bytes,
                 const int32_t* owners, void* rows, const cuda::Launch& launch) {
  HADAL_CHECK(owners != nullptr, "gather_rows needs the rows' owners");
  const int64_t bytes = num_rows * row_bytes;
  copy_own(mine, bytes, comm.partial(bytes), launch);
  cuda::CopyPartsParams copy{
      .parts = comm.exchange(launch, slice_of_rows(num_rows, comm.num_ranks(), 0).count * row_bytes),
      .num_rows = num_rows,
      .out = static_cast<std::byte*>(rows),
      .out_pitch = row_bytes,
      .rows = cuda::PartRows::kFromOwners,
      .owners = owners,
      .rank = comm.rank()};
  for (int r = 0; r < comm.num_ranks(); ++r) {
    copy.source_pitch[r] = row_bytes;
    copy.row_bytes[r] = row_bytes;
  }
  cuda::copy_parts(copy, launch);
}

}  // namespace hadal
