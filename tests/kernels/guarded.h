#pragma once
// Memory whose last byte is followed by a page that must not be touched: any read or write past the end ends the program.

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <new>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

namespace calandra {

/// Owns `size` zeroed elements that end at a forbidden page and follow another. Move-only.
template <class T>
class Guarded {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  explicit Guarded(std::size_t size) : size_(size) {
    const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    const std::size_t room = (size * sizeof(T) + page - 1) / page * page;
    mapped_bytes_ = room + 2 * page;
    mapping_ = static_cast<std::byte*>(mmap(nullptr, mapped_bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (mapping_ == MAP_FAILED || (room > 0 && mprotect(mapping_ + page, room, PROT_READ | PROT_WRITE) != 0))
      throw std::bad_alloc();
    data_ = reinterpret_cast<T*>(mapping_ + page + room - size * sizeof(T));
  }
  explicit Guarded(std::span<const T> values) : Guarded(values.size()) { std::ranges::copy(values, data_); }
  explicit Guarded(const std::vector<T>& values) : Guarded(std::span<const T>(values)) {}
  ~Guarded() {
    if (mapping_ != nullptr) munmap(mapping_, mapped_bytes_);
  }
  Guarded(Guarded&& other) noexcept
      : mapping_(std::exchange(other.mapping_, nullptr)),
        mapped_bytes_(other.mapped_bytes_),
        data_(other.data_),
        size_(other.size_) {}
  Guarded& operator=(Guarded&&) = delete;
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;

  T* data() { return data_; }
  const T* data() const { return data_; }
  std::size_t size() const { return size_; }
  std::span<T> span() { return {data_, size_}; }
  std::span<const T> span() const { return {data_, size_}; }
  std::vector<T> copy() const { return {data_, data_ + size_}; }
  T& operator[](std::size_t i) { return data_[i]; }
  const T& operator[](std::size_t i) const { return data_[i]; }

 private:
  std::byte* mapping_ = nullptr;
  std::size_t mapped_bytes_ = 0;
  T* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace calandra
