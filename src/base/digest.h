#pragma once
// Names and checksums. SHA-256 where nobody may be able to make two things of one name (OpenSSL); XXH3, 128 bits, where a disk or a
// cable may have erred (xxHash).

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace calandra {

template <std::size_t Bytes>
struct Hash {
  std::array<std::byte, Bytes> bytes{};
  // NOLINTNEXTLINE(modernize-use-nullptr): clang-tidy 14 takes the 0 of the comparisons that this stands for to be a pointer
  friend auto operator<=>(const Hash&, const Hash&) = default;
  std::string hex() const;
};
using Digest = Hash<32>;    // of Sha256
using Checksum = Hash<16>;  // of Xxh3

/// What hex() wrote, or nothing.
std::optional<Digest> digest_of_hex(std::string_view hex);

/// Of bytes in order, in any number of pieces. A copy goes on from the same place.
class Sha256 {
 public:
  Sha256();
  Sha256(const Sha256& other);
  Sha256& operator=(const Sha256&) = delete;
  ~Sha256();

  Sha256& update(std::span<const std::byte> bytes);
  /// With its length before it: two texts in turn are not two others.
  Sha256& update_text(std::string_view text);
  /// Of all bytes so far.
  Digest digest() const;

 private:
  struct Context;
  std::unique_ptr<Context> context_;
};

/// As Sha256.
class Xxh3 {
 public:
  Xxh3();
  Xxh3(const Xxh3&) = delete;
  Xxh3& operator=(const Xxh3&) = delete;
  ~Xxh3();

  Xxh3& update(std::span<const std::byte> bytes);
  Checksum checksum() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// For unordered containers: a digest is as good a hash as any.
struct DigestHash {
  std::size_t operator()(const Digest& digest) const {
    std::size_t first = 0;
    std::memcpy(&first, digest.bytes.data(), sizeof first);
    return first;
  }
};

}  // namespace calandra
