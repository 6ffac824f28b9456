// Compares gather_keys with a loop on the host, bit for bit. Pages that no run names, records after a
// sequence's end and page table entries past its length are poison.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "kernels/cuda/activation.h"
#include "kernels/cuda/mla/mla.h"
#include "tests/cuda/device_array.h"

namespace hadal::testing {
namespace {

constexpr int kTableStride = 24;

uint8_t random_code(std::mt19937_64& random, KvFormat format) {
  while (true) {
    const auto bits = static_cast<uint8_t>(random());
    const bool finite = format == KvFormat::kFp8E4M3 ? (bits & 0x7f) != 0x7f : (bits & 0x7f) < 0x7c;
    if (finite) return bits;
  }
}

// Writes a record's bytes, and returns the 576 values that they represent.
std::vector<float> write_record(std::byte* record, const KvLayout& layout, std::mt19937_64& random) {
  std::vector<float> values(kKvRowDim);
  std::normal_distribution<float> normal;
  const auto random_bf16_value = [&] { return to_bf16(normal(random)); };
  const bool is_f16 = layout.format == KvFormat::kF16;
  switch (layout.format) {
    case KvFormat::kFp8E4M3: {
      float scales[kKvNumScales];
      for (float& scale : scales) scale = 0.001F + 0.01F * static_cast<float>(random() % 1000) / 1000.0F;
      if (layout.scales == KvScales::kPerToken) std::fill_n(scales, kKvNumScales, scales[0]);
      for (int i = 0; i < kKvLatentDim; ++i) {
        const fp8_e4m3 code{random_code(random, layout.format)};
        std::memcpy(record + i, &code, 1);
        values[i] = to_float(code) * scales[i / kKvScaleGroup];
      }
      std::memcpy(record + kKvFp8ScaleOffset, scales, sizeof scales);
      for (int i = 0; i < kKvRopeDim; ++i) {
        const bf16 value = random_bf16_value();
        std::memcpy(record + kKvFp8RopeOffset + 2 * i, &value, 2);
        values[kKvLatentDim + i] = to_float(value);
      }
      break;
    }
    case KvFormat::kFp8E5M2:
      for (int i = 0; i < kKvRowDim; ++i) {
        const fp8_e5m2 code{random_code(random, layout.format)};
        std::memcpy(record + i, &code, 1);
        values[i] = to_float(code);
      }
      break;
    default:
      for (int i = 0; i < kKvRowDim; ++i) {
        const uint16_t value = to_16_bit(normal(random), is_f16);
        std::memcpy(record + 2 * i, &value, 2);
        values[i] = from_16_bit(value, is_f16);
      }
  }
  return values;
}

struct Cache {
  Cache(const KvLayout& of, const std::vector<int>& lengths, uint64_t seed) : layout(of) {
    std::mt19937_64 random(seed);
    int num_pages = 3;  // never used
    for (const int length : lengths) num_pages += (length + kPageSize - 1) / kPageSize;
    std::vector<int32_t> pages(num_pages);
    for (int i = 0; i < num_pages; ++i) pages[i] = i;
    std::shuffle(pages.begin(), pages.end(), random);
    pool.assign(num_pages * layout.page_bytes(), std::byte{0xff});
    table.assign(lengths.size() * kTableStride, -1234567);
    values.resize(lengths.size());
    size_t next_page = 0;
    for (size_t s = 0; s < lengths.size(); ++s) {
      for (int position = 0; position < lengths[s]; ++position) {
        int32_t& page = table[s * kTableStride + position / kPageSize];
        if (position % kPageSize == 0) page = pages[next_page++];
        std::byte* record = &pool[(page * kPageSize + position % kPageSize) * layout.row_bytes()];
        values[s].push_back(write_record(record, layout, random));
      }
    }
    // If all latents are zero, their scale is 1.
    if (layout.format != KvFormat::kFp8E4M3) {
      std::memset(&pool[table[0] * layout.page_bytes()], 0, layout.row_bytes());
      values[0][0].assign(kKvRowDim, 0.0F);
    }
  }

