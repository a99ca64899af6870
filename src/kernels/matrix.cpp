#include "kernels/matrix.h"

#include <initializer_list>

namespace calandra {

int virtual_shards(std::int64_t cols, std::int64_t units) {
  constexpr std::int64_t kLeastColumns = 512;
  for (const int shards : {8, 4, 2}) {
    const std::int64_t width = cols / shards;
    if (units % shards == 0 && cols % shards == 0 && width % kScaleBlock == 0 && width >= kLeastColumns) return shards;
  }
  return 1;
}

}  // namespace calandra
