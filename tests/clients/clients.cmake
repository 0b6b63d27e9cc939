# The server before clients as users have them (docs/testing.md). tetrad_scripted_server answers from a script instead of a model.
add_executable(tetrad_scripted_server ${CMAKE_CURRENT_SOURCE_DIR}/clients/scripted_server.cpp
                                      ${CMAKE_CURRENT_SOURCE_DIR}/support/scripted_backend.cpp)
target_link_libraries(tetrad_scripted_server PRIVATE tetrad_cli tetrad_warnings)
target_include_directories(tetrad_scripted_server PRIVATE ${CMAKE_SOURCE_DIR}/tests)
set_target_properties(tetrad_scripted_server PROPERTIES UNITY_BUILD OFF)
if(TETRAD_SANITIZE)
  target_compile_options(tetrad_scripted_server PRIVATE -O0)  # the code under test is in the libraries
endif()

function(tetrad_client_suite name python)
  add_test(NAME ${TETRAD_TEST_PREFIX}clients.${name}
           COMMAND ${python} ${CMAKE_CURRENT_SOURCE_DIR}/clients/${name}.py --tetrad $<TARGET_FILE:tetrad>
                   --scripted $<TARGET_FILE:tetrad_scripted_server> --model ${CMAKE_SOURCE_DIR}/models/tetrad-tiny)
  set_tests_properties(${TETRAD_TEST_PREFIX}clients.${name} PROPERTIES LABELS clients ${TETRAD_BINARY_TEST_PROPERTIES})
endfunction()

# Of the standard library: in every tree.
tetrad_client_suite(wire ${Python3_EXECUTABLE})
tetrad_client_suite(leaving ${Python3_EXECUTABLE})
tetrad_client_suite(load ${Python3_EXECUTABLE})
tetrad_client_suite(evaluation ${Python3_EXECUTABLE})
tetrad_client_suite(soak ${Python3_EXECUTABLE})

# Of the Python registry: once is enough. A list of packages, by its name for scripts/setup_clients.sh ("" the first), and its suites.
function(tetrad_package_suites list)
  set(suffix "")
  if(list)
    set(suffix "_${list}")
  endif()
  set(setup ${TETRAD_TEST_PREFIX}clients.setup${suffix})
  add_test(NAME ${setup} COMMAND ${CMAKE_SOURCE_DIR}/scripts/setup_clients.sh ${Python3_EXECUTABLE} ${list})
  set_tests_properties(${setup} PROPERTIES LABELS clients TIMEOUT 600 FIXTURES_SETUP client_packages${suffix})
  string(REPLACE "_${list}" "-${list}" folder "clients${suffix}")
  foreach(suite ${ARGN})
    tetrad_client_suite(${suite} ${CMAKE_SOURCE_DIR}/build/${folder}/bin/python)
    set_tests_properties(${TETRAD_TEST_PREFIX}clients.${suite} PROPERTIES FIXTURES_REQUIRED client_packages${suffix})
  endforeach()
endfunction()

option(TETRAD_MORE_CLIENTS "Run guidellm and agents against the server too" OFF)
if(NOT TETRAD_SANITIZE)
  tetrad_package_suites("" openai_sdk openai_responses anthropic_sdk)
  tetrad_package_suites(lm_evaluation lm_evaluation)
  if(TETRAD_MORE_CLIENTS)
    tetrad_package_suites(guidellm_load guidellm_load)
    tetrad_package_suites(agents agents)
  endif()
endif()
