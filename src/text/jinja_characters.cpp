// Made from Python 3.11's str methods and unicodedata (Unicode 14): every character whose upper or title case is longer
// than one character, and those of isdigit and isnumeric that the general category does not tell.

#include "text/jinja_characters.h"

#include <algorithm>
#include <array>
#include <span>

#include "text/unicode.h"

namespace calandra::jinja {
namespace {

struct SpecialCase {
  std::int32_t code;
  std::u16string_view upper, title;  // title is empty where the simple one will do
};

constexpr SpecialCase kSpecialCases[] = {{0x00DF, u"\u0053\u0053", u"\u0053\u0073"},
                                         {0x0149, u"\u02BC\u004E", u"\u02BC\u004E"},
                                         {0x01F0, u"\u004A\u030C", u"\u004A\u030C"},
                                         {0x0390, u"\u0399\u0308\u0301", u"\u0399\u0308\u0301"},
                                         {0x03B0, u"\u03A5\u0308\u0301", u"\u03A5\u0308\u0301"},
                                         {0x0587, u"\u0535\u0552", u"\u0535\u0582"},
                                         {0x1E96, u"\u0048\u0331", u"\u0048\u0331"},
                                         {0x1E97, u"\u0054\u0308", u"\u0054\u0308"},
                                         {0x1E98, u"\u0057\u030A", u"\u0057\u030A"},
                                         {0x1E99, u"\u0059\u030A", u"\u0059\u030A"},
                                         {0x1E9A, u"\u0041\u02BE", u"\u0041\u02BE"},
                                         {0x1F50, u"\u03A5\u0313", u"\u03A5\u0313"},
                                         {0x1F52, u"\u03A5\u0313\u0300", u"\u03A5\u0313\u0300"},
                                         {0x1F54, u"\u03A5\u0313\u0301", u"\u03A5\u0313\u0301"},
                                         {0x1F56, u"\u03A5\u0313\u0342", u"\u03A5\u0313\u0342"},
                                         {0x1F80, u"\u1F08\u0399", u""},
                                         {0x1F81, u"\u1F09\u0399", u""},
                                         {0x1F82, u"\u1F0A\u0399", u""},
                                         {0x1F83, u"\u1F0B\u0399", u""},
                                         {0x1F84, u"\u1F0C\u0399", u""},
                                         {0x1F85, u"\u1F0D\u0399", u""},
                                         {0x1F86, u"\u1F0E\u0399", u""},
                                         {0x1F87, u"\u1F0F\u0399", u""},
                                         {0x1F88, u"\u1F08\u0399", u""},
                                         {0x1F89, u"\u1F09\u0399", u""},
                                         {0x1F8A, u"\u1F0A\u0399", u""},
                                         {0x1F8B, u"\u1F0B\u0399", u""},
                                         {0x1F8C, u"\u1F0C\u0399", u""},
                                         {0x1F8D, u"\u1F0D\u0399", u""},
                                         {0x1F8E, u"\u1F0E\u0399", u""},
                                         {0x1F8F, u"\u1F0F\u0399", u""},
                                         {0x1F90, u"\u1F28\u0399", u""},
                                         {0x1F91, u"\u1F29\u0399", u""},
                                         {0x1F92, u"\u1F2A\u0399", u""},
                                         {0x1F93, u"\u1F2B\u0399", u""},
                                         {0x1F94, u"\u1F2C\u0399", u""},
                                         {0x1F95, u"\u1F2D\u0399", u""},
                                         {0x1F96, u"\u1F2E\u0399", u""},
                                         {0x1F97, u"\u1F2F\u0399", u""},
                                         {0x1F98, u"\u1F28\u0399", u""},
                                         {0x1F99, u"\u1F29\u0399", u""},
                                         {0x1F9A, u"\u1F2A\u0399", u""},
                                         {0x1F9B, u"\u1F2B\u0399", u""},
                                         {0x1F9C, u"\u1F2C\u0399", u""},
                                         {0x1F9D, u"\u1F2D\u0399", u""},
                                         {0x1F9E, u"\u1F2E\u0399", u""},
                                         {0x1F9F, u"\u1F2F\u0399", u""},
                                         {0x1FA0, u"\u1F68\u0399", u""},
                                         {0x1FA1, u"\u1F69\u0399", u""},
                                         {0x1FA2, u"\u1F6A\u0399", u""},
                                         {0x1FA3, u"\u1F6B\u0399", u""},
                                         {0x1FA4, u"\u1F6C\u0399", u""},
                                         {0x1FA5, u"\u1F6D\u0399", u""},
                                         {0x1FA6, u"\u1F6E\u0399", u""},
                                         {0x1FA7, u"\u1F6F\u0399", u""},
                                         {0x1FA8, u"\u1F68\u0399", u""},
                                         {0x1FA9, u"\u1F69\u0399", u""},
                                         {0x1FAA, u"\u1F6A\u0399", u""},
                                         {0x1FAB, u"\u1F6B\u0399", u""},
                                         {0x1FAC, u"\u1F6C\u0399", u""},
                                         {0x1FAD, u"\u1F6D\u0399", u""},
                                         {0x1FAE, u"\u1F6E\u0399", u""},
                                         {0x1FAF, u"\u1F6F\u0399", u""},
                                         {0x1FB2, u"\u1FBA\u0399", u"\u1FBA\u0345"},
                                         {0x1FB3, u"\u0391\u0399", u""},
                                         {0x1FB4, u"\u0386\u0399", u"\u0386\u0345"},
                                         {0x1FB6, u"\u0391\u0342", u"\u0391\u0342"},
                                         {0x1FB7, u"\u0391\u0342\u0399", u"\u0391\u0342\u0345"},
                                         {0x1FBC, u"\u0391\u0399", u""},
                                         {0x1FC2, u"\u1FCA\u0399", u"\u1FCA\u0345"},
                                         {0x1FC3, u"\u0397\u0399", u""},
                                         {0x1FC4, u"\u0389\u0399", u"\u0389\u0345"},
                                         {0x1FC6, u"\u0397\u0342", u"\u0397\u0342"},
                                         {0x1FC7, u"\u0397\u0342\u0399", u"\u0397\u0342\u0345"},
                                         {0x1FCC, u"\u0397\u0399", u""},
                                         {0x1FD2, u"\u0399\u0308\u0300", u"\u0399\u0308\u0300"},
                                         {0x1FD3, u"\u0399\u0308\u0301", u"\u0399\u0308\u0301"},
                                         {0x1FD6, u"\u0399\u0342", u"\u0399\u0342"},
                                         {0x1FD7, u"\u0399\u0308\u0342", u"\u0399\u0308\u0342"},
                                         {0x1FE2, u"\u03A5\u0308\u0300", u"\u03A5\u0308\u0300"},
                                         {0x1FE3, u"\u03A5\u0308\u0301", u"\u03A5\u0308\u0301"},
                                         {0x1FE4, u"\u03A1\u0313", u"\u03A1\u0313"},
                                         {0x1FE6, u"\u03A5\u0342", u"\u03A5\u0342"},
                                         {0x1FE7, u"\u03A5\u0308\u0342", u"\u03A5\u0308\u0342"},
                                         {0x1FF2, u"\u1FFA\u0399", u"\u1FFA\u0345"},
                                         {0x1FF3, u"\u03A9\u0399", u""},
                                         {0x1FF4, u"\u038F\u0399", u"\u038F\u0345"},
                                         {0x1FF6, u"\u03A9\u0342", u"\u03A9\u0342"},
                                         {0x1FF7, u"\u03A9\u0342\u0399", u"\u03A9\u0342\u0345"},
                                         {0x1FFC, u"\u03A9\u0399", u""},
                                         {0xFB00, u"\u0046\u0046", u"\u0046\u0066"},
                                         {0xFB01, u"\u0046\u0049", u"\u0046\u0069"},
                                         {0xFB02, u"\u0046\u004C", u"\u0046\u006C"},
                                         {0xFB03, u"\u0046\u0046\u0049", u"\u0046\u0066\u0069"},
                                         {0xFB04, u"\u0046\u0046\u004C", u"\u0046\u0066\u006C"},
                                         {0xFB05, u"\u0053\u0054", u"\u0053\u0074"},
                                         {0xFB06, u"\u0053\u0054", u"\u0053\u0074"},
                                         {0xFB13, u"\u0544\u0546", u"\u0544\u0576"},
                                         {0xFB14, u"\u0544\u0535", u"\u0544\u0565"},
                                         {0xFB15, u"\u0544\u053B", u"\u0544\u056B"},
                                         {0xFB16, u"\u054E\u0546", u"\u054E\u0576"},
                                         {0xFB17, u"\u0544\u053D", u"\u0544\u056D"}};

constexpr CodePointRange kSpecialDigits[] = {{0x00B2, 0x00B3},   {0x00B9, 0x00B9},   {0x1369, 0x1371},   {0x19DA, 0x19DA},
                                             {0x2070, 0x2070},   {0x2074, 0x2079},   {0x2080, 0x2089},   {0x2460, 0x2468},
                                             {0x2474, 0x247C},   {0x2488, 0x2490},   {0x24EA, 0x24EA},   {0x24F5, 0x24FD},
                                             {0x24FF, 0x24FF},   {0x2776, 0x277E},   {0x2780, 0x2788},   {0x278A, 0x2792},
                                             {0x10A40, 0x10A43}, {0x10E60, 0x10E68}, {0x11052, 0x1105A}, {0x1F100, 0x1F10A}};

constexpr CodePointRange kNumberLetters[] = {
    {0x3405, 0x3405},   {0x3483, 0x3483},   {0x382A, 0x382A},   {0x3B4D, 0x3B4D},   {0x4E00, 0x4E00},   {0x4E03, 0x4E03},
    {0x4E07, 0x4E07},   {0x4E09, 0x4E09},   {0x4E5D, 0x4E5D},   {0x4E8C, 0x4E8C},   {0x4E94, 0x4E94},   {0x4E96, 0x4E96},
    {0x4EBF, 0x4EC0},   {0x4EDF, 0x4EDF},   {0x4EE8, 0x4EE8},   {0x4F0D, 0x4F0D},   {0x4F70, 0x4F70},   {0x5104, 0x5104},
    {0x5146, 0x5146},   {0x5169, 0x5169},   {0x516B, 0x516B},   {0x516D, 0x516D},   {0x5341, 0x5341},   {0x5343, 0x5345},
    {0x534C, 0x534C},   {0x53C1, 0x53C4},   {0x56DB, 0x56DB},   {0x58F1, 0x58F1},   {0x58F9, 0x58F9},   {0x5E7A, 0x5E7A},
    {0x5EFE, 0x5EFF},   {0x5F0C, 0x5F0E},   {0x5F10, 0x5F10},   {0x62FE, 0x62FE},   {0x634C, 0x634C},   {0x67D2, 0x67D2},
    {0x6F06, 0x6F06},   {0x7396, 0x7396},   {0x767E, 0x767E},   {0x8086, 0x8086},   {0x842C, 0x842C},   {0x8CAE, 0x8CAE},
    {0x8CB3, 0x8CB3},   {0x8D30, 0x8D30},   {0x9621, 0x9621},   {0x9646, 0x9646},   {0x964C, 0x964C},   {0x9678, 0x9678},
    {0x96F6, 0x96F6},   {0xF96B, 0xF96B},   {0xF973, 0xF973},   {0xF978, 0xF978},   {0xF9B2, 0xF9B2},   {0xF9D1, 0xF9D1},
    {0xF9D3, 0xF9D3},   {0xF9FD, 0xF9FD},   {0x20001, 0x20001}, {0x20064, 0x20064}, {0x200E2, 0x200E2}, {0x20121, 0x20121},
    {0x2092A, 0x2092A}, {0x20983, 0x20983}, {0x2098C, 0x2098C}, {0x2099C, 0x2099C}, {0x20AEA, 0x20AEA}, {0x20AFD, 0x20AFD},
    {0x20B19, 0x20B19}, {0x22390, 0x22390}, {0x22998, 0x22998}, {0x23B1B, 0x23B1B}, {0x2626D, 0x2626D}, {0x2F890, 0x2F890}};

const SpecialCase* find_case(std::int32_t code) {
  const auto found = std::lower_bound(std::begin(kSpecialCases), std::end(kSpecialCases), code,
                                      [](const SpecialCase& entry, std::int32_t wanted) { return entry.code < wanted; });
  return found != std::end(kSpecialCases) && found->code == code ? found : nullptr;
}

bool is_listed(std::span<const CodePointRange> ranges, std::int32_t code) {
  const auto wanted = static_cast<char32_t>(code);
  const auto found =
      std::lower_bound(ranges.begin(), ranges.end(), wanted, [](CodePointRange range, char32_t c) { return range.last < c; });
  return found != ranges.end() && found->first <= wanted;
}

}  // namespace

std::u16string_view special_upper(std::int32_t code) {
  const SpecialCase* const found = code < 0x80 ? nullptr : find_case(code);
  return found ? found->upper : std::u16string_view();
}
std::u16string_view special_title(std::int32_t code) {
  const SpecialCase* const found = code < 0x80 ? nullptr : find_case(code);
  return found ? found->title : std::u16string_view();
}

bool is_special_digit(std::int32_t code) { return is_listed(kSpecialDigits, code); }
bool is_number_letter(std::int32_t code) { return is_listed(kNumberLetters, code); }

}  // namespace calandra::jinja
