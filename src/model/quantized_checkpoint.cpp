#include "model/quantized_checkpoint.h"

#include <algorithm>
#include <cmath>
#include <mutex>
#include <optional>
#include <span>
#include <system_error>
#include <utility>

#include "base/mapped_file.h"
#include "model/checkpoint.h"
#include "model/checkpoint_directory.h"
#include "model/other_models.h"
#include "model/quantize.h"
#include "model/safetensors_writer.h"
#include "model/weights_storage.h"

namespace hadal {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kStripRows = kFp8BlockSize;
constexpr int64_t kCopyBytes = int64_t{4} << 20;

// SourceMatrix is a linear in its source format, read by rows.
class SourceMatrix {
 public:
  SourceMatrix(const Checkpoint& checkpoint, const ModelConfig& config, const Checkpoint::Entry& entry)
      : entry_(entry), dtype_(*entry.info.dtype), cols_(entry.info.shape[1]) {
    if (!is_code(dtype_)) return;
    type_ = config.quantization->type;
    scales_ = checkpoint.find(scale_name(*config.quantization, entry.info.name));
    HADAL_CHECK(scales_ != nullptr, "{} passed matching without its scales", entry.info.name);
  }

  // Returns rows [row, row + num_rows), row a multiple of 128: as stored, or converted to float32 in
  // `scratch`.
  std::pair<DType, const std::byte*> rows(int64_t row, int64_t num_rows, std::vector<float>& scratch) const {
    const std::byte* stored = entry_.data.data() + row * cols_ * dtype_bytes(dtype_);
    if (!is_code(dtype_)) return {dtype_, stored};
    scratch.resize(static_cast<size_t>(num_rows * cols_));
    const std::vector<float> scales = strip_scales(row, num_rows);
    dequantize_rows(type_, stored, num_rows, cols_, scales.data(), scratch.data());
    return {DType::kF32, reinterpret_cast<const std::byte*>(scratch.data())};
  }

  std::span<const std::byte> bytes(int64_t row, int64_t num_rows) const {
    const int64_t row_bytes = cols_ * dtype_bytes(dtype_);
    return entry_.data.subspan(static_cast<size_t>(row * row_bytes),
                               static_cast<size_t>(num_rows * row_bytes));
  }

 private:
  std::vector<float> strip_scales(int64_t row, int64_t num_rows) const {
    const DType dtype = *scales_->info.dtype;
    int64_t total = 1;
    for (const int64_t size : scales_->info.shape) total *= size;
    const int64_t columns = (cols_ + kStripRows - 1) / kStripRows;
    const bool blocks = is_block_scaled(type_);
    const bool one = !blocks && total == 1;
    const int64_t first = one ? 0 : blocks ? row / kStripRows * columns : row;
    const int64_t count = one ? 1 : blocks ? columns : num_rows;
    std::vector<float> scales(static_cast<size_t>(count));
    widen_to_f32(dtype, scales_->data.data() + first * dtype_bytes(dtype), count, scales.data());
    if (one) scales.assign(static_cast<size_t>(num_rows), scales[0]);
    return scales;
  }

  const Checkpoint::Entry& entry_;
  const Checkpoint::Entry* scales_ = nullptr;
  DType dtype_;
  int64_t cols_;
  WeightType type_ = WeightType::kBF16;
};

// Target is a tensor of the new checkpoint with its origin, and a run of its rows (of its bytes, if copied).
struct Target {
  const Checkpoint::Entry* source = nullptr;  // null: a scale, which is written with its linear
  size_t idx = 0;                             // index in the shard
};
struct TargetPiece {
  Target target;
  int64_t begin = 0;
  int64_t count = 0;
};

class Converter {
 public:
  Converter(const Checkpoint& checkpoint, const ModelConfig& in, const ModelConfig& out,
            const QuantizedCheckpointOptions& options, ThreadPool& pool)
      : checkpoint_(checkpoint), in_(in), out_(out), options_(options), pool_(pool) {}

