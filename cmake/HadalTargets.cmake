# hadal_unite(<target>): with HADAL_UNITY the compiler gets up to twelve of the target's sources at a time, all of one
# folder of src/ or tests/. They then share the time that their headers take, and names in their anonymous namespaces must
# differ. CMake's own UNITY_BUILD writes absolute paths into its sources, so ccache would see other files in each clone.
function(hadal_unite target)
  if(NOT HADAL_UNITY)
    return()
  endif()
  # GCC takes the sources for headers, in which a class should have no member of an anonymous namespace's type.
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-subobject-linkage>)
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR})
  # At the end of the directory all properties of the sources are set. EVAL, because arguments of DEFER are evaluated late.
  cmake_language(EVAL CODE "cmake_language(DEFER CALL hadal_unite_sources ${target})")
endfunction()

# Replaces the target's sources by files that include up to twelve of them. A source with options of its own, or with the
# property HADAL_APART, stays as it is.
function(hadal_unite_sources target)
  get_target_property(sources ${target} SOURCES)
  set(result "")
  set(folders "")
  foreach(source IN LISTS sources)
    get_filename_component(path ${source} ABSOLUTE)
    file(RELATIVE_PATH path ${PROJECT_SOURCE_DIR} ${path})
    set(apart "")
    foreach(property HADAL_APART COMPILE_DEFINITIONS COMPILE_OPTIONS)
      get_source_file_property(value ${source} ${property})
      if(value)
        set(apart ${property})
      endif()
    endforeach()
    if(apart OR NOT path MATCHES "^((src|tests)/[^/]+)/.*[.]cpp$")
      list(APPEND result ${source})
    else()
      string(MAKE_C_IDENTIFIER ${CMAKE_MATCH_1} folder)
      list(APPEND folders ${folder})
      list(APPEND sources_of_${folder} ${path})
    endif()
  endforeach()
  list(REMOVE_DUPLICATES folders)
  foreach(folder IN LISTS folders)
    set(number 0)
    while(sources_of_${folder})
      list(SUBLIST sources_of_${folder} 0 12 part)
      list(REMOVE_ITEM sources_of_${folder} ${part})
      list(TRANSFORM part REPLACE "(.+)" "#include \"\\1\"\n")
      list(JOIN part "" text)
      set(united ${CMAKE_CURRENT_BINARY_DIR}/${target}_united/${folder}_${number}.cpp)
      file(CONFIGURE OUTPUT ${united} CONTENT "${text}" @ONLY)
      list(APPEND result ${united})
      math(EXPR number "${number} + 1")
    endwhile()
  endforeach()
  set_property(TARGET ${target} PROPERTY SOURCES ${result})
endfunction()

# hadal_library(<folder> [DEPS …] [PRIVATE_DEPS …] [PRECOMPILED <name>] [APART])
#   Makes one static library `hadal_<folder>` from the folder's .cpp files, subfolders included. DEPS are the folders it
#   may include; PRECOMPILED names a header of cmake/precompiled/ ("libraries" when it is left out). APART: each source
#   is always compiled alone.
function(hadal_library name)
  cmake_parse_arguments(ARG "APART" "PRECOMPILED" "DEPS;PRIVATE_DEPS;SOURCES" ${ARGN})
  if(NOT ARG_PRECOMPILED)
    set(ARG_PRECOMPILED libraries)
  endif()
  if(NOT ARG_SOURCES)
    file(GLOB_RECURSE ARG_SOURCES CONFIGURE_DEPENDS *.cpp)
  endif()
  if(NOT ARG_SOURCES)  # headers only
    add_library(hadal_${name} INTERFACE)
    target_include_directories(hadal_${name} INTERFACE ${PROJECT_SOURCE_DIR}/src)
    target_link_libraries(hadal_${name} INTERFACE ${ARG_DEPS})
    return()
  endif()
  add_library(hadal_${name} STATIC ${ARG_SOURCES})
  target_include_directories(hadal_${name} PUBLIC ${PROJECT_SOURCE_DIR}/src)
  target_compile_options(hadal_${name} PRIVATE ${HADAL_WARNINGS})
  target_link_libraries(hadal_${name} PUBLIC ${ARG_DEPS} PRIVATE ${ARG_PRIVATE_DEPS})
  hadal_precompile(hadal_${name} ${ARG_PRECOMPILED})
  if(NOT ARG_APART)
    hadal_unite(hadal_${name})
  endif()
