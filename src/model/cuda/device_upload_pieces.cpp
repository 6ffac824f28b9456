#include "model/cuda/device_upload_pieces.h"

#include <algorithm>
#include <functional>
#include <unordered_map>

#include "base/check.h"

namespace hadal {
namespace {

constexpr int64_t kUploadPieceBytes = int64_t{4} << 20;

// Returns the number of rows of each piece into which `all_rows` rows that all of these targets need are cut.
// The last piece may have fewer.
int64_t piece_rows(const TensorSource& source, std::span<const UploadTarget> targets, bool pinned,
                   int64_t all_rows) {
  const auto any = [&](const auto& is) {
    return std::any_of(targets.begin(), targets.end(),
                       [&](const UploadTarget& target) { return is(*target.placement); });
  };
  if (!pinned && !any(is_staged)) return all_rows;  // generated in place, whatever its size
  const bool whole_blocks = any([](const WeightPlacement& to) { return to.quantised() || to.widened(); });
  const int64_t unit = whole_blocks ? kFp8BlockSize : 1;
  const int64_t row_bytes = source.cols * dtype_bytes(source.dtype);
  return std::max<int64_t>(kUploadPieceBytes / std::max<int64_t>(row_bytes * unit, 1), 1) * unit;
}

class Cutter {
 public:
  explicit Cutter(std::span<const RankPlacements> ranks) {
    for (const RankPlacements& rank : ranks) {
      const int device_idx = index_of(rank.device);
      for (const WeightPlacement& placement : rank.placements)
        if (placement.rows > 0 && placement.cols > 0) add({&placement, device_idx});
    }
  }

  UploadPieces cut() {
    for (const std::vector<UploadTarget>& wanted : by_source_) cut(wanted);
    std::stable_sort(out_.pieces.begin(), out_.pieces.end(), [](const UploadPiece& a, const UploadPiece& b) {
      return std::less<>()(a.source->bytes.data(), b.source->bytes.data());
    });
    return std::move(out_);
  }

 private:
  int index_of(int device) {
    const auto found = std::find(out_.devices.begin(), out_.devices.end(), device);
    if (found == out_.devices.end()) {
      out_.devices.push_back(device);
      return static_cast<int>(out_.devices.size()) - 1;
    }
    return static_cast<int>(found - out_.devices.begin());
  }

  void add(const UploadTarget& target) {
    const auto [at, is_new] = source_idx_.try_emplace(target.placement->source, by_source_.size());
    if (is_new) by_source_.emplace_back();
    by_source_[at->second].push_back(target);
  }

  // Cuts the rows of a source wherever a target begins or ends, so that a target needs all of a piece or none
  // of it. Between these borders it cuts where pieces would become too large.
  void cut(const std::vector<UploadTarget>& wanted) {
    const WeightPlacement& like = *wanted.front().placement;
    std::vector<int64_t> borders;
    for (const UploadTarget& target : wanted) {
      const WeightPlacement& to = *target.placement;
      HADAL_CHECK(to.repeat == like.repeat && to.widened() == like.widened(),
                  "the targets of a source are converted alike");
      borders.push_back(to.row);
      borders.push_back(to.end_row());
    }
    std::sort(borders.begin(), borders.end());
    borders.erase(std::unique(borders.begin(), borders.end()), borders.end());
    for (size_t i = 0; i + 1 < borders.size(); ++i) cut(wanted, {borders[i], borders[i + 1]});
  }

  void cut(const std::vector<UploadTarget>& wanted, Range rows) {
    const WeightPlacement& like = *wanted.front().placement;
    UploadPiece piece{.source = like.source,
                      .row = rows.begin,
                      .rows = rows.size(),
                      .first_target = static_cast<int64_t>(out_.targets.size()),
                      .repeat = like.repeat,
                      .widened = like.widened()};
    std::copy_if(wanted.begin(), wanted.end(), std::back_inserter(out_.targets),
                 [&](const UploadTarget& target) {
                   return target.placement->row <= rows.begin && target.placement->end_row() >= rows.end;
                 });
    piece.num_targets = static_cast<int64_t>(out_.targets.size()) - piece.first_target;
    if (piece.num_targets == 0) return;
    const int64_t step = piece_rows(*piece.source, out_.targets_of(piece), piece.pinned(), rows.size());
    for (; piece.row < rows.end; piece.row += step) {
      piece.rows = std::min(step, rows.end - piece.row);
      out_.pieces.push_back(piece);
    }
  }

  std::unordered_map<const TensorSource*, size_t> source_idx_;
  std::vector<std::vector<UploadTarget>> by_source_;  // in the order of the first placement
  UploadPieces out_;
};

}  // namespace

TargetRows rows_of(const UploadPiece& piece, const WeightPlacement& placement) {
  const int64_t window_row = piece.row - placement.row;
  return {.window_row = window_row, .rows = std::min(piece.rows, placement.rows - window_row)};
}

UploadPieces cut_placements(std::span<const RankPlacements> ranks) {
  return Cutter(ranks).cut();
}

Range needed_columns(const WeightPlacement& placement) {
  if (placement.quantised()) return {placement.scale_col, placement.scale_col + placement.scale_cols};
  return {placement.col, placement.col + placement.cols};
}

bool is_staged(const WeightPlacement& placement) {
  return !placement.direct() && !placement.widened();
}

int64_t staging_bytes(const UploadPieces& pieces, int device_idx) {
  int64_t most = 0;
  for (const UploadPiece& piece : pieces.pieces) {
    for (const UploadTarget& target : pieces.targets_of(piece)) {
      if (target.device_idx != device_idx || !is_staged(*target.placement)) continue;
      most = std::max(
          most, piece.rows * needed_columns(*target.placement).size() * dtype_bytes(piece.source->dtype));
    }
  }
  return most;
}

}  // namespace hadal
