#include "base/digest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <string_view>

namespace calandra {
namespace {

std::span<const std::byte> bytes(std::string_view text) { return std::as_bytes(std::span(text)); }

// FIPS 180-2, appendix B.
TEST(Sha256, PublishedExamples) {
  EXPECT_EQ(Sha256().update(bytes("abc")).digest().hex(), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(Sha256().update(bytes("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq")).digest().hex(),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  Sha256 million;
  for (int i = 0; i < 1000; ++i) million.update(bytes(std::string(1000, 'a')));
  EXPECT_EQ(million.digest().hex(), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256, ACopyGoesOnFromTheSamePlaceAndLeavesTheFirst) {
  Sha256 first;
  first.update(bytes("a"));
  Sha256 second = first;
  EXPECT_EQ(second.update(bytes("bc")).digest(), Sha256().update(bytes("abc")).digest());
  EXPECT_EQ(first.digest(), Sha256().update(bytes("a")).digest());
}

TEST(Sha256, TextsAreToldApartByWhereTheyEnd) {
  EXPECT_NE(Sha256().update_text("ab").update_text("c").digest(), Sha256().update_text("a").update_text("bc").digest());
}

TEST(Digest, HexIsReadBackAndNothingElseIs) {
  const Digest digest = Sha256().update(bytes("abc")).digest();
  EXPECT_EQ(digest_of_hex(digest.hex()), digest);
  const std::string hex = digest.hex();
  EXPECT_EQ(digest_of_hex(hex.substr(1)), std::nullopt);
  EXPECT_EQ(digest_of_hex(hex + "0"), std::nullopt);
  EXPECT_EQ(digest_of_hex("g" + hex.substr(1)), std::nullopt);
}

// What xxhsum -H2 prints, of nothing and of "abc".
TEST(Xxh3, PublishedValues) {
  EXPECT_EQ(Xxh3().checksum().hex(), "99aa06d3014798d86001c324468d497f");
  EXPECT_EQ(Xxh3().update(bytes("a")).update(bytes("bc")).checksum().hex(), "06b05ab6733a618578af5f94892f3950");
}

}  // namespace
}  // namespace calandra
