#include "tensor/element_type.h"

#include <array>

namespace calandra {
namespace {

struct Description {
  ElementType type;
  std::string_view name;
  int bits;
};

// In the order of the enumeration.
constexpr std::array kDescriptions = {
    Description{ElementType::F64, "F64", 64},        Description{ElementType::F32, "F32", 32},
    Description{ElementType::F16, "F16", 16},        Description{ElementType::BF16, "BF16", 16},
    Description{ElementType::F8_E4M3, "F8_E4M3", 8}, Description{ElementType::F8_E5M2, "F8_E5M2", 8},
    Description{ElementType::F8_E8M0, "F8_E8M0", 8}, Description{ElementType::F4, "F4", 4},
    Description{ElementType::I64, "I64", 64},        Description{ElementType::I32, "I32", 32},
    Description{ElementType::I16, "I16", 16},        Description{ElementType::I8, "I8", 8},
    Description{ElementType::U64, "U64", 64},        Description{ElementType::U32, "U32", 32},
    Description{ElementType::U16, "U16", 16},        Description{ElementType::U8, "U8", 8},
    Description{ElementType::Bool, "BOOL", 8},
};

constexpr bool in_order() {
  for (std::size_t i = 0; i < kDescriptions.size(); ++i) {
    if (static_cast<std::size_t>(kDescriptions[i].type) != i) return false;
  }
  return true;
}
static_assert(in_order());

}  // namespace

std::string_view name_of(ElementType type) { return kDescriptions[static_cast<std::size_t>(type)].name; }

std::optional<ElementType> element_type_of(std::string_view name) {
  for (const Description& description : kDescriptions) {
    if (description.name == name) return description.type;
  }
  return std::nullopt;
}

int bits_of(ElementType type) { return kDescriptions[static_cast<std::size_t>(type)].bits; }

}  // namespace calandra
