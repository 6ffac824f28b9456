// Compiles fmt's functions into the library itself: distributions have no static fmt to link, and a library
// inside a wheel cannot depend on a shared fmt.
#ifdef FMT_HEADER_ONLY
#error "this file defines what FMT_HEADER_ONLY would make inline"
#endif
#include <fmt/format-inl.h>

namespace fmt {
inline namespace v9 {
namespace detail {
// The headers declare these templates and expect another file to instantiate them, which this file does.
template thousands_sep_result<char> thousands_sep_impl<char>(locale_ref);
template char decimal_point_impl<char>(locale_ref);
}  // namespace detail
}  // namespace v9
}  // namespace fmt
