// Names the device that holds memory and runs work.
#pragma once

#include <cstdint>

namespace hadal {

enum class DeviceType : uint8_t { kCpu, kCuda };

struct Device {
  DeviceType type = DeviceType::kCpu;
  int index = 0;
  bool operator==(const Device&) const = default;
};

inline const char* to_string(DeviceType type) {
  return type == DeviceType::kCpu ? "cpu" : "cuda";
}

}  // namespace hadal
