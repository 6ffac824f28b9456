# hadal_instantiate(<sources> HEADER <header> FUNCTION <name> ARGUMENTS <list> [<list> …])
#   Makes one source for each explicit instantiation of a function template of namespace hadal::cuda, so that the
#   instantiations compile side by side. The template is defined in HEADER, a path under src/; each ARGUMENTS entry is
#   one list of template arguments. The paths of the sources are appended to the variable <sources>. Two instances with
#   the same file name are an error.
function(hadal_instantiate sources)
  cmake_parse_arguments(PARSE_ARGV 1 ARG "" "HEADER;FUNCTION" "ARGUMENTS")
  foreach(arguments IN LISTS ARG_ARGUMENTS)
    set(instance "${ARG_FUNCTION}<${arguments}>")
    string(REGEX REPLACE "WeightType::k|GemmScales::k|KvFormat::k" "" name "${instance}")
    string(REGEX REPLACE "[^A-Za-z0-9]+" "_" name "${name}")
    string(REGEX REPLACE "_$" "" name "${name}")
    set(source ${CMAKE_CURRENT_BINARY_DIR}/instantiations/${name}.cu)
    if(source IN_LIST ${sources})
      message(FATAL_ERROR "hadal_instantiate: ${instance} would overwrite ${source}, which another instance has")
    endif()
    configure_file(${PROJECT_SOURCE_DIR}/cmake/instantiation.cu.in ${source} @ONLY)
    list(APPEND ${sources} ${source})
  endforeach()
  set(${sources} ${${sources}} PARENT_SCOPE)
endfunction()
