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
  set_tests_properties(${TETRAD_TEST_PREFIX}clients.${name} PROPERTIES LABELS clients TIMEOUT 300)
endfunction()

# Of the standard library: in every tree.
tetrad_client_suite(wire ${Python3_EXECUTABLE})
tetrad_client_suite(leaving ${Python3_EXECUTABLE})
tetrad_client_suite(load ${Python3_EXECUTABLE})
tetrad_client_suite(evaluation ${Python3_EXECUTABLE})
tetrad_client_suite(soak ${Python3_EXECUTABLE})

# Of the Python registry: once is enough. A suite may have a list of packages of its own.
function(tetrad_package_suite name environment)
  tetrad_client_suite(${name} ${CMAKE_SOURCE_DIR}/build/${environment}/bin/python)
  set_tests_properties(${TETRAD_TEST_PREFIX}clients.${name} PROPERTIES FIXTURES_REQUIRED ${environment})
endfunction()

if(NOT TETRAD_SANITIZE)
  add_test(NAME ${TETRAD_TEST_PREFIX}clients.setup COMMAND ${CMAKE_SOURCE_DIR}/scripts/setup_clients.sh ${Python3_EXECUTABLE})
  add_test(NAME ${TETRAD_TEST_PREFIX}clients.setup_lm_evaluation
           COMMAND ${CMAKE_SOURCE_DIR}/scripts/setup_clients.sh ${Python3_EXECUTABLE} lm_evaluation)
  set_tests_properties(${TETRAD_TEST_PREFIX}clients.setup PROPERTIES LABELS clients TIMEOUT 600 FIXTURES_SETUP clients)
  set_tests_properties(${TETRAD_TEST_PREFIX}clients.setup_lm_evaluation PROPERTIES LABELS clients TIMEOUT 600
                       FIXTURES_SETUP clients-lm_evaluation)
  tetrad_package_suite(openai_sdk clients)
  tetrad_package_suite(openai_responses clients)
  tetrad_package_suite(anthropic_sdk clients)
  tetrad_package_suite(lm_evaluation clients-lm_evaluation)
endif()