endfunction()

# Makes the library of tests/source_dir.h, for tests and benches. Only its source is compiled with the path of
# the repository.
add_library(hadal_source_dir STATIC EXCLUDE_FROM_ALL ${PROJECT_SOURCE_DIR}/tests/source_dir.cpp)
target_include_directories(hadal_source_dir PUBLIC ${PROJECT_SOURCE_DIR})
target_compile_definitions(hadal_source_dir PRIVATE HADAL_SOURCE_DIR="${PROJECT_SOURCE_DIR}")

# Tests are optimised less than the code that they test, because compiling them is a third of a build and they
# run fast enough.
set(HADAL_TEST_OPTIONS $<$<CONFIG:Release>:-O1>)

# hadal_tests(<folder> DEPS … [SHARDS n]): makes one GoogleTest binary `<folder>_test` from the folder's
# *_test.cpp files. It is one ctest test `<folder>`, or n tests `<folder>_0` and so on, each of which runs a
# part of its cases.
function(hadal_tests name)
  cmake_parse_arguments(ARG "" "SHARDS" "DEPS;SOURCES" ${ARGN})
  if(NOT ARG_SOURCES)
    file(GLOB_RECURSE ARG_SOURCES CONFIGURE_DEPENDS *.cpp)
  endif()
  if(NOT ARG_SOURCES)
    return()
  endif()
  add_executable(${name}_test ${ARG_SOURCES})
  target_compile_options(${name}_test PRIVATE ${HADAL_WARNINGS} ${HADAL_TEST_OPTIONS})
  target_link_libraries(${name}_test PRIVATE ${ARG_DEPS} hadal_source_dir GTest::gmock GTest::gtest_main)
  hadal_precompile(${name}_test tests)
  hadal_unite(${name}_test)
  # Tests provoke failing allocations on purpose, so the address sanitizer must report them to the program.
  set(environment "ASAN_OPTIONS=allocator_may_return_null=1")
  if(NOT ARG_SHARDS)
    hadal_unit_test(${name} ${name}_test "${environment}")
    return()
  endif()
  math(EXPR last "${ARG_SHARDS} - 1")
  foreach(shard RANGE ${last})
    hadal_unit_test(${name}_${shard} ${name}_test "${environment};GTEST_TOTAL_SHARDS=${ARG_SHARDS};GTEST_SHARD_INDEX=${shard}")
  endforeach()
endfunction()

# hadal_unit_test(<name> <binary> <environment> [ARG…]): makes a ctest test. Its environment names the file of
# its report, which scripts/run_tests.py reads.
function(hadal_unit_test name binary environment)
  add_test(NAME ${name} COMMAND ${binary} ${ARGN})
  set_tests_properties(${name} PROPERTIES LABELS unit TIMEOUT 1800
    ENVIRONMENT "GTEST_OUTPUT=json:${CMAKE_CURRENT_BINARY_DIR}/${name}.json;${environment}")
endfunction()

# hadal_bench(<folder> DEPS …): makes one Google Benchmark binary `<folder>_bench` from the folder's *_bench.cpp files.
function(hadal_bench name)
  cmake_parse_arguments(ARG "" "" "DEPS" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS *_bench.cpp)
  if(NOT sources)
    return()
  endif()
  add_executable(${name}_bench ${sources})
  target_compile_options(${name}_bench PRIVATE ${HADAL_WARNINGS})
  target_link_libraries(${name}_bench PRIVATE ${ARG_DEPS} hadal_source_dir benchmark::benchmark)
endfunction()