  // Returns the tensors to write, with their new types.
  Result<std::vector<TensorSpec>> plan() {
    HADAL_ASSIGN_OR_RETURN(const TensorMatch match, match_tensors(checkpoint_, expected_tensors(in_)));
    std::vector<TensorSpec> specs;
    for (TensorSpec& spec : expected_tensors(out_)) {
      if (spec.nextn && !match.has_nextn) continue;
      if (spec.role != TensorRole::kScale) {
        const Checkpoint::Entry* source = checkpoint_.find(spec.name);
        if (source == nullptr) continue;  // an optional one
        if (!is_code(spec.dtype)) {
          spec.dtype = !is_code(*source->info.dtype)     ? *source->info.dtype
                       : out_.torch_dtype == DType::kF32 ? DType::kF32
                                                         : DType::kBF16;
        }
      }
      total_bytes_ += spec.num_bytes();
      num_quantised_ += is_code(spec.dtype) ? 1 : 0;
      if (is_code(spec.dtype)) copies_all_codes_ &= is_copied(spec, *checkpoint_.find(spec.name));
      specs.push_back(std::move(spec));
    }
    return specs;
  }

  Result<void> write_shard(const fs::path& path, const std::vector<TensorSpec>& specs) {
    std::vector<SafetensorsWriter::Entry> entries;
    std::vector<TargetPiece> pieces;
    for (size_t i = 0; i < specs.size(); ++i) {
      entries.push_back({.name = specs[i].name, .dtype = specs[i].dtype, .shape = specs[i].shape});
      if (specs[i].role != TensorRole::kScale) cut(specs[i], i, pieces);
    }
    HADAL_ASSIGN_OR_RETURN(SafetensorsWriter writer, SafetensorsWriter::create(path, std::move(entries)));
    std::optional<Status> failure;
    pool_.parallel_for(static_cast<int64_t>(pieces.size()), 1, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) {
        {
          const std::lock_guard lock(mutex_);
          if (failure) return;
          if (options_.cancelled != nullptr && options_.cancelled->load()) {
            failure = make_status(StatusCode::kCancelled, "interrupted; {} is not written", path.string());
            return;
          }
        }
        const TargetPiece& piece = pieces[static_cast<size_t>(i)];
        const Result<int64_t> written = write_piece(writer, specs, piece);
        const std::lock_guard lock(mutex_);
        if (!written.ok()) {
          failure = written.status();
          return;
        }
        done_bytes_ += *written;
        if (options_.progress) options_.progress(done_bytes_, total_bytes_);
      }
    });
    if (failure) return *failure;
    return writer.finish();
  }

  int64_t total_bytes() const { return total_bytes_; }
  int64_t num_quantised() const { return num_quantised_; }
  bool copies_all_codes() const { return copies_all_codes_; }

 private:
  void cut(const TensorSpec& spec, size_t idx, std::vector<TargetPiece>& pieces) const {
    const Checkpoint::Entry* source = checkpoint_.find(spec.name);
    const bool copies = is_copied(spec, *source);
    const int64_t total = copies ? static_cast<int64_t>(source->data.size()) : spec.shape[0];
    int64_t step = copies ? kCopyBytes : kStripRows;
    // The scale of a whole matrix can be computed only from all of its values.
    if (!copies && is_code(spec.dtype) && out_.quantization->one_scale) step = total;
    for (int64_t begin = 0; begin < total; begin += step)
      pieces.push_back({{source, idx}, begin, std::min(step, total - begin)});
  }

  // Returns how many bytes were written.
  Result<int64_t> write_piece(const SafetensorsWriter& writer, const std::vector<TensorSpec>& specs,
                              const TargetPiece& piece) const {
    const TensorSpec& spec = specs[piece.target.idx];
    const Checkpoint::Entry& source = *piece.target.source;
    if (is_copied(spec, source)) {
      const auto bytes =
          source.data.subspan(static_cast<size_t>(piece.begin), static_cast<size_t>(piece.count));
      HADAL_RETURN_IF_ERROR(writer.write(piece.target.idx, piece.begin, bytes));
      advise_dont_need(bytes);
      if (!is_code(spec.dtype) || piece.begin > 0) return piece.count;
      HADAL_ASSIGN_OR_RETURN(const int64_t written, copy_scales(writer, specs, piece.target.idx));
      return piece.count + written;
    }
    const SourceMatrix matrix(checkpoint_, in_, source);
    int64_t written = 0;
    if (!is_code(spec.dtype)) {
      HADAL_ASSIGN_OR_RETURN(written, write_widened(writer, spec, piece, matrix));
    } else if (out_.quantization->one_scale) {
      HADAL_ASSIGN_OR_RETURN(written, write_whole(writer, spec, piece.target.idx, matrix));
    } else {
      HADAL_ASSIGN_OR_RETURN(written, write_strip(writer, spec, piece, matrix));
    }
    advise_dont_need(matrix.bytes(piece.begin, piece.count));
    return written;
  }

  // Returns true if the values do not change, which holds if a float type remains the same, and for codes
  // whose scales mean the same in the new format.
  bool is_copied(const TensorSpec& spec, const Checkpoint::Entry& source) const {
    if (!is_code(spec.dtype)) return spec.dtype == *source.info.dtype;
    return is_code(*source.info.dtype) && in_.quantization->type == out_.quantization->type &&
           in_.quantization->one_scale == out_.quantization->one_scale;
  }

  Result<int64_t> copy_scales(const SafetensorsWriter& writer, const std::vector<TensorSpec>& specs,
                              size_t weight_idx) const {
    const std::string name = scale_name(*in_.quantization, specs[weight_idx].name);
    const Checkpoint::Entry& source = *checkpoint_.find(name);
    std::vector<float> scales(static_cast<size_t>(specs[weight_idx + 1].num_elements()));
    widen_to_f32(*source.info.dtype, source.data.data(), static_cast<int64_t>(scales.size()), scales.data());
    HADAL_RETURN_IF_ERROR(writer.write(weight_idx + 1, 0, std::as_bytes(std::span<const float>(scales))));
    return static_cast<int64_t>(scales.size() * sizeof(float));
  }

  static Result<int64_t> write_widened(const SafetensorsWriter& writer, const TensorSpec& spec,
                                       const TargetPiece& piece, const SourceMatrix& matrix) {
    const int64_t k = spec.shape[1];
    std::vector<float> scratch;
    const auto [dtype, values] = matrix.rows(piece.begin, piece.count, scratch);
    const int64_t count = piece.count * k;
    std::vector<std::byte> out(static_cast<size_t>(count * dtype_bytes(spec.dtype)));
    if (spec.dtype == DType::kF32) {
      widen_to_f32(dtype, values, count, reinterpret_cast<float*>(out.data()));
    } else {
      round_to_bf16(dtype, values, count, reinterpret_cast<bf16*>(out.data()));
    }
    HADAL_RETURN_IF_ERROR(writer.write(piece.target.idx, piece.begin * k * dtype_bytes(spec.dtype), out));
    return static_cast<int64_t>(out.size());
  }

  Result<int64_t> write_strip(const SafetensorsWriter& writer, const TensorSpec& spec,
                              const TargetPiece& piece, const SourceMatrix& matrix) const {
    const int64_t k = spec.shape[1];
    const WeightType type = out_.quantization->type;
    std::vector<float> scratch;
    const auto [dtype, values] = matrix.rows(piece.begin, piece.count, scratch);
    const int64_t columns = (k + kStripRows - 1) / kStripRows;
    const bool blocks = is_block_scaled(type);
    std::vector<float> scales(static_cast<size_t>(blocks ? columns : piece.count));
    std::vector<std::byte> codes(static_cast<size_t>(piece.count * k));
    quantize_rows(type, dtype, values, piece.count, k, codes.data(), scales.data());
    HADAL_RETURN_IF_ERROR(check_finite(spec, codes, scales));
    const int64_t first_scale = blocks ? piece.begin / kStripRows * columns : piece.begin;
    HADAL_RETURN_IF_ERROR(writer.write(piece.target.idx, piece.begin * k, codes));
    HADAL_RETURN_IF_ERROR(writer.write(piece.target.idx + 1, first_scale * int64_t{sizeof(float)},
                                       std::as_bytes(std::span<const float>(scales))));
    return static_cast<int64_t>(codes.size() + scales.size() * sizeof(float));
  }

  // Reads all strips of a matrix twice: for its largest value, then for its codes.
  Result<int64_t> write_whole(const SafetensorsWriter& writer, const TensorSpec& spec, size_t idx,
                              const SourceMatrix& matrix) const {
    const int64_t n = spec.shape[0];
    const int64_t k = spec.shape[1];
    const WeightType type = out_.quantization->type;
    std::vector<float> scratch;
    float amax = kMinBlockAmax;
    for (int64_t row = 0; row < n; row += kStripRows) {
      const int64_t num_rows = std::min(kStripRows, n - row);
      const auto [dtype, values] = matrix.rows(row, num_rows, scratch);
      const float strip = max_abs(type, dtype, values, num_rows * k);
      amax = std::isnan(strip) ? strip : std::max(amax, strip);
      if (std::isnan(amax)) break;
    }
    const std::vector<float> scale{scale_of(type, amax)};
    std::vector<std::byte> codes;
    for (int64_t row = 0; row < n; row += kStripRows) {
      const int64_t num_rows = std::min(kStripRows, n - row);
      const auto [dtype, values] = matrix.rows(row, num_rows, scratch);
      codes.resize(static_cast<size_t>(num_rows * k));
      quantize_values(type, dtype, values, num_rows * k, amax, codes.data());
      HADAL_RETURN_IF_ERROR(check_finite(spec, codes, scale));
      HADAL_RETURN_IF_ERROR(writer.write(idx, row * k, codes));
    }
    HADAL_RETURN_IF_ERROR(writer.write(idx + 1, 0, std::as_bytes(std::span<const float>(scale))));
    return n * k + int64_t{sizeof(float)};
  }

  static Result<void> check_finite(const TensorSpec& spec, std::span<const std::byte> codes,
                                   std::span<const float> scales) {
    const bool finite =
        std::all_of(scales.begin(), scales.end(), [](float scale) { return std::isfinite(scale); }) &&
        (spec.dtype == DType::kI8 || std::none_of(codes.begin(), codes.end(), [](std::byte code) {
           return (code & std::byte{0x7f}) == std::byte{0x7f};
         }));
    if (finite) return {};
    return data_loss("{} contains NaN or infinity, which cannot be quantised", spec.name);
  }

  const Checkpoint& checkpoint_;
  const ModelConfig& in_;
  const ModelConfig& out_;
  const QuantizedCheckpointOptions& options_;
  ThreadPool& pool_;
  std::mutex mutex_;  // guards the failure and done_bytes_ while pieces are written
  int64_t done_bytes_ = 0;
  int64_t total_bytes_ = 0;
  int64_t num_quantised_ = 0;
  bool copies_all_codes_ = true;  // including their scales
};

