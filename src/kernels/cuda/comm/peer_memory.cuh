// Declares accesses to memory that several devices read and write. They have system scope (PTX ISA, "Memory
// Consistency Model"). A release makes everything that this thread has written or observed visible to a
// thread on any device whose acquire reads the released value.
#pragma once

#include <cstdint>

namespace hadal::cuda {

__device__ __forceinline__ void store_release_system(uint64_t* target, uint64_t value) {
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(target), "l"(value) : "memory");
}
__device__ __forceinline__ uint64_t load_acquire_system(const uint64_t* source) {
  uint64_t value;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(source) : "memory");
  return value;
}
// These read the latest value of a word that the host or any device writes. They order no other accesses.
__device__ __forceinline__ uint64_t load_relaxed_system(const uint64_t* source) {
  uint64_t value;
  asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(source) : "memory");
  return value;
}
__device__ __forceinline__ uint32_t load_relaxed_system(const uint32_t* source) {
  uint32_t value;
  asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(source) : "memory");
  return value;
}

// These load an element of a part after an exchange. They bypass the L1, which may still hold the value that
// was read at the same address two exchanges ago. Each element of a part is read once, so the L1 would not
// help.
__device__ __forceinline__ uint4 load_part(const uint4* source) {
  uint4 v;
  asm volatile("ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(source)
               : "memory");
  return v;
}
__device__ __forceinline__ uint32_t load_part(const uint32_t* source) {
  return load_relaxed_system(source);
}
__device__ __forceinline__ uint8_t load_part(const uint8_t* source) {
  uint32_t value;
  asm volatile("ld.relaxed.sys.global.u8 %0, [%1];" : "=r"(value) : "l"(source) : "memory");
  return static_cast<uint8_t>(value);
}

// Returns the nanoseconds since an arbitrary point in time. The clock advances in steps of up to a
// microsecond.
__device__ __forceinline__ int64_t global_nanoseconds() {
  int64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

}  // namespace hadal::cuda
