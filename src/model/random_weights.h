// Makes deterministic random weights: every element of every tensor is a pure function of (seed, tensor name,
// flat index), so that any part of any tensor can be made anywhere, in any order, on any number of threads.
// `--load-format dummy`, tools/make_checkpoint and the goldens use it. tools/goldens/random_weights.py is the
// same definition in numpy, bit for bit, for the formats that goldens have (no int8, no scales of rows). The
// functions are pure.
//
// This is the generator:
//   key   = mix64(fnv1a64(name) ^ mix64(seed)), where mix64 is splitmix64's output function; if a NextN layer
//           has a copy of a tensor (embed_tokens, shared_head.head), the name is that of the target's tensor
//   word c (32 bits, everything modulo 2^32):
//           x = c·0x9e3779b1 + low32(key);      x ^= x >> 16;  x *= 0x85ebca6b;  x ^= x >> 13
//           x += high32(key);                   x *= 0xc2b2ae35;  x ^= x >> 16
//   real tensors: element i uses the 16 bits r of word i/2 (low half first);
//           value = offset + float(2r − 65535) · (amplitude · 2^-16), in float32, with every operation
//           rounded by itself; then rounded to the stored type (nearest even)
//   e4m3 tensors: element i uses byte i%4 of word i/4 as its code; magnitude 0x7f (NaN) becomes 0x7e (448)
//   int8 tensors: element i uses byte i%4 of word i/4 as its code; −128 becomes −127
//   ue8m0 scales: 2^e or 2^(e+1), depending on r < threshold (see scale_recipe in the .cpp)
//
// These are the recipes (by the end of the name; fan_in = last dimension; uniform on ±√3·σ has standard
// deviation σ)
//   *norm.weight                    1 ± 0.1
//   *norm.bias                      ± 0.1
//   embed_tokens.weight             ± √3
//   gate.e_score_correction_bias    ± gate_bias_amplitude
//   o_proj, down_proj               ± √3·g/√fan_in with g = 1/√(2·num_hidden_layers)
//   every other linear              ± √3/√fan_in
//   weight_scale_inv (f32)          b·(1 ± 0.5), b such that code·scale has the linear's mean square, with
//                                   fan_in = 128 · last dimension
//   weight_scale (f32)              likewise, with the linear's own fan_in
// Embeddings of distinct tokens are then independent and remain the larger part of the residual stream in
// every layer, because all layers together add about as much as the embedding. So the gates get nearly
// independent inputs, and every expert is used equally often: the expected number of distinct experts is
// E·(1−(1−k/E)^B).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "model/config.h"
#include "model/tensor_list.h"
#include "tensor/dtype.h"

namespace hadal {

struct RandomWeightOptions {
  uint64_t seed = 0;
  int64_t num_hidden_layers = 1;      // sets the gain of what is added to the residual stream
  double gate_bias_amplitude = 0.01;  // amplitude of e_score_correction_bias; small, so that routing spreads
  bool ue8m0_scales = false;          // weight_scale_inv as powers of two
  bool int8_codes = false;            // scales belong to int8 codes instead of e4m3 codes

  static RandomWeightOptions for_config(const ModelConfig& config, uint64_t seed);
};

// RandomTensor is the recipe of one tensor.
class RandomTensor {
 public:
  enum class Kind : uint8_t { kReal, kFp8Codes, kPowerOfTwo, kInt8Codes };

  // Recipe has everything on which an element depends except its index, for generators elsewhere (on the
  // GPU).
  struct Recipe {
    Kind kind = Kind::kReal;
    uint32_t key_low = 0;
    uint32_t key_high = 0;
    float offset = 0.0F;
    float scale = 0.0F;            // amplitude · 2^-16
    uint32_t upper_threshold = 0;  // kPowerOfTwo: r below it selects 2·offset, otherwise offset
  };

  // dtype is F32, BF16, F16, F8_E4M3 or I8 (the last two are codes with a scale beside them). fan_in belongs
  // to the linear whose "weight_scale" this is; it is ignored otherwise. Any other dtype and a tensor of more
  // than 2^33 elements are errors.
  static Result<RandomTensor> make(std::string_view name, std::span<const int64_t> shape, DType dtype,
                                   const RandomWeightOptions& options, int64_t fan_in = 0);
  static Result<RandomTensor> make(const TensorSpec& spec, const RandomWeightOptions& options) {
    return make(spec.name, spec.shape, spec.dtype, options, spec.fan_in);
  }

  int64_t num_elements() const { return num_elements_; }
  int64_t num_bytes() const { return num_elements_ * dtype_bytes(dtype_); }
  DType dtype() const { return dtype_; }
  const Recipe& recipe() const { return recipe_; }

  // Writes elements [begin, begin + count) in the stored type to `out`, aligned to that type.
  void fill(int64_t begin, int64_t count, std::byte* out) const;

  // Returns one element, in float32 after rounding to the stored type. It follows the definition above
  // literally.
  float at(int64_t index) const;

 private:
  friend struct RandomTensorKernels;

  Recipe recipe_;
  DType dtype_ = DType::kBF16;
  int64_t num_elements_ = 0;
};

// Returns an order-dependent checksum of a tensor's bytes, which shows whether two generators agree: the sum
// over its little-endian 32-bit words w_i (zero-padded at the end) of w_i·(2i + 1), modulo 2^64.
uint64_t tensor_checksum(std::span<const std::byte> bytes);
// Returns mix64(fnv1a64(name) ^ tensor_checksum(bytes)). Its sum over tensors does not depend on their order.
uint64_t named_checksum(std::string_view name, std::span<const std::byte> bytes);

}  // namespace hadal