// Copies tokenizer, templates, licence, …: every regular file of the directory, except weights and files that
// are generated. Files that exist in the target are kept and listed.
Result<void> copy_other_files(const fs::path& from, const fs::path& to, UnfinishedFiles& files,
                              std::vector<std::string>& kept) {
  std::error_code error;
  std::error_code ignored;  // an error means that the entry is not a regular file
  for (fs::directory_iterator it(from, error); !error && it != fs::directory_iterator();
       it.increment(error)) {
    const fs::directory_entry& entry = *it;
    const fs::path name = entry.path().filename();
    const std::string extension = name.extension().string();
    const bool weights = extension == ".safetensors" || extension == ".bin" || extension == ".pt" ||
                         extension == ".pth" || extension == ".gguf" || extension == ".partial";
    if (!entry.is_regular_file(ignored) || weights || name == "config.json" ||
        name.string().ends_with(".safetensors.index.json"))
      continue;
    if (fs::exists(to / name, ignored)) {
      kept.push_back(name.string());
      continue;
    }
    files.add(to / name);
    std::error_code failure;
    if (!fs::copy_file(entry.path(), to / name, failure) || failure)
      return make_status(StatusCode::kInternal, "cannot copy {}: {}", entry.path().string(),
                         failure.message());
  }
  if (error) return make_status(StatusCode::kInternal, "cannot read {}: {}", from.string(), error.message());
  return {};
}

