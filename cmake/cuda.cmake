# Decides whether the CUDA backend is part of this build, or its sources are compiled and left at that: a compiler must be there. Nothing
# else of the product depends on it.
set(TETRAD_WITH_CUDA OFF)
set(TETRAD_WITH_CUDA_CHECK OFF)
set(TETRAD_CUDA_ARCHITECTURES "80;89;90a;120" CACHE STRING "GPU targets: sm_90a is the tuned one, the others take the portable path")
include(CheckLanguage)
find_program(TETRAD_NVCC nvcc HINTS /usr/local/cuda/bin)
if(TETRAD_NVCC AND NOT CMAKE_CUDA_COMPILER)
  set(CMAKE_CUDA_COMPILER ${TETRAD_NVCC})
endif()
set(CMAKE_CUDA_ARCHITECTURES ${TETRAD_CUDA_ARCHITECTURES})
check_language(CUDA)
if(NOT CMAKE_CUDA_COMPILER)
  message(STATUS "CUDA: nvcc was not found; the CPU product is built, src/cuda is left out and not compiled")
  return()
endif()
enable_language(CUDA)
find_package(CUDAToolkit REQUIRED)
set(TETRAD_WITH_CUDA ${TETRAD_CUDA})
if(NOT TETRAD_CUDA)
  set(TETRAD_WITH_CUDA_CHECK ON)
endif()
# CMake 3.25 does not know how nvcc is told C++20.
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_EXTENSIONS OFF)
set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
if(TETRAD_CCACHE)
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${TETRAD_CCACHE})
endif()

# Every rounding point is written out: no multiply and add are fused but by name. fmt 9 does not know that nvcc can do constexpr.
function(tetrad_kernel_options target)
  get_target_property(warnings tetrad_warnings INTERFACE_COMPILE_OPTIONS)
  target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:${warnings}>" $<$<COMPILE_LANGUAGE:CUDA>:-fmad=false -Xcompiler=-Wall>)
  target_compile_definitions(${target} PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:FMT_CONSTEVAL=> $<$<COMPILE_LANGUAGE:CUDA>:FMT_USE_CONSTEXPR=1>)
endfunction()

function(tetrad_cuda_sources variable)
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/cuda/*.cpp ${CMAKE_SOURCE_DIR}/src/cuda/runtime/*.cpp
       ${CMAKE_SOURCE_DIR}/src/cuda/kernels/*.cu)
  set(${variable} ${sources} PARENT_SCOPE)
endfunction()

function(tetrad_cuda_layer)
  tetrad_cuda_sources(sources)
  add_library(tetrad_cuda STATIC ${sources})
  target_include_directories(tetrad_cuda PUBLIC ${CMAKE_SOURCE_DIR}/src)
  target_link_libraries(tetrad_cuda PUBLIC tetrad_model CUDA::cudart_static)
  tetrad_kernel_options(tetrad_cuda)
  target_compile_options(tetrad_cuda PRIVATE "$<$<COMPILE_LANGUAGE:CUDA>:-Werror;all-warnings>")
endfunction()

# The same sources for the same targets, to see that they compile: up to device code that is not optimised, for nothing links them. The front
# end judges host code too. They name the libraries of their headers and not tetrad_model, for which they would wait.
function(tetrad_cuda_check)
  tetrad_cuda_sources(sources)
  add_library(tetrad_cuda_check OBJECT ${sources})
  target_include_directories(tetrad_cuda_check PRIVATE ${CMAKE_SOURCE_DIR}/src)
  target_link_libraries(tetrad_cuda_check PRIVATE fmt::fmt nlohmann_json::nlohmann_json CUDA::cudart_static)
  tetrad_kernel_options(tetrad_cuda_check)
  target_compile_options(tetrad_cuda_check PRIVATE "$<$<COMPILE_LANGUAGE:CUDA>:-Werror;all-warnings;-fatbin>"
                                                   $<$<COMPILE_LANGUAGE:CXX>:-O0>)
  set_target_properties(tetrad_cuda_check PROPERTIES UNITY_BUILD OFF)
  # Not optimised, wgmma is no quicker in the assembler, which prints hundreds of lines of advice.
  list(FILTER sources INCLUDE REGEX "\\.cu$")
  list(FILTER sources EXCLUDE REGEX "wgmma")
  set_source_files_properties(${sources} PROPERTIES COMPILE_OPTIONS "-Xcicc=-O0;-Xptxas=-O0")
endfunction()
