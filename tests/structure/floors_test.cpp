// Includes go down the floors of docs/architecture.md, and its table, CMakeLists.txt and the folders of src agree. What
// compiles slowly is compiled once. A name is one type.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::IsEmpty;

const fs::path kSource = CALANDRA_SOURCE_DIR;

std::string read(const fs::path& path) {
  std::ifstream in(path);
  EXPECT_TRUE(in) << path;
  return {std::istreambuf_iterator<char>(in), {}};
}

struct Room {
  int floor = 0;
  std::set<std::string> uses;
};
using Rooms = std::map<std::string, Room>;

/// Rows such as "| 2 | `kernels` | ... | tensor |" under the heading "## Floors and rooms".
Rooms rooms_of_docs(const std::string& markdown) {
  const auto begin = markdown.find("\n## Floors and rooms\n");
  const auto end = markdown.find("\n## ", begin + 1);
  Rooms rooms;
  static const std::regex row(R"(\|\s*(\d+)\s*\|\s*`(\w+)`\s*\|[^|\n]*\|([^|\n]*)\|)");
  const std::string section = markdown.substr(begin, end - begin);
  for (std::sregex_iterator match(section.begin(), section.end(), row), none; match != none; ++match) {
    Room& room = rooms[(*match)[2]];
    room.floor = std::stoi((*match)[1]);
    static const std::regex word(R"(`(\w+)`)");
    const std::string uses = (*match)[3];
    for (std::sregex_iterator name(uses.begin(), uses.end(), word); name != none; ++name) room.uses.insert((*name)[1]);
  }
  return rooms;
}

/// Lines such as "calandra_room(kernels USES tensor LINKS ...)"; floors stay 0.
Rooms rooms_of_cmake(const std::string& text) {
  Rooms rooms;
  static const std::regex line(R"((?:^|\n)calandra_room\((\w+)([^)]*)\))");
  for (std::sregex_iterator match(text.begin(), text.end(), line), none; match != none; ++match) {
    Room& room = rooms[(*match)[1]];
    std::istringstream words((*match)[2]);
    bool in_uses = false;
    for (std::string word; words >> word;) {
      if (word == "USES" || word == "LINKS") {
        in_uses = word == "USES";
      } else if (in_uses) {
        room.uses.insert(word);
      }
    }
  }
  return rooms;
}

/// What a room may include: itself, what it uses, and what that uses.
std::set<std::string> reachable(const Rooms& rooms, const std::string& from) {
  std::set<std::string> found{from};
  for (const std::string& used : rooms.at(from).uses) found.merge(reachable(rooms, used));
  return found;
}

/// One line for each #include of `text` that names a room `room` may not use, or no room at all.
std::vector<std::string> violations(const Rooms& rooms, const std::string& room, const std::string& file,
                                    const std::string& text) {
  const std::set<std::string> allowed = reachable(rooms, room);
  std::vector<std::string> lines;
  static const std::regex include(R"((?:^|\n)\s*#\s*include\s*([<"])([^>"/]+)(/?)[^>"]*[>"])");
  for (std::sregex_iterator match(text.begin(), text.end(), include), none; match != none; ++match) {
    const bool quoted = (*match)[1] == "\"";
    const std::string target = (*match)[2];
    const bool has_folder = (*match)[3] == "/";
    if (!quoted && !(has_folder && rooms.contains(target))) continue;
    if (!has_folder) {
      lines.push_back(file + ": \"" + target + "\" lacks its room");
    } else if (!allowed.contains(target)) {
      lines.push_back(file + " (" + room + ") includes " + target);
    }
  }
  return lines;
}

Rooms real_rooms() { return rooms_of_docs(read(kSource / "docs/architecture.md")); }