// Returns the entries of a list of modules that select none of the model's linears.
Result<std::vector<std::string>> entries_without_effect(const std::vector<std::string>& entries,
                                                        const ModelConfig& config) {
  std::vector<std::string> out;
  const std::vector<TensorSpec> specs = expected_tensors(config);
  for (const std::string& entry : entries) {
    HADAL_ASSIGN_OR_RETURN(const ModuleList list, ModuleList::parse({entry}));
    const bool selects = std::any_of(specs.begin(), specs.end(), [&](const TensorSpec& spec) {
      return spec.role == TensorRole::kLinear && list.contains(module_name(spec.name));
    });
    if (!selects) out.push_back(entry);
  }
  return out;
}

}  // namespace

Result<QuantizedCheckpointSummary> write_quantized_checkpoint(const fs::path& from, const fs::path& to,
                                                              const QuantizedCheckpointOptions& options,
                                                              ThreadPool& pool) {
  const std::string source = (from / "config.json").string();
  HADAL_ASSIGN_OR_RETURN(const std::string text, read_text_file(from / "config.json", kMaxConfigBytes));
  HADAL_ASSIGN_OR_RETURN(const ModelConfig in, parse_model_config(text, source));
  const auto config_text = [&](bool ue8m0_scales) -> Result<std::string> {
    if (options.format == nullptr) return with_quantization_config(text, source, "");
    PublishedFormat format = *options.format;
    format.quantization.ue8m0_scales = ue8m0_scales;
    return with_quantization_config(text, source, quantization_config_json(format, options.unquantised));
  };
  HADAL_ASSIGN_OR_RETURN(std::string new_text, config_text(false));
  HADAL_ASSIGN_OR_RETURN(const ModelConfig out, parse_model_config(new_text, "the new config.json"));
  HADAL_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::open(from));
  Converter converter(checkpoint, in, out, options, pool);
  HADAL_ASSIGN_OR_RETURN(std::vector<TensorSpec> specs, converter.plan());
  // Scales that are powers of two remain so only if all of them are copied, because those computed here may
  // be any floats.
  if (in.quantization && in.quantization->ue8m0_scales && out.quantization && converter.copies_all_codes()) {
    HADAL_ASSIGN_OR_RETURN(new_text, config_text(true));
  }

  QuantizedCheckpointSummary summary;
  summary.num_tensors = static_cast<int64_t>(specs.size());
  summary.num_quantised = converter.num_quantised();
  summary.num_bytes = converter.total_bytes();
  HADAL_ASSIGN_OR_RETURN(summary.without_effect, entries_without_effect(options.unquantised, in));
  UnfinishedFiles files;
  HADAL_RETURN_IF_ERROR(prepare_directory(to, summary.num_bytes, files));
  const auto shards = split_into_shards(std::move(specs), options.max_shard_bytes);
  summary.num_shards = static_cast<int64_t>(shards.size());
  const std::vector<std::string> names = shard_names(shards.size());
  for (size_t i = 0; i < shards.size(); ++i) {
    files.add(to / names[i]);
    HADAL_RETURN_IF_ERROR(converter.write_shard(to / names[i], shards[i]));
  }
  if (shards.size() > 1) {
    files.add(to / "model.safetensors.index.json");
    HADAL_RETURN_IF_ERROR(
        write_text(to / "model.safetensors.index.json", index_json(shards, names, summary.num_bytes)));
  }
  HADAL_RETURN_IF_ERROR(copy_other_files(from, to, files, summary.kept_files));
  std::sort(summary.kept_files.begin(), summary.kept_files.end());
  files.add(to / "config.json");
  HADAL_RETURN_IF_ERROR(write_text(to / "config.json", new_text));
  files.keep();
  return summary;
}

}  // namespace hadal
