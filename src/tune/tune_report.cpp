#include "tune/tune_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

namespace hadal {
namespace {

std::string shape_text(const ProductSpec& product) {
  if (product.name.num_experts == 0) return fmt::format("{} x {}", product.name.n, product.name.k);
  const cuda::GroupedShape shape = grouped_shape_of(product.name, product.hidden_size, 1, 0);
  return fmt::format("{} of {} x {}", shape.num_experts, shape.n, shape.k);
}

const char* type_text(WeightType type) {
  switch (type) {
    case WeightType::kF32:
      return "f32";
    case WeightType::kBF16:
      return "bf16";
    case WeightType::kF16:
      return "f16";
    case WeightType::kFp8Block:
      return "fp8";
    case WeightType::kInt8Block:
      return "int8";
    case WeightType::kFp8Channel:
      return "fp8 rows";
    case WeightType::kInt8Channel:
      return "int8 rows";
  }
  return "";
}

std::string counted(size_t count, const char* what) {
  return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
}

// Returns the width of the column of labels, which fits the long labels of presets.
size_t label_width(const std::vector<std::string>& labels) {
  size_t width = 15;
  for (const std::string& label : labels) width = std::max(width, label.size());
  return width;
}

}  // namespace

std::string dry_run_text(const std::vector<ProductSpec>& products, const std::vector<int64_t>& batches,
                         const TuneOptions& options, int num_sms) {
  std::vector<std::string> labels;
  for (const ProductSpec& product : products) labels.push_back(product.label);
  const size_t width = label_width(labels);
  std::string out = fmt::format("{:<{}} {:<9} {:<25} {:>6} {:>8}  {}\n", "product", width, "type", "shape",
                                "m", "choices", "heuristic");
  size_t total = 0;
  double seconds = 0.0;
  for (const ProductSpec& product : products) {
    for (const int64_t batch : batches) {
      const TuneField field = tune_field(product, batch, num_sms);
      total += field.candidates.size();
      if (!options.compare_between || is_searched(batch))
        seconds += expected_seconds(product, batch, field, options.every);
      out += fmt::format("{:<{}} {:<9} {:<25} {:>6} {:>8}  {}\n", product.label, width,
                         type_text(product.name.type), shape_text(product), batch, field.candidates.size(),
                         to_string(field.heuristic));
    }
  }
  out += fmt::format("{} for {} at {}, on {} multiprocessors; expected to take {:.0f} s{}\n",
                     counted(total, "choice"), counted(products.size(), "product"),
                     counted(batches.size(), "batch size"), num_sms, std::max(1.0, seconds),
                     options.every ? "" : ", because not all are measured");
  for (const StoredChoices& stored : stored_choices(products, batches, options.output_dir, num_sms)) {
    if (!stored.refusal.empty()) {
      out += fmt::format("a run on {} would be refused: {}\n", stored.device, stored.refusal);
    } else if (stored.num_kept > 0 && !options.again) {
      out += fmt::format(
          "a run on {} would keep the choices of {} of these {} lines, which are in {}; with "
          "--retune it would not\n",
          stored.device, stored.num_kept, products.size() * batches.size(), options.output_dir.string());
    }
  }
  return out;
}

std::string verdict_text(const TuneReport& report) {
  const HeuristicVerdict verdict = judge_heuristic(report.rows);
  if (verdict.worst == nullptr) return {};
  const TuneRow& worst = *verdict.worst;
  return fmt::format(
      "heuristic within {:.0f} % of tuned: {} of {} rows, worst {:.1f} % ({} {} m {}: {}, tuned {})\n",
      100.0 * kCloseToTuned, verdict.num_close, verdict.num_rows, 100.0 * verdict.worst_excess,
      worst.product->label, shape_text(*worst.product), worst.batch, to_string(worst.result.heuristic),
      to_string(worst.result.chosen().choice));
}

std::string report_text(const TuneReport& report) {
  std::string out;
  std::vector<std::string> labels;
  for (const TuneRow& row : report.rows) labels.push_back(row.product->label);
  const size_t width = label_width(labels);
  if (!report.rows.empty()) {
    out = fmt::format("{:<{}} {:<9} {:<25} {:>6} {:>9} {:>10} {:>6}  {}\n", "product", width, "type", "shape",
                      "m", "us", "heuristic", "gain", "choice");
  }
  for (const TuneRow& row : report.rows) {
    const MeasuredChoice& chosen = row.result.chosen();
    const double gain = row.result.heuristic_us > 0.0 ? 1.0 - chosen.us / row.result.heuristic_us : 0.0;
    out += fmt::format("{:<{}} {:<9} {:<25} {:>6} {:>9.2f} {:>10.2f} {:>5.1f}%  {}{}\n", row.product->label,
                       width, type_text(row.product->name.type), shape_text(*row.product), row.batch,
                       chosen.us, row.result.heuristic_us, 100.0 * gain, to_string(chosen.choice),
                       row.result.complete ? "" : " (search cut short)");
  }
  out += verdict_text(report);
  out += fmt::format("measured {}, kept {}, only one choice {}, same as neighbours {}, left {}\n",
                     report.rows.size(), report.num_kept, report.num_single, report.num_agreeing,
                     report.num_left);
  for (const auto& file : report.files) out += fmt::format("wrote {}\n", file.string());
  return out;
}

}  // namespace hadal
