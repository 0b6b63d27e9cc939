# `cmake --install build/cpu --prefix DIR`: a tree that works wherever it is put. The program finds its model by the way from itself.
include(GNUInstallDirs)
set(TETRAD_MODEL_DIR ${CMAKE_INSTALL_DATADIR}/tetrad/tetrad-tiny)
# From the root of a build tree, for a program that is not installed.
file(RELATIVE_PATH TETRAD_MODEL_FROM_BUILD ${CMAKE_BINARY_DIR} ${CMAKE_SOURCE_DIR}/models/tetrad-tiny)
file(RELATIVE_PATH TETRAD_MODEL_FROM_PROGRAM /prefix/${CMAKE_INSTALL_BINDIR} /prefix/${TETRAD_MODEL_DIR})

function(tetrad_install)
  install(TARGETS tetrad RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
  install(DIRECTORY ${CMAKE_SOURCE_DIR}/models/tetrad-tiny/ DESTINATION ${TETRAD_MODEL_DIR})
  install(FILES ${CMAKE_SOURCE_DIR}/docs/tetrad.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
  install(FILES ${CMAKE_SOURCE_DIR}/deploy/completions/tetrad DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions)
  install(FILES ${CMAKE_SOURCE_DIR}/deploy/systemd/tetrad.service DESTINATION lib/systemd/system)
  install(FILES ${CMAKE_SOURCE_DIR}/LICENSE ${CMAKE_SOURCE_DIR}/NOTICE DESTINATION ${CMAKE_INSTALL_DOCDIR})
  install(FILES ${CMAKE_SOURCE_DIR}/deploy/systemd/tetrad.env ${CMAKE_SOURCE_DIR}/deploy/systemd/gpu.conf
                ${CMAKE_SOURCE_DIR}/deploy/grafana/tetrad.json ${CMAKE_SOURCE_DIR}/deploy/prometheus/alerts.yaml
          DESTINATION ${CMAKE_INSTALL_DOCDIR}/examples)
endfunction()
