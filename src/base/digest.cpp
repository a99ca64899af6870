#include "base/digest.h"

#include "base/error.h"

#include <openssl/evp.h>
#include <xxhash.h>

#include <new>

namespace calandra {
namespace {

int value_of(char digit) {
  if (digit >= '0' && digit <= '9') return digit - '0';
  if (digit >= 'a' && digit <= 'f') return digit - 'a' + 10;
  return -1;
}

// Only memory can be missing: the algorithm is always there.
void check(bool done) {
  if (!done) fail("SHA-256: not available in this system's OpenSSL");
}

}  // namespace

template <std::size_t Bytes>
std::string Hash<Bytes>::hex() const {
  std::string text;
  for (const std::byte byte : bytes) text += fmt::format("{:02x}", std::to_integer<unsigned>(byte));
  return text;
}
template struct Hash<32>;
template struct Hash<16>;

std::optional<Digest> digest_of_hex(std::string_view hex) {
  Digest digest;
  if (hex.size() != 2 * digest.bytes.size()) return std::nullopt;
  for (std::size_t i = 0; i < digest.bytes.size(); ++i) {
    const int high = value_of(hex[2 * i]), low = value_of(hex[2 * i + 1]);
    if (high < 0 || low < 0) return std::nullopt;
    digest.bytes[i] = static_cast<std::byte>(high * 16 + low);
  }
  return digest;
}

struct Sha256::Context {
  Context() {
    if (evp == nullptr) throw std::bad_alloc();
  }
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;
  ~Context() { EVP_MD_CTX_free(evp); }
  EVP_MD_CTX* evp = EVP_MD_CTX_new();
};

Sha256::Sha256() : context_(std::make_unique<Context>()) { check(EVP_DigestInit_ex(context_->evp, EVP_sha256(), nullptr) == 1); }
Sha256::Sha256(const Sha256& other) : context_(std::make_unique<Context>()) {
  check(EVP_MD_CTX_copy_ex(context_->evp, other.context_->evp) == 1);
}
Sha256::~Sha256() = default;

Sha256& Sha256::update(std::span<const std::byte> bytes) {
  check(EVP_DigestUpdate(context_->evp, bytes.data(), bytes.size()) == 1);
  return *this;
}

Sha256& Sha256::update_text(std::string_view text) {
  const std::uint64_t length = text.size();
  update(std::as_bytes(std::span(&length, 1)));
  return update(std::as_bytes(std::span(text)));
}

Digest Sha256::digest() const {
  const Sha256 copy = *this;
  Digest digest;
  check(EVP_DigestFinal_ex(copy.context_->evp, reinterpret_cast<unsigned char*>(digest.bytes.data()), nullptr) == 1);
  return digest;
}

struct Xxh3::State {
  State() {
    if (xxh == nullptr) throw std::bad_alloc();
    XXH3_128bits_reset(xxh);
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() { XXH3_freeState(xxh); }
  XXH3_state_t* xxh = XXH3_createState();
};

Xxh3::Xxh3() : state_(std::make_unique<State>()) {}
Xxh3::~Xxh3() = default;

Xxh3& Xxh3::update(std::span<const std::byte> bytes) {
  XXH3_128bits_update(state_->xxh, bytes.data(), bytes.size());
  return *this;
}

Checksum Xxh3::checksum() const {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(state_->xxh));
  Checksum checksum;
  std::memcpy(checksum.bytes.data(), canonical.digest, sizeof canonical.digest);
  return checksum;
}

}  // namespace calandra
