# Run at build time: cmake -D OUTPUT=FILE.cpp "-D FILES=a;b" -P embed_files.cmake
# Writes the definition of web_files() (src/serve/web_files.h): every file's name, bytes and SHA-256.
string(CONCAT text
  "// Made by cmake/embed_files.cmake.\n#include \"serve/web_files.h\"\n\n"
  "namespace calandra {\nnamespace {\n\n")
set(table "")
set(index 0)
foreach(file IN LISTS FILES)
  get_filename_component(name ${file} NAME)
  file(READ ${file} hex HEX)
  file(SHA256 ${file} sha256)
  string(LENGTH "${hex}" digits)
  math(EXPR size "${digits} / 2")
  string(REGEX REPLACE "(..)" "0x\\1," bytes "${hex}")
  string(APPEND text "constexpr unsigned char kFile${index}[] = {${bytes}};\n")
  string(APPEND table "    {\"${name}\", {reinterpret_cast<const char*>(kFile${index}), ${size}}, \"${sha256}\"},\n")
  math(EXPR index "${index} + 1")
endforeach()
string(APPEND text
  "\nconst WebFile kFiles[] = {\n${table}};\n\n"
  "}  // namespace\n\nstd::span<const WebFile> web_files() { return kFiles; }\n\n}  // namespace calandra\n")
file(WRITE ${OUTPUT} "${text}")
