#include "tensor/tensor.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "tensor/buffer.h"

namespace hadal {
namespace {

TEST(Tensor, DenseViewsHaveRowMajorStrides) {
  std::vector<float> data(24);
  const Tensor view = Tensor::of(data.data(), {2, 3, 4});
  EXPECT_EQ(view.num_elements(), 24);
  EXPECT_EQ(view.stride[0], 12);
  EXPECT_EQ(view.stride[2], 1);
  EXPECT_TRUE(view.is_contiguous());
}

TEST(Tensor, RowsStartAtTheirOffsetAndThrowBeyondTheMatrix) {
  std::vector<float> data(12);
  const Tensor view = Tensor::of(data.data(), {4, 3});
  EXPECT_EQ(view.rows(2, 2).ptr<float>(), data.data() + 6);
  EXPECT_EQ(view.rows(4, 0).shape[0], 0);
  EXPECT_THROW((void)view.rows(3, 2), Error);
  EXPECT_THROW((void)view.rows(-1, 2), Error);
}

TEST(Tensor, TypedAccessThrowsForAnotherType) {
  std::vector<float> data(2);
  EXPECT_THROW((void)Tensor::of(data.data(), {2}).ptr<int32_t>(), Error);
}

TEST(DType, SafetensorsNamesRoundTrip) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kF8E4M3, DType::kF8E5M2,
                            DType::kI32, DType::kI64, DType::kU8, DType::kI8}) {
    EXPECT_EQ(dtype_from_safetensors(safetensors_name(dtype)), dtype);
  }
  EXPECT_EQ(dtype_from_safetensors("I16"), std::nullopt);
}

TEST(Buffer, IsAlignedAndMovable) {
  Buffer small(100);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(small.data()) % 64, 0U);
  std::byte* data = small.data();
  const Buffer moved = std::move(small);
  EXPECT_EQ(moved.data(), data);
  EXPECT_EQ(moved.size(), 100U);
}

TEST(Buffer, AnImpossibleSizeIsAnErrorThatNamesIt) {
  EXPECT_THROW(Buffer(size_t{1} << 62), Error);
}

TEST(Arena, ScopesFreeMemoryAndWarmUseAllocatesNothing) {
  Arena arena;
  void* first = nullptr;
  {
    const Arena::Scope scope(arena);
    first = arena.allocate(1000);
    std::memset(arena.allocate(10 << 20), 1, 10 << 20);  // larger than a block
    EXPECT_NE(arena.allocate(8), first);
  }
  const Arena::Scope scope(arena);
  EXPECT_EQ(arena.allocate(1000), first);
  EXPECT_GE(arena.high_water_bytes(), size_t{10} << 20);
}

TEST(Arena, LiveAllocationsNeverOverlap) {
  Arena arena;
  const Arena::Scope scope(arena);
  std::vector<std::pair<unsigned char*, size_t>> live;
  for (size_t i = 0; i < 200; ++i) {
    const size_t size = (i * 7919) % 300000 + 1;
    auto* data = static_cast<unsigned char*>(arena.allocate(size));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(data) % 64, 0U);
    std::memset(data, static_cast<int>(i), size);
    live.emplace_back(data, size);
  }
  for (size_t i = 0; i < live.size(); ++i) {
    EXPECT_EQ(live[i].first[0], static_cast<unsigned char>(i));
    EXPECT_EQ(live[i].first[live[i].second - 1], static_cast<unsigned char>(i));
  }
}

}  // namespace
}  // namespace hadal
