# Kernels are compiled once per instruction set and chosen at run time: only these files may use more than the baseline.
set(avx2_sources ${CMAKE_SOURCE_DIR}/src/kernels/isa_avx2.cpp)
set(avx512_sources ${CMAKE_SOURCE_DIR}/src/kernels/isa_avx512.cpp)
set(avx512_bf16_sources ${CMAKE_SOURCE_DIR}/src/kernels/isa_avx512_bf16.cpp)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
  # g++ 12 takes the undefined operands in its own intrinsics header for a mistake.
  set(avx512_warnings $<$<CXX_COMPILER_ID:GNU>:-Wno-uninitialized> $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
  set_source_files_properties(${avx2_sources} PROPERTIES COMPILE_OPTIONS "-mavx2;-mfma;-mf16c")
  set(avx512_options "-mavx512f;-mavx512bw;-mavx512vl;-mavx512dq;-mavx2;-mfma;-mf16c;${avx512_warnings}")
  set_source_files_properties(${avx512_sources} PROPERTIES COMPILE_OPTIONS "${avx512_options}")
  set_source_files_properties(${avx512_bf16_sources} PROPERTIES COMPILE_OPTIONS "${avx512_options};-mavx512bf16;-mavx512vbmi")
else()
  set_source_files_properties(${avx2_sources} ${avx512_sources} ${avx512_bf16_sources} PROPERTIES HEADER_FILE_ONLY ON)
endif()

# Without optimisation or with a sanitizer small library functions are not inlined and the check has nothing to say.
if(CALANDRA_TESTS AND CMAKE_BUILD_TYPE STREQUAL "Release" AND NOT CALANDRA_SANITIZE)
  add_test(NAME kernel_symbols COMMAND ${CMAKE_COMMAND} -D NM=${CMAKE_NM} -D LIBRARY=$<TARGET_FILE:calandra_kernels>
    -P ${CMAKE_SOURCE_DIR}/cmake/check_kernel_symbols.cmake)
endif()
