// Tests how placements are cut into pieces that are read once. No GPU is needed.
#include <algorithm>
#include <map>

#include "model/cuda/device_upload_pieces.h"
#include "tests/cuda/weights/placed_weights.h"
#include "tests/model/shard_models.h"

namespace hadal {
namespace {

using testing::Format;

// Ranks are the plans of some ranks without memory, and the sources for which they were made.
struct Ranks {
  TensorSources sources;
  TensorSource rope;
  std::vector<DeviceWeightPlan> plans;

  Ranks(const ModelConfig& config, LoadQuantization quantization, ModelSplit split)
      : sources(testing::shapes_of(config)), rope(rope_source(config)) {
    for (int64_t rank = 0; rank < split.tp; ++rank)
      plans.push_back(
          plan_device_weights(config, sources, rope, quantization, nullptr, DType::kBF16, split, rank));
  }
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  // Rank r is on device[r % devices].
  UploadPieces cut(const std::vector<int>& devices) const {
    std::vector<RankPlacements> placements;
    for (size_t i = 0; i < plans.size(); ++i)
      placements.push_back({plans[i].placements, devices[i % devices.size()]});
    return cut_placements(placements);
  }
};

// Expects the pieces of every source to be all of it, each row once, however many ranks have it.
void expect_read_once(const Ranks& ranks, const UploadPieces& pieces) {
  std::map<const TensorSource*, std::vector<Range>> rows;
  for (const UploadPiece& piece : pieces.pieces)
    rows[piece.source].push_back({piece.row, piece.row + piece.rows});
  for (const DeviceWeightPlan& plan : ranks.plans) {
    for (const WeightPlacement& placement : plan.placements) {
      auto& read = rows[placement.source];
      std::sort(read.begin(), read.end(), [](Range a, Range b) { return a.begin < b.begin; });
      int64_t at = 0;
      for (const Range& range : read) {
        ASSERT_EQ(range.begin, at);
        at = range.end;
      }
      if (placement.repeat) {  // the one value of a source, for as many rows as the rank has
        ASSERT_GE(at, placement.rows);
      } else {
        ASSERT_EQ(at, placement.source->rows);
      }
    }
  }
}

// Expects every element of every placement to be written by exactly one piece, and its scales to be found
// from whole blocks.
void expect_written_once(const Ranks& ranks, const UploadPieces& pieces) {
  std::map<const WeightPlacement*, int64_t> next;  // the row that is written next
  std::vector<const UploadPiece*> in_order;
  for (const UploadPiece& piece : pieces.pieces) in_order.push_back(&piece);
  std::stable_sort(in_order.begin(), in_order.end(),
                   [](const auto* a, const auto* b) { return a->row < b->row; });
  for (const UploadPiece* piece : in_order) {
    for (const UploadTarget& target : pieces.targets_of(*piece)) {
      const WeightPlacement& to = *target.placement;
      const TargetRows at = rows_of(*piece, to);
      ASSERT_EQ(at.window_row, next[&to]);
      ASSERT_TRUE(at.rows > 0 && at.rows <= piece->rows && at.window_row + at.rows <= to.rows);
      next[&to] += at.rows;
      if (!(to.quantised() || to.widened()) || !is_block_scaled(to.codes)) {
        ASSERT_EQ(at.rows, piece->rows);
        continue;
      }
      ASSERT_EQ(piece->row % 128, 0);
      ASSERT_TRUE(piece->rows % 128 == 0 || piece->row + piece->rows == piece->source->rows);
    }
  }
  for (const DeviceWeightPlan& plan : ranks.plans)
    for (const WeightPlacement& placement : plan.placements) ASSERT_EQ(next[&placement], placement.rows);
}

TEST(UploadPieces, EveryPartOfAFileIsReadOnceAndGoesToAllRanksThatWantIt) {
  for (const char* family : {"v3", "v2-lite"}) {
    for (const Format& format : testing::kFormats) {
      if (format.compute == DType::kF32) continue;  // not on a GPU
      const ModelConfig config = testing::config_in(testing::uneven_config(family), format);
      for (const ModelSplit split : testing::splits_of(config)) {
        SCOPED_TRACE(fmt::format("{} {} tp {} ep {}", family, format.name, split.tp, split.ep));
        const Ranks ranks(config, format.at_load, split);
        const UploadPieces pieces = ranks.cut({3, 1});
        EXPECT_EQ(pieces.devices, split.is_whole() ? std::vector<int>{3} : (std::vector<int>{3, 1}));
        expect_read_once(ranks, pieces);
        expect_written_once(ranks, pieces);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(UploadPieces, LargeTensorsAreCutIntoAFewMegabytes) {
  testing::Json json = testing::uneven_config("v3");
  json.update(testing::Json::parse(R"({"hidden_size": 4096, "vocab_size": 5000})"));
  const ModelConfig config = testing::parsed(json);
  const Ranks ranks(config, LoadQuantization::kFp8, {.tp = 8, .ep = 2});
  const UploadPieces pieces = ranks.cut({0, 1});
  expect_read_once(ranks, pieces);
  expect_written_once(ranks, pieces);
  int64_t most = 0;
  for (const UploadPiece& piece : pieces.pieces) most = std::max(most, piece.raw_bytes());
  EXPECT_LE(most, int64_t{4} << 20);
  EXPECT_GE(most, int64_t{2} << 20);
}

// With scales for whole rows, a rank needs whole rows to quantise its columns, and therefore a buffer for a
// piece of these rows.
TEST(UploadPieces, BuffersOnTheDeviceAreForWhatIsConverted) {
  const auto staging = [](LoadQuantization quantization, const char* dtype) {
    testing::Json json = testing::uneven_config("v3");
    json["torch_dtype"] = dtype;
    const ModelConfig config = testing::parsed(json);
    const Ranks ranks(config, quantization, {.tp = 4});
    const UploadPieces pieces = ranks.cut({0});
    for (const UploadPiece& piece : pieces.pieces) {
      for (const UploadTarget& target : pieces.targets_of(piece)) {
        const WeightPlacement& to = *target.placement;
        const Range columns = needed_columns(to);
        EXPECT_TRUE(columns.begin <= to.col && columns.end >= to.col + to.cols);
        EXPECT_TRUE(!to.quantised() || is_block_scaled(to.codes) || columns.size() == to.source->cols);
      }
    }
    EXPECT_EQ(staging_bytes(pieces, 1), 0) << "there is one device";
    return staging_bytes(pieces, 0);
  };
  const int64_t norms = staging(LoadQuantization::kNone, "bfloat16");
  EXPECT_EQ(norms, kKvLoraRank * 2) << "the longest norm becomes float32";
  for (const LoadQuantization quantization : {LoadQuantization::kFp8, LoadQuantization::kW8A8Fp8})
    EXPECT_GT(staging(quantization, "bfloat16"), norms);
}

}  // namespace
}  // namespace hadal
