// Cuts the placements of one or several ranks into pieces: rows of a stored tensor, a few MB each, with every
// placement that needs some of them. A piece is read or generated once, however many placements need it. The
// functions are pure, and any thread may call them; every build has them. Only the upload of device weights
// includes this.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/cuda/device_weights_plan.h"

namespace hadal {

// RankPlacements holds the placements of one rank and the index of its GPU.
struct RankPlacements {
  std::span<const WeightPlacement> placements;
  int device = 0;
};

struct UploadTarget {
  const WeightPlacement* placement = nullptr;
  int device_idx = 0;  // in UploadPieces::devices
};

// UploadPiece holds whole rows of a source, because files store rows contiguously. Each of its targets needs
// all of the rows, but only its own columns. If a target shares a block of scales with another rank, some
// rows at the end of the block are not its own; these rows only take part in the computation of its scale.
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

// TargetRows says which rows of a piece a target writes.
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

// Returns the source's columns that a target needs on the device: its own columns, or all that determine its
// scales.
Range needed_columns(const WeightPlacement& placement);

// Returns true if a target's values are converted on the device, from a buffer there.
bool is_staged(const WeightPlacement& placement);

// Returns the bytes of the buffer in which the largest staged target of this device is converted.
int64_t staging_bytes(const UploadPieces& pieces, int device_idx);

}  // namespace hadal
