// Tests the weights that ranks hold: together, their codes and scales are those of the whole model.
#include "model/shard_weights.h"

#include <gtest/gtest.h>

#include <cstring>

#include "model/info.h"
#include "tests/model/shard_models.h"

namespace hadal {
namespace {

using testing::config_in;
using testing::Format;
using testing::Json;
using testing::options_of;
using testing::splits_of;
using testing::uneven_config;

float scale_at(const MatrixWeight& w, int64_t row, int64_t col) {
  if (is_block_scaled(w.type)) return w.scales[row / 128 * w.scale_stride + col / 128];
  return is_channel_scaled(w.type) ? w.scales[row] : 1.0F;
}

// Expects `part` to be the rows from `row` and the columns from `col` of `whole`, code by code and scale by
// scale.
void expect_window(const MatrixWeight& part, const MatrixWeight& whole, int64_t row, int64_t col) {
  ASSERT_EQ(part.type, whole.type);
  ASSERT_LE(row + part.n, whole.n);
  ASSERT_LE(col + part.k, whole.k);
  const int64_t size = weight_element_bytes(whole.type);
  for (int64_t r = 0; r < part.n; ++r) {
    const auto* mine = static_cast<const std::byte*>(part.data) + r * part.row_stride * size;
    const auto* theirs =
        static_cast<const std::byte*>(whole.data) + ((row + r) * whole.row_stride + col) * size;
    ASSERT_EQ(std::memcmp(mine, theirs, part.k * size), 0) << "row " << r;
    if (!has_scales(whole.type)) continue;
    for (int64_t c = 0; c < part.k; ++c)
      ASSERT_EQ(scale_at(part, r, c), scale_at(whole, row + r, col + c)) << r << "," << c;
  }
}

void expect_same(const MatrixWeight& part, const MatrixWeight& whole) {
  EXPECT_EQ(part.data, whole.data);
  EXPECT_EQ(part.n, whole.n);
  EXPECT_EQ(part.scales, whole.scales);
}

// Tiles puts parts of a matrix together, in the order of ranks.
class Tiles {
 public:
  explicit Tiles(const MatrixWeight& whole) : whole_(whole) {}
  void add_rows(const MatrixWeight& part) {
    ASSERT_EQ(part.k, whole_.k);
    expect_window(part, whole_, at_, 0);
    at_ += part.n;
  }
  void add_columns(const MatrixWeight& part) {
    ASSERT_EQ(part.n, whole_.n);
    expect_window(part, whole_, 0, at_);
    at_ += part.k;
  }
  // The first `skip` rows repeat the end of the part before.
  void add_rows_after(const MatrixWeight& part, int64_t skip) {
    at_ -= skip;
    add_rows(part);
  }
  int64_t at() const { return at_; }

