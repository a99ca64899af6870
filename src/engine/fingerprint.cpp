#include "engine/fingerprint.h"

#include "base/error.h"
#include "base/mapped_file.h"
#include "kernels/kernels.h"

#include <gnu/libc-version.h>
#include <sys/stat.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace calandra {
namespace {

constexpr std::size_t kPieceBytes = 4096;

void add_number(Sha256& sum, std::int64_t number) { sum.update(std::as_bytes(std::span(&number, 1))); }

/// The code that computes: of the program's own file, and the mathematical functions of the C library.
void add_program(Sha256& sum) {
  const MappedFile program("/proc/self/exe");
  sum.update(program.bytes());
  sum.update_text(::gnu_get_libc_version());
  sum.update_text(name_of(choose_isa()));
}

void add_settings(Sha256& sum, const Model& model) {
  const MemoryLayout layout = model.layout();
  add_number(sum, static_cast<std::int64_t>(model.options().activations));
  add_number(sum, static_cast<std::int64_t>(layout.types.latents));
  add_number(sum, static_cast<std::int64_t>(layout.types.tails));
  add_number(sum, layout.mtp_layers);
  add_number(sum, std::bit_cast<std::int64_t>(model.options().overrides.yarn_factor.value_or(0)));
  sum.update_text(read_text_file(model.checkpoint().folder() / "config.json"));
}

void add_weights(Sha256& sum, const Model& model) {
  std::map<std::filesystem::path, const SafetensorsFile*> files;
  std::int64_t total = 0;
  for (const auto& [name, tensor] : model.checkpoint().tensors()) {
    files.emplace(tensor.file->path(), tensor.file);
    total += std::ssize(tensor.view.data);
  }
  const std::int64_t stride = std::max<std::int64_t>(1, total / kSampledPieces);
  std::int64_t next = 0, position = 0;  // in the bytes of all tensors, by name
  for (const auto& [name, tensor] : model.checkpoint().tensors()) {
    const std::span<const std::byte> data = tensor.view.data;
    sum.update_text(name);
    sum.update_text(to_string(tensor.view.shape));
    add_number(sum, static_cast<std::int64_t>(tensor.view.type));
    for (const std::int64_t end = position + std::ssize(data); next < end; next += stride) {
      const auto at = static_cast<std::size_t>(next - position);
      sum.update(data.subspan(at, std::min(kPieceBytes, data.size() - at)));
    }
    position += std::ssize(data);
  }
  for (const auto& [path, file] : files) {
    struct stat status {};
    if (::stat(path.c_str(), &status) != 0) fail("{}: cannot be looked at: {}", path.string(), std::strerror(errno));
    sum.update_text(path.filename().string());
    add_number(sum, status.st_size);
    add_number(sum, status.st_mtim.tv_sec);
    add_number(sum, status.st_mtim.tv_nsec);
  }
}

}  // namespace

Digest fingerprint_of(const Model& model) {
  Sha256 sum;
  sum.update_text("calandra numbers");
  add_program(sum);
  add_settings(sum, model);
  add_weights(sum, model);
  return sum.digest();
}

}  // namespace calandra
