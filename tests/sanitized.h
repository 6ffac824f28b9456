// Says whether a sanitizer checks this build, which makes everything several times slower. Tests that repeat
// one claim for many inputs try fewer of them then, because the same tests run with all of them in a build
// without sanitizers.
#pragma once

namespace hadal::testing {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

}  // namespace hadal::testing
