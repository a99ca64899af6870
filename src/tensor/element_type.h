#pragma once
// Element types of safetensors files, with the names the format gives them.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace calandra {

enum class ElementType : std::uint8_t {
  F64,
  F32,
  F16,
  BF16,
  F8_E4M3,
  F8_E5M2,
  F8_E8M0,
  F4,
  I64,
  I32,
  I16,
  I8,
  U64,
  U32,
  U16,
  U8,
  Bool
};

/// Name in a safetensors header, for example "BF16".
std::string_view name_of(ElementType type);

/// The type of that name, or nothing.
std::optional<ElementType> element_type_of(std::string_view name);

/// Bits of one element: 4 for F4, otherwise a multiple of 8.
int bits_of(ElementType type);

}  // namespace calandra
