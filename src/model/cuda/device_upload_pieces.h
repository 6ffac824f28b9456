// Cuts the placements of one or several ranks into pieces: rows of a stored tensor, a few MB each, with every
// placement that wants some of them. A piece is read or generated once, however many placements want it. The
// functions are pure, and any thread may call them; every build has them. Only the upload of device weights
// includes this.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/cuda/device_weights_plan.h"

namespace hadal {

// RankPlacements are the placements of one rank, and the index of its GPU.
struct RankPlacements {
  std::span<const WeightPlacement> placements;
  int device = 0;
};

struct UploadTarget {
  const WeightPlacement* placement = nullptr;
  int device_idx = 0;  // in UploadPieces::devices
};

// UploadPiece holds whole rows of a source, because the pages of a file hold them whole. Each of its targets
// wants all of the rows, but only its own columns; and of the rows at the end of a block of scales that it
// shares with another rank, a target wants nothing but their influence on the scale.
struct UploadPiece {
  const TensorSource* source = nullptr;
  int64_t row = 0, rows = 0;  // of the source; where the one value of a source is repeated, of the targets
  int64_t first_target = 0, num_targets = 0;
  bool repeat = false;   // the same of all targets
  bool widened = false;  // likewise

  // Returns true if the piece passes through pinned memory: for files and for conversions on the host.
  bool pinned() const { return !source->random || widened; }
  // Returns the type of the values in pinned memory: the stored type, or that of values which the host has
  // widened.
  DType raw_type() const { return widened ? DType::kBF16 : source->dtype; }
  int64_t raw_bytes() const { return rows * source->cols * dtype_bytes(raw_type()); }
};

// TargetRows says what a target does with the rows of a piece.
struct TargetRows {
  int64_t window_row = 0;  // the row of the placement's window where the piece begins
  int64_t rows = 0;        // rows from there on that are written
};
TargetRows rows_of(const UploadPiece& piece, const WeightPlacement& placement);

struct UploadPieces {
  std::vector<int> devices;  // the GPUs, each once
  std::vector<UploadTarget> targets;
  std::vector<UploadPiece> pieces;  // in the order of the files, because disks read ahead

  std::span<const UploadTarget> targets_of(const UploadPiece& piece) const {
    return std::span(targets).subspan(static_cast<size_t>(piece.first_target),
                                      static_cast<size_t>(piece.num_targets));
  }
};

// The placements must outlive the result.
UploadPieces cut_placements(std::span<const RankPlacements> ranks);

// Returns the source's columns that a target needs on the device: its own, or those that determine its
// scales.
Range needed_columns(const WeightPlacement& placement);

// Returns true if a target's values are converted on the device, from a buffer there.
bool is_staged(const WeightPlacement& placement);

// Returns the bytes that the largest staged target of this device needs in such a buffer.
int64_t staging_bytes(const UploadPieces& pieces, int device_idx);

}  // namespace hadal
