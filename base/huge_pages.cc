#include "base/huge_pages.h"

#include <sys/mman.h>

#include <cstdint>

namespace isthmus {
namespace {

constexpr uintptr_t kPage = uintptr_t{2} << 20;

}  // namespace

void ReserveOnHugePages(size_t bytes, std::string* text) {
  const size_t before = text->capacity();
  text->reserve(bytes);
  if (bytes < kHugePagesFrom || text->capacity() == before) return;
  const auto at = reinterpret_cast<uintptr_t>(text->data());
  const uintptr_t begin = (at + kPage - 1) / kPage * kPage;
  const uintptr_t end = (at + text->capacity()) / kPage * kPage;
  if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
}

}  // namespace isthmus
