# The style checks as tests, label `style`. Every check has a partner that shows it can fail.
function(tetrad_style_test name)
  add_test(NAME style.${name} COMMAND ${ARGN} WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
  set_tests_properties(style.${name} PROPERTIES LABELS style TIMEOUT 300)
endfunction()

set(scripts ${CMAKE_SOURCE_DIR}/scripts)
foreach(check includes docs tree)
  set(arguments)
  # With the commands in place, flags named in documents are looked up in their --help.
  if(check STREQUAL "docs" AND EXISTS ${CMAKE_SOURCE_DIR}/src/cli/run.cpp)
    set(arguments --tetrad $<TARGET_FILE:tetrad>)
  endif()
  tetrad_style_test(${check} ${Python3_EXECUTABLE} ${scripts}/check_${check}.py ${arguments})
  tetrad_style_test(${check}_can_fail ${Python3_EXECUTABLE} ${scripts}/check_${check}.py --self-test)
endforeach()

tetrad_style_test(kernels_doc ${Python3_EXECUTABLE} ${scripts}/make_kernels_doc.py --check)
tetrad_style_test(kernels_doc_can_fail ${Python3_EXECUTABLE} ${scripts}/make_kernels_doc.py --self-test)

tetrad_style_test(errors_doc ${Python3_EXECUTABLE} ${scripts}/check_errors_doc.py)
tetrad_style_test(errors_doc_can_fail ${Python3_EXECUTABLE} ${scripts}/check_errors_doc.py --self-test)

# Generated files; scripts/generate writes them. Against an empty folder each check must fail.
foreach(maker board cli_docs metrics_doc)
  set(arguments)
  if(NOT maker STREQUAL "board")
    set(arguments --tetrad $<TARGET_FILE:tetrad>)
  endif()
  tetrad_style_test(${maker} ${Python3_EXECUTABLE} ${scripts}/make_${maker}.py --check ${arguments})
  tetrad_style_test(${maker}_can_fail ${Python3_EXECUTABLE} ${scripts}/make_${maker}.py --check ${arguments} --root ${CMAKE_BINARY_DIR}/style)
  set_tests_properties(style.${maker}_can_fail PROPERTIES PASS_REGULAR_EXPRESSION "is not up to date")
endforeach()

file(GLOB_RECURSE formatted CONFIGURE_DEPENDS
     ${CMAKE_SOURCE_DIR}/src/*.h ${CMAKE_SOURCE_DIR}/src/*.cpp ${CMAKE_SOURCE_DIR}/src/*.cu ${CMAKE_SOURCE_DIR}/src/*.cuh
     ${CMAKE_SOURCE_DIR}/tests/*.h ${CMAKE_SOURCE_DIR}/tests/*.cpp
     ${CMAKE_SOURCE_DIR}/bench/*.h ${CMAKE_SOURCE_DIR}/bench/*.cpp)
find_program(TETRAD_CLANG_FORMAT clang-format-14 REQUIRED)
tetrad_style_test(format ${TETRAD_CLANG_FORMAT} --dry-run -Werror ${formatted})
file(WRITE ${CMAKE_BINARY_DIR}/style/.clang-format "BasedOnStyle: InheritParentConfig\n")
file(WRITE ${CMAKE_BINARY_DIR}/style/format.cpp "int  main( ){return 0 ;}\n")
tetrad_style_test(format_can_fail ${TETRAD_CLANG_FORMAT} --dry-run -Werror ${CMAKE_BINARY_DIR}/style/format.cpp)
set_tests_properties(style.format_can_fail PROPERTIES PASS_REGULAR_EXPRESSION "clang-format-violations")

# clang-tidy takes seconds a file: one test each, so that ctest spreads them over the cores and names the file that fails.
find_program(TETRAD_CLANG_TIDY clang-tidy-14 REQUIRED)
set(tidy ${TETRAD_CLANG_TIDY} --quiet -p ${CMAKE_BINARY_DIR} --config-file=${CMAKE_SOURCE_DIR}/.clang-tidy)
file(GLOB tidied CONFIGURE_DEPENDS RELATIVE ${CMAKE_SOURCE_DIR} ${CMAKE_SOURCE_DIR}/src/*.cpp ${CMAKE_SOURCE_DIR}/src/*/*.cpp)
option(TETRAD_TIDY "One clang-tidy test for every source" OFF)
if(TETRAD_TIDY)
  foreach(source ${tidied})
    tetrad_style_test(tidy.${source} ${tidy} ${source})
  endforeach()
endif()
file(WRITE ${CMAKE_BINARY_DIR}/style/tidy.cpp "#include <string>\n#include <utility>\n"
     "std::size_t f(std::string a) {\n  std::string b = std::move(a);\n  return a.size() + b.size();\n}\n")
tetrad_style_test(tidy_can_fail ${tidy} ${CMAKE_BINARY_DIR}/style/tidy.cpp -- -std=c++20)
set_tests_properties(style.tidy_can_fail PROPERTIES PASS_REGULAR_EXPRESSION "error: .*bugprone-use-after-move")