TEST(Floors, IncludesGoDown) {
  const Rooms rooms = real_rooms();
  std::vector<std::string> found;
  int files = 0;
  for (const auto& entry : fs::recursive_directory_iterator(kSource / "src")) {
    const auto extension = entry.path().extension();
    if (extension != ".h" && extension != ".inl" && extension != ".cpp") continue;
    const fs::path relative = entry.path().lexically_relative(kSource / "src");
    for (auto& line : violations(rooms, relative.begin()->string(), relative.string(), read(entry.path()))) found.push_back(line);
    ++files;
  }
  EXPECT_GT(files, 10);
  EXPECT_THAT(found, IsEmpty());
}

TEST(Floors, ARoomUsesOnlyRoomsOnLowerFloors) {
  const Rooms rooms = real_rooms();
  for (const auto& [name, room] : rooms) {
    for (const std::string& used : room.uses) {
      ASSERT_TRUE(rooms.contains(used)) << name << " uses " << used;
      EXPECT_LT(rooms.at(used).floor, room.floor) << name << " uses " << used;
    }
  }
}

TEST(Floors, TableAndBuildAndFoldersNameTheSameRooms) {
  const Rooms docs = real_rooms();
  Rooms cmake = rooms_of_cmake(read(kSource / "CMakeLists.txt"));
  // The program is no library; its one line of CMake links what the table says it uses.
  cmake["cli"] = docs.at("cli");
  std::set<std::string> folders;
  for (const auto& entry : fs::directory_iterator(kSource / "src")) {
    if (entry.is_directory()) folders.insert(entry.path().filename());
  }
  for (const auto& [name, room] : docs) {
    EXPECT_TRUE(folders.contains(name)) << name << " has no folder";
    ASSERT_TRUE(cmake.contains(name)) << name << " is not built";
    EXPECT_EQ(cmake.at(name).uses, room.uses) << name;
  }
  EXPECT_EQ(folders.size(), docs.size());
  EXPECT_EQ(cmake.size(), docs.size());
}

/// Lines that call nlohmann's parser or printer, which are templates that take seconds to compile wherever they are called.
std::vector<std::string> json_calls(const std::string& file, const std::string& text) {
  std::vector<std::string> lines;
  static const std::regex call(R"([jJ]son::(parse|accept|sax_parse)\(|\.dump\()");
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    if (std::regex_search(line, call)) lines.push_back(file + ": " + line);
  }
  return lines;
}

TEST(BuildTime, JsonIsParsedAndPrintedInOnePlace) {
  std::vector<std::string> found;
  int in_base = 0;
  for (const char* folder : {"src", "tests", "fuzz"}) {
    for (auto at = fs::recursive_directory_iterator(kSource / folder); at != fs::recursive_directory_iterator(); ++at) {
      const auto& entry = *at;
      if (entry.path().filename() == "node_modules") at.disable_recursion_pending();
      const auto extension = entry.path().extension();
      if (extension != ".h" && extension != ".cpp") continue;
      const std::string file = entry.path().lexically_relative(kSource);
      // This one, and one that prints documents in every form there is.
      if (file == "tests/structure/floors_test.cpp" || file == "tests/text/grammar_schema_test.cpp") continue;
      for (auto& line : json_calls(file, read(entry.path()))) {
        if (file == "src/base/json.cpp") {
          ++in_base;
        } else {
          found.push_back(line);
        }
      }
    }
  }
  EXPECT_THAT(found, IsEmpty()) << "base/json.h has parse_json and dump_json";
  EXPECT_GE(in_base, 4);
}

/// "calandra::Model" for each type that a header defines outside of other types and functions.
std::vector<std::string> types_defined_in(const std::string& text) {
  std::vector<std::string> types;
  std::string space;
  static const std::regex open(R"(^(?:inline )?namespace ([\w:]+) \{$)");
  static const std::regex type(
      R"(^(?:class|struct|union|enum class|enum)(?: alignas\(.*\))? (\w+)(?: final)?(?: :[^;{]*)? \{.*$)");
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    std::smatch match;
    if (std::regex_match(line, match, open)) space = match[1];
    if (std::regex_match(line, match, type)) types.push_back(space + "::" + match[1].str());
  }
  return types;
}