  KvLayout layout;
  std::vector<std::byte> pool;
  std::vector<int32_t> table;
  std::vector<std::vector<std::vector<float>>> values;  // [sequence][position][576]
};

struct Wanted {
  bool latent = true;
  bool fp8 = false;
  int64_t stride = kKvLatentDim;
  bool power_of_two = false;
};

void check(const KvLayout& layout, const Wanted& wanted) {
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  const Cache cache(layout, {1, 64, 65, 130, 700, 1}, seed);
  const std::vector<cuda::KeyRun> runs = {{.seq_idx = 4, .begin = 0, .count = 700, .out_begin = 3},
                                          {.seq_idx = 0, .begin = 0, .count = 1, .out_begin = 703},
                                          {.seq_idx = 3, .begin = 64, .count = 66, .out_begin = 710},
                                          {.seq_idx = 2, .begin = 5, .count = 60, .out_begin = 776},
                                          {.seq_idx = 1, .begin = 63, .count = 1, .out_begin = 836},
                                          {.seq_idx = 4, .begin = 128, .count = 1, .out_begin = 837},
                                          {.seq_idx = 5, .begin = 1, .count = 0, .out_begin = 838}};
  constexpr int64_t kRows = 840;
  constexpr int64_t kScaleStride = 848;
  std::vector<const std::vector<float>*> source(kRows, nullptr);
  for (const cuda::KeyRun& run : runs) {
    for (int i = 0; i < run.count; ++i) source[run.out_begin + i] = &cache.values[run.seq_idx][run.begin + i];
  }

  const DeviceArray<std::byte> pool(cache.pool);
  const DeviceArray<int32_t> table(cache.table);
  const DeviceArray<cuda::KeyRun> device_runs(runs);
  for (const bool reference : {true, false}) {
    SCOPED_TRACE(reference ? "plain kernel" : "tuned kernel");
    const DeviceArray<uint16_t> latent(kRows * kKvLatentDim);
    const DeviceArray<uint16_t> rope(kRows * kKvRopeDim);
    const DeviceArray<fp8_e4m3> codes(kRows * wanted.stride);
    const DeviceArray<float> scales(wanted.stride / cuda::kQuantGroup * kScaleStride);
    cuda::GatherKeysParams params;
    params.kv = {
        .pool = pool.data(), .layout = layout, .page_table = table.data(), .page_table_stride = kTableStride};
    params.runs = device_runs.data();
    params.num_runs = static_cast<int>(runs.size());
    params.max_count = 700;
    params.latent = wanted.latent ? latent.data() : nullptr;
    params.rope = rope.data();
    if (wanted.fp8) {
      params.latent_fp8 = {.codes = codes.data(),
                           .scales = scales.data(),
                           .stride = wanted.stride,
                           .scale_stride = kScaleStride,
                           .power_of_two = wanted.power_of_two};
    }
    cuda::Launch launch;
    launch.stream = test_stream().handle();
    launch.reference = reference;
    cuda::gather_keys(params, launch);

    const bool is_f16 = layout.format == KvFormat::kF16;
    const std::vector<uint16_t> got_latent = latent.download();
    const std::vector<uint16_t> got_rope = rope.download();
    const std::vector<fp8_e4m3> got_codes = codes.download();
    const std::vector<float> got_scales = scales.download();
    int wrong = 0;
    const auto expect = [&](bool right, const char* what, int64_t row, int64_t column) {
      if (!right && ++wrong <= 4) ADD_FAILURE() << what << " of row " << row << ", column " << column;
    };
    for (int64_t row = 0; row < kRows; ++row) {
      const std::vector<float>* values = source[row];
      for (int i = 0; i < kKvLatentDim; ++i) {
        const bool written = values != nullptr && wanted.latent;
        const uint16_t bits = written ? to_16_bit((*values)[i], is_f16) : 0xffff;
        expect(got_latent[row * kKvLatentDim + i] == bits, "latent", row, i);
      }
      for (int i = 0; i < kKvRopeDim; ++i) {
        const uint16_t bits = values != nullptr ? to_16_bit((*values)[kKvLatentDim + i], is_f16) : 0xffff;
        expect(got_rope[row * kKvRopeDim + i] == bits, "rope", row, i);
      }
      const bool quantised = values != nullptr && wanted.fp8;
      for (int64_t i = 0; i < wanted.stride; ++i) {
        uint8_t bits = 0xff;
        if (quantised && i >= kKvLatentDim) bits = 0;
        if (quantised && i < kKvLatentDim) {
          const int64_t group = i / cuda::kQuantGroup;
          float most = 0.0F;
          for (int j = 0; j < cuda::kQuantGroup; ++j) {
            most = std::max(most, std::abs((*values)[group * cuda::kQuantGroup + j]));
          }
          float scale = most > 0.0F ? most / kFp8E4m3Max : 1.0F;
          if (wanted.power_of_two && most > 0.0F) scale = std::exp2(std::ceil(std::log2(scale)));
          if (i % cuda::kQuantGroup == 0) {
            expect(got_scales[group * kScaleStride + row] == scale, "scale", row, group);
          }
          bits = to_fp8_e4m3((*values)[i] / scale).bits;
        }
        expect(got_codes[row * wanted.stride + i].bits == bits, "code", row, i);
      }
    }
    EXPECT_EQ(wrong, 0);
  }
}

TEST(GatherKeys, GathersBf16) {
  check({KvFormat::kBF16}, {});
}
TEST(GatherKeys, GathersF16) {
  check({KvFormat::kF16}, {});
}
TEST(GatherKeys, GathersFp8E4M3WithOneScalePerToken) {
  check({KvFormat::kFp8E4M3, KvScales::kPerToken}, {});
}
TEST(GatherKeys, GathersFp8E4M3WithFourScales) {
  check({KvFormat::kFp8E4M3, KvScales::kPer128}, {});
}
TEST(GatherKeys, GathersFp8E5M2) {
  check({KvFormat::kFp8E5M2}, {});
}

TEST(GatherKeys, QuantisesLatents) {
  for (const KvFormat format : {KvFormat::kBF16, KvFormat::kFp8E4M3, KvFormat::kFp8E5M2}) {
    SCOPED_TRACE("format " + std::to_string(static_cast<int>(format)));
    check({format, KvScales::kPer128}, {.latent = false, .fp8 = true});
    check({format, KvScales::kPerToken}, {.latent = true, .fp8 = true, .stride = 640});
    check({format, KvScales::kPerToken}, {.latent = false, .fp8 = true, .power_of_two = true});
  }
}

}  // namespace
}  // namespace hadal::testing
