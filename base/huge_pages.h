// Memory of many megabytes in few pages. The system gives a string of tens of megabytes new pages
// each time, and 4 KiB at a time that costs several times what filling them does. Thread: pure
// functions.
#ifndef ISTHMUS_BASE_HUGE_PAGES_H_
#define ISTHMUS_BASE_HUGE_PAGES_H_

#include <cstddef>
#include <string>

namespace isthmus {

// From here on the system is asked for huge pages: what malloc takes from it anew for each string.
inline constexpr size_t kHugePagesFrom = size_t{32} << 20;

// As text->reserve(bytes). Where the system has no huge pages, no more than that.
void ReserveOnHugePages(size_t bytes, std::string* text);

}  // namespace isthmus

#endif  // ISTHMUS_BASE_HUGE_PAGES_H_
