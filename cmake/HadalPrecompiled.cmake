# Declares precompiled headers, because the standard library, fmt, GoogleTest and Boost.JSON take most of the
# time of a file that includes them. Each header of cmake/precompiled/ is compiled once per build directory.
#
# hadal_precompiled_header(<name> DEPS …): compiles cmake/precompiled/<name>.h as libraries are compiled.
function(hadal_precompiled_header name)
  cmake_parse_arguments(ARG "" "" "DEPS" ${ARGN})
  set(source ${PROJECT_BINARY_DIR}/precompiled/${name}.cpp)
  file(CONFIGURE OUTPUT ${source} CONTENT "int main() {}  // CMake builds a precompiled header with a target, and a target has a source.\n")
  if(name STREQUAL tests)  # An executable is compiled with -fPIE; gcc refuses a header that was compiled with -fPIC.
    add_executable(hadal_precompiled_${name} EXCLUDE_FROM_ALL ${source})
    target_compile_options(hadal_precompiled_${name} PRIVATE ${HADAL_TEST_OPTIONS})
  else()
    add_library(hadal_precompiled_${name} STATIC EXCLUDE_FROM_ALL ${source})
  endif()
  target_compile_options(hadal_precompiled_${name} PRIVATE ${HADAL_WARNINGS})
  target_link_libraries(hadal_precompiled_${name} PRIVATE ${ARG_DEPS})
  # The header is found by the include path. If its absolute path were used, ccache would see another file in
  # each clone.
  target_include_directories(hadal_precompiled_${name} PRIVATE ${PROJECT_SOURCE_DIR}/cmake)
  target_precompile_headers(hadal_precompiled_${name} PRIVATE
    "$<$<COMPILE_LANGUAGE:CXX>:<precompiled/${name}.h$<ANGLE-R>>")
endfunction()

# hadal_precompile(<target> <name>): includes cmake/precompiled/<name>.h before the first line of the sources
# of `target`.
function(hadal_precompile target name)
  if(NOT HADAL_FUZZ)
    target_precompile_headers(${target} REUSE_FROM hadal_precompiled_${name})
  endif()
endfunction()

if(NOT HADAL_FUZZ)
  hadal_precompiled_header(libraries DEPS fmt::fmt Threads::Threads)
  hadal_precompiled_header(json DEPS fmt::fmt Threads::Threads Boost::headers)
  if(HADAL_TESTS)
    hadal_precompiled_header(tests DEPS fmt::fmt Threads::Threads GTest::gmock GTest::gtest)
  endif()
endif()
