set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()

option(TETRAD_BUILD_TESTS "Build the tests" ON)
option(TETRAD_BUILD_FUZZERS "Build the libFuzzer targets (needs clang)" OFF)
option(TETRAD_CUDA "Build the CUDA backend where nvcc is found" OFF)
option(TETRAD_CUDA_CHECK "Compile the CUDA sources for every GPU target where nvcc is found, and use them for nothing" OFF)
option(TETRAD_STYLE_CHECKS "Register the style checks as tests" OFF)
option(TETRAD_UNITY "Compile several sources of a target as one: quick to build whole, slow to build again" OFF)
set(TETRAD_SANITIZE "" CACHE STRING "Sanitizers, as -fsanitize= takes them")
set(TETRAD_TEST_PREFIX "" CACHE STRING "Put before the name of every test of this tree")
set(TETRAD_TEST_KINDS "unit;properties;parity;traps;e2e;replay" CACHE STRING "Kinds of test to build")
set(TETRAD_TEST_FILES "" CACHE STRING "Regular expression; only test files whose name matches are built")
set(TETRAD_TEST_FILTER "*" CACHE STRING "Tests of a kind to register, as --gtest_filter= takes them")
set(TETRAD_FUZZ_SECONDS 15 CACHE STRING "How long each fuzz target runs under ctest")

find_program(TETRAD_CCACHE ccache)
if(TETRAD_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${TETRAD_CCACHE})
endif()

# Every rounding point is written out in the source, so the compiler may not fuse a multiply and an add on its own.
add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off> $<$<COMPILE_LANGUAGE:CXX>:-fno-fast-math>)

if(TETRAD_UNITY)
  set(CMAKE_UNITY_BUILD ON)
  set(CMAKE_UNITY_BUILD_BATCH_SIZE 8)
  # A source that another one includes looks like a header to this warning.
  add_compile_options($<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-subobject-linkage>)
endif()

# Build type of the sanitizer trees: line numbers in reports, library assertions on, and quick to compile.
set(CMAKE_CXX_FLAGS_SANITIZE "-O1 -g1 -fno-omit-frame-pointer -D_GLIBCXX_ASSERTIONS")

if(TETRAD_SANITIZE)
  # Built beside the product's tree on every change: few instruction sets are compiled.
  add_compile_definitions(TETRAD_FEW_SIMD_TARGETS)
  add_compile_options(-fsanitize=${TETRAD_SANITIZE} -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${TETRAD_SANITIZE})
endif()
if(TETRAD_BUILD_FUZZERS)
  if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    message(FATAL_ERROR "The libFuzzer targets need clang++: configure with the preset `asan` or `fuzz`.")
  endif()
  add_compile_options(-fsanitize=fuzzer-no-link)
endif()

# g++ is the compiler of the product and its warnings are errors. Clang builds the asan and fuzz trees.
add_library(tetrad_warnings INTERFACE)
target_compile_options(tetrad_warnings INTERFACE -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual
                                                 -Wconversion -Wno-sign-conversion -Wno-float-conversion
                                                 $<$<CXX_COMPILER_ID:GNU>:-Werror>)
# g++ 12 warns of an overlap that there is not where a text is put before another at -O3 (its bug 105651).
target_compile_options(tetrad_warnings INTERFACE
                       $<$<AND:$<CXX_COMPILER_ID:GNU>,$<VERSION_LESS:$<CXX_COMPILER_VERSION>,13>>:-Wno-restrict>)