 private:
  const MatrixWeight& whole_;
  int64_t at_ = 0;
};

struct MlpTiles {
  const MlpWeights& whole;
  Tiles gate{whole.gate}, up{whole.up}, down{whole.down};
  void add(const MlpWeights& part) {
    EXPECT_EQ(part.up.n, part.gate.n);
    EXPECT_EQ(part.down.k, part.gate.n);
    gate.add_rows(part.gate);
    up.add_rows(part.up);
    down.add_columns(part.down);
  }
  void expect_complete() const {
    EXPECT_EQ(gate.at(), whole.gate.n);
    EXPECT_EQ(up.at(), whole.up.n);
    EXPECT_EQ(down.at(), whole.down.k);
  }
};

struct ShardedModel {
  ModelConfig config;
  ModelWeights whole;
  std::vector<ModelWeights> parts;
  ModelSplit split;
};

// Calls body(sharded) for every family, format and split.
template <typename Body>
void for_each_sharded(const Body& body) {
  ThreadPool pool(1);
  for (const std::string& family : testing::kFamilies) {
    for (const Format& format : testing::kFormats) {
      ShardedModel sharded{.config = config_in(uneven_config(family), format)};
      sharded.whole = load_weights({}, sharded.config, options_of(format), pool).value();
      for (const ModelSplit split : splits_of(sharded.config)) {
        SCOPED_TRACE(fmt::format("{} {} tp {} ep {}", family, format.name, split.tp, split.ep));
        sharded.split = split;
        sharded.parts.clear();
        for (int64_t rank = 0; rank < split.tp; ++rank)
          sharded.parts.push_back(shard_weights(sharded.whole, sharded.config, split, rank));
        body(sharded);
        if (::testing::Test::HasFailure()) return;
      }
    }
  }
}

TEST(ShardWeights, AttentionOfAllRanksIsTheWhole) {
  bool skipped = false;
  for_each_sharded([&](const ShardedModel& sharded) {
    for (size_t i = 0; i < sharded.whole.layers.size(); ++i) {
      const AttentionWeights& whole = sharded.whole.layers[i].attention;
      const bool low_rank = sharded.config.q_lora_rank > 0;
      const MatrixWeight& whole_q = low_rank ? whole.q_b : whole.q_proj;
      Tiles q(whole_q), kv_b(whole.kv_b), o(whole.o);
      for (const ModelWeights& part : sharded.parts) {
        const AttentionWeights& attention = part.layers[i].attention;
        q.add_rows_after(low_rank ? attention.q_b : attention.q_proj, attention.q_skip);
        skipped |= attention.q_skip > 0;
        kv_b.add_rows(attention.kv_b);
        o.add_columns(attention.o);
        EXPECT_EQ(attention.kv_b.n / 256, attention.o.k / 128);
        expect_same(attention.q_a, whole.q_a);
        expect_same(attention.kv_a, whole.kv_a);
        EXPECT_EQ(attention.q_a_norm, whole.q_a_norm);
        ASSERT_EQ(attention.indexer.has_value(), sharded.config.has_indexer());
        if (attention.indexer) {
          expect_same(attention.indexer->wq_b, whole.indexer->wq_b);
          expect_same(attention.indexer->wk, whole.indexer->wk);
          expect_same(attention.indexer->weights_proj, whole.indexer->weights_proj);
          EXPECT_EQ(attention.indexer->norm_bias, whole.indexer->norm_bias);
        }
        EXPECT_EQ(attention.kv_a_norm, whole.kv_a_norm);
      }
      EXPECT_EQ(q.at(), whole_q.n);
      EXPECT_EQ(kv_b.at(), whole.kv_b.n);
      EXPECT_EQ(o.at(), whole.o.k);
    }
  });
  EXPECT_TRUE(skipped) << "no rank's heads begin inside a block";
}

TEST(ShardWeights, MlpsOfAllRanksAreTheWhole) {
  bool empty_shared = false;
  for_each_sharded([&](const ShardedModel& sharded) {
    MlpTiles dense{*sharded.whole.layers[0].mlp};
    MlpTiles shared{*sharded.whole.layers[1].moe->shared};
    for (const ModelWeights& part : sharded.parts) {
      dense.add(*part.layers[0].mlp);
      if (part.layers[1].moe->shared) {
        EXPECT_GT(part.layers[1].moe->shared->gate.n, 0);
        shared.add(*part.layers[1].moe->shared);
      } else {
        empty_shared = true;
      }
    }
    dense.expect_complete();
    shared.expect_complete();
  });
  EXPECT_TRUE(empty_shared) << "every rank has a part of every shared expert";
}

TEST(ShardWeights, ExpertsOfAllRanksAreTheWhole) {
  bool empty = false;
  for_each_sharded([&](const ShardedModel& sharded) {
    const MoeWeights& whole = *sharded.whole.layers[1].moe;
    for (size_t e = 0; e < whole.experts.size(); ++e) {
      MlpTiles tiles{whole.experts[e]};
      for (const ModelWeights& part : sharded.parts) {
        const MoeWeights& moe = *part.layers[1].moe;
        expect_same(moe.gate, whole.gate);
        EXPECT_EQ(moe.correction_bias, whole.correction_bias);
        empty |= moe.experts.empty();
        const int64_t local = static_cast<int64_t>(e) - moe.first_expert;
        if (local >= 0 && local < static_cast<int64_t>(moe.experts.size())) tiles.add(moe.experts[local]);
      }
      tiles.expect_complete();
    }
    for (const ModelWeights& part : sharded.parts) {
      const size_t dealt = whole.experts.size() / sharded.split.ep;
      const size_t found = part.layers[1].moe->experts.size();
      EXPECT_TRUE(found == dealt || found == 0) << found;
    }
  });
  EXPECT_TRUE(empty) << "every rank has a part of every expert";
}

TEST(ShardWeights, TheRestIsOnAllRanksButTheHeadIsCut) {
  for_each_sharded([](const ShardedModel& sharded) {
    Tiles head(sharded.whole.lm_head);
    for (const ModelWeights& part : sharded.parts) {
      head.add_rows(part.lm_head);
      expect_same(part.embedding, sharded.whole.embedding);
      EXPECT_EQ(part.final_norm, sharded.whole.final_norm);
      EXPECT_EQ(part.storage, sharded.whole.storage);
      EXPECT_EQ(part.compute_dtype, sharded.whole.compute_dtype);
      for (size_t i = 0; i < part.layers.size(); ++i) {
        EXPECT_EQ(part.layers[i].input_norm, sharded.whole.layers[i].input_norm);
        EXPECT_EQ(part.layers[i].post_attention_norm, sharded.whole.layers[i].post_attention_norm);
        EXPECT_EQ(part.layers[i].mlp.has_value(), sharded.whole.layers[i].mlp.has_value());
        EXPECT_EQ(part.layers[i].moe.has_value(), sharded.whole.layers[i].moe.has_value());
      }
      EXPECT_EQ(part.layers.size(), sharded.whole.layers.size());
    }
    EXPECT_EQ(head.at(), sharded.config.vocab_size);
  });
}

TEST(ShardWeights, ThePredictionLayerIsSharedLikeALayer) {
  Json json = uneven_config("v3");
  json["num_nextn_predict_layers"] = 1;
  const ModelConfig config = testing::parsed(json);
  ThreadPool pool(1);
  const ModelWeights whole = load_weights({}, config, options_of({}), pool).value();
  ASSERT_TRUE(whole.mtp.has_value());
  int64_t head_rows = 0;
  for (int64_t rank = 0; rank < 2; ++rank) {
    const ModelWeights part = shard_weights(whole, config, {.tp = 2}, rank);
    ASSERT_TRUE(part.mtp.has_value());
    const LayerWeights& layer = part.mtp->layer;
    EXPECT_EQ(layer.attention.o.k, part.layers.back().attention.o.k);
    EXPECT_EQ(layer.moe->experts.size(), part.layers.back().moe->experts.size());
    EXPECT_EQ(part.mtp->eh_proj.n, whole.mtp->eh_proj.n);  // every rank has all of it
    EXPECT_EQ(part.mtp->lm_head.n, part.lm_head.n);
    head_rows += part.mtp->lm_head.n;
  }
  EXPECT_EQ(head_rows, config.vocab_size);
}

TEST(BytesOfWeights, AreThoseOfTheConfig) {
  ThreadPool pool(1);
  for (const std::string& family : testing::kFamilies) {
    for (const Format& format : testing::kFormats) {
      for (const bool tied : {false, true}) {
        Json json = uneven_config(family);
        json["tie_word_embeddings"] = tied;
        if (family == "v3") json["num_nextn_predict_layers"] = 1;
        const ModelConfig config = config_in(json, format);
        const ModelWeights whole = load_weights({}, config, options_of(format), pool).value();
        EXPECT_EQ(bytes_of(whole), model_info(config, options_of(format), {}, 0).weight_bytes)
            << family << " " << format.name << (tied ? " tied" : "");
      }
    }
  }
}

}  // namespace
}  // namespace hadal
