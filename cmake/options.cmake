set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()

option(TETRAD_BUILD_TESTS "Build the tests" ON)
option(TETRAD_BUILD_FUZZERS "Build the libFuzzer targets (needs clang)" OFF)
set(TETRAD_SANITIZE "" CACHE STRING "Sanitizers, as -fsanitize= takes them")

# Every rounding point is written out in the source, so the compiler may not fuse a multiply and an add on its own.
add_compile_options(-ffp-contract=off -fno-fast-math)

if(TETRAD_SANITIZE)
  add_compile_options(-fsanitize=${TETRAD_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${TETRAD_SANITIZE})
endif()

add_library(tetrad_warnings INTERFACE)
target_compile_options(tetrad_warnings INTERFACE -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual
                                                 -Wconversion -Wno-sign-conversion -Wno-float-conversion -Werror)
