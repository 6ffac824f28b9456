// Compiles fmt's functions into the library itself: distributions have no static fmt to link, and a library
// that travels inside a wheel cannot ask for a shared one.
#ifdef FMT_HEADER_ONLY
#error "this file defines what FMT_HEADER_ONLY would make inline"
#endif
#include <fmt/format-inl.h>

namespace fmt {
inline namespace v9 {
namespace detail {
// The headers declare these templates and expect their instances in another file, which is this one.
template thousands_sep_result<char> thousands_sep_impl<char>(locale_ref);
template char decimal_point_impl<char>(locale_ref);
}  // namespace detail
}  // namespace v9
}  // namespace fmt
