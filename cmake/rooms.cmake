# A room is a static library made of all sources of src/NAME.
find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(Boost 1.81 REQUIRED)
find_package(simdjson REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(PkgConfig REQUIRED)
pkg_check_modules(pcre2 REQUIRED IMPORTED_TARGET libpcre2-8)
pkg_check_modules(utf8proc REQUIRED IMPORTED_TARGET libutf8proc)
pkg_check_modules(libcrypto REQUIRED IMPORTED_TARGET libcrypto)
pkg_check_modules(libxxhash REQUIRED IMPORTED_TARGET libxxhash)

add_library(calandra_options INTERFACE)
target_compile_options(calandra_options INTERFACE
  -Wall -Wextra -Wconversion -Wshadow
  # Results must not depend on what a compiler chooses to fuse: every fused multiply-add is written out.
  -ffp-contract=off
  $<$<BOOL:${CALANDRA_WERROR}>:-Werror>
  # g++ collects its garbage at 128 MB; a batch of sources is larger, and a tenth of its time would go there.
  $<$<AND:$<BOOL:${CALANDRA_UNITY}>,$<CXX_COMPILER_ID:GNU>>:--param=ggc-min-heapsize=2000000>)
target_include_directories(calandra_options INTERFACE ${CMAKE_SOURCE_DIR}/src)
if(CALANDRA_FUZZ AND NOT CALANDRA_SANITIZE)
  set(CALANDRA_SANITIZE fuzzer-no-link,address,undefined)
endif()
if(CALANDRA_SANITIZE)
  target_compile_options(calandra_options INTERFACE -fsanitize=${CALANDRA_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  target_link_options(calandra_options INTERFACE -fsanitize=${CALANDRA_SANITIZE})
endif()

# Sources of a target are compiled several at a time: most of a build is parsing and instantiating the same headers.
# No batch may be so long that the other cores wait for it at the end.
# `check clang` builds one by one, so that every file still includes what it uses.
function(calandra_unite target)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ${CALANDRA_UNITY} UNITY_BUILD_BATCH_SIZE 13)
endfunction()

# The headers that most sources include are parsed once: TARGET does it, or takes what OWNER has parsed.
function(calandra_precompile target)
  if(NOT CALANDRA_UNITY)
    return()
  endif()
  if(ARGN)
    target_precompile_headers(${target} REUSE_FROM ${ARGN})
  else()
    target_precompile_headers(${target} PRIVATE <algorithm> <chrono> <filesystem> <functional> <map> <memory> <optional>
      <ranges> <string> <unordered_map> <variant> <vector> <fmt/format.h> <nlohmann/json.hpp>)
  endif()
endfunction()

# calandra_room(NAME [SEPARATE] [USES room...] [LINKS target...])
function(calandra_room name)
  cmake_parse_arguments(ROOM "SEPARATE" "" "USES;LINKS" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/${name}/*.cpp)
  add_library(calandra_${name} STATIC ${sources})
  target_link_libraries(calandra_${name} PUBLIC calandra_options)
  foreach(room ${ROOM_USES})
    target_link_libraries(calandra_${name} PUBLIC calandra_${room})
  endforeach()
  target_link_libraries(calandra_${name} PUBLIC ${ROOM_LINKS})
  if(NOT ROOM_SEPARATE)
    calandra_unite(calandra_${name})
    if(name STREQUAL base)
      calandra_precompile(calandra_base)
    else()
      calandra_precompile(calandra_${name} calandra_base)
    endif()
  endif()
endfunction()
