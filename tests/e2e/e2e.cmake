# The binary from outside: models/tetrad-tiny must give the recorded answers, and faults the documented exit codes.
function(tetrad_e2e name)
  add_test(NAME ${TETRAD_TEST_PREFIX}e2e.${name}
           COMMAND ${Python3_EXECUTABLE} ${CMAKE_SOURCE_DIR}/tests/e2e/${name}.py $<TARGET_FILE:tetrad> ${ARGN})
  set_tests_properties(${TETRAD_TEST_PREFIX}e2e.${name} PROPERTIES LABELS e2e ${TETRAD_BINARY_TEST_PROPERTIES})
endfunction()

# Sanitizers make a step some ten times slower: there the prompts above 500 tokens are left to the Release tree.
set(longest_prompt 100000)
if(TETRAD_SANITIZE)
  set(longest_prompt 500)
endif()
# The commands register themselves one file each; without them there is nothing to run.
if(EXISTS ${CMAKE_SOURCE_DIR}/src/cli/run.cpp)
  tetrad_e2e(answers ${CMAKE_SOURCE_DIR}/models/tetrad-tiny ${longest_prompt})
  tetrad_e2e(exit_codes ${CMAKE_SOURCE_DIR}/models/tetrad-tiny)
  tetrad_e2e(chat_interrupt ${CMAKE_SOURCE_DIR}/models/tetrad-tiny)
  tetrad_e2e(serve ${CMAKE_SOURCE_DIR}/models/tetrad-tiny)
  tetrad_e2e(errors)
  if(NOT TETRAD_SANITIZE)
    tetrad_e2e(page ${CMAKE_SOURCE_DIR}/models/tetrad-tiny)
    # The product's own binary; python3-yaml is a package of the system's Python, which may not be the one that CMake found.
    find_program(TETRAD_PYTHON_WITH_YAML python3 PATHS /usr/bin NO_DEFAULT_PATH)
    if(NOT TETRAD_PYTHON_WITH_YAML)
      set(TETRAD_PYTHON_WITH_YAML ${Python3_EXECUTABLE})
    endif()
    add_test(NAME ${TETRAD_TEST_PREFIX}e2e.deploy
             COMMAND ${TETRAD_PYTHON_WITH_YAML} ${CMAKE_SOURCE_DIR}/tests/e2e/deploy.py $<TARGET_FILE:tetrad>)
    add_test(NAME ${TETRAD_TEST_PREFIX}e2e.install
             COMMAND ${Python3_EXECUTABLE} ${CMAKE_SOURCE_DIR}/tests/e2e/install.py ${CMAKE_COMMAND} ${CMAKE_BINARY_DIR})
    # Skipped, and shown as such, where no Python has the SDKs; the suites of clients install them.
    foreach(language curl python)
      add_test(NAME ${TETRAD_TEST_PREFIX}e2e.snippets_${language}
               COMMAND ${Python3_EXECUTABLE} ${CMAKE_SOURCE_DIR}/tests/e2e/snippets.py $<TARGET_FILE:tetrad> ${language})
    endforeach()
    foreach(name deploy install snippets_curl snippets_python)
      set_tests_properties(${TETRAD_TEST_PREFIX}e2e.${name} PROPERTIES LABELS e2e TIMEOUT 600 SKIP_RETURN_CODE 77)
    endforeach()
    set_tests_properties(${TETRAD_TEST_PREFIX}e2e.snippets_python PROPERTIES FIXTURES_REQUIRED client_packages)
  endif()
endif()

# Parts of the page alone, where there is something that runs JavaScript.
find_program(TETRAD_NODE node)
if(TETRAD_NODE AND NOT TETRAD_SANITIZE)
  foreach(part page_markdown page_tools)
    add_test(NAME ${TETRAD_TEST_PREFIX}e2e.${part}
             COMMAND ${TETRAD_NODE} ${CMAKE_SOURCE_DIR}/tests/e2e/${part}.mjs ${CMAKE_SOURCE_DIR}/src/server/page)
    set_tests_properties(${TETRAD_TEST_PREFIX}e2e.${part} PROPERTIES LABELS e2e ${TETRAD_BINARY_TEST_PROPERTIES})
  endforeach()
endif()
