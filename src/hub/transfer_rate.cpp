#include "hub/transfer_rate.h"

#include <fmt/format.h>

namespace hadal::hub {

void TransferRate::note(Time now, int64_t bytes) {
  constexpr std::chrono::seconds kWindow{10};
  samples_.push_back({now, bytes});
  while (samples_.size() > 2 && now - samples_[1].time >= kWindow) samples_.pop_front();
}

double TransferRate::bytes_per_s() const {
  if (samples_.size() < 2) return 0.0;
  const double seconds = std::chrono::duration<double>(samples_.back().time - samples_.front().time).count();
  return seconds > 0.0 ? static_cast<double>(samples_.back().bytes - samples_.front().bytes) / seconds : 0.0;
}

std::string describe_progress(int64_t done_bytes, int64_t total_bytes, double bytes_per_s) {
  const bool is_large = total_bytes >= 1'000'000'000;
  const double unit = is_large ? 1e9 : 1e6;
  std::string text = fmt::format("{:.1f} of {:.1f} {}", static_cast<double>(done_bytes) / unit,
                                 static_cast<double>(total_bytes) / unit, is_large ? "GB" : "MB");
  if (!(bytes_per_s > 0.0)) return text;
  return text + fmt::format(" at {:.{}f} MB/s", bytes_per_s / 1e6, bytes_per_s < 1e7 ? 1 : 0);
}

}  // namespace hadal::hub