// A program that has two types of one name has, of each function that both have and that is not compiled in place, only one: such as
// the destructor. No compiler says so.
TEST(Names, NoTwoHeadersDefineATypeOfTheSameName) {
  std::map<std::string, std::string> file_of;
  for (const auto& entry : fs::recursive_directory_iterator(kSource / "src")) {
    if (entry.path().extension() != ".h") continue;
    const std::string file = entry.path().lexically_relative(kSource);
    for (const std::string& type : types_defined_in(read(entry.path()))) {
      const auto [other, is_new] = file_of.emplace(type, file);
      EXPECT_TRUE(is_new) << type << " is in " << file << " and in " << other->second;
    }
  }
  EXPECT_GT(file_of.size(), 100u);
}

// The checkers themselves, on planted examples.

TEST(NamesChecker, FindsTypesThatAreDefinedAndNotThoseThatAreNamed) {
  EXPECT_THAT(types_defined_in(
                  "struct A {\nnamespace n::m {\nclass B;\nclass C final : public A {\n  struct Inner {\n"
                  "enum class D : int { x };\nstruct A* f();\ntemplate <class T>\nstruct E {};\ntemplate <>\nstruct E<int> {\n"),
              testing::ElementsAre("::A", "n::m::C", "n::m::D", "n::m::E"));
}

TEST(FloorsChecker, FindsAnUpwardIncludeAndASidewaysOneAndAMissingRoom) {
  const Rooms rooms = rooms_of_docs(
      "# Title\n## Floors and rooms\n| floor | room | what | may include |\n|---|---|---|---|\n"
      "| 0 | `base` | x | the standard library |\n| 1 | `tensor` | x | `base` |\n| 2 | `kernels` | x | `tensor` |\n"
      "| 2 | `text` | x | `base` |\n\n## Next\n| 3 | `ghost` | x | `text` |\n");
  ASSERT_EQ(rooms.size(), 4u);
  EXPECT_THAT(
      violations(rooms, "kernels", "kernels/a.cpp", "#include <vector>\n#include \"kernels/a.h\"\n#include \"base/error.h\"\n"),
      IsEmpty());
  EXPECT_THAT(violations(rooms, "base", "base/a.cpp", "// first\n#include \"tensor/element.h\"\n"),
              testing::ElementsAre("base/a.cpp (base) includes tensor"));
  EXPECT_THAT(violations(rooms, "kernels", "kernels/a.cpp", "#include \"text/jinja.h\""),
              testing::ElementsAre("kernels/a.cpp (kernels) includes text"));
  EXPECT_THAT(violations(rooms, "base", "base/a.cpp", "  #  include <kernels/kernels.h>\n"), testing::SizeIs(1));
  EXPECT_THAT(violations(rooms, "text", "text/a.cpp", "#include \"a.h\"\n"), testing::ElementsAre(HasSubstr("lacks its room")));
}

TEST(BuildTimeChecker, FindsCallsOfTheJsonLibrary) {
  EXPECT_THAT(json_calls("a.cpp", "auto a = nlohmann::json::parse(text);\nJson::accept(text);\nx = object[\"key\"].dump(2);\n"),
              testing::SizeIs(3));
  EXPECT_THAT(json_calls("a.cpp", "Tokenizer::parse(text); parse_json(text, x); dump_json(x); write(dump());"), IsEmpty());
}

TEST(FloorsChecker, ReadsTheBuildFile) {
  const Rooms rooms = rooms_of_cmake(
      "# calandra_room(no)\ncalandra_room(base LINKS fmt::fmt)\ncalandra_room(engine USES model\n  text LINKS a::b)\n");
  ASSERT_EQ(rooms.size(), 2u);
  EXPECT_THAT(rooms.at("base").uses, IsEmpty());
  EXPECT_THAT(rooms.at("engine").uses, testing::ElementsAre("model", "text"));
}

}  // namespace
