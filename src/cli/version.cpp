#include "cli/commands.h"
#include "kernels/kernels.h"

namespace calandra {

std::string version_text() {
#if defined(__clang__)
  const std::string compiler = fmt::format("clang {}.{}.{}", __clang_major__, __clang_minor__, __clang_patchlevel__);
#else
  const std::string compiler = fmt::format("g++ {}.{}.{}", __GNUC__, __GNUC_MINOR__, __GNUC_PATCHLEVEL__);
#endif
  return fmt::format("calandra {}, {}, {}", CALANDRA_VERSION, compiler, name_of(choose_isa()));
}

}  // namespace calandra
